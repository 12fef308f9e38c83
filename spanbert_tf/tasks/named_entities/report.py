"""A page that shows each sentence with its entities and those that the model found."""

import os
from collections.abc import Mapping

from spanbert_tf.tasks.named_entities.metrics import entity_spans
from spanbert_tf.tasks.named_entities.records import SENTENCES_FILE, SentenceLine
from spanbert_tf.tasks.report import marked_parts, render_page
from spanbert_tf.tasks.task import Outcome

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {
    "missed": "with a missed entity",
    "invented": "with a wrong entity",
    "mistyped": "with a right place and a wrong type",
}
_NOTES = ("missed", "wrong", "\u2713")


def report_page(title: str, outcome: Outcome, scores: Mapping[str, float]) -> str:
    """The page as HTML that needs nothing else."""
    sentences = outcome.records.lines(SENTENCES_FILE)
    records = [_record(*pair) for pair in zip(sentences, outcome.predicted, strict=True)]
    return render_page(
        _TEMPLATE, title, records, _FILTERS, unit="sentences", by=outcome.by, scores=scores
    )


def _record(sentence: SentenceLine, predicted: list[str]) -> dict:
    gold, found = (
        set(entity_spans(sentence, labels)) for labels in (sentence["labels"], predicted)
    )
    missed, invented = gold - found, found - gold
    types = {place[:2]: place[2] for place in missed}
    mistyped = {place for place in invented if place[:2] in types}
    places_of_mistyped = {place[:2] for place in mistyped}
    text = sentence["text"]

    def shown(places: set) -> list[str]:
        return [f"{text[start:end]} ({name})" for start, end, name in sorted(places)]

    kinds = {"missed": missed, "invented": invented, "mistyped": mistyped}
    return {
        "kinds": [name for name, places in kinds.items() if places],
        "id": sentence["id"],
        "parts": marked_parts(text, gold, found, _NOTES),
        "lists": {
            "right": shown(gold & found),
            "missed": shown({one for one in missed if one[:2] not in places_of_mistyped}),
            "wrong": shown(invented - mistyped),
            "wrong type": [
                f"{text[start:end]} ({name}, gold: {types[start, end]})"
                for start, end, name in sorted(mistyped)
            ],
        },
    }

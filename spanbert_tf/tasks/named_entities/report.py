"""A page that shows each sentence with its entities and those that the model found."""

import os
from collections.abc import Sequence

from spanbert_tf.tasks.named_entities.schema import SentenceLine
from spanbert_tf.tasks.named_entities.scoring import entity_spans
from spanbert_tf.tasks.report.page import marked_parts, render_page

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {"missed": "with a missed entity", "invented": "with a wrong entity"}


def report_page(
    title: str,
    sentences: Sequence[SentenceLine],
    predicted: Sequence[list[str]],
    scores: dict[str, float],
) -> str:
    """The page as HTML that needs nothing else.

    Args:
        title: title of the page.
        sentences: lines of `sentences.jsonl`.
        predicted: labels of their words.
        scores: scores of all sentences.
    """
    pairs = zip(sentences, predicted, strict=True)
    return render_page(
        _TEMPLATE, title, [_record(*pair) for pair in pairs], _FILTERS, scores=scores
    )


def _record(sentence: SentenceLine, predicted: list[str]) -> dict:
    gold, found = (entity_spans(sentence, labels) for labels in (sentence["labels"], predicted))
    missed, invented = (
        sorted(set(one) - set(other)) for one, other in ((gold, found), (found, gold))
    )
    text = sentence["text"]
    return {
        "kinds": ["missed"] * bool(missed) + ["invented"] * bool(invented),
        "id": sentence["id"],
        "parts": marked_parts(text, gold, found),
        "missed": [f"{text[start:end]} ({name})" for start, end, name in missed],
        "invented": [f"{text[start:end]} ({name})" for start, end, name in invented],
    }

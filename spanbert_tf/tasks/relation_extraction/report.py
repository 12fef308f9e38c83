"""A page that shows each example with its entities, the gold relation and the model's."""

import collections
import os
from collections.abc import Mapping

from spanbert_tf.tasks.relation_extraction.records import EXAMPLES_FILE, ExampleLine
from spanbert_tf.tasks.report import marked_parts, render_page
from spanbert_tf.tasks.task import Outcome

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_SHOWN_CONFUSIONS = 20
_NOTES = ("subject", "object", "subject and object")


def report_page(title: str, outcome: Outcome, scores: Mapping[str, float]) -> str:
    """The page as HTML that needs nothing else; it filters by the most frequent confusions."""
    pairs = list(zip(outcome.gold, outcome.predicted, strict=True))
    confusions = collections.Counter(pair for pair in pairs if pair[0] != pair[1])
    names = {
        pair: f"confusion-{number}"
        for number, (pair, _) in enumerate(confusions.most_common(_SHOWN_CONFUSIONS), start=1)
    }
    examples = outcome.records.lines(EXAMPLES_FILE)
    records = [
        {
            "kinds": ["wrong", names.get(pair, "rare")] if pair in confusions else [],
            "gold": pair[0],
            "predicted": pair[1],
            "probability": float(row.max()),
            "id": example["id"],
            "parts": marked_parts(example["text"], *_entities(example), _NOTES),
        }
        for example, pair, row in zip(examples, pairs, outcome.predictions, strict=True)
    ]
    filters = {"wrong": "wrong"}
    filters |= {name: f"gold {pair[0]}, predicted {pair[1]}" for pair, name in names.items()}
    return render_page(
        _TEMPLATE, title, records, filters, unit="examples", by=outcome.by, scores=scores
    )


def _entities(example: ExampleLine) -> list[list[tuple]]:
    """The subject and the object, each alone in a list, as places with their types."""
    return [[(*example[role], example[f"{role}_type"] or "")] for role in ("subject", "object")]

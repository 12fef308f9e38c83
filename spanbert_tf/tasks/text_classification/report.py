"""A page that shows each text with its gold label, the model's and how sure it was."""

import functools
import os
from collections.abc import Mapping

from spanbert_tf.tasks.report import render_page
from spanbert_tf.tasks.task import Outcome
from spanbert_tf.tasks.text_classification.records import EXAMPLES_FILE, ExampleLine

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_SURE = 0.9
_FAR = 1.0  # of a regression; a fifth of the range of STS-B
_CLASS_FILTERS = {"wrong": "errors", "sure": f"errors with a {{}} over {_SURE:.0%}"}
_NUMBER_FILTERS = {"far": f"off by {_FAR:g} or more"}


def report_page(title: str, outcome: Outcome, scores: Mapping[str, float]) -> str:
    """The page as HTML that needs nothing else; errors first, the largest on top."""
    is_regression = outcome.records.info.is_regression
    certainty = "probability" if outcome.by == "model" else "share of its class"
    record_of = _number_record if is_regression else functools.partial(_class_record, certainty)
    lines = outcome.records.lines(EXAMPLES_FILE)
    records = [
        record_of(line, label, float(row.max()))
        for line, label, row in zip(lines, outcome.predicted, outcome.predictions, strict=True)
    ]
    records.sort(key=lambda record: -record["error"])
    filters = _NUMBER_FILTERS if is_regression else _CLASS_FILTERS
    filters = {kind: called.format(certainty) for kind, called in filters.items()}
    shown = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in scores.items())
    return render_page(
        _TEMPLATE, title, records, filters, unit="texts", by=outcome.by, scores=shown
    )


def _class_record(certainty: str, line: ExampleLine, label: str, probability: float) -> dict:
    is_wrong = label != line["label"]
    kinds = ["wrong"] * is_wrong + ["sure"] * (is_wrong and probability > _SURE)
    shown = f"{certainty} {probability:.0%}"
    record = {"kinds": kinds, "certainty": shown, "error": is_wrong * probability}
    return record | _shown(line, str(line["label"]), label)


def _number_record(line: ExampleLine, number: float, _: float) -> dict:
    error = abs(number - float(line["label"]))
    record = {"kinds": ["far"] * (error >= _FAR), "certainty": f"off by {error:.2f}"}
    return record | {"error": error} | _shown(line, f"{line['label']:.2f}", f"{number:.2f}")


def _shown(line: ExampleLine, gold: str, predicted: str) -> dict:
    texts = [line[name] for name in ("text", "text_pair") if name in line]
    return {"texts": texts, "gold": gold, "predicted": predicted, "line": line["line"]}

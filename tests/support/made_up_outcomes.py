"""Outcomes of predictions that were made by hand, without records and a model."""

import types

from spanbert_tf.tasks.report import render_page
from spanbert_tf.tasks.task import Outcome


def made_up_records(lines, contexts=(), **manifest):
    """Stands for records: `contexts.jsonl` has contexts, every other file the lines."""
    return types.SimpleNamespace(
        lines=lambda name: list(contexts) if name == "contexts.jsonl" else lines,
        manifest=types.SimpleNamespace(**manifest),
    )


def made_up_outcome(lines, gold, predicted, predictions=None, by="model", labels=(), **records):
    """Labels are those of the model, or of the records where there is none."""
    model = None if by == "baseline" else types.SimpleNamespace(labels=list(labels))
    records.setdefault("labels", list(labels))
    records.setdefault("language", "en")
    predictions = predicted if predictions is None else predictions
    return Outcome(model, made_up_records(lines, **records), predictions, gold, predicted)


def page_of(task, title, outcome, scores):
    """The page of `evaluate --report`."""
    report = task.report(outcome, scores)
    language = outcome.records.manifest.language
    tables = task.tables(outcome)
    return render_page(report, title, by=outcome.by, tables=tables, language=language)

"""A page that shows each question with its passage, the gold answers and the model's."""

import os

from spanbert_tf.tasks.question_answering.answers import AnsweredQuestion
from spanbert_tf.tasks.question_answering.metrics import score_each
from spanbert_tf.tasks.question_answering.records import CONTEXTS_FILE
from spanbert_tf.tasks.report import marked_parts, render_page
from spanbert_tf.tasks.task import Outcome

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {"inexact": "no exact match", "wrong": "F1 of 0"}


def report_page(title: str, outcome: Outcome) -> str:
    """The page as HTML that needs nothing else."""
    contexts = outcome.records.lines(CONTEXTS_FILE)
    each = score_each(outcome.gold, outcome.predicted)
    columns = (outcome.gold, outcome.predictions, outcome.predicted, each)
    records = [
        _record(question, contexts[question["context_index"]], *others, outcome.by)
        for question, *others in zip(*columns, strict=True)
    ]
    means = {name: sum(score[name] for score in each) / len(each) for name in each[0]}
    return render_page(
        _TEMPLATE, title, records, _FILTERS, unit="questions", by=outcome.by, **means
    )


def _record(
    question: dict,
    context: str,
    item: AnsweredQuestion,
    answer: str,
    score: dict[str, float],
    by: str,
) -> dict:
    best = item.candidates[0]
    chosen = [(best.start, best.end)] if answer else []
    notes = ("gold", by, f"gold and {by}")
    return {
        "kinds": ["inexact"] * (score["exact_match"] == 0) + ["wrong"] * (score["f1"] == 0),
        "id": question["id"],
        "f1": score["f1"],
        "is_exact": score["exact_match"] > 0,
        "question": question["question"],
        "golds": ", ".join(dict.fromkeys(question["gold_texts"])) or "(no answer)",
        "answer": answer or "(no answer)",
        "probability": best.probability,
        "passage": marked_parts(context, question["gold_spans"], chosen, notes),
    }

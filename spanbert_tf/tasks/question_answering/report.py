"""A page that shows each question with its passage, the gold answers and the model's."""

import os
from collections.abc import Sequence

from spanbert_tf.tasks.question_answering.decoding import AnsweredQuestion
from spanbert_tf.tasks.report.page import marked_parts, render_page

_TEMPLATE = os.path.join(os.path.dirname(__file__), "report.html")
_FILTERS = {"inexact": "no exact match", "wrong": "F1 of 0"}


def report_page(
    title: str,
    questions: Sequence[dict],
    contexts: Sequence[str],
    answered: Sequence[AnsweredQuestion],
    answers: Sequence[str],
    scores: Sequence[dict[str, float]],
    by: str,
) -> str:
    """The page as HTML that needs nothing else.

    Args:
        title: title of the page.
        questions: lines of `questions.jsonl`.
        contexts: passages.
        answered: in the order of the questions.
        answers: the text that counts, empty for no answer.
        scores: `exact_match` and `f1` of each question, in percent.
        by: whose answers these are, as for `render_page`.
    """
    records = [
        _record(question, contexts[question["context_index"]], item, answer, score, by)
        for question, item, answer, score in zip(questions, answered, answers, scores, strict=True)
    ]
    means = {
        name: sum(score[name] for score in scores) / len(scores) for name in ("exact_match", "f1")
    }
    return render_page(_TEMPLATE, title, records, _FILTERS, unit="questions", by=by, **means)


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

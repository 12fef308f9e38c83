"""Scores by the official scripts, as `tf-models-official` has them."""

from collections.abc import Sequence

from official.nlp.tools import squad_evaluate_v1_1, squad_evaluate_v2_0

from spanbert_tf.question_answering.answers import AnsweredQuestion


def score_answers(
    questions: Sequence[dict], answered: Sequence[AnsweredQuestion], *, has_unanswerable: bool
) -> dict[str, float]:
    """Exact match and F1 in percent, by SQuAD's official scripts.

    MRQA's script normalises and takes the best of the gold answers as that of SQuAD 1.1 does.

    Args:
        questions: lines of `questions.jsonl`.
        answered: in the same order.
        has_unanswerable: whether questions may have no answer (SQuAD 2.0). Then the threshold for
            the null odds with the best F1 is searched on these questions, as the script does.

    Returns:
        `exact_match` and `f1`; with `has_unanswerable` they are those at the best threshold,
        `null_threshold`, and there are `has_answer_f1` and `no_answer_f1` at a threshold of 0.
    """
    predictions = {item.id: item.candidates[0].text for item in answered}
    if not has_unanswerable:
        scores = squad_evaluate_v1_1.evaluate(_dataset(questions), predictions)
        return {"exact_match": 100 * scores["exact_match"], "f1": 100 * scores["final_f1"]}
    odds = {item.id: item.null_odds for item in answered}
    at_zero = {name: text if odds[name] <= 0 else "" for name, text in predictions.items()}
    plain = squad_evaluate_v2_0.evaluate(_dataset(questions), at_zero, odds)
    best = squad_evaluate_v2_0.evaluate(_dataset(questions), predictions, odds)
    return {
        "exact_match": best["final_exact"],
        "f1": best["final_f1"],
        "null_threshold": best["final_f1_thresh"],
        "has_answer_f1": plain.get("HasAns_f1", 0.0),
        "no_answer_f1": plain.get("NoAns_f1", 0.0),
    }


def score_each(questions: Sequence[dict], answers: Sequence[str]) -> list[dict[str, float]]:
    """Exact match and F1 of each question, in percent, by SQuAD's official script.

    Args:
        questions: lines of `questions.jsonl`.
        answers: in the same order; empty for no answer, which is right where there is none.
    """
    scores = []
    for question, answer in zip(questions, answers, strict=True):
        golds = question["gold_texts"] or [""]
        one = [{**question, "gold_texts": golds, "is_impossible": False}]
        found = squad_evaluate_v1_1.evaluate(_dataset(one), {question["id"]: answer})
        scores.append(
            {"exact_match": 100.0 * found["exact_match"], "f1": 100.0 * found["final_f1"]}
            if answer or golds != [""]
            else {"exact_match": 100.0, "f1": 100.0}
        )
    return scores


def _dataset(questions: Sequence[dict]) -> list[dict]:
    """The questions in the scripts' layout."""
    qas = [
        {
            "id": question["id"],
            "is_impossible": question["is_impossible"],
            "answers": [{"text": text} for text in question["gold_texts"]],
        }
        for question in questions
    ]
    return [{"paragraphs": [{"qas": qas}]}]

"""Scores of answers by the official scripts, and the threshold of no answer.

SQuAD's scripts are those of `tf-models-official`; the other rules are in `evaluators`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from spanbert_tf.errors import MismatchError
from spanbert_tf.tasks.question_answering.answers import AnsweredQuestion
from spanbert_tf.tasks.question_answering.evaluators import SQUAD, score_answer
from spanbert_tf.text.languages import DEFAULT_LANGUAGE

# A threshold lies this far above the odds that it admits, so that rounding does not decide.
_MARGIN = 1e-3


def score_answers(
    questions: Sequence[dict],
    answered: Sequence[AnsweredQuestion],
    *,
    has_unanswerable: bool,
    null_threshold: float = 0.0,
    metric: str = SQUAD,
    language: str = DEFAULT_LANGUAGE,
) -> dict[str, float]:
    """Computes exact match and F1 in percent, by the official scripts.

    MRQA's script normalizes answers and takes the best of the gold answers, as that of SQuAD 1.1.

    Args:
        questions: the lines of `questions.jsonl`.
        answered: the answers to these questions.
        has_unanswerable: whether questions may have no answer (SQuAD 2.0).
        null_threshold: null odds above which a question counts as unanswerable.
        metric: one of `METRICS`; with `has_unanswerable`, `squad`.
        language: code of the language of the answers.

    Returns:
        `exact_match` and `f1`. With `has_unanswerable` also `has_answer_f1` and `no_answer_f1`, the
        scores of questions with and without an answer; and, as in the official script,
        `best_exact`, `best_exact_thresh`, `best_f1` and `best_f1_thresh`, the best scores that
        another threshold reaches on these questions.

    Raises:
        MismatchError: a question has no answer and `has_unanswerable` is false.
    """
    if has_unanswerable:
        return _score_squad_v2(questions, answered, null_threshold)
    for line in questions:
        if not line["gold_texts"]:
            raise MismatchError(
                f"question {line['id']!r}: has no answer, as in SQuAD 2.0; write the questions "
                "again with --version-2, and fine-tune for them"
            )
    best_texts = {item.id: item.candidates[0].text for item in answered}
    if metric != SQUAD:
        each = score_each(questions, list(best_texts.values()), metric, language)
        scores = {}
        for name in each[0]:
            scores[name] = float(np.mean([item[name] for item in each]))
        return scores
    # Imported here, since no other task or command needs the Model Garden.
    from official.nlp.tools import squad_evaluate_v1_1

    scores = squad_evaluate_v1_1.evaluate(_dataset(questions), best_texts)
    return {"exact_match": 100 * scores["exact_match"], "f1": 100 * scores["final_f1"]}


def _score_squad_v2(
    questions: Sequence[dict], answered: Sequence[AnsweredQuestion], null_threshold: float
) -> dict[str, float]:
    """Computes the scores of SQuAD 2.0, with the best scores of other thresholds."""
    from official.nlp.tools import squad_evaluate_v2_0

    final = {item.id: item.text_under(null_threshold) for item in answered}
    # With null odds of 0 the script takes the answers as they are.
    scores = squad_evaluate_v2_0.evaluate(_dataset(questions), final, dict.fromkeys(final, 0.0))
    best = _best_thresholds(questions, answered)
    return {
        "exact_match": scores["exact"],
        "f1": scores["f1"],
        "has_answer_f1": scores.get("HasAns_f1", 0.0),
        "no_answer_f1": scores.get("NoAns_f1", 0.0),
        "null_threshold": null_threshold,
        "best_exact": best["exact_match"][0],
        "best_exact_thresh": best["exact_match"][1],
        "best_f1": best["f1"][0],
        "best_f1_thresh": best["f1"][1],
    }


def choose_null_threshold(questions: Sequence[dict], answered: Sequence[AnsweredQuestion]) -> float:
    """Returns the null odds above which a question counts as unanswerable, for the best F1.

    The official script searches among probabilities: it begins at 0, which for probabilities means
    to answer no question. The odds here are differences of logits and can be negative.
    """
    return _best_thresholds(questions, answered)["f1"][1]


def _best_thresholds(
    questions: Sequence[dict], answered: Sequence[AnsweredQuestion]
) -> dict[str, tuple[float, float]]:
    """Returns for each score the best mean over all thresholds, and its lowest threshold."""
    texts = [item.candidates[0].text for item in answered]
    if_answered = score_each(questions, texts)
    if_not_answered = score_each(questions, [""] * len(texts))
    best = {}
    for name in ("exact_match", "f1"):
        answering = np.array([scores[name] for scores in if_answered])
        abstaining = np.array([scores[name] for scores in if_not_answered])
        best[name] = _best_threshold(answered, answering, abstaining)
    return best


def _best_threshold(
    answered: Sequence[AnsweredQuestion], answering: np.ndarray, abstaining: np.ndarray
) -> tuple[float, float]:
    """Returns the best mean of a score, in percent, and its threshold.

    Args:
        answered: the answers to the questions.
        answering: score of each question if it is answered.
        abstaining: score of each question if it is not answered.
    """
    odds = np.array([item.null_odds for item in answered])
    order = np.argsort(odds, kind="stable")
    ordered = odds[order]
    # gains[n]: the first n questions in the order of their odds are answered, the others are not.
    gains = np.concatenate([[0.0], np.cumsum((answering - abstaining)[order])])
    is_border = np.concatenate([[True], ordered[1:] > ordered[:-1], [True]])[: len(odds) + 1]
    num_answered = int(np.argmax(np.where(is_border, gains, -np.inf)))
    percent = float(abstaining.sum() + gains[num_answered]) / len(odds)
    if not num_answered:
        return percent, float(ordered[0]) - _MARGIN
    last = float(ordered[num_answered - 1])
    room = float(ordered[num_answered]) - last if num_answered < len(odds) else np.inf
    return percent, last + min(_MARGIN, room / 2)


def score_each(
    questions: Sequence[dict],
    answers: Sequence[str],
    metric: str = SQUAD,
    language: str = DEFAULT_LANGUAGE,
) -> list[dict[str, float]]:
    """Computes exact match and F1 of each question in percent, by the official script of a metric.

    By that of SQuAD, an empty answer is right for an unanswerable question.

    Args:
        questions: the lines of `questions.jsonl`; for other metrics than `squad`, each has a gold
            answer.
        answers: the answer to each question.
        metric: one of `METRICS`.
        language: code of the language of the answers.
    """
    if metric == SQUAD:
        return _score_each_by_squad(questions, answers)
    scores = []
    for question, answer in zip(questions, answers, strict=True):
        score = score_answer(metric, question["gold_texts"], answer, language)
        scores.append({name: 100 * value for name, value in score._asdict().items()})
    return scores


def _score_each_by_squad(
    questions: Sequence[dict], answers: Sequence[str]
) -> list[dict[str, float]]:
    from official.nlp.tools import squad_evaluate_v2_0

    scores = []
    # The script has no public function for the scores of each question. A call for each takes no
    # longer than one for all (0.6 s for 12,000 questions): normalizing answers takes the time.
    for question, answer in zip(questions, answers, strict=True):
        # The script of SQuAD 2.0 scores a question with an answer as that of 1.1 does, unless the
        # gold answer consists of articles: then it expects no answer.
        found = squad_evaluate_v2_0.evaluate(_dataset([question]), {question["id"]: answer})
        scores.append({"exact_match": found["exact"], "f1": found["f1"]})
    return scores


def _dataset(questions: Sequence[Mapping]) -> list[dict]:
    """Returns the questions in the layout of the scripts."""
    qas = []
    for question in questions:
        answers = [{"text": text} for text in question["gold_texts"]]
        is_impossible = question["is_impossible"]
        qas.append({"id": question["id"], "is_impossible": is_impossible, "answers": answers})
    return [{"paragraphs": [{"qas": qas}]}]

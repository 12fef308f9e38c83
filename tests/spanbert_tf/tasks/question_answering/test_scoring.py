"""Scores of answers whose outcome is known."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.errors import MismatchError
from spanbert_tf.tasks.question_answering.answers import AnsweredQuestion, Candidate
from spanbert_tf.tasks.question_answering.metrics import (
    choose_null_threshold,
    score_answers,
    score_each,
)


def question(identifier, *golds):
    return {"id": identifier, "gold_texts": list(golds), "is_impossible": not golds}


def answered(identifier, text, score=1.0, null_score=0.0):
    return AnsweredQuestion(identifier, (Candidate(text, 0, 1, score, 1.0),), null_score)


def test_articles_case_and_the_best_of_several_golds():
    questions = [question("1", "the Cat", "dog"), question("2", "a red mat"), question("3", "x")]
    answers = [answered("1", "cat"), answered("2", "red"), answered("3", "y")]
    scores = score_answers(questions, answers, has_unanswerable=False)
    # F1 of "red" for "red mat": precision 1, recall 1/2.
    assert scores == {
        "exact_match": pytest.approx(100 / 3),
        "f1": pytest.approx(100 * (1 + 2 / 3) / 3),
    }


def test_scores_of_each_question():
    questions = [question("1", "the cat"), question("2"), question("3"), question("4", "red mat")]
    scores = score_each(questions, ["Cat", "", "dog", ""])
    assert [score["f1"] for score in scores] == [100.0, 100.0, 0.0, 0.0]
    assert [score["exact_match"] for score in scores] == [100.0, 100.0, 0.0, 0.0]


def test_odds_at_the_threshold_are_no_reason_for_no_answer():
    """SQuAD's script, too, takes a question as unanswerable if its odds exceed the threshold."""
    found = answered("1", "cat", score=1.0, null_score=3.5)
    assert found.null_odds == 2.5
    below, above = np.nextafter([2.5, 2.5], [0.0, 5.0])
    assert [found.text_under(odds) for odds in (below, 2.5, above)] == ["", "cat", "cat"]


def test_threshold_for_no_answer_is_the_best_one():
    questions = [question("1", "cat"), question("2"), question("3", "mat"), question("4")]
    answers = [
        answered("1", "cat", null_score=-2.0),  # odds -3
        answered("2", "dog", null_score=3.0),  # odds 2
        answered("3", "mat", null_score=2.0),  # odds 1
        answered("4", "dog", null_score=5.0),  # odds 4
    ]
    threshold = choose_null_threshold(questions, answers)
    assert 1.0 < threshold < 2.0
    scores = score_answers(questions, answers, has_unanswerable=True, null_threshold=threshold)
    assert scores["f1"] == scores["exact_match"] == scores["best_f1"] == 100.0
    assert scores["has_answer_f1"] == scores["no_answer_f1"] == 100.0
    # At a threshold of 0 the third question counts as unanswerable; the best are what they were.
    at_zero = score_answers(questions, answers, has_unanswerable=True)
    assert (at_zero["f1"], at_zero["has_answer_f1"], at_zero["no_answer_f1"]) == (75.0, 50.0, 100.0)
    assert (at_zero["best_f1"], at_zero["best_f1_thresh"]) == (100.0, threshold)


def test_an_answer_of_articles_alone_is_none_to_the_script_and_to_the_threshold():
    """SQuAD 2.0's script wants no answer there."""
    questions, answers = [question("1", "the")], [answered("1", "cat")]
    threshold = choose_null_threshold(questions, answers)
    scores = score_answers(questions, answers, has_unanswerable=True, null_threshold=threshold)
    assert scores["f1"] == scores["best_f1"] == scores["best_exact"] == 100.0


def test_a_threshold_lies_between_odds_however_near():
    """The next question's odds exceed it: at them, that one would be answered, wrongly."""
    questions, near = [question("1", "cat"), question("2")], 2.0**-12
    answers = [answered("1", "cat", null_score=1.0), answered("2", "dog", null_score=1.0 + near)]
    assert [item.null_odds for item in answers] == [0.0, near]
    threshold = choose_null_threshold(questions, answers)
    assert 0.0 < threshold < near
    scores = score_answers(questions, answers, has_unanswerable=True, null_threshold=threshold)
    assert scores["f1"] == scores["best_f1"] == 100.0


def test_never_to_answer_can_be_the_best_threshold():
    """Odds that are all negative: the official search begins at 0, which here admits all."""
    questions = [question("1"), question("2"), question("3", "cat")]
    answers = [
        answered("1", "dog", null_score=0.0),  # odds -1
        answered("2", "dog", null_score=-1.0),  # odds -2
        answered("3", "dog", null_score=-2.0),  # odds -3
    ]
    threshold = choose_null_threshold(questions, answers)
    scores = score_answers(questions, answers, has_unanswerable=True, null_threshold=threshold)
    assert scores["f1"] == scores["best_f1"] == pytest.approx(200 / 3)
    assert [item.text_under(threshold) for item in answers] == ["", "", ""]


def test_exact_match_is_that_of_the_threshold_for_f1():
    """The best threshold for exact match is another one; it is reported under its own name."""
    questions = [question("1"), question("2", "red mat"), question("3", "old red mat")]
    answers = [
        answered("1", "dog", null_score=-0.5),  # odds -1.5
        answered("2", "mat", null_score=-1.0),  # odds -2
        answered("3", "red mat", null_score=0.0),  # odds -1
    ]
    threshold = choose_null_threshold(questions, answers)
    scores = score_answers(questions, answers, has_unanswerable=True, null_threshold=threshold)
    texts = [item.text_under(threshold) for item in answers]
    assert texts == ["", "mat", ""]  # F1: (1 + 2/3) / 3; with all answered (2/3 + 4/5) / 3
    assert scores["f1"] == scores["best_f1"] == pytest.approx(100 * (1 + 2 / 3) / 3)
    assert scores["exact_match"] == scores["best_exact"] == pytest.approx(100 / 3)
    # Never to answer has the same exact match: its threshold is the lowest.
    assert scores["best_exact_thresh"] < -2 < threshold


@given(
    st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(-4, 4)), min_size=1, max_size=8)
)
@settings(max_examples=40)
def test_chosen_threshold_is_the_best_of_all(rows):
    """(has an answer, is right, odds) of each question, beside every threshold there is."""
    questions = [question(str(n), *["cat"] * has) for n, (has, _, _) in enumerate(rows)]
    answers = [
        answered(str(number), "cat" if is_right else "dog", null_score=odds + 1.0)
        for number, (_, is_right, odds) in enumerate(rows)
    ]

    def f1(threshold):
        scores = score_each(questions, [item.text_under(threshold) for item in answers])
        return sum(score["f1"] for score in scores) / len(scores)

    best = max(f1(threshold) for threshold in (-5, -4, -3, -2, -1, 0, 1, 2, 3, 4))
    chosen = choose_null_threshold(questions, answers)
    scores = score_answers(questions, answers, has_unanswerable=True, null_threshold=chosen)
    assert scores["f1"] == pytest.approx(best)
    assert scores["best_f1"] == pytest.approx(best)


def test_questions_without_an_answer_need_a_task_that_has_them():
    questions = [question("7")]
    with pytest.raises(MismatchError, match=r"question .7.: has no answer.*--version-2"):
        score_answers(questions, [answered("7", "dog")], has_unanswerable=False)

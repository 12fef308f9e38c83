"""Scores of answers whose outcome is known."""

import pytest

from spanbert_tf.question_answering.answers import AnsweredQuestion, Candidate
from spanbert_tf.question_answering.evaluation import score_answers, score_each


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


def test_threshold_for_no_answer_is_the_best_one():
    questions = [question("1", "cat"), question("2"), question("3", "mat"), question("4")]
    answers = [
        answered("1", "cat", null_score=-2.0),  # odds -3
        answered("2", "dog", null_score=3.0),  # odds 2
        answered("3", "mat", null_score=2.0),  # odds 1
        answered("4", "dog", null_score=5.0),  # odds 4
    ]
    scores = score_answers(questions, answers, has_unanswerable=True)
    assert scores["f1"] == scores["exact_match"] == 100.0
    assert scores["null_threshold"] == 1.0
    # At a threshold of 0 the third question counts as unanswerable.
    assert scores["has_answer_f1"] == 50.0
    assert scores["no_answer_f1"] == 100.0

"""The answer that a question has none, among the others."""

import math
import types

import pytest

from spanbert_tf.tasks.question_answering.task import QuestionAnswering

ANN = {"score": 0.6, "start": 0, "end": 3, "answer": "Ann"}
BOB = {"score": 0.3, "start": 8, "end": 11, "answer": "Bob"}
NONE = {"score": pytest.approx(0.75), "start": 0, "end": 0, "answer": ""}


@pytest.mark.parametrize(
    ("has_unanswerable", "is_answerable", "top_k", "expected"),
    [
        (True, False, 1, NONE),
        (True, False, 2, [NONE, ANN]),
        (True, False, 3, [NONE, ANN, BOB]),
        (True, True, 1, ANN),
        (True, True, 2, [ANN, NONE]),
        (True, True, 3, [ANN, BOB, NONE]),
        (False, False, 1, ANN),
        (False, True, 2, [ANN, BOB]),
    ],
)
def test_none_is_first_or_last_with_its_probability_beside_the_best(
    has_unanswerable, is_answerable, top_k, expected
):
    found = {
        "answers": [b"Ann", b"Bob", b""],  # one candidate fewer than were asked for
        "starts": [0, 8, 0],
        "ends": [3, 11, 0],
        "probabilities": [0.6, 0.3, 0.0],
        "null_odds": math.log(3),
        "is_answerable": is_answerable,
    }
    description = types.SimpleNamespace(settings={"has_unanswerable": has_unanswerable})
    assert QuestionAnswering().answer(description, {}, found, top_k) == expected


@pytest.mark.parametrize(("top_k", "expected"), [(1, NONE), (3, [NONE])])
@pytest.mark.parametrize("is_answerable", [False, True])
def test_an_empty_passage_has_no_answer_once(is_answerable, top_k, expected):
    found = {
        "answers": [b"", b""],
        "starts": [0, 0],
        "ends": [0, 0],
        "probabilities": [0.0, 0.0],
        "null_odds": math.log(3),
        "is_answerable": is_answerable,
    }
    description = types.SimpleNamespace(settings={"has_unanswerable": True})
    assert QuestionAnswering().answer(description, {}, found, top_k) == expected

"""What an export in less than float32 says about itself."""

import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.serving.exporting import describe_difference

EXACT = {"label": [b"a", b"b"], "score": np.float32([0.5, 2.0]), "odds": np.float32([-1.0])}


@pytest.mark.parametrize(
    ("change", "answer", "difference"),
    [
        ({}, "the same", "0.0e+00"),
        ({"score": np.float32([0.5, 2.25])}, "the same", "2.5e-01"),
        ({"odds": np.float32([-1.5])}, "the same", "5.0e-01"),
        ({"label": [b"a", b"c"]}, "another", "0.0e+00"),
        ({"score": np.float32([0.5])}, "another", "0.0e+00"),
    ],
)
def test_answers_are_compared_and_numbers_where_there_are_as_many(change, answer, difference):
    exact, other = (
        {name: tf.constant(values) for name, values in outputs.items()}
        for outputs in (EXACT, EXACT | change)
    )
    assert describe_difference(exact, other) == (
        f"the README's example has {answer} answer, whose numbers differ by up to {difference}"
    )


@pytest.mark.parametrize("name", ["score", "odds"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_told_wherever_they_stand(name, number):
    """`max` of a number and NaN is the number."""
    exact = {key: tf.constant(values) for key, values in EXACT.items()}
    numbers = EXACT[name].copy()
    numbers[-1] = number
    other = {**exact, name: tf.constant(numbers)}
    assert "not all of its numbers are finite" in describe_difference(exact, other)


def test_scores_of_minus_infinity_on_both_sides_agree():
    scores = {"scores": tf.constant([-np.inf, 1.0])}
    assert describe_difference(scores, scores).endswith("differ by up to 0.0e+00")


def test_places_alone_are_compared_as_they_are():
    line = "the README's example has the same answer"
    assert describe_difference({"starts": tf.range(3)}, {"starts": tf.range(3)}) == line

"""GLUE's metrics against formulas by hand, and the files of its submissions."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, submission_text
from spanbert_tf.tasks.text_classification.metrics import (
    has_correlation,
    main_metric,
    score_labels,
)

BINARY = st.lists(st.tuples(st.sampled_from("01"), st.sampled_from("01")), min_size=1)


@settings(max_examples=40)
@given(BINARY)
def test_matthews_f1_and_accuracy_are_those_by_hand(pairs):
    gold, predicted = zip(*pairs, strict=True)
    tp, tn, fp, fn = (
        sum(pair == kind for pair in pairs)
        for kind in (("1", "1"), ("0", "0"), ("0", "1"), ("1", "0"))
    )
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    cola = score_labels(gold, predicted, dataset="cola", is_regression=False)
    expected = 100 * (tp * tn - fp * fn) / below if below else 0.0
    assert cola == {"matthews": pytest.approx(expected)}
    mrpc = score_labels(gold, predicted, dataset="mrpc", is_regression=False)
    assert mrpc["f1"] == pytest.approx(200 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0)
    assert mrpc["accuracy"] == pytest.approx(100 * (tp + tn) / len(pairs))
    assert mrpc["score"] == pytest.approx((mrpc["f1"] + mrpc["accuracy"]) / 2)


def test_f1_is_of_the_class_1_whatever_others_a_model_knows():
    gold, predicted = ["1", "1", "0", "1"], ["1", "2", "1", "0"]
    scores = score_labels(gold, predicted, dataset="mrpc", is_regression=False)
    assert scores["f1"] == pytest.approx(200 * 1 / (2 * 1 + 1 + 2))
    assert scores["accuracy"] == 25.0


def test_correlations_are_those_by_hand():
    gold, predicted = [0.0, 1.0, 2.0, 5.0], [1.0, 0.5, 3.0, 30.0]
    scores = score_labels(gold, predicted, dataset="stsb", is_regression=True)
    means = [sum(values) / 4 for values in (gold, predicted)]
    moved = [[value - mean for value in values]
             for values, mean in zip((gold, predicted), means, strict=True)]  # fmt: skip
    above = sum(a * b for a, b in zip(*moved, strict=True))
    below = math.sqrt(math.prod(sum(value**2 for value in values) for values in moved))
    assert scores["pearson"] == pytest.approx(100 * above / below)
    assert scores["spearman"] == pytest.approx(100 * (1 - 6 * 2 / (4 * 15)))  # ranks 2 1 3 4


@pytest.mark.parametrize("predicted", [[2.0, 2.0, 2.0], [math.nan, 1.0, 2.0]])
def test_undefined_correlations_are_0(predicted):
    scores = score_labels([0.0, 1.0, 2.0], predicted, dataset="stsb", is_regression=True)
    assert scores == {"pearson": 0.0, "spearman": 0.0, "score": 0.0}


@pytest.mark.parametrize(
    ("dataset", "is_regression", "expected"),
    [
        ("cola", False, True),
        ("mrpc", False, False),
        ("stsb", True, True),
        (None, True, True),
        (None, False, False),
    ],
)
def test_matthews_pearson_and_spearman_are_correlations(dataset, is_regression, expected):
    options = {"dataset": dataset, "is_regression": is_regression}
    assert has_correlation(**options) is expected
    labels = [0.0, 1.0] if is_regression else ["0", "1"]
    scores = score_labels(labels, labels, **options)
    assert bool({"matthews", "pearson", "spearman"} & set(scores)) is expected


def test_other_data_is_scored_by_accuracy_and_macro_f1():
    gold, predicted = ["a", "a", "b", "c"], ["a", "b", "b", "a"]
    scores = score_labels(gold, predicted, dataset=None, is_regression=False)
    assert scores["accuracy"] == 50.0
    assert scores["macro_f1"] == pytest.approx(100 * (1 / 2 + 2 / 3 + 0) / 3)


@pytest.mark.parametrize(
    ("dataset", "is_regression"),
    [(name, task.is_regression) for name, task in GLUE_TASKS.items()]
    + [(None, False), (None, True)],
)
def test_no_metric_has_a_second_name_and_the_best_is_chosen_by_one_that_there_is(
    dataset, is_regression
):
    """Labels for which no two metrics have the same value by chance."""
    labels = ([1.0, 2.0, 5.0, 3.0], [1.0, 3.0, 4.0, 0.0])
    if not is_regression:
        labels = (list("0011010"), list("0111000"))
    options = {"dataset": dataset, "is_regression": is_regression}
    scores = score_labels(*labels, **options)
    assert len(set(scores.values())) == len(scores)
    assert main_metric(**options) in scores
    assert ("score" in scores) is (dataset in {"mrpc", "qqp", "stsb"} or is_regression)


def test_submission_cuts_numbers_and_counts_from_0():
    assert submission_text("stsb", [-0.3, 2.5, 5.2, math.nan]) == (
        "index\tprediction\n0\t0.000\n1\t2.500\n2\t5.000\n3\t0.000\n"
    )
    assert submission_text("rte", ["entailment"]) == "index\tprediction\n0\tentailment\n"

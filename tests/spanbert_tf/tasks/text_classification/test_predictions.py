"""What a classifier says of texts, by hand."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_up_outcomes import made_up_records
from made_up_texts import VOCABULARY, write_texts

from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.text_classification.files import LabelledText, LabelledTexts
from spanbert_tf.tasks.text_classification.task import TextClassification


def model_of(labels, activation="linear", *, is_regression=False):
    """Stands for a model with these labels."""
    activation = keras.activations.get(activation)
    return types.SimpleNamespace(
        output_dense=types.SimpleNamespace(activation=activation),
        is_regression=is_regression,
        labels=labels,
    )


def predicted(model, rows):
    records = made_up_records([{"label": ""}] * len(rows), is_regression=model.is_regression)
    return TextClassification().outcome(model, records, list(rows)).predicted


def test_logits_become_probabilities_once():
    shares = tf.constant([[0.25, 0.75], [0.9, 0.1]])
    classifier = model_of(["no", "yes"])
    probabilities = TextClassification().probabilities
    np.testing.assert_allclose(probabilities(classifier, tf.math.log(shares)), shares, atol=1e-6)
    # Those of a classifier with an activation of its own are what it says.
    np.testing.assert_array_equal(probabilities(model_of(["a", "b"], "softmax"), shares), shares)
    numbers, regression = tf.constant([[2.0], [-1.0]]), model_of(["score"], is_regression=True)
    found = probabilities(regression, numbers)
    np.testing.assert_array_equal(found, numbers)
    assert predicted(regression, found.numpy()) == [2.0, -1.0]
    assert predicted(classifier, shares.numpy()) == ["yes", "no"]


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        ((1.0, 2.0, 6.0), ("score",), [3.0]),  # the mean, not the median
        (("no", "yes", "yes", "yes"), ("no", "yes"), [0.25, 0.75]),
    ],
)
def test_without_a_model_all_texts_have_the_mean_or_the_shares(labels, names, expected, tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in VOCABULARY))
    examples = [LabelledText(line, ("the cat",), label) for line, label in enumerate(labels, 1)]
    is_regression = len(names) == 1
    texts = LabelledTexts("x", examples, names, is_pair=False, is_regression=is_regression)
    write_texts(texts, tmp_path / "records", tmp_path / "vocab.txt")
    rows = TextClassification().baseline(open_records(tmp_path / "records"))
    np.testing.assert_allclose(rows, [expected] * len(labels))

"""What a classifier says of texts, by hand."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_up_texts import VOCABULARY, write_texts

from spanbert_tf.tasks.text_classification.files import LabelledText, LabelledTexts
from spanbert_tf.tasks.text_classification.predictions import (
    predict_majority,
    predicted_labels,
    probabilities,
)


class HandMade:
    """Stands for a model with these outputs."""

    def __init__(self, outputs, activation="linear", *, is_regression=False):
        self._outputs = tf.constant(outputs, tf.float32)
        activation = keras.activations.get(activation)
        self.output_dense = types.SimpleNamespace(activation=activation)
        self.is_regression = is_regression

    def __call__(self, x, training):
        return self._outputs


def test_logits_become_probabilities_once():
    shares = [[0.25, 0.75], [0.9, 0.1]]
    np.testing.assert_allclose(probabilities(HandMade(np.log(shares)), {}), shares, atol=1e-6)
    # Those of a classifier with an activation of its own are what it says.
    np.testing.assert_array_equal(
        probabilities(HandMade(shares, "softmax"), {}), np.array(shares, "float32")
    )
    numbers = [[2.0], [-1.0]]
    found = probabilities(HandMade(numbers, is_regression=True), {})
    np.testing.assert_array_equal(found, numbers)
    assert predicted_labels(found.numpy(), ("score",), is_regression=True) == [2.0, -1.0]
    rows = [np.array(row) for row in shares]
    assert predicted_labels(rows, ("no", "yes"), is_regression=False) == ["yes", "no"]


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
    rows = predict_majority(str(tmp_path / "records"))
    np.testing.assert_allclose(rows, [expected] * len(labels))

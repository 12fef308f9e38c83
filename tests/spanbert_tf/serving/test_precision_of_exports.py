"""What an export in less than float32 says about itself."""

import keras
import numpy as np
import pytest
from made_up_texts import VOCABULARY

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.serving.exporting import describe_difference
from spanbert_tf.tasks.text_classification.task import TASK


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("num_classes", [1, 3])
def test_every_text_classifier_has_sample_outputs(is_pair, num_classes):
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=64)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, 64, is_pair=is_pair)
    (outputs,) = TASK.sample_logits(SpanBertTextClassifier(backbone, num_classes, preprocessor))
    assert outputs.shape == (3, num_classes)


def test_numbers_of_a_regression_are_compared_as_they_are():
    exact, other = np.array([[0.5], [2.0], [-1.0]]), np.array([[0.5], [2.25], [-1.125]])
    assert describe_difference([exact], [other]) == "numbers differ by up to 2.5e-01"


def test_probabilities_of_classes_are_compared():
    exact, other = np.array([[0.0, 0.0], [9.0, 0.0]]), np.array([[0.0, np.log(3.0)], [9.0, 0.0]])
    expected = "probabilities differ by up to 2.5e-01; 1 of 2 most probable outputs are the same"
    assert describe_difference([exact], [other]) == expected

"""Presets of models in mixed precision, as KerasHub's and this project's classes load them."""

import json

import keras
import keras_hub
import numpy as np
import pytest
from keras_hub.src.utils import tensor_utils

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.presets.golden import encode_rows

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "span", "a", "."]
ROWS = [[2, 5, 6, 3]]

pytestmark = pytest.mark.usefixtures("shipped_classes_alone")


@pytest.fixture(params=["mixed_bfloat16", "mixed_float16"])
def classifier(request):
    keras.utils.set_random_seed(1)
    policy = request.param
    backbone = SpanBertBackbone(len(VOCABULARY), 2, 4, 32, 37, max_sequence_length=40, dtype=policy)
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 8)
    model = SpanBertTextClassifier(backbone, 3, preprocessor, dtype=policy)
    model.is_head_trained = True
    return model


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    "kind", [SpanBertTextClassifier, keras_hub.models.TextClassifier, keras_hub.models.Backbone]
)
def test_they_load_and_compute_in_the_dtype_of_their_weights(kind, classifier, tmp_path):
    classifier.save_to_preset(str(tmp_path))
    assert "mixed" not in (tmp_path / "config.json").read_text()
    assert "mixed" not in json.dumps(json.loads((tmp_path / "task.json").read_text()))
    loaded = kind.from_preset(str(tmp_path))
    assert loaded.compute_dtype == "float32"
    saved = (
        classifier if loaded.count_params() == classifier.count_params() else classifier.backbone
    )
    for expected, actual in zip(saved.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(actual, expected)
    encoder = getattr(loaded, "backbone", loaded)
    assert not np.array_equal(encode_rows(encoder, ROWS), encode_rows(classifier.backbone, ROWS))


def test_who_loads_them_may_choose_mixed_precision_again(classifier, tmp_path):
    policy = classifier.dtype_policy.name
    classifier.save_to_preset(str(tmp_path))
    loaded = SpanBertTextClassifier.from_preset(str(tmp_path), dtype=policy)
    np.testing.assert_array_equal(loaded.predict(["a span ."]), classifier.predict(["a span ."]))


def test_the_model_itself_stays_in_mixed_precision(classifier, tmp_path):
    config, before = classifier.get_config(), encode_rows(classifier.backbone, ROWS)
    classifier.save_to_preset(str(tmp_path))
    assert classifier.get_config() == config
    np.testing.assert_array_equal(encode_rows(classifier.backbone, ROWS), before)


def test_keras_hub_cannot_load_tasks_of_mixed_precision():
    """What the code works round. Where this fails, KerasHub or Keras has mended it."""
    with pytest.raises(ValueError, match="Invalid dtype: mixed_bfloat16"):
        tensor_utils.is_float_dtype("mixed_bfloat16")

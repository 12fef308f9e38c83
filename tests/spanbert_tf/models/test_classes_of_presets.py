"""Which classes a text classifier of a preset has, and whether their head is the preset's."""

import keras
import keras_hub
import numpy as np
import pytest

from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "."]
LABELS = ["no", "yes", "perhaps"]
CLASSES = [SpanBertTextClassifier, keras_hub.models.TextClassifier]

pytestmark = pytest.mark.usefixtures("shipped_classes_alone")


@pytest.fixture(scope="module")
def presets(tmp_path_factory):
    """A preset of an encoder, and one of a classifier of `LABELS` on it."""
    directory = tmp_path_factory.mktemp("presets")
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16)
    tokenizer = SpanBertTokenizer(VOCABULARY)
    backbone.save_to_preset(str(directory / "encoder"))
    tokenizer.save_to_preset(str(directory / "encoder"))
    preprocessor = SpanBertTextClassifierPreprocessor(tokenizer, 16)
    classifier = SpanBertTextClassifier(backbone, 3, preprocessor, labels=LABELS)
    classifier.is_head_trained = True
    classifier.save_to_preset(str(directory / "classifier"))
    return {name: str(directory / name) for name in ("encoder", "classifier")}


def kernel(classifier):
    return classifier.output_dense.get_weights()[0]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("preset", ["encoder", "classifier"])
def test_num_classes_asks_for_a_new_head(kind, preset, presets):
    new = kind.from_preset(presets[preset], num_classes=5)
    assert new.labels == [f"LABEL_{number}" for number in range(5)]
    assert not new.is_head_trained
    old = SpanBertTextClassifier.from_preset(presets["classifier"])
    np.testing.assert_array_equal(new.backbone.get_weights()[0], old.backbone.get_weights()[0])
    of_as_many = kind.from_preset(presets[preset], num_classes=3)
    assert not np.array_equal(kernel(of_as_many), kernel(old))


@pytest.mark.parametrize("kind", CLASSES)
def test_labels_on_an_encoder_are_the_classes_of_a_new_head(kind, presets):
    new = kind.from_preset(presets["encoder"], labels=["a", "b"])
    assert (new.labels, new.num_classes, new.output_shape) == (["a", "b"], 2, (None, 2))
    assert not new.is_head_trained


def test_labels_rename_as_many_classes_and_replace_others(presets):
    old = SpanBertTextClassifier.from_preset(presets["classifier"])
    assert old.labels == LABELS
    renamed = SpanBertTextClassifier.from_preset(presets["classifier"], labels=["a", "b", "c"])
    assert renamed.labels == ["a", "b", "c"] and renamed.is_head_trained
    np.testing.assert_array_equal(kernel(renamed), kernel(old))
    other = SpanBertTextClassifier.from_preset(presets["classifier"], labels=["a", "b"])
    assert other.labels == ["a", "b"] and not other.is_head_trained


@pytest.mark.parametrize("preset", ["encoder", "classifier"])
@pytest.mark.parametrize(
    "options",
    [
        {"num_classes": 2, "labels": ["a"]},
        {"num_classes": 2, "labels": ["a", "a"]},
        {"labels": ["a", "a"]},
        {"labels": []},
    ],
)
def test_labels_that_are_no_classes_are_refused(options, preset, presets):
    with pytest.raises(ValueError, match=r"labels must be .*different names"):
        SpanBertTextClassifier.from_preset(presets[preset], **options)


def test_an_encoder_alone_does_not_tell_the_classes(presets):
    with pytest.raises(ValueError, match="num_classes or labels must be given"):
        SpanBertTextClassifier.from_preset(presets["encoder"])

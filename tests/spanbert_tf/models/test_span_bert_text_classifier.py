"""The classifier against PyTorch's, from strings, and through presets."""

import keras
import keras_hub
import numpy as np
import pytest
import transformers
from torch_models import (
    SENTENCES,
    VOCABULARY,
    keras_inputs,
    rows_of,
    save_torch_model,
    torch_model,
    torch_outputs,
)

from spanbert_tf.conversion.convert import convert_checkpoint
from spanbert_tf.errors import BadInputError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertTextClassifier,
    SpanBertTextClassifierPreprocessor,
    SpanBertTokenizer,
)


@pytest.fixture(scope="module")
def model():
    return torch_model(transformers.BertForSequenceClassification, num_labels=3)


@pytest.fixture(scope="module")
def encoder_preset(model, tmp_path_factory):
    directory = tmp_path_factory.mktemp("presets")
    save_torch_model(model, directory / "source")
    source, preset = str(directory / "source"), str(directory / "preset")
    convert_checkpoint("huggingface", "keras", source, preset)
    return preset


@pytest.fixture(scope="module")
def classifier(model, encoder_preset):
    classifier = SpanBertTextClassifier.from_preset(encoder_preset, num_classes=3)
    linear = model.classifier
    classifier.output_dense.set_weights(
        [linear.weight.detach().numpy().T, linear.bias.detach().numpy()]
    )
    return classifier


def test_logits_are_those_of_pytorch(classifier, model):
    rows = rows_of(VOCABULARY)
    logits = classifier(keras_inputs(rows), training=False)
    np.testing.assert_allclose(logits, torch_outputs(model, rows).logits, atol=2e-5, rtol=0)


def test_strings_and_pairs_are_packed_as_by_huggingface(classifier, model):
    preprocessor = SpanBertTextClassifierPreprocessor(classifier.preprocessor.tokenizer, 16)
    ids = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = transformers.BertTokenizerFast(vocab=ids, do_lower_case=True)
    pairs = SENTENCES[:2], SENTENCES[2:]
    for texts in ((SENTENCES,), pairs):
        expected = tokenizer(*map(list, texts), padding="max_length", max_length=16)
        packed = preprocessor(x=tuple(map(list, texts)) if len(texts) == 2 else texts[0])
        for ours, theirs in (
            ("token_ids", "input_ids"),
            ("segment_ids", "token_type_ids"),
            ("padding_mask", "attention_mask"),
        ):
            np.testing.assert_array_equal(packed[ours], expected[theirs])


def test_fits_on_strings_and_keeps_its_head_in_a_preset(classifier, tmp_path):
    classifier.preprocessor.sequence_length = 16
    classifier.compile(optimizer=keras.optimizers.Adam(1e-3))
    classifier.fit(list(SENTENCES), [0, 1, 2, 0], batch_size=2, verbose=0)
    expected = classifier.predict(list(SENTENCES), verbose=0)
    classifier.save_to_preset(str(tmp_path / "preset"))
    for loaded in (
        SpanBertTextClassifier.from_preset(str(tmp_path / "preset")),
        keras_hub.models.TextClassifier.from_preset(str(tmp_path / "preset")),
    ):
        assert type(loaded) is SpanBertTextClassifier
        np.testing.assert_allclose(loaded.predict(list(SENTENCES), verbose=0), expected, atol=1e-5)
    new = SpanBertTextClassifier.from_preset(str(tmp_path / "preset"), num_classes=5)
    assert new.predict(list(SENTENCES), verbose=0).shape == (4, 5)


def test_head_is_never_random_without_a_word(encoder_preset):
    with pytest.raises(BadInputError, match="no trained head"):
        SpanBertTextClassifier.from_preset(encoder_preset)


def test_segabert_reads_no_strings():
    backbone = SpanBertBackbone(
        len(VOCABULARY), 1, 2, 8, 8, max_sequence_length=16, position_embeddings="segment_aware"
    )
    preprocessor = SpanBertTextClassifierPreprocessor(SpanBertTokenizer(VOCABULARY), 16)
    with pytest.raises(ValueError, match="preprocessor=None"):
        SpanBertTextClassifier(backbone, 2, preprocessor)
    names = ("token_ids", "segment_ids", "padding_mask")
    indices = ("paragraph_indices", "sentence_indices", "token_indices")
    rows = {name: np.ones((2, 4), "int32") for name in (*names, *indices)}
    assert SpanBertTextClassifier(backbone, 2)(rows).shape == (2, 2)

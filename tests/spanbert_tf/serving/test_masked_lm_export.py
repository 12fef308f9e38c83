"""The exported model, in a process that has TensorFlow and TensorFlow Text only."""

import os
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.errors import BadInputError
from spanbert_tf.models import (
    SpanBertBackbone,
    SpanBertMaskedLM,
    SpanBertMaskedLMPreprocessor,
    SpanBertTokenizer,
)
from spanbert_tf.tasks.fill_mask import FillMaskGraph
from spanbert_tf.tasks.prediction import export_preset

WORDS = ["the", "a", "cat", "dog", "sat", "##s", "on", "mat", ".", "mask", "[", "]"]
# [PAD] is not 0, so that a 0 which should be [PAD] is seen.
VOCABULARY = ["[CLS]", "[SEP]", "[MASK]", *WORDS, "[UNK]", "[PAD]"]
CLS, SEP, MASK, UNK = (VOCABULARY.index(name) for name in ("[CLS]", "[SEP]", "[MASK]", "[UNK]"))
LENGTH, TOP_K = 10, 3

# Texts, and their pieces as far as a row has room for them.
TEXTS = {
    b"The [MASK] sat on a mat.": "the [MASK] sat on a mat .",
    b"[MASK]s[MASK] the": "[MASK] [UNK] [MASK] the",
    b"no masks": "[UNK] mask ##s",
    b"": "",
    b"  [MASK]  ": "[MASK]",
    b"[mask]": "[ mask ]",
    b"the \xff [MASK] \xc3": "the [UNK] [MASK] [UNK]",
    b"a\x00[MASK]": "a [MASK]",
    b"the [MASK] cats on a mat [MASK] [MASK] [MASK]": "the [MASK] cat ##s on a mat [MASK]",
}
MOST_MASKS = 4  # two of them are cut off

# KerasHub and this package cannot be imported there. (TensorFlow Text itself imports Keras.)
SERVING_PROGRAM = """
import sys
sys.modules.update(dict.fromkeys(("keras_hub", "keras_nlp", "spanbert_tf")))
import numpy
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load(sys.argv[1])
inputs = dict(numpy.load(sys.argv[2]))
texts = tf.constant(inputs.pop("texts").tobytes().split(b"|"))
outputs = {}
fill = model.signatures["serving_default"]
for name, batch in [("all", texts), ("none", texts[:0])] + [
    (str(number), texts[number : number + 1]) for number in range(len(texts))
]:
    filled = fill(texts=batch)
    outputs[name + "_probabilities"] = filled["probabilities"]
    outputs[name + "_fillings"] = numpy.array(filled["fillings"].numpy(), "S16")
for name, value in model.signatures["pack"](texts=texts).items():
    outputs["rows_" + name] = value
for name, value in model.signatures["token_ids"](**inputs).items():
    outputs["packed_" + name] = value
numpy.savez(sys.argv[3], **outputs)
"""


@pytest.fixture(scope="module")
def masked_lm():
    keras.utils.set_random_seed(1)
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 16, 17, max_sequence_length=LENGTH)
    tokenizer = SpanBertTokenizer(VOCABULARY, lowercase=True)
    preprocessor = SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=LENGTH)
    model = SpanBertMaskedLM(backbone, preprocessor)
    random = np.random.default_rng(1)
    model.is_head_trained = True
    model.set_weights([random.normal(0, 0.5, w.shape).astype("float32") for w in model.weights])
    return model


@pytest.fixture(scope="module")
def preset(masked_lm, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("presets") / "preset")
    masked_lm.save_to_preset(directory)
    return directory


@pytest.fixture(scope="module")
def packed():
    token_ids = np.full((2, 6), VOCABULARY.index("[PAD]"), "int32")
    token_ids[0] = [CLS, MASK, 5, 6, MASK, SEP]
    token_ids[1, :3] = [CLS, MASK, SEP]
    padding_mask = np.array([[1] * 6, [1, 1, 1, 0, 0, 0]], "int32")
    mask_positions = np.array([[1, 4], [1, 1]], "int32")
    return {"token_ids": token_ids, "padding_mask": padding_mask, "mask_positions": mask_positions}


@pytest.fixture(scope="module")
def served(preset, packed, tmp_path_factory):
    """What the SavedModel answers after its directory was moved."""
    directory = tmp_path_factory.mktemp("served")
    path = export_preset(preset, str(directory / "model"), version=7, top_k=TOP_K)
    assert path == str(directory / "model" / "7")
    moved = shutil.move(path, directory / "moved")
    texts = np.frombuffer(b"|".join(TEXTS), "uint8")
    np.savez(directory / "inputs.npz", texts=texts, **packed)
    paths = [str(moved), str(directory / "inputs.npz"), str(directory / "outputs.npz")]
    subprocess.run([sys.executable, "-c", SERVING_PROGRAM, *paths], check=True)
    with np.load(paths[2]) as file:
        return dict(file)


def most_probable(masked_lm, token_ids, positions):
    """Ids and probabilities of one row's masks, by numpy."""
    inputs = {
        "token_ids": np.array([token_ids]),
        "segment_ids": np.zeros((1, len(token_ids)), "int32"),
        "padding_mask": np.ones((1, len(token_ids)), "int32"),
        "mask_positions": np.array([positions]),
    }
    logits = np.array(masked_lm(inputs, training=False), "float64")[0]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    choices = np.argsort(-probabilities, axis=-1)[:, :TOP_K]
    return choices, np.take_along_axis(probabilities, choices, axis=-1)


@pytest.fixture(scope="module")
def expected(masked_lm):
    """Fillings and probabilities of each text, [masks, TOP_K]."""
    answers = []
    for pieces in TEXTS.values():
        row = [CLS, *(VOCABULARY.index(piece) for piece in pieces.split()), SEP]
        assert len(row) <= LENGTH
        masks = [position for position, token in enumerate(row) if token == MASK]
        choices, probabilities = most_probable(masked_lm, row, masks or [0])
        fillings = np.array(VOCABULARY, "S16")[choices]
        answers.append((fillings[: len(masks)], probabilities[: len(masks)]))
    return answers


def test_texts_are_filled_as_the_model_says(served, expected):
    assert served["all_fillings"].shape == (len(TEXTS), MOST_MASKS, TOP_K)
    assert served["all_probabilities"].dtype == np.float32
    for row, (fillings, probabilities) in enumerate(expected):
        number = len(fillings)
        np.testing.assert_array_equal(served["all_fillings"][row, :number], fillings)
        np.testing.assert_allclose(
            served["all_probabilities"][row, :number], probabilities, rtol=1e-4
        )
        # No mask there, or cut off.
        assert not served["all_probabilities"][row, number:].any()
        assert (served["all_fillings"][row, number:] == b"").all()


def test_answers_do_not_depend_on_the_batch(served):
    for row, text in enumerate(TEXTS):
        fillings, probabilities = served[f"{row}_fillings"], served[f"{row}_probabilities"]
        number = text.count(b"[MASK]")
        assert fillings.shape == probabilities.shape == (1, number, TOP_K)
        np.testing.assert_array_equal(fillings[0], served["all_fillings"][row, :number])
        np.testing.assert_allclose(
            probabilities[0], served["all_probabilities"][row, :number], rtol=1e-4
        )


def test_empty_batch_has_an_empty_answer(served):
    assert served["none_fillings"].shape == (0, 0, TOP_K)


def test_texts_are_packed(served):
    rows = [[CLS, *map(VOCABULARY.index, pieces.split()), SEP] for pieces in TEXTS.values()]
    width = max(map(len, rows))
    pad = VOCABULARY.index("[PAD]")
    padded = [row + [pad] * (width - len(row)) for row in rows]
    np.testing.assert_array_equal(served["rows_token_ids"], padded)
    np.testing.assert_array_equal(served["rows_padding_mask"], np.array(padded) != pad)


def test_packed_rows_have_the_same_answers(served, packed, masked_lm):
    for row, (size, positions) in enumerate([(6, [1, 4]), (3, [1, 1])]):
        choices, probabilities = most_probable(
            masked_lm, packed["token_ids"][row, :size], positions
        )
        np.testing.assert_array_equal(served["packed_filling_ids"][row], choices)
        np.testing.assert_allclose(
            served["packed_probabilities"][row], probabilities, rtol=1e-4, atol=1e-6
        )


def refused(preset, output, words, **options):
    before = sorted(os.listdir(output)) if os.path.isdir(output) else None
    with pytest.raises(BadInputError, match=words) as caught:
        export_preset(preset, str(output), **options)
    assert "\n" not in str(caught.value)
    after = sorted(os.listdir(output)) if os.path.isdir(output) else None
    assert after in (before, []), after


def test_rows_of_the_embedding_without_an_entry_are_no_fillings(masked_lm):
    """An embedding is often padded; here the rows beyond the vocabulary are the most probable."""
    config = masked_lm.backbone.get_config() | {"vocabulary_size": len(VOCABULARY) + 3}
    padded = SpanBertMaskedLM(SpanBertBackbone.from_config(config), masked_lm.preprocessor)
    for own, other in zip(padded.weights, masked_lm.get_weights(), strict=True):
        values = np.full(own.shape, 0.0, "float32")
        values[: len(other)] = other
        if own.shape != other.shape and len(own.shape) == 1:
            values[len(other) :] = 1000.0
        own.assign(values)
    texts = tf.constant(list(TEXTS))
    modules = [FillMaskGraph(model, top_k=len(VOCABULARY)) for model in (masked_lm, padded)]
    expected, found = (tf.function(module.fill_texts)(texts) for module in modules)
    np.testing.assert_array_equal(found["fillings"], expected["fillings"])
    np.testing.assert_allclose(found["probabilities"], expected["probabilities"], atol=1e-6)


def test_existing_version_is_refused(preset, tmp_path):
    (tmp_path / "2").mkdir()
    refused(preset, tmp_path, "exists already", version=2)


def test_presets_without_a_trained_head_are_refused(masked_lm, tmp_path):
    tokenizer = masked_lm.preprocessor.tokenizer
    masked_lm.backbone.save_to_preset(str(tmp_path / "encoder"))
    tokenizer.save_to_preset(str(tmp_path / "encoder"))
    refused(str(tmp_path / "encoder"), tmp_path / "out", "no trained head")
    untrained = SpanBertMaskedLM(masked_lm.backbone, SpanBertMaskedLMPreprocessor(tokenizer))
    untrained.save_to_preset(str(tmp_path / "untrained"))
    refused(str(tmp_path / "untrained"), tmp_path / "out", "never trained")


def test_what_cannot_be_exported_is_refused(preset, tmp_path):
    refused(str(tmp_path / "nothing"), tmp_path / "out", "nothing: ")
    refused(preset, tmp_path / "out", "vocabulary has 17 entries", top_k=18)


def test_models_that_need_more_than_text_are_refused(tmp_path):
    backbone = SpanBertBackbone(len(VOCABULARY), 1, 2, 16, 17, position_embeddings="segment_aware")
    tokenizer = SpanBertTokenizer(VOCABULARY)
    model = SpanBertMaskedLM(backbone, SpanBertMaskedLMPreprocessor(tokenizer))
    model.is_head_trained = True
    model.set_weights([np.ones(weight.shape) for weight in model.weights])
    model.save_to_preset(str(tmp_path / "preset"))
    refused(str(tmp_path / "preset"), tmp_path / "out", "sentences and paragraphs")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("limit", [100, 50_000])
def test_full_disk_leaves_nothing(preset, tmp_path, limit, full_disk):
    with full_disk(limit):
        refused(preset, tmp_path / "out", "free some space")

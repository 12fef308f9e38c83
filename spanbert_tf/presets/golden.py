"""The self-test of a preset, `golden.json`.

It holds the SHA-256 of each file of weights and the token ids of three sentences, which every load
compares, and the encoder's outputs for them, which are compared where weights are made.
"""

import dataclasses
import json
import os

import keras
import keras_hub
import numpy as np

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.preset import (
    ENCODER_WEIGHTS,
    GOLDEN_FILE,
    Golden,
    GoldenSentence,
    PresetFiles,
)
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models.keras_hub_presets import without_mixed_precision

SENTENCES = (
    "The span boundary objective predicts a span from the two tokens beside it.",
    "In 1876, Zoë paid 3.50 for an Übersetzung (unabridged).",
    "Short.",
)
_NUM_VALUES = 8  # the first values of an output vector that are stored
# Relative to the largest value. Processors and GPUs differ by 1e-5, wrong weights by more.
_TOLERANCE = 1e-3
_WEIGHT_ENDINGS = (".weights.h5", ".weights.json", ".npz")


def write_golden(
    directory: str, backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
) -> None:
    """Writes `golden.json` into a preset whose weights are written, and tests whether they load.

    Args:
        directory: directory of the preset.
        backbone: the encoder that was saved.
        tokenizer: the tokenizer that was saved.

    Raises:
        BadInputError: the saved weights compute other outputs than the encoder.
    """
    is_exact = _holds_what_it_saved(backbone, directory)
    with weights_are_loaded():
        loaded = keras_hub.models.Backbone.from_preset(
            directory, dtype="float32", load_weights=not is_exact
        )
    if backbone.variable_dtype != "float32":
        backbone = loaded
    names = [name for name in sorted(os.listdir(directory)) if name.endswith(_WEIGHT_ENDINGS)]
    checksums = {name: sha256(os.path.join(directory, name)) for name in names}
    golden = Golden(checksums, _run_sentences(backbone, tokenizer))
    with open(os.path.join(directory, GOLDEN_FILE), "w", encoding="utf-8") as file:
        json.dump(dataclasses.asdict(golden), file)
    if is_exact:  # both encoders share the values read, so that these are in memory once
        backbone.load_weights(os.path.join(directory, ENCODER_WEIGHTS))
        for weight, read in zip(loaded.weights, backbone.weights, strict=True):
            weight.assign(read.value)
    check_outputs(PresetFiles(directory), loaded, tokenizer)


def _holds_what_it_saved(backbone: keras_hub.models.Backbone, directory: str) -> bool:
    """Whether an encoder has the same values as its file: in float32, not in shards."""
    is_one_file = os.path.exists(os.path.join(directory, ENCODER_WEIGHTS))
    return is_one_file and backbone.variable_dtype == "float32"


def check_token_ids(preset: PresetFiles, tokenizer: keras_hub.tokenizers.Tokenizer) -> None:
    """Compares the token ids of a loaded tokenizer with `golden.json`, if there is one.

    Args:
        preset: the preset.
        tokenizer: the tokenizer that was loaded from it.

    Raises:
        BadInputError: token ids differ.
    """
    sentences = preset.golden.sentences
    if not sentences:
        return
    for sentence, ids in zip(sentences, golden_rows(tokenizer), strict=False):
        if ids != sentence.token_ids:
            raise BadInputError(
                f"{preset}: {sentence.text!r} has other token ids than in {GOLDEN_FILE}"
            )


def check_outputs(
    preset: PresetFiles,
    backbone: keras_hub.models.Backbone,
    tokenizer: keras_hub.tokenizers.Tokenizer,
) -> None:
    """Compares the outputs with `golden.json`, if any: the self-test where weights are made.

    Args:
        preset: the preset.
        backbone: the encoder that was loaded from it, with weights in float32.
        tokenizer: the tokenizer that was loaded from it.

    Raises:
        BadInputError: token ids or outputs differ.
    """
    check_token_ids(preset, tokenizer)
    sentences = preset.golden.sentences
    if not sentences:
        return
    for sentence, found in zip(sentences, _run_sentences(backbone, tokenizer), strict=False):
        expected = sentence.first_and_last_output
        outputs = found.first_and_last_output
        if list(map(len, expected)) != list(map(len, outputs)):
            raise BadInputError(
                f"{preset}: {GOLDEN_FILE} has outputs of another shape; copy the preset again, or "
                f"remove {GOLDEN_FILE}"
            )
        difference = np.abs(np.subtract(outputs, expected)).max() / np.abs(expected).max()
        if not difference <= _TOLERANCE:
            raise BadInputError(
                f"{preset}: the encoder's output for {found.text!r} is {difference:.1%} off "
                f"{GOLDEN_FILE}; this version does not compute what the preset was saved with"
            )


def golden_rows(tokenizer: keras_hub.tokenizers.Tokenizer) -> list[list[int]]:
    """Returns the sentences as rows of token ids, with [CLS] and [SEP]."""
    start = tokenizer.start_token_id
    end = tokenizer.end_token_id
    return [[start, *np.asarray(tokenizer(text)).tolist(), end] for text in SENTENCES]


def encode_rows(backbone: keras_hub.models.Backbone, rows: list[list[int]]) -> list[np.ndarray]:
    """Computes the output for each row, float32 [row's length, H], in paragraph and sentence 0."""
    lengths = [min(len(row), backbone.max_sequence_length) for row in rows]
    token_ids = np.zeros((len(rows), max(lengths)), "int32")
    for target, row, length in zip(token_ids, rows, lengths, strict=True):
        target[:length] = row[:length]
    positions = np.broadcast_to(np.arange(max(lengths), dtype="int32"), token_ids.shape)
    features = {
        "token_ids": token_ids,
        "padding_mask": (positions < np.array(lengths)[:, np.newaxis]).astype("int32"),
        "token_indices": positions,
    }
    zeros = np.zeros_like(token_ids)
    inputs = {name: features.get(name, zeros) for name in backbone.input}
    sequence_output = backbone(inputs, training=False)["sequence_output"]  # [rows, S, H]
    outputs = keras.ops.convert_to_numpy(sequence_output).astype("float32")
    return [output[:length] for output, length in zip(outputs, lengths, strict=True)]


def _run_sentences(
    backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
) -> list[GoldenSentence]:
    rows = golden_rows(tokenizer)
    with without_mixed_precision(backbone):  # outputs are compared in float32
        outputs = encode_rows(backbone, rows)
    found = []
    for text, token_ids, output in zip(SENTENCES, rows, outputs, strict=True):
        first, last = output[[0, -1], :_NUM_VALUES].astype("float64").tolist()
        found.append(GoldenSentence(text, token_ids, (first, last)))
    return found

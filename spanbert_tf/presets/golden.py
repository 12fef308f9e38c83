"""`golden.json`: tells whether a preset that was copied or uploaded is still what was saved.

It holds the SHA-256 of each file of weights, and the encoder's outputs for three sentences.
"""

import dataclasses
import json
import os
import re
from typing import ClassVar

import keras
import keras_hub
import numpy as np
from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import is_file_name, sha256
from spanbert_tf.files.preset_files import GOLDEN_FILE
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.models.preset_precision import without_mixed_precision
from spanbert_tf.text.vocabulary import END_TOKEN, START_TOKEN

_ADVICE = f"copy the preset again, or remove {GOLDEN_FILE}"
SENTENCES = (
    "The span boundary objective predicts a span from the two tokens beside it.",
    "In 1876, Zoë paid 3.50 for an Übersetzung (unabridged).",
    "Short.",
)
_NUM_VALUES = 8  # of each output vector
# Of the largest value. Processors and GPUs differ by 1e-5, a wrong weight or activation by more.
_TOLERANCE = 1e-3
_FILE_NAME = re.compile(r"[\w.-]{1,255}")
_WEIGHT_ENDINGS = (".weights.h5", ".weights.json", ".npz")


@dataclasses.dataclass(frozen=True)
class _Sentence:
    text: str
    token_ids: list[int]
    # First and last position; as many values of each.
    first_and_last_output: tuple[list[float], list[float]]

    __pydantic_config__: ClassVar[dict] = {"allow_inf_nan": False}


@dataclasses.dataclass(frozen=True)
class _Golden:
    """The content of the file: checksums of the weights, and what they compute."""

    weights: dict[str, str]
    sentences: list[_Sentence]


def write_golden(
    directory: str, backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
) -> None:
    """Writes `golden.json` into a preset whose weights are there.

    Args:
        directory: directory of the preset.
        backbone: the encoder that was saved.
        tokenizer: the one that was saved.
    """
    if backbone.variable_dtype != "float32":
        backbone = keras_hub.models.Backbone.from_preset(directory, dtype="float32")
    content = {
        "weights": {
            name: sha256(os.path.join(directory, name))
            for name in sorted(os.listdir(directory))
            if name.endswith(_WEIGHT_ENDINGS)
        },
        "sentences": [
            {"text": text, "token_ids": ids, "first_and_last_output": outputs}
            for text, ids, outputs in _run_sentences(backbone, tokenizer)
        ],
    }
    with open(os.path.join(directory, GOLDEN_FILE), "w", encoding="utf-8") as file:
        json.dump(content, file)


def check_weights(preset: str) -> None:
    """Compares the files of weights with `golden.json`, if there is one.

    Args:
        preset: what `from_preset` takes.

    Raises:
        BadInputError: a file differs or is missing.
    """
    for name, expected in _read(preset).weights.items():
        if not (_FILE_NAME.fullmatch(name) and is_file_name(name)):
            raise BadInputError(
                f"{preset}: {GOLDEN_FILE}: {name[:200]!a} is no file's name; {_ADVICE}"
            )
        if not preset_utils.check_file_exists(preset, name):
            raise BadInputError(f"{preset}: {name} is missing; copy the preset again")
        if sha256(preset_utils.get_file(preset, name)) != expected:
            raise BadInputError(
                f"{preset}: {name} is not the file that {GOLDEN_FILE} describes; copy the preset "
                f"again, or remove {GOLDEN_FILE} if the change was meant"
            )


def check_outputs(
    preset: str, backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
) -> None:
    """Compares what a loaded preset computes with `golden.json`, if there is one.

    Args:
        preset: what `from_preset` took.
        backbone: as loaded, its weights in float32.
        tokenizer: as loaded.

    Raises:
        BadInputError: token ids or outputs differ.
    """
    sentences = _read(preset).sentences
    for saved, (text, ids, outputs) in zip(
        sentences, _run_sentences(backbone, tokenizer), strict=False
    ):
        if ids != saved.token_ids:
            raise BadInputError(f"{preset}: {text!r} has other token ids than in {GOLDEN_FILE}")
        if list(map(len, saved.first_and_last_output)) != list(map(len, outputs)):
            raise BadInputError(f"{preset}: {GOLDEN_FILE} has outputs of another shape; {_ADVICE}")
        expected = np.array(saved.first_and_last_output)
        difference = np.abs(outputs - expected).max() / np.abs(expected).max()
        if not difference <= _TOLERANCE:
            raise BadInputError(
                f"{preset}: the encoder's output for {text!r} is {difference:.1%} off "
                f"{GOLDEN_FILE}; this version does not compute what the preset was saved with"
            )


def golden_rows(tokenizer: keras_hub.tokenizers.Tokenizer) -> list[list[int]]:
    """The sentences as rows of token ids, with [CLS] and [SEP]."""
    start, end = tokenizer.token_to_id(START_TOKEN), tokenizer.token_to_id(END_TOKEN)
    return [[start, *np.asarray(tokenizer(text)).tolist(), end] for text in SENTENCES]


def encode_rows(backbone: keras_hub.models.Backbone, rows: list[list[int]]) -> list[np.ndarray]:
    """The encoder's output for each row, float32 [row's length, H]; paragraph and sentence 0."""
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
) -> list[tuple[str, list[int], list]]:
    rows = golden_rows(tokenizer)
    with without_mixed_precision(backbone):  # outputs are compared in float32
        outputs = encode_rows(backbone, rows)
    # [first and last position, values]
    ends = [output[[0, -1], :_NUM_VALUES].astype("float64").tolist() for output in outputs]
    return list(zip(SENTENCES, rows, ends, strict=True))


def _read(preset: str) -> _Golden:
    if not preset_utils.check_file_exists(preset, GOLDEN_FILE):
        return _Golden({}, [])
    with open(preset_utils.get_file(preset, GOLDEN_FILE), "rb") as file:
        return parse_json(file.read(), _Golden, f"{preset}: {GOLDEN_FILE}", _ADVICE)

"""`golden.json`: how a preset is known again after it was copied, uploaded or loaded elsewhere.

It holds the SHA-256 of each file of weights, and what the encoder makes of three sentences.
"""

import hashlib
import json
import os

import keras
import keras_hub
import numpy as np
from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError
from spanbert_tf.vocabulary import END_TOKEN, START_TOKEN

GOLDEN_FILE = "golden.json"
SENTENCES = (
    "The span boundary objective predicts a span from the two tokens beside it.",
    "In 1876, Zoë paid 3.50 for an Übersetzung (unabridged).",
    "Short.",
)
_NUM_VALUES = 8  # of each output vector
# Of the largest value. Processors and GPUs differ by 1e-5, a wrong weight or activation by more.
_TOLERANCE = 1e-3
_WEIGHT_ENDINGS = (".weights.h5", ".weights.json", ".npz")


def write_golden(
    directory: str, backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
) -> None:
    """Writes `golden.json` into a preset whose weights are there.

    Args:
        directory: of the preset.
        backbone: the encoder that was saved.
        tokenizer: the one that was saved.
    """
    if backbone.compute_dtype != "float32":  # outputs are compared in float32
        backbone = keras_hub.models.Backbone.from_preset(directory, dtype="float32")
    content = {
        "weights": {
            name: _sha256(os.path.join(directory, name))
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
    for name, expected in _read(preset).get("weights", {}).items():
        if not preset_utils.check_file_exists(preset, name):
            raise BadInputError(f"{preset}: {name} is missing; copy the preset again")
        if _sha256(preset_utils.get_file(preset, name)) != expected:
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
        backbone: as loaded, in float32.
        tokenizer: as loaded.

    Raises:
        BadInputError: token ids or outputs differ.
    """
    sentences = _read(preset).get("sentences", [])
    for saved, (text, ids, outputs) in zip(
        sentences, _run_sentences(backbone, tokenizer), strict=False
    ):
        if ids != saved["token_ids"]:
            raise BadInputError(f"{preset}: {text!r} has other token ids than in {GOLDEN_FILE}")
        expected = np.array(saved["first_and_last_output"])
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
    outputs = []
    for row in rows:
        row = row[: backbone.max_sequence_length]
        positions = np.arange(len(row), dtype="int32")[np.newaxis]
        features = {
            "token_ids": np.array([row], "int32"),
            "padding_mask": np.ones_like(positions),
            "token_indices": positions,
        }
        zeros = np.zeros_like(positions)
        inputs = {name: features.get(name, zeros) for name in backbone.input}
        sequence_output = backbone(inputs, training=False)["sequence_output"]
        outputs.append(keras.ops.convert_to_numpy(sequence_output).astype("float32")[0])
    return outputs


def _run_sentences(
    backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
) -> list[tuple[str, list[int], list]]:
    rows = golden_rows(tokenizer)
    outputs = encode_rows(backbone, rows)
    # [first and last position, values]
    ends = [output[[0, -1], :_NUM_VALUES].astype("float64").tolist() for output in outputs]
    return list(zip(SENTENCES, rows, ends, strict=True))


def _read(preset: str) -> dict:
    if not preset_utils.check_file_exists(preset, GOLDEN_FILE):
        return {}
    return preset_utils.load_json(preset, GOLDEN_FILE)


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

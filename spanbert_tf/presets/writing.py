"""Writes a preset directory, whole or not at all, with its card and what it is checked by.

`golden.json` holds the SHA-256 of each file of weights and the token ids of three sentences, which
every load compares, and the encoder's outputs for them, which are compared where weights are made.
`README.md` is the model card (Mitchell et al., 2019, in short).
"""

import dataclasses
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import ClassVar

import keras
import keras_hub
import numpy as np
from keras_hub.src.utils import preset_utils

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import is_file_name, sha256
from spanbert_tf.files.output import Output
from spanbert_tf.files.paths import is_remote
from spanbert_tf.files.preset_files import CARD_FILE, GOLDEN_FILE, PRESET_KIND
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.layers import weights_are_loaded
from spanbert_tf.models.keras_hub_presets import preset_bytes, without_mixed_precision
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone, was_trained
from spanbert_tf.terminal import escape_controls
from spanbert_tf.text.vocabulary import Casing

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


def write_preset(
    model: keras_hub.models.Task | keras_hub.models.Backbone,
    directory: str,
    *,
    tokenizer: keras_hub.tokenizers.Tokenizer | None = None,
    write_more: Callable[[str], None] | None = None,
    more_bytes: int = 0,
    facts: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a preset, its model card and its golden outputs.

    Args:
        model: a task with its preprocessor, or a backbone.
        directory: directory of the preset.
        tokenizer: tokenizer to save with a backbone; a task brings its own.
        write_more: is called with the unfinished directory.
        more_bytes: bytes that `write_more` writes at most.
        facts: lines of the model card: what → value.
        overwrite: whether an earlier preset may be replaced.

    Raises:
        BadInputError: the directory exists or cannot be written; what was there is as it was.
    """
    with Output(directory, PRESET_KIND, overwrite=overwrite).written() as unfinished:
        _check_space(unfinished, preset_bytes(model) + more_bytes)
        model.save_to_preset(unfinished)
        if tokenizer is not None:
            tokenizer.save_to_preset(unfinished)
        if write_more is not None:
            write_more(unfinished)
        read_by = tokenizer or model.preprocessor.tokenizer
        write_golden(unfinished, getattr(model, "backbone", model), read_by)
        write_model_card(unfinished, model, read_by, facts or {})


def _check_space(directory: str, num_bytes: int) -> None:
    """Raises an `OSError` unless a file of a size can be written to a directory.

    HDF5 ends the process with a segmentation fault when it cannot write what it has buffered, and
    a file system's own count of free bytes knows nothing of quotas and limits.
    """
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
            return
        chunk = bytes(1 << 20)
        for start in range(0, num_bytes, len(chunk)):
            file.write(chunk[: num_bytes - start])


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
    """Writes `golden.json` into a preset whose weights are there, and tests whether they load.

    Args:
        directory: directory of the preset.
        backbone: the encoder that was saved.
        tokenizer: the one that was saved.

    Raises:
        BadInputError: what was saved computes something else than the encoder.
    """
    is_exact = _holds_what_it_saved(backbone, directory)
    with weights_are_loaded():
        loaded = keras_hub.models.Backbone.from_preset(
            directory, dtype="float32", load_weights=not is_exact
        )
    if backbone.variable_dtype != "float32":
        backbone = loaded
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
    if is_exact:  # both share what is read, so that the weights are in memory once
        backbone.load_weights(os.path.join(directory, preset_utils.MODEL_WEIGHTS_FILE))
        for weight, read in zip(loaded.weights, backbone.weights, strict=True):
            weight.assign(read.value)
    check_outputs(directory, loaded, tokenizer)


def _holds_what_it_saved(backbone: keras_hub.models.Backbone, directory: str) -> bool:
    """Whether an encoder's own values are those in its file: float32, no shards."""
    is_one_file = os.path.exists(os.path.join(directory, preset_utils.MODEL_WEIGHTS_FILE))
    return is_one_file and backbone.variable_dtype == "float32"


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


def check_token_ids(preset: str, tokenizer: keras_hub.tokenizers.Tokenizer) -> None:
    """Compares how a loaded preset reads text with `golden.json`, if there is one.

    Args:
        preset: what `from_preset` took.
        tokenizer: as loaded.

    Raises:
        BadInputError: token ids differ.
    """
    if not (saved := _read(preset).sentences):
        return
    for sentence, ids in zip(saved, golden_rows(tokenizer), strict=False):
        if ids != sentence.token_ids:
            raise BadInputError(
                f"{preset}: {sentence.text!r} has other token ids than in {GOLDEN_FILE}"
            )


def check_outputs(
    preset: str, backbone: keras_hub.models.Backbone, tokenizer: keras_hub.tokenizers.Tokenizer
) -> None:
    """The self-test where weights are made: they compute what `golden.json` says, if there is one.

    Args:
        preset: what `from_preset` took.
        backbone: as loaded, its weights in float32.
        tokenizer: as loaded.

    Raises:
        BadInputError: token ids or outputs differ.
    """
    check_token_ids(preset, tokenizer)
    if not (saved := _read(preset).sentences):
        return
    for sentence, (text, _, outputs) in zip(
        saved, _run_sentences(backbone, tokenizer), strict=False
    ):
        if list(map(len, sentence.first_and_last_output)) != list(map(len, outputs)):
            raise BadInputError(f"{preset}: {GOLDEN_FILE} has outputs of another shape; {_ADVICE}")
        expected = np.array(sentence.first_and_last_output)
        difference = np.abs(outputs - expected).max() / np.abs(expected).max()
        if not difference <= _TOLERANCE:
            raise BadInputError(
                f"{preset}: the encoder's output for {text!r} is {difference:.1%} off "
                f"{GOLDEN_FILE}; this version does not compute what the preset was saved with"
            )


def golden_rows(tokenizer: keras_hub.tokenizers.Tokenizer) -> list[list[int]]:
    """The sentences as rows of token ids, with [CLS] and [SEP]."""
    start, end = tokenizer.start_token_id, tokenizer.end_token_id
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


def write_model_card(
    directory: str,
    model: keras_hub.models.Task | keras_hub.models.Backbone,
    tokenizer: keras_hub.tokenizers.Tokenizer,
    facts: Mapping[str, str],
) -> None:
    """Writes the card of a preset.

    Args:
        directory: directory of the preset.
        model: the model that was saved.
        tokenizer: the tokenizer that was saved.
        facts: what → value: where the weights are from, configuration, data, steps, losses.
    """
    backbone = getattr(model, "backbone", model)
    casing = Casing(tokenizer.lowercase, tokenizer.strip_accents).describe()
    rows = {
        **facts,
        **_pooler(backbone),
        "Vocabulary": f"{tokenizer.vocabulary_size():,} word pieces, {casing}",
        "Parameters of the encoder": f"{_count_saved(backbone):,}",
        **{
            name: str(value)
            for name, value in backbone.get_config().items()
            if name != "name" and _is_size(value)
        },
    }
    cells = {name: escape_controls(value).replace("|", "\\|") for name, value in rows.items()}
    table = "\n".join(f"| {name} | {value} |" for name, value in cells.items())
    module = "spanbert_tf.models" if isinstance(backbone, SpanBertBackbone) else "keras_hub.models"
    text = f"""---
library_name: keras-hub
license: other  # fill in: the licence of these weights
---

# {type(model).__name__}

| | |
| --- | --- |
{table}

```python
import {module.split(".")[0]}.models

model = {module}.{type(model).__name__}.from_preset("path/of/this/directory")
```

Intended use, limits, and the licence of the text that it was trained on: fill in.
`golden.json` holds checksums of the weights and the outputs for three sentences.
"""
    with open(os.path.join(directory, CARD_FILE), "w", encoding="utf-8") as file:
        file.write(text)


def published_name(path: str) -> str:
    """What a card tells of a directory: its name, and none of the folders above, which are private.

    Args:
        path: path of a directory or a file, or a name of KerasHub's such as `hf://…`, which stays.
    """
    return path if is_remote(path) else os.path.basename(os.path.abspath(path)) or path


def _pooler(backbone: keras_hub.models.Backbone) -> dict[str, str]:
    """What there is to say of the pooler: that nothing has trained it."""
    if was_trained(backbone.pooled_dense.bias):
        return {}
    return {
        "Pooler": "never trained (pre-training on single sequences does not): random until a task "
        "that reads it is fine-tuned"
    }


def _count_saved(backbone: keras_hub.models.Backbone) -> int:
    """Parameters in the file."""
    return sum(math.prod(weight.shape) for weight in backbone.weights)


def _is_size(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)

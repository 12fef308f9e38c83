"""Saves a pre-trained model as a preset, and takes a preset's weights over into a new one.

The preset is a `SpanBertMaskedLM`. The heads that only pre-training needs (span boundary, next
sentence) lie beside it in `pretraining_heads.npz`, one array a variable.
"""

import math
import os
import shutil
import zipfile

import keras
import numpy as np

from spanbert_tf.disk_space import check_space
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_masked_lm import SpanBertMaskedLM, has_masked_lm_head
from spanbert_tf.models.span_bert_masked_lm_preprocessor import SpanBertMaskedLMPreprocessor
from spanbert_tf.models.span_bert_pretrainer import SpanBertPretrainer
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer

HEADS_FILE = "pretraining_heads.npz"
# Bytes beside the numbers: of each variable in HDF5 (2,500 to 5,000 measured), of the vocabulary
# and the configurations.
_HDF5_ENTRY, _TEXT_FILES = 8192, 4 << 20
LOADED, FRESH = "taken over", "starts fresh"


def save_pretraining_preset(
    pretrainer: SpanBertPretrainer,
    tokenizer: SpanBertTokenizer,
    directory: str,
    *,
    sequence_length: int,
) -> None:
    """Writes a preset directory, whole or not at all; an earlier one is replaced.

    Args:
        pretrainer: the trained model.
        tokenizer: of the records that it was trained on.
        directory: of the preset.
        sequence_length: positions of a row that the preset's preprocessor packs.

    Raises:
        BadInputError: the directory cannot be written; an earlier preset is there as it was.
    """
    preprocessor = SpanBertMaskedLMPreprocessor(tokenizer, sequence_length=sequence_length)
    masked_lm = SpanBertMaskedLM(pretrainer.backbone, preprocessor)
    masked_lm.masked_lm_head.set_weights(pretrainer.masked_lm_head.get_weights())
    arrays = {name: variable.numpy() for name, variable in _head_variables(pretrainer).items()}
    unfinished = f"{directory}.incomplete"
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        os.makedirs(unfinished)
        check_space(unfinished, _size_on_disk(masked_lm, arrays))
        masked_lm.save_to_preset(unfinished)
        if arrays:
            np.savez(os.path.join(unfinished, HEADS_FILE), **arrays)
        _replace_directory(unfinished, directory)
    except OSError as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise BadInputError(
            f"{directory}: cannot be written ({reason}); free some space"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _size_on_disk(masked_lm: SpanBertMaskedLM, arrays: dict[str, np.ndarray]) -> int:
    """Bytes that a preset takes at most."""
    weights = [*masked_lm.weights, *arrays.values()]
    num_bytes = sum(math.prod(weight.shape) * 4 for weight in weights)  # float32
    return num_bytes + len(weights) * _HDF5_ENTRY + _TEXT_FILES


def _replace_directory(source: str, target: str) -> None:
    """Renames a directory to the name of one that may exist."""
    earlier = f"{target}.replaced"
    shutil.rmtree(earlier, ignore_errors=True)
    if os.path.isdir(target):
        os.rename(target, earlier)
    try:
        os.rename(source, target)
    except OSError:
        if os.path.isdir(earlier):
            os.rename(earlier, target)
        raise
    shutil.rmtree(earlier, ignore_errors=True)


def load_preset_into(pretrainer: SpanBertPretrainer, preset: str) -> dict[str, str]:
    """Gives a new model the weights of a preset, part by part.

    Args:
        pretrainer: the model; its encoder must have the preset's shape.
        preset: what `from_preset` takes.

    Returns:
        What became of each part: `LOADED`, or `FRESH` and why.

    Raises:
        BadInputError: the preset is none of a `SpanBertBackbone`, or a file of it is damaged.
        MismatchError: its encoder has another shape; the message names the first difference.
    """
    try:
        backbone = SpanBertBackbone.from_preset(preset)
    except (ValueError, OSError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(f"{preset}: no preset of a SpanBertBackbone ({reason})") from error
    _check_shapes(preset, backbone, pretrainer.backbone)
    pretrainer.backbone.set_weights(backbone.get_weights())
    report = {"encoder": LOADED}
    if has_masked_lm_head(preset):
        head = SpanBertMaskedLM.from_preset(preset, preprocessor=None).masked_lm_head
        pretrainer.masked_lm_head.set_weights(head.get_weights())
        report["masked_lm_head"] = LOADED
    else:
        report["masked_lm_head"] = f"{FRESH}: the preset has none"
    return report | _load_heads(pretrainer, os.path.join(preset, HEADS_FILE))


def _check_shapes(preset: str, found: SpanBertBackbone, wanted: SpanBertBackbone) -> None:
    for name, value in wanted.get_config().items():
        is_size = name.endswith(("_size", "_dim", "_layers", "_heads", "_length", "_segments"))
        is_size = is_size or name == "position_embeddings"
        if is_size and found.get_config()[name] != value:
            raise MismatchError(
                f"{preset}: model.{name} is {found.get_config()[name]} in the preset and {value} "
                "in the configuration; set it to the preset's"
            )


def _heads(pretrainer: SpanBertPretrainer) -> list[keras.layers.Layer]:
    heads = (pretrainer.span_boundary_head, pretrainer.next_sentence_head)
    return [head for head in heads if head is not None]


def _head_variables(pretrainer: SpanBertPretrainer) -> dict[str, keras.Variable]:
    """The heads' own variables; the token embedding belongs to the encoder."""
    tied = {id(variable) for variable in pretrainer.backbone.weights}
    return {
        variable.path: variable
        for head in _heads(pretrainer)
        for variable in head.weights
        if id(variable) not in tied
    }


def _load_heads(pretrainer: SpanBertPretrainer, path: str) -> dict[str, str]:
    saved = _read_heads(path) if os.path.exists(path) else {}
    variables = _head_variables(pretrainer)
    report = {}
    for head in _heads(pretrainer):
        own = {name: variable for name, variable in variables.items() if f"{head.name}/" in name}
        missing = [name for name in own if name not in saved]
        misfits = [name for name in own if name in saved and saved[name].shape != own[name].shape]
        if missing:
            report[head.name] = f"{FRESH}: the preset has none"
        elif misfits:
            report[head.name] = f"{FRESH}: {misfits[0]} has another shape in the preset"
        else:
            for name, variable in own.items():
                variable.assign(saved[name])
            report[head.name] = LOADED
    return report


def _read_heads(path: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).splitlines()[0]
        raise BadInputError(f"{path}: is damaged ({reason}); copy the preset again") from error

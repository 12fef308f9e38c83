"""Google's BERT checkpoints for TensorFlow 1: `bert_model.ckpt` and `bert_config.json`.

The coreference resolvers of the original SpanBERT code have the same form.
"""

import contextlib
import os
import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    Array,
    Checkpoint,
    check_absolute,
    check_epsilon,
    transposed,
)
from spanbert_tf.conversion.configuration import (
    find_casing,
    find_vocabulary,
    read_sizes,
    write_google_config,
)
from spanbert_tf.conversion.names import COREFERENCE, find_entry, parts_of
from spanbert_tf.conversion.tensorflow_files import OBJECT_GRAPH, TensorFile
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.output import Output, OutputKind, os_errors

TF1_KIND = OutputKind(
    "a checkpoint of TensorFlow 1", "bert_config.json", ("bert_model.ckpt.*", "vocab.txt")
)
_PREFIX = "bert_model.ckpt"
_INDEX = re.compile(r"\.ckpt(-\d+)?\.index$")  # the step of a run may be part of the name
_OPTIMIZER = re.compile(r"(/adam_[mv]|/Adam(_1)?|^global_step|beta[12]_power)$")


@contextlib.contextmanager
def read_tf1(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Opens a directory or an archive of one. Variables of the optimizer are skipped."""
    with opened_source(path) as directory:
        sizes = read_sizes(directory, path)
        pieces = find_vocabulary(directory, path, vocabulary)
        text_rules = find_casing(directory, path, lowercase, strip_accents)
        arrays = _read_arrays(directory, path)
        yield Checkpoint(path, sizes, arrays, pieces, text_rules)


def _read_arrays(directory: str, path: str) -> dict[str, Array]:
    """Returns the arrays of the only checkpoint in a directory; `path` is the name for errors."""
    indices = sorted(filter(_INDEX.search, os.listdir(directory)))
    if len(indices) != 1:
        raise BadInputError(
            f"{path}: holds {len(indices)} *.ckpt.index or *.ckpt-STEP.index files, one is needed"
        )
    file = TensorFile(os.path.join(directory, indices[0].removesuffix(".index")), path)
    if OBJECT_GRAPH in file.shapes:
        raise BadInputError(
            f"{file.where}: is a checkpoint of TensorFlow 2; give --from model_garden"
        )
    # The table's names of the resolver, such as `output_weights`, also occur in classifiers.
    is_resolver = any("span_width_embeddings" in name for name in file.shapes)
    arrays: dict[str, Array] = {}
    for name in file.shapes:
        if _OPTIMIZER.search(name):
            continue
        entry = find_entry(name, "tf1")
        if entry is None or (entry.part == COREFERENCE and not is_resolver):
            arrays[name.replace("/", ".")] = file.array(name)  # belongs to no part
        else:
            arrays[entry.name] = file.array(name, entry, name)
    return arrays


def write_tf1(checkpoint: Checkpoint, directory: str, *, overwrite: bool = False) -> list[str]:
    """Writes `bert_model.ckpt`, `bert_config.json` and `vocab.txt`.

    Returns:
        The parts of the checkpoint that the format has no place for.

    Raises:
        BadInputError: the directory exists or cannot be written.
        MismatchError: Google's code cannot compute the model.
    """
    check_epsilon(checkpoint, "Google's code")
    check_absolute(checkpoint, "Google's code")
    _check_resolver(checkpoint)
    known = parts_of("tf1")
    found = [part for part in checkpoint.found_parts() if part in known]
    values = {}
    for entry in checkpoint.entries(found):
        array = checkpoint.arrays[entry.name]
        name = entry.name_in("tf1")
        values[name] = transposed(array) if entry.is_transposed(name) else array

    with Output(directory, TF1_KIND, overwrite=overwrite).written() as unfinished:
        with os_errors():
            tf.raw_ops.SaveV2(
                prefix=os.path.join(unfinished, _PREFIX),
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=[_tensor(value) for value in values.values()],
            )
        write_google_config(unfinished, checkpoint)
    return [part for part in checkpoint.found_parts() if part not in found]


def _tensor(value: Array) -> tf.Tensor:
    """Returns a tensor of the values.

    A tensor that was made from a NumPy array keeps the array in memory; its copy does not.
    """
    return tf.identity(tf.convert_to_tensor(np.asarray(value)))


def _check_resolver(checkpoint: Checkpoint) -> None:
    """Raises `MismatchError` for a coreference resolver of which only some arrays are there."""
    entries = checkpoint.entries([COREFERENCE])
    missing = [entry.tf1 for entry in entries if entry.name not in checkpoint.arrays]
    if missing and len(missing) < len(entries):
        raise MismatchError(
            f"{checkpoint.path}: its resolver lacks {missing[0]}, which the original code's "
            "checkpoints have. A resolver of depth 1 has no gate (coref_layer/f): train one of "
            "depth 2"
        )

"""Google's BERT checkpoints for TensorFlow 1: `bert_model.ckpt` and `bert_config.json`.

The original SpanBERT code's coreference resolvers have that form, too.
"""

import contextlib
import functools
import glob
import json
import math
import os
import re
from collections.abc import Iterator, Mapping

import numpy as np
import tensorflow as tf

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    COREFERENCE,
    SIZE_NAMES,
    VARIABLES,
    Array,
    Checkpoint,
    LazyArray,
    check_absolute,
    check_epsilon,
    check_floats,
    standard_name,
    transposed,
    variable_name,
)
from spanbert_tf.conversion.configuration import (
    find_casing,
    find_vocabulary,
    read_sizes,
    save_vocabulary,
)
from spanbert_tf.errors import BadInputError, MismatchError, reason
from spanbert_tf.files.output import Output, OutputKind, os_errors

TF1_KIND = OutputKind(
    "a checkpoint of TensorFlow 1", "bert_config.json", ("bert_model.ckpt.*", "vocab.txt")
)
_PREFIX = "bert_model.ckpt"
_PARTS = (
    *("encoder", "pooler", "masked_lm_head", "next_sentence_head", "span_classifiers"),
    COREFERENCE,
)
_INDEX = re.compile(r"\.ckpt(-\d+)?\.index$")  # of a run with its step
_OPTIMIZER = re.compile(r"(/adam_[mv]|/Adam(_1)?|^global_step|beta[12]_power)$")
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # what checkpoints of TensorFlow 2 hold beside arrays
# Names that do not follow the rule.
_NEXT_SENTENCE_MATRIX = ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight")
_RENAMED = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    _NEXT_SENTENCE_MATRIX[1]: _NEXT_SENTENCE_MATRIX[0],
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}


@contextlib.contextmanager
def read_tf1(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Reads a directory, or an archive of one; the optimizer's variables are left out."""
    with opened_source(path) as directory:
        sizes = read_sizes(directory, path)
        pieces = find_vocabulary(directory, path, vocabulary)
        casing = find_casing(directory, path, lowercase, strip_accents)
        arrays = _read_arrays(directory, path)
        yield Checkpoint(path, sizes, arrays, pieces, casing)


def _read_arrays(directory: str, path: str) -> dict[str, Array]:
    indices = sorted(filter(_INDEX.search, os.listdir(directory)))
    if len(indices) != 1:
        raise BadInputError(
            f"{path}: holds {len(indices)} *.ckpt.index or *.ckpt-STEP.index files, one is needed"
        )
    prefix = os.path.join(directory, indices[0].removesuffix(".index"))
    where = f"{path}: {indices[0]}"
    with named_damage(where):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
    refuse_absurd_sizes(shapes, dtypes, prefix, path)
    if OBJECT_GRAPH in shapes:
        raise BadInputError(f"{where}: is a checkpoint of TensorFlow 2; give --from model_garden")

    def read(name: str) -> np.ndarray:
        check_floats(dtypes[name], name, where)
        with named_damage(where):
            return reader.get_tensor(name)

    # Other classifiers have `output_weights`, too.
    is_resolver = any("span_width_embeddings" in name for name in shapes)
    return dict(
        _to_standard(name, LazyArray(shape, functools.partial(read, name)), is_resolver)
        for name, shape in shapes.items()
        if not _OPTIMIZER.search(name)
    )


@contextlib.contextmanager
def named_damage(where: str) -> Iterator[None]:
    """What TensorFlow says of a damaged checkpoint, as `BadInputError`."""
    try:
        yield
    except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
        raise BadInputError(f"{where}: is damaged ({reason(error)}); copy it again") from error


def refuse_absurd_sizes(
    shapes: Mapping[str, list[int]], dtypes: Mapping[str, tf.DType], prefix: str, path: str
) -> None:
    """Before anything is read: the tensors lie side by side, uncompressed, in the data files."""
    stated = sum(
        math.prod(shape) * (1 if dtypes[name] == tf.string else dtypes[name].size)
        for name, shape in shapes.items()
    )
    held = sum(os.path.getsize(file) for file in glob.glob(f"{glob.escape(prefix)}.data-*"))
    if stated > held:
        raise BadInputError(
            f"{path}: {os.path.basename(prefix)}.index: tells of {stated:,} bytes of tensors, and "
            f"its data files hold {held:,}; copy all of them again"
        )


def _to_standard(name: str, value: Array, is_resolver: bool) -> tuple[str, Array]:
    for standard, theirs in _RENAMED.items():
        if name == theirs:
            return standard, value
    if is_resolver and name in VARIABLES:
        return standard_name(name), value
    if name.endswith("/kernel"):
        value = transposed(value)  # [inputs, outputs] → [outputs, inputs]
    name = re.sub(r"/layer_(\d+)/", r"/layer/\1/", name)
    name = re.sub(r"/(kernel|gamma)$", "/weight", name)
    name = re.sub(r"/beta$", "/bias", name)
    name = re.sub(r"_embeddings$", "_embeddings/weight", name)
    return name.replace("/", "."), value


def _from_standard(name: str, value: Array) -> tuple[str, Array]:
    if name in _RENAMED:
        return _RENAMED[name], value
    if theirs := variable_name(name):
        return theirs, value
    stem, last = name.rsplit(".", 1)
    if stem.endswith("_embeddings"):
        theirs = stem
    elif stem.endswith("LayerNorm"):
        theirs = f"{stem}.{'gamma' if last == 'weight' else 'beta'}"
    else:
        theirs = f"{stem}.{'kernel' if last == 'weight' else 'bias'}"
        value = transposed(value) if last == "weight" else value
    theirs = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", theirs)
    return theirs.replace(".", "/"), value


def write_tf1(checkpoint: Checkpoint, directory: str, *, overwrite: bool = False) -> list[str]:
    """Writes `bert_model.ckpt`, `bert_config.json` and `vocab.txt`."""
    check_epsilon(checkpoint, "Google's code")
    check_absolute(checkpoint, "Google's code")
    _check_resolver(checkpoint)
    found = [part for part in checkpoint.found_parts() if part in _PARTS]
    parts = checkpoint.parts()
    names = [name for part in found for name in parts[part]]
    values = dict(_from_standard(name, checkpoint.arrays[name]) for name in names)

    with Output(directory, TF1_KIND, overwrite=overwrite).written() as unfinished:
        with os_errors():
            tf.raw_ops.SaveV2(
                prefix=os.path.join(unfinished, _PREFIX),
                tensor_names=list(values),
                shape_and_slices=[""] * len(values),
                tensors=list(map(_tensor, values.values())),
            )
        write_config(unfinished, checkpoint)
    return [part for part in checkpoint.found_parts() if part not in found]


def _tensor(value: Array) -> tf.Tensor:
    """The values once: a tensor that is made of an array holds them twice, its copy does not."""
    return tf.identity(tf.convert_to_tensor(np.asarray(value)))


def _check_resolver(checkpoint: Checkpoint) -> None:
    names = checkpoint.parts()[COREFERENCE]
    missing = [name for name in names if name not in checkpoint.arrays]
    if missing and len(missing) < len(names):
        raise MismatchError(
            f"{checkpoint.path}: its resolver lacks {variable_name(missing[0])}, which the "
            "original's checkpoints have; one of depth 1 has no gate (coref_layer/f): train one of "
            "depth 2"
        )


def write_config(directory: str, checkpoint: Checkpoint) -> None:
    """Writes Google's `bert_config.json` and `vocab.txt`."""
    sizes = checkpoint.sizes
    config = {
        "attention_probs_dropout_prob": sizes.get("attention_dropout", sizes["dropout"]),
        "hidden_act": "gelu",
        "hidden_dropout_prob": sizes["dropout"],
        "initializer_range": 0.02,
        **{theirs: sizes[ours] for ours, theirs in SIZE_NAMES.items()},
    }
    with open(os.path.join(directory, "bert_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    save_vocabulary(directory, checkpoint.vocabulary)

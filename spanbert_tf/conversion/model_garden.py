"""Checkpoints of the TensorFlow Model Garden: its encoders, and pre-trainers with their heads.

The models are `BertEncoder`, `BertEncoderV2` and `BertPretrainerV2` of `official.nlp.modeling`;
`tf.train.Checkpoint` and the Model Garden's trainers write such checkpoints. The key of an array is
a path of objects, which depends on the object that was saved. The object graph in the checkpoint
has the variables' own names, which do not depend on it; these are read.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    INTERMEDIATE_MATRIX,
    Array,
    Checkpoint,
    LazyArray,
    check_absolute,
    check_epsilon,
    sizes_of_arrays,
)
from spanbert_tf.conversion.configuration import (
    config_names,
    find_casing,
    find_vocabulary,
    read_sizes,
    write_google_config,
)
from spanbert_tf.conversion.names import (
    NEXT_SENTENCE_POOLER,
    PLACE_TABLE,
    SEGMENT_TABLE,
    TOKEN_TABLE,
    Entry,
    find_entry,
    parts_of,
)
from spanbert_tf.conversion.tensorflow_files import OBJECT_GRAPH, TensorFile, named_damage
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output, OutputKind, os_errors

MODEL_GARDEN_KIND = OutputKind(
    "a checkpoint of the Model Garden",
    "bert_config.json",
    ("bert_model.ckpt.*", "vocab.txt"),
)
_PREFIX = "bert_model.ckpt"
LOWERCASE = "do_lower_case"  # key of a variable of SavedModels, which has no name
# Variables of optimizers, and counters.
_UNREAD = re.compile(r"\.OPTIMIZER_SLOT|(^|/)(optimizer|save_counter|global_step)(/|$)")


@contextlib.contextmanager
def read_model_garden(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Opens a directory, or an archive of one. Of several checkpoints the latest is read."""
    with opened_source(path) as directory:
        arrays, num_heads = read_arrays(directory, path)
        if config_names(directory):
            sizes = read_sizes(directory, path)
        else:
            sizes = sizes_of(arrays, num_heads, path)
        pieces = find_vocabulary(directory, path, vocabulary)
        text_rules = find_casing(directory, path, lowercase, strip_accents)
        # `modeling.activations.gelu`, the encoders' default, is the approximation by tanh.
        yield Checkpoint(path, sizes, arrays, pieces, text_rules, approximates_gelu=True)


def _prefix(directory: str, path: str) -> str:
    """Returns the path, without `.index`, of the only checkpoint or of the latest."""
    indices = [name for name in os.listdir(directory) if name.endswith(".index")]
    if len(indices) == 1:
        return os.path.join(directory, indices[0].removesuffix(".index"))
    with named_damage(f"{path}: checkpoint"):
        state = tf.train.get_checkpoint_state(directory)
    # Only the name is used: the path is wrong after the directory was moved, and could lead out of
    # it if a stranger wrote the file.
    latest = os.path.basename(state.model_checkpoint_path) if state else ""
    if f"{latest}.index" not in indices:
        raise BadInputError(
            f"{path}: holds {len(indices)} *.index files and none that a file `checkpoint` calls "
            "the latest; leave only one there"
        )
    return os.path.join(directory, latest)


def read_arrays(directory: str, path: str) -> tuple[dict[str, Array], int]:
    """Reads the arrays of a checkpoint.

    Args:
        directory: directory of the checkpoint.
        path: the user's name for it.

    Returns:
        The arrays by the names of a `Checkpoint`, and the number of attention heads; 0 if the
        arrays do not show it.

    Raises:
        BadInputError: the checkpoint is damaged, holds several models, or its embeddings are
            narrower than its layers.
    """
    file = TensorFile(_prefix(directory, path), path)
    arrays: dict[str, Array] = {}
    poolers: dict[str, Array] = {}
    num_heads = 0
    for theirs, key in _variables(file):
        shape = file.shapes[key]
        if "embedding_projection" in theirs:
            raise BadInputError(
                f"{file.where}: its embeddings are narrower than its layers "
                "(embedding_projection); such an encoder cannot be converted"
            )
        if theirs.endswith("/query/kernel") and len(shape) == 3:  # [inputs, heads, width]
            num_heads = shape[1]
        entry = find_entry(theirs, "model_garden")
        if theirs == LOWERCASE:
            arrays[LOWERCASE] = LazyArray(shape, functools.partial(file.tensor, key))
        elif entry is None:
            arrays[theirs.replace("/", ".")] = file.array(key)  # belongs to no part
        elif entry in NEXT_SENTENCE_POOLER:
            poolers[entry.name] = file.array(key, entry, theirs)
        elif entry.name in arrays:
            raise BadInputError(f"{file.where}: holds {theirs} twice; save one model alone")
        else:
            arrays[entry.name] = file.array(key, entry, theirs)
    return arrays | poolers, num_heads


def _variables(file: TensorFile) -> Iterator[tuple[str, str]]:
    """Yields the name of each variable of the model, and the key of its tensor."""
    if OBJECT_GRAPH not in file.shapes:
        raise BadInputError(f"{file.where}: is a checkpoint of TensorFlow 1; give --from tf1")
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        graph.ParseFromString(file.tensor(OBJECT_GRAPH))
    except (DecodeError, TypeError) as error:  # TypeError: the tensor is not a string
        raise BadInputError(f"{file.where}: its object graph is damaged; copy it again") from error
    for node in graph.nodes:
        for attribute in node.attributes:
            key = attribute.checkpoint_key
            if key not in file.shapes or _UNREAD.search(key) or file.dtypes[key] == tf.string:
                continue
            if key.startswith(f"{LOWERCASE}/"):
                yield LOWERCASE, key
            else:
                yield attribute.full_name, key


def sizes_of(arrays: dict[str, Array], num_heads: int, path: str) -> dict[str, Any]:
    """Returns the arguments of `SpanBertBackbone`, as the shapes of the arrays show them.

    Args:
        arrays: arrays of a checkpoint.
        num_heads: number of attention heads.
        path: name of the checkpoint in errors.

    Raises:
        BadInputError: the arrays are not those of an encoder of the Model Garden.
    """
    needed = (TOKEN_TABLE, PLACE_TABLE, SEGMENT_TABLE, INTERMEDIATE_MATRIX)
    for name in needed:
        if name not in arrays:
            raise BadInputError(
                f"{path}: lacks {name}; it holds no encoder of the Model Garden's "
                "(BertEncoder, BertEncoderV2), alone or in a pre-trainer"
            )
    if any(len(arrays[name].shape) != 2 for name in needed) or not num_heads:
        raise BadInputError(
            f"{path}: its arrays have other shapes than the Model Garden's encoders"
        )
    return {**sizes_of_arrays(arrays, num_heads), "layer_norm_epsilon": BERT_EPSILON}


def write_model_garden(
    checkpoint: Checkpoint, directory: str, *, overwrite: bool = False
) -> list[str]:
    """Writes the encoder so that `tf.train.Checkpoint(encoder=…)` and `(model=…)` restore it.

    Returns:
        The parts of the checkpoint that the format has no place for.

    Raises:
        BadInputError: the directory exists or cannot be written.
        MismatchError: the Model Garden's encoder cannot compute the model.
    """
    check_epsilon(checkpoint, "the Model Garden's encoder")
    check_absolute(checkpoint, "the Model Garden's encoder")
    known = parts_of("objects")
    found = [part for part in checkpoint.found_parts() if part in known]

    with Output(directory, MODEL_GARDEN_KIND, overwrite=overwrite).written() as unfinished:
        encoder = tf.train.Checkpoint()
        for entry in checkpoint.entries(found):
            _add_variable(encoder, entry, checkpoint)
        # Programs call the encoder by either name; both lead to the same object.
        saved = tf.train.Checkpoint(encoder=encoder, model=encoder)
        with os_errors():
            saved.write(os.path.join(unfinished, _PREFIX))
        write_google_config(unfinished, checkpoint)
    return [part for part in checkpoint.found_parts() if part not in found]


def _add_variable(encoder: tf.train.Checkpoint, entry: Entry, checkpoint: Checkpoint) -> None:
    """Adds an array to `encoder`, at the path of attributes in the Model Garden's encoder."""
    values = np.asarray(checkpoint.arrays[entry.name])
    name = entry.name_in("model_garden")
    if entry.is_transposed(name):
        values = values.T
    values = values.reshape(entry.split_shape(values.shape, checkpoint.sizes["num_heads"]))
    *path, attribute = entry.name_in("objects").split(".")
    node = encoder
    for edge in path:
        if not hasattr(node, edge):
            setattr(node, edge, tf.train.Checkpoint())
        node = getattr(node, edge)
    setattr(node, attribute, tf.Variable(values, name=name))

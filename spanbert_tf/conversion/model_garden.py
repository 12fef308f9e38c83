"""Checkpoints of the TensorFlow Model Garden: its encoders, and pre-trainers with their heads.

`BertEncoder`, `BertEncoderV2` and `BertPretrainerV2` of `official.nlp.modeling`, as
`tf.train.Checkpoint` and the Model Garden's trainers write them. Their arrays lie under paths of
objects, which depend on what was saved; an object graph beside them has the variables' own names,
which do not.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    ENCODER,
    POOLER,
    POSITION_TABLES,
    SEGMENT_TABLE,
    TOKEN_TABLE,
    Array,
    Checkpoint,
    LazyArray,
    check_absolute,
    check_epsilon,
    check_floats,
    transposed,
)
from spanbert_tf.conversion.configuration import (
    config_names,
    find_casing,
    find_vocabulary,
    read_sizes,
)
from spanbert_tf.conversion.tf1 import (
    OBJECT_GRAPH,
    named_damage,
    refuse_absurd_sizes,
    write_config,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output, OutputKind, os_errors

MODEL_GARDEN_KIND = OutputKind(
    "a checkpoint of the Model Garden",
    "bert_config.json",
    ("bert_model.ckpt.*", "vocab.txt"),
)
_PREFIX = "bert_model.ckpt"
LOWERCASE = "do_lower_case"  # a variable of SavedModels, without a name of its own
_DROPOUT = 0.1  # BERT's; a checkpoint does not tell
_LAYER = r"transformer/layer_(\d+)"
_IN_LAYER = {
    "self_attention/query": "attention.self.query",
    "self_attention/key": "attention.self.key",
    "self_attention/value": "attention.self.value",
    "self_attention/attention_output": "attention.output.dense",
    "self_attention_layer_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
# What a variable's name ends with, and the name in a `Checkpoint` without its last part.
_NAMES = {
    "word_embeddings": TOKEN_TABLE.removesuffix(".weight"),
    "position_embedding": "bert.embeddings.position_embeddings",
    "type_embeddings": SEGMENT_TABLE.removesuffix(".weight"),
    "embeddings/layer_norm": "bert.embeddings.LayerNorm",
    "pooler_transform": "bert.pooler.dense",
    "cls/predictions/transform/dense": "cls.predictions.transform.dense",
    "cls/predictions/transform/LayerNorm": "cls.predictions.transform.LayerNorm",
    "cls/predictions/output_bias": "cls.predictions",
    # A pre-trainer's pooler stands in the head; the encoder's own, which it has as well, is not
    # read.
    "next_sentence/pooler_dense": "bert.pooler.dense",
    "next_sentence/logits": "cls.seq_relationship",
    **{
        f"{_LAYER}/{theirs}": rf"bert.encoder.layer.\1.{ours}" for theirs, ours in _IN_LAYER.items()
    },
}
# The objects of an encoder under which its variables lie, and what these are; `_NAMES` has the
# beginnings.
_OBJECTS = {
    "word_embeddings": ("_embedding_layer", "embeddings"),
    "position_embedding": ("_position_embedding_layer", "_position_embeddings"),
    "type_embeddings": ("_type_embedding_layer", "embeddings"),
    "embeddings/layer_norm": ("_embedding_norm_layer", "norm"),
    "pooler_transform": ("_pooler_layer", "dense"),
    "self_attention/query": ("_attention_layer", "_query_dense", "dense"),
    "self_attention/key": ("_attention_layer", "_key_dense", "dense"),
    "self_attention/value": ("_attention_layer", "_value_dense", "dense"),
    "self_attention/attention_output": ("_attention_layer", "_output_dense", "dense"),
    "self_attention_layer_norm": ("_attention_layer_norm", "norm"),
    "intermediate": ("_intermediate_dense", "dense"),
    "output": ("_output_dense", "dense"),
    "output_layer_norm": ("_output_layer_norm", "norm"),
}
_THEIRS = {ours: theirs for theirs, ours in {**_NAMES, **_IN_LAYER}.items() if theirs in _OBJECTS}
_RULES = tuple(
    (re.compile(rf"(?:^|.*/){theirs}/(?:embeddings|kernel|gamma|(bias|beta))$"), ours)
    for theirs, ours in _NAMES.items()
)
_HEAD_POOLER = "next_sentence/pooler_dense/"
# Of optimizers, and counters.
_UNREAD = re.compile(r"\.OPTIMIZER_SLOT|(^|/)(optimizer|save_counter|global_step)(/|$)")


@contextlib.contextmanager
def read_model_garden(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Reads a directory, of several checkpoints the latest, or an archive of one."""
    with opened_source(path) as directory:
        arrays, num_heads = read_arrays(directory, path)
        if config_names(directory):
            sizes = read_sizes(directory, path)
        else:
            sizes = sizes_of(arrays, num_heads, path)
        pieces = find_vocabulary(directory, path, vocabulary)
        casing = find_casing(directory, path, lowercase, strip_accents)
        # `modeling.activations.gelu`, the encoders' default, is the approximation by tanh.
        yield Checkpoint(path, sizes, arrays, pieces, casing, approximates_gelu=True)


def _prefix(directory: str, path: str) -> str:
    """The beginning of the names of the one checkpoint, or of the latest."""
    indices = [name for name in os.listdir(directory) if name.endswith(".index")]
    if len(indices) == 1:
        return os.path.join(directory, indices[0].removesuffix(".index"))
    with named_damage(f"{path}: checkpoint"):
        state = tf.train.get_checkpoint_state(directory)
    # A directory that was moved has its old paths in there, and a stranger's any.
    latest = os.path.basename(state.model_checkpoint_path) if state else ""
    if f"{latest}.index" not in indices:
        raise BadInputError(
            f"{path}: holds {len(indices)} *.index files and none that a file `checkpoint` calls "
            "the latest; leave one there"
        )
    return os.path.join(directory, latest)


def read_arrays(directory: str, path: str) -> tuple[dict[str, Array], int]:
    """The arrays of a checkpoint, and the number of attention heads."""
    prefix = _prefix(directory, path)
    where = f"{path}: {os.path.basename(prefix)}.index"
    with named_damage(where):
        reader = tf.train.load_checkpoint(prefix)
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
    refuse_absurd_sizes(shapes, dtypes, prefix, path)
    if OBJECT_GRAPH not in shapes:
        raise BadInputError(f"{where}: is a checkpoint of TensorFlow 1; give --from tf1")
    graph = trackable_object_graph_pb2.TrackableObjectGraph()
    try:
        with named_damage(where):
            graph.ParseFromString(reader.get_tensor(OBJECT_GRAPH))
    except (DecodeError, TypeError) as error:  # TypeError: it is no string
        raise BadInputError(f"{where}: its object graph is damaged; copy it again") from error

    def read(key: str, shape: tuple[int, ...]) -> np.ndarray:
        if LOWERCASE not in key:  # which is no weight
            check_floats(dtypes[key], key, where)
        with named_damage(where):
            return reader.get_tensor(key).reshape(shape)

    variables = [
        (LOWERCASE if key.startswith(f"{LOWERCASE}/") else attribute.full_name, key)
        for node in graph.nodes
        for attribute in node.attributes
        if (key := attribute.checkpoint_key) in shapes
        and not _UNREAD.search(key)
        and dtypes[key] != tf.string  # of no weight
    ]
    arrays: dict[str, Array] = {}
    num_heads = 0
    # The pooler of a pre-trainer's head comes last, and stays.
    for name, key in sorted(variables, key=lambda pair: _HEAD_POOLER in pair[0]):
        shape = tuple(shapes[key])
        if "embedding_projection" in name:
            raise BadInputError(
                f"{where}: its embeddings are narrower than its layers (embedding_projection), as "
                "no encoder's here are"
            )
        if name.endswith("/query/kernel") and len(shape) == 3:  # [H, heads, width of one]
            num_heads = shape[1]
        standard, flat = _standard(name, shape)
        is_known = standard.startswith(("bert.", "cls."))
        if is_known and standard in arrays and _HEAD_POOLER not in name:
            raise BadInputError(f"{where}: holds {name} twice; save one model alone")
        array: Array = LazyArray(flat, functools.partial(read, key, flat))
        is_matrix = name.endswith("/kernel") and len(flat) == 2
        arrays[standard] = transposed(array) if is_matrix else array  # [outputs, inputs]
    return arrays, num_heads


def _standard(name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """The name in a `Checkpoint` and the shape there, heads joined; other names stay, with dots."""
    flat = shape
    if len(shape) == 3 and name.endswith("attention_output/kernel"):
        flat = (shape[0] * shape[1], shape[2])  # [heads, width of one, H]
    elif len(shape) == 3 and name.endswith("/kernel"):
        flat = (shape[0], shape[1] * shape[2])  # [H, heads, width of one]
    elif len(shape) == 2 and name.endswith("/bias"):
        flat = (shape[0] * shape[1],)  # [heads, width of one]
    for pattern, ours in _RULES:
        if found := pattern.match(name):
            last = "bias" if found[found.re.groups] else "weight"
            return f"{found.expand(ours)}.{last}", flat
    return name.replace("/", "."), flat


def sizes_of(arrays: dict[str, Array], num_heads: int, path: str) -> dict[str, int | float | str]:
    """Arguments of `SpanBertBackbone`, by the shapes of arrays."""
    positions, inner = POSITION_TABLES["max_sequence_length"], "bert.encoder.layer.0.intermediate"
    needed = (TOKEN_TABLE, positions, SEGMENT_TABLE, f"{inner}.dense.bias")
    for name in needed:
        if name not in arrays:
            raise BadInputError(
                f"{path}: lacks {name}; it holds no encoder of the Model Garden's "
                "(BertEncoder, BertEncoderV2), alone or in a pre-trainer"
            )
    numbers_of_axes = [len(arrays[name].shape) for name in needed]
    if numbers_of_axes != [2, 2, 2, 1] or not num_heads:
        raise BadInputError(
            f"{path}: its arrays have other shapes than the Model Garden's encoders"
        )
    layers = {name.split(".")[3] for name in arrays if name.startswith("bert.encoder.layer.")}
    vocabulary_size, hidden_dim = arrays[TOKEN_TABLE].shape
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": len(layers),
        "num_heads": num_heads,
        "hidden_dim": hidden_dim,
        "intermediate_dim": len(arrays[f"{inner}.dense.bias"]),
        "max_sequence_length": len(arrays[positions]),
        "num_segments": len(arrays[SEGMENT_TABLE]),
        "dropout": _DROPOUT,
        "layer_norm_epsilon": BERT_EPSILON,
    }


def write_model_garden(
    checkpoint: Checkpoint, directory: str, *, overwrite: bool = False
) -> list[str]:
    """Writes the encoder as `tf.train.Checkpoint(encoder=…)` and `(model=…)` restore it."""
    check_epsilon(checkpoint, "the Model Garden's encoder")
    check_absolute(checkpoint, "the Model Garden's encoder")
    found = [part for part in checkpoint.found_parts() if part in (ENCODER, POOLER)]

    with Output(directory, MODEL_GARDEN_KIND, overwrite=overwrite).written() as unfinished:
        encoder = tf.train.Checkpoint()
        for part in found:
            for name in checkpoint.parts()[part]:
                _add_variable(encoder, name, checkpoint)
        # Both edges lead to one object, whatever a program calls it.
        saved = tf.train.Checkpoint(encoder=encoder, model=encoder)
        with os_errors():
            saved.write(os.path.join(unfinished, _PREFIX))
        write_config(unfinished, checkpoint)
    return [part for part in checkpoint.found_parts() if part not in found]


def _add_variable(encoder: tf.train.Checkpoint, name: str, checkpoint: Checkpoint) -> None:
    """Puts an array under the attributes that it has in the Model Garden's encoder."""
    module, _, last = name.rpartition(".")
    prefix, number, inner = "", "", module
    if found := re.fullmatch(r"bert\.encoder\.layer\.(\d+)\.(.*)", module):
        number, inner = found.groups()
        prefix = f"transformer/layer_{number}/"
    theirs = _THEIRS[inner]
    *path, attribute = [*(("_transformer_layers", number) if number else ()), *_OBJECTS[theirs]]
    values = np.asarray(checkpoint.arrays[name])
    if attribute == "norm":
        *path, attribute = *path, {"weight": "gamma", "bias": "beta"}[last]
    elif attribute == "dense":
        *path, attribute = *path, {"weight": "kernel", "bias": "bias"}[last]
        values = values.T  # [inputs, outputs]
        if theirs.startswith("self_attention/"):
            values = _by_heads(values, theirs, checkpoint.sizes["num_heads"])
    node = encoder
    for edge in path:
        if not hasattr(node, edge):
            setattr(node, edge, tf.train.Checkpoint())
        node = getattr(node, edge)
    called = "embeddings" if attribute == "_position_embeddings" else attribute
    setattr(node, attribute, tf.Variable(values, name=f"{prefix}{theirs}/{called}"))


def _by_heads(values: np.ndarray, theirs: str, num_heads: int) -> np.ndarray:
    """The heads of attention apart: [H, heads, width of one], of its output the other way round."""
    if not theirs.endswith("attention_output"):
        return values.reshape(*values.shape[:-1], num_heads, -1)
    return values.reshape(num_heads, -1, values.shape[-1]) if values.ndim == 2 else values

"""A BERT checkpoint, whatever project wrote it, and what must be in it.

The names and layouts of its arrays are those of `names.TABLE`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from spanbert_tf.conversion.names import (
    ENCODER,
    MASKED_LM_BIAS,
    PARTS,
    POSITION_TABLES,
    RESOLVER,
    SEGMENT_TABLE,
    SPAN_POSITIONS,
    TEXT_CLASSIFIER,
    TOKEN_CLASSIFIER,
    TOKEN_TABLE,
    Entry,
    entries_of,
)
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models.span_bert_backbone import POSITION_EMBEDDINGS, TABLE_SIZES
from spanbert_tf.text.vocabulary import Casing

BERT_EPSILON = 1e-12  # of LayerNorm, in the original code
BERT_DROPOUT = 0.1  # in the original code; weights do not tell
INTERMEDIATE_MATRIX = "bert.encoder.layer.0.intermediate.dense.weight"
# Arguments of SpanBertBackbone and their names in BERT's own configurations.
SIZE_NAMES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
SIZES = (*SIZE_NAMES, "dropout")  # arguments that KerasHub's `BertBackbone` has, too
# Sizes of SegaBERT's tables in its authors' configurations, which may lack them.
SEGMENT_AWARE_SIZE_NAMES = {
    "num_paragraphs": "max_para_position_embeddings",
    "num_sentences": "max_sent_position_embeddings",
    "max_sentence_length": "max_token_position_embeddings",
}
# The output matrix of a head is the token embedding once more, in files that hold it at all.
_TIED = {
    "cls.predictions.decoder.weight": TOKEN_TABLE,
    "cls.pair_target_predictions.decoder.weight": TOKEN_TABLE,
    "cls.predictions.decoder.bias": MASKED_LM_BIAS,
}
_FLOATS = ("float16", "bfloat16", "float32", "float64")

Shapes = dict[str, tuple[int, ...]]


class LazyArray:
    """An array that is read when NumPy asks for its values, so that few are in memory at once.

    Args:
        shape: its shape.
        read: returns its values; they are not kept.
    """

    def __init__(self, shape: Iterable[int], read: Callable[[], np.ndarray]) -> None:
        self.shape = tuple(shape)
        self._read = read

    @property
    def size(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0  # a single number has no rows

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), "float32" if dtype is None else dtype)


Array = np.ndarray | LazyArray


def transposed(array: Array) -> LazyArray:
    """A matrix the other way round, its values in that order in memory."""
    return LazyArray(array.shape[::-1], lambda: np.ascontiguousarray(np.asarray(array).T))


def some_rows(array: Array, start: int, stop: int) -> LazyArray:
    """Some rows of an array."""
    shape = (len(range(len(array))[start:stop]), *array.shape[1:])
    return LazyArray(shape, lambda: np.asarray(array)[start:stop])


def check_floats(kind: object, name: str, path: str) -> None:
    """Refuses an array of other numbers than weights are, such as those of quantized models.

    Args:
        kind: type of its values, NumPy's, TensorFlow's or PyTorch's.
        name: of the array, for the error.
        path: of its file, for the error.

    Raises:
        BadInputError: they are no floating-point numbers of 16 bits or more.
    """
    shown = getattr(kind, "name", None) or str(kind).removeprefix("torch.")
    if shown not in _FLOATS:
        raise BadInputError(
            f"{path}: {name[:200]!a} has the type {shown}, and one of {', '.join(_FLOATS)} is "
            "converted; save the model in float32 first"
        )


def _finite(path: str, name: str, array: Array) -> LazyArray:
    """An array that is checked whenever it is read: nothing can be computed with NaN weights."""

    def read() -> np.ndarray:
        values = np.asarray(array)
        if not np.isfinite(values).all():
            raise BadInputError(
                f"{path}: {name[:200]!a} holds NaN or infinity; copy it again, or take a "
                "checkpoint of before its training diverged"
            )
        return values

    return LazyArray(array.shape, read)


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Weights, sizes and tokenizer.

    Attributes:
        path: where it is from, for messages.
        sizes: arguments of `SpanBertBackbone`, by name.
        arrays: name → float32 array, in most cases a `LazyArray`.
        vocabulary: entries in order of their ids.
        casing: what is done to text.
        labels: names of the classes of a classifier of texts or tokens; empty without one.
        is_pair: whether a text classifier reads pairs of texts.
        approximates_gelu: whether the encoder has KerasHub's tanh GELU, which other formats have
            not.
        is_head_trained: `True` where the source says so; `None`: the weights must tell.
    """

    path: str
    sizes: Mapping[str, int | float | str]
    arrays: Mapping[str, Array]
    vocabulary: list[str]
    casing: Casing
    labels: tuple[str, ...] = ()
    is_pair: bool = False
    approximates_gelu: bool = False
    is_head_trained: bool | None = None

    def parts(self) -> dict[str, Shapes]:
        """What each part of this checkpoint must hold: part → name → shape.

        Raises:
            BadInputError: the configuration says more layers than there are arrays.
        """
        num_layers, num_arrays = self.sizes["num_layers"], len(self.arrays)
        if num_layers > num_arrays:  # otherwise a name is made for each weight of each layer
            raise BadInputError(
                f"{self.path}: the configuration says {num_layers:,} layers, and the checkpoint "
                f"holds {num_arrays:,} arrays; it belongs to another model"
            )
        return expected_shapes(self.sizes, self.arrays)

    def entries(self, parts: Iterable[str]) -> list[Entry]:
        """The entries of `names.TABLE` for the arrays of some parts."""
        return [entry for part in parts for entry in entries_of_sizes(part, self.sizes)]

    def found_parts(self) -> list[str]:
        """The parts that are there, whole."""
        return [
            part for part, shapes in self.parts().items() if shapes.keys() <= self.arrays.keys()
        ]

    def unused(self) -> list[str]:
        """Names of arrays that no part knows."""
        known = {name for shapes in self.parts().values() for name in shapes}
        return sorted(self.arrays.keys() - known)


def sizes_of_arrays(arrays: Mapping[str, Array], num_heads: int) -> dict[str, int | float | str]:
    """Arguments of `SpanBertBackbone` that the shapes of an encoder's arrays tell."""
    vocabulary_size, hidden_dim = arrays[TOKEN_TABLE].shape
    layers = {name.split(".")[3] for name in arrays if name.startswith("bert.encoder.layer.")}
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": len(layers),
        "num_heads": num_heads,
        "hidden_dim": hidden_dim,
        "intermediate_dim": len(arrays[INTERMEDIATE_MATRIX]),
        "max_sequence_length": len(arrays[POSITION_TABLES["max_sequence_length"]]),
        "num_segments": len(arrays[SEGMENT_TABLE]),
        "dropout": BERT_DROPOUT,
    }


def read_tables(position_embeddings: str) -> set[str]:
    """Which of `POSITION_TABLES` an encoder reads."""
    index_names = POSITION_EMBEDDINGS[position_embeddings]
    sizes = {TABLE_SIZES[name] for name in index_names}
    return sizes if "token_indices" in index_names else sizes | {"max_sequence_length"}


def check_absolute(checkpoint: Checkpoint, reader: str) -> None:
    """Refuses SegaBERT's positions for a target that has no place for them."""
    if checkpoint.sizes["position_embeddings"] != "absolute":
        raise MismatchError(
            f"{checkpoint.path}: has SegaBERT's positions, which {reader} cannot hold; --to "
            "huggingface writes its authors' layout, --to keras a preset"
        )


def check_epsilon(checkpoint: Checkpoint, reader: str) -> None:
    """Checks LayerNorm's epsilon for a target that fixes it."""
    epsilon = checkpoint.sizes["layer_norm_epsilon"]
    if epsilon != BERT_EPSILON:
        raise MismatchError(
            f"{checkpoint.path}: layer_norm_epsilon is {epsilon}; {reader} knows only "
            f"{BERT_EPSILON}"
        )


def checked_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint without copies of tied weights, if all fits together.

    What its arrays hold is checked as they are read, each by itself.
    """
    path = checkpoint.path
    arrays = {name: _finite(path, name, array) for name, array in checkpoint.arrays.items()}
    for part, shapes in checkpoint.parts().items():
        for name, shape in shapes.items():
            if name in arrays and arrays[name].shape != shape:
                raise BadInputError(
                    f"{path}: {name} has shape {list(arrays[name].shape)}, the configuration says "
                    f"{list(shape)}; it belongs to another model"
                )
            if part == ENCODER and name not in arrays:
                raise BadInputError(f"{path}: lacks {name}; it holds no whole encoder")
    for name, original in _TIED.items():
        if name in arrays:
            copy = arrays.pop(name)
            if original in arrays and not np.array_equal(copy, arrays[original]):
                raise BadInputError(
                    f"{path}: {name} is not {original} once more; only tied heads can be converted"
                )
            arrays.setdefault(original, copy)
    if len(checkpoint.vocabulary) > checkpoint.sizes["vocabulary_size"]:
        raise BadInputError(
            f"{path}: the vocabulary has {len(checkpoint.vocabulary)} entries, the token embedding "
            f"{checkpoint.sizes['vocabulary_size']}; give the one that belongs to it"
        )
    return dataclasses.replace(checkpoint, arrays=arrays)


def entries_of_sizes(part: str, sizes: Mapping[str, int | float | str]) -> Iterator[Entry]:
    """The entries of a part of a checkpoint of these sizes, without tables that it does not read.

    Args:
        part: one of `names.PARTS`.
        sizes: arguments of `SpanBertBackbone`.
    """
    positions = str(sizes["position_embeddings"])
    read = read_tables(positions)
    unread = {name for size, name in POSITION_TABLES.items() if size not in read}
    if positions == "segment_aware":
        unread.add(SEGMENT_TABLE)
    for entry in entries_of(part, int(sizes["num_layers"])):
        if entry.name not in unread:
            yield entry


def expected_shapes(
    sizes: Mapping[str, int | float | str], arrays: Mapping[str, Array]
) -> dict[str, Shapes]:
    """Part → name → shape of everything that a checkpoint of these sizes can hold.

    A table of span positions, classifiers and a resolver tell their own sizes.
    """
    known = {**sizes, **head_dimensions(sizes["hidden_dim"], arrays)}
    parts: dict[str, Shapes] = {}
    for part in PARTS:
        parts[part] = {}
        for entry in entries_of_sizes(part, sizes):
            shape = (known[size] if isinstance(size, str) else size for size in entry.shape)
            parts[part][entry.name] = tuple(shape)
    return parts


def head_dimensions(hidden_dim: int, arrays: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of heads, as the shapes of a checkpoint tell them; 0 where the head is missing.

    Returns:
        The names that `names.TABLE` has in its shapes beside arguments of `SpanBertBackbone`.
    """

    def num_rows(name: str) -> int:
        return len(arrays[name]) if name in arrays else 0

    max_span_targets, span_position_dim = _table_shape(arrays, SPAN_POSITIONS)
    max_span_width, feature_dim = _table_shape(arrays, f"{RESOLVER}span_width_embeddings")
    span_dim = 3 * hidden_dim + feature_dim
    return {
        "max_span_targets": max_span_targets,
        "span_position_dim": span_position_dim,
        "boundary_dim": 2 * hidden_dim + span_position_dim,
        "num_text_classes": num_rows(f"{TEXT_CLASSIFIER}.weight"),
        "num_token_classes": num_rows(f"{TOKEN_CLASSIFIER}.weight"),
        "max_span_width": max_span_width,
        "feature_dim": feature_dim,
        "ffnn_dim": num_rows(f"{RESOLVER}mention_scores.hidden_bias_0"),
        "num_genres": num_rows(f"{RESOLVER}genre_embeddings"),
        "max_segments": num_rows(
            f"{RESOLVER}coref_layer.segment_distance.segment_distance_embeddings"
        ),
        "span_dim": span_dim,
        "pair_dim": 3 * span_dim + 4 * feature_dim,
        "gate_dim": 2 * span_dim,
    }


def _table_shape(arrays: Mapping[str, Array], name: str) -> tuple[int, int]:
    """Rows and columns of a table; none where it is missing, or has another number of axes."""
    shape = arrays[name].shape if name in arrays else ()
    return shape if len(shape) == 2 else (0, 0)

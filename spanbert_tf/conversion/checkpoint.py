"""A BERT checkpoint of any project in one form, and the checks that it is complete.

`names.TABLE` lists the names and layouts of its arrays.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from spanbert_tf.conversion.names import (
    ENCODER,
    MASKED_LM_BIAS,
    PARTS,
    PLACE_TABLE,
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
from spanbert_tf.text.vocabulary import TextRules
from spanbert_tf.text.word_segmentation import WordSegmentation

BERT_EPSILON = 1e-12  # of LayerNorm in the original code
BERT_DROPOUT = 0.1  # of the original code; the weights do not show it
INTERMEDIATE_MATRIX = "bert.encoder.layer.0.intermediate.dense.weight"
# Argument of `SpanBertBackbone` → its name in BERT's own configurations.
SIZE_NAMES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
SIZES = (*SIZE_NAMES, "dropout")  # the arguments that KerasHub's `BertBackbone` takes as well
# The same for the sizes of SegaBERT's tables, which its authors' configurations may omit.
SEGMENT_AWARE_SIZE_NAMES = {
    "num_paragraphs": "max_para_position_embeddings",
    "num_sentences": "max_sent_position_embeddings",
    "max_sentence_length": "max_token_position_embeddings",
}
# Some files store tied weights twice: the output matrix of a head is the token embedding.
_TIED = {
    "cls.predictions.decoder.weight": TOKEN_TABLE,
    "cls.pair_target_predictions.decoder.weight": TOKEN_TABLE,
    "cls.predictions.decoder.bias": MASKED_LM_BIAS,
}
_FLOATS = ("float16", "bfloat16", "float32", "float64")

Shapes = dict[str, tuple[int, ...]]  # name of an array → shape
Sizes = Mapping[str, Any]  # arguments of `SpanBertBackbone`


class LazyArray:
    """An array whose values are read each time NumPy asks for them, to keep few in memory.

    Args:
        shape: its shape.
        read: returns the values. The result is not cached.
    """

    def __init__(self, shape: Iterable[int], read: Callable[[], np.ndarray]) -> None:
        self.shape = tuple(shape)
        self._read = read

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0  # a scalar has no rows

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._read(), "float32" if dtype is None else dtype)


Array = np.ndarray | LazyArray


def transposed(array: Array) -> LazyArray:
    """Returns the transpose of a matrix as a contiguous array."""
    return LazyArray(array.shape[::-1], lambda: np.ascontiguousarray(np.asarray(array).T))


def some_rows(array: Array, start: int, stop: int) -> LazyArray:
    """Returns the rows from `start` to `stop` of an array."""
    num_rows = len(range(len(array))[start:stop])
    return LazyArray((num_rows, *array.shape[1:]), lambda: np.asarray(array)[start:stop])


def check_floats(kind: object, name: str, path: str) -> None:
    """Checks that an array has floating-point values, unlike those of quantized models.

    Args:
        kind: dtype of the array in NumPy, TensorFlow or PyTorch.
        name: name of the array, for the error.
        path: path of its file, for the error.

    Raises:
        BadInputError: the values are not floating-point numbers of at least 16 bits.
    """
    shown = getattr(kind, "name", None) or str(kind).removeprefix("torch.")
    if shown not in _FLOATS:
        raise BadInputError(
            f"{path}: {name[:200]!a} has the type {shown}, and only {', '.join(_FLOATS)} are "
            "converted; save the model in float32 first"
        )


def _finite(path: str, name: str, array: Array) -> LazyArray:
    """Returns an array that raises `BadInputError` when it is read and has NaN or infinity."""

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
    """The weights, sizes and vocabulary of a BERT model.

    Attributes:
        path: path of the source, for messages.
        sizes: arguments of `SpanBertBackbone`.
        arrays: name → float32 array, in most cases a `LazyArray`.
        vocabulary: the pieces in the order of their ids.
        text_rules: how text is normalized.
        word_segmentation: how the preset states that words are found, if it does.
        spacy_model: the model of spaCy that finds words, if the preset states one.
        labels: names of the classes of a text or token classifier; empty for other models.
        is_pair: whether a text classifier reads pairs of texts.
        approximates_gelu: whether the encoder computes the GELU by tanh, as KerasHub's does.
        is_head_trained: whether the head was trained; `None` if the source does not say.
    """

    path: str
    sizes: Sizes
    arrays: Mapping[str, Array]
    vocabulary: list[str]
    text_rules: TextRules
    word_segmentation: WordSegmentation | None = None
    spacy_model: str | None = None
    labels: tuple[str, ...] = ()
    is_pair: bool = False
    approximates_gelu: bool = False
    is_head_trained: bool | None = None

    def parts(self) -> dict[str, Shapes]:
        """Returns the arrays that each part of this checkpoint consists of: part → name → shape.

        Raises:
            BadInputError: the configuration states more layers than the checkpoint has arrays.
        """
        num_layers = self.sizes["num_layers"]
        num_arrays = len(self.arrays)
        # Without this check, a wrong number of layers could create names without end.
        if num_layers > num_arrays:
            raise BadInputError(
                f"{self.path}: the configuration says {num_layers:,} layers, and the checkpoint "
                f"holds {num_arrays:,} arrays; it belongs to another model"
            )
        return expected_shapes(self.sizes, self.arrays)

    def entries(self, parts: Iterable[str]) -> list[Entry]:
        """Returns the entries of `names.TABLE` for the arrays of some parts."""
        entries: list[Entry] = []
        for part in parts:
            entries += entries_of_sizes(part, self.sizes)
        return entries

    def found_parts(self) -> list[str]:
        """Returns the parts of which all arrays are there."""
        return [
            part for part, shapes in self.parts().items() if shapes.keys() <= self.arrays.keys()
        ]

    def unused(self) -> list[str]:
        """Returns the sorted names of the arrays that belong to no part."""
        known: set[str] = set()
        for shapes in self.parts().values():
            known.update(shapes)
        return sorted(self.arrays.keys() - known)


def sizes_of_arrays(arrays: Mapping[str, Array], num_heads: int) -> dict[str, Any]:
    """Returns the arguments of `SpanBertBackbone`, as the shapes of an encoder's arrays show them.

    Args:
        arrays: arrays of an encoder.
        num_heads: number of attention heads, which the shapes do not show.
    """
    vocabulary_size, hidden_dim = arrays[TOKEN_TABLE].shape
    layers = {name.split(".")[3] for name in arrays if name.startswith("bert.encoder.layer.")}
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": len(layers),
        "num_heads": num_heads,
        "hidden_dim": hidden_dim,
        "intermediate_dim": len(arrays[INTERMEDIATE_MATRIX]),
        "max_sequence_length": len(arrays[PLACE_TABLE]),
        "num_segments": len(arrays[SEGMENT_TABLE]),
        "dropout": BERT_DROPOUT,
    }


def check_absolute(checkpoint: Checkpoint, reader: str) -> None:
    """Raises `MismatchError` for SegaBERT's positions, which `reader` cannot store."""
    if checkpoint.sizes["position_embeddings"] != "absolute":
        raise MismatchError(
            f"{checkpoint.path}: has SegaBERT's positions, which {reader} cannot hold; --to "
            "huggingface writes its authors' layout, --to keras a preset"
        )


def check_epsilon(checkpoint: Checkpoint, reader: str) -> None:
    """Raises `MismatchError` unless LayerNorm's epsilon is 1e-12, the only one of `reader`."""
    epsilon = checkpoint.sizes["layer_norm_epsilon"]
    if epsilon != BERT_EPSILON:
        raise MismatchError(
            f"{checkpoint.path}: layer_norm_epsilon is {epsilon}; {reader} knows only "
            f"{BERT_EPSILON}"
        )


def checked_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """Checks a checkpoint and returns it without copies of tied weights.

    NaN and infinity in an array are reported later, when that array is read.

    Raises:
        BadInputError: an array of the encoder is missing, an array has another shape than the
            configuration states, weights that must be tied differ, or the vocabulary is too large.
    """
    path = checkpoint.path
    arrays: dict[str, Array] = {}
    for name, array in checkpoint.arrays.items():
        arrays[name] = _finite(path, name, array)
    _check_shapes(checkpoint)
    _remove_tied_copies(path, arrays)
    num_pieces = len(checkpoint.vocabulary)
    num_rows = checkpoint.sizes["vocabulary_size"]
    if num_pieces > num_rows:
        raise BadInputError(
            f"{path}: the vocabulary has {num_pieces} entries, the token embedding {num_rows}; "
            "give the one that belongs to it"
        )
    return dataclasses.replace(checkpoint, arrays=arrays)


def _check_shapes(checkpoint: Checkpoint) -> None:
    """Checks that the encoder is complete, and that all arrays have the configuration's shapes."""
    path = checkpoint.path
    arrays = checkpoint.arrays
    for part, shapes in checkpoint.parts().items():
        for name, shape in shapes.items():
            if name in arrays and arrays[name].shape != shape:
                raise BadInputError(
                    f"{path}: {name} has shape {list(arrays[name].shape)}, the configuration says "
                    f"{list(shape)}; it belongs to another model"
                )
            if part == ENCODER and name not in arrays:
                raise BadInputError(f"{path}: lacks {name}, so its encoder is incomplete")


def _remove_tied_copies(path: str, arrays: dict[str, Array]) -> None:
    """Removes the second copies of tied weights from `arrays`, where each must equal the first."""
    for name, original in _TIED.items():
        if name not in arrays:
            continue
        copy = arrays.pop(name)
        if original in arrays and not np.array_equal(copy, arrays[original]):
            raise BadInputError(
                f"{path}: {name} differs from {original}; only tied heads can be converted"
            )
        arrays.setdefault(original, copy)


def entries_of_sizes(part: str, sizes: Sizes) -> Iterator[Entry]:
    """Yields the entries of a part whose arrays an encoder of these positions has.

    Args:
        part: one of `names.PARTS`.
        sizes: arguments of `SpanBertBackbone`.
    """
    for entry in entries_of(part, sizes["num_layers"]):
        if sizes["position_embeddings"] in entry.positions:
            yield entry


def expected_shapes(sizes: Sizes, arrays: Mapping[str, Array]) -> dict[str, Shapes]:
    """Returns part → name → shape of every array that a checkpoint of these sizes can have.

    The sizes of heads are those of their arrays in `arrays`.
    """
    known = {**sizes, **task_head_sizes(sizes["hidden_dim"], arrays)}
    parts: dict[str, Shapes] = {}
    for part in PARTS:
        parts[part] = {}
        for entry in entries_of_sizes(part, sizes):
            shape = [known[size] if isinstance(size, str) else size for size in entry.shape]
            parts[part][entry.name] = tuple(shape)
    return parts


def task_head_sizes(hidden_dim: int, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Returns the sizes of the heads of objectives and tasks, as their arrays show them.

    Returns:
        A value for each name in the shapes of `names.TABLE` that is no argument of
        `SpanBertBackbone`; 0 if the head is missing.
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
    """Returns the numbers of rows and columns of a table; (0, 0) if it is missing or no matrix."""
    if name not in arrays or len(arrays[name].shape) != 2:
        return (0, 0)
    num_rows, num_columns = arrays[name].shape
    return (num_rows, num_columns)

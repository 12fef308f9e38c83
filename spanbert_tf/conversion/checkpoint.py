"""A BERT checkpoint, whatever project wrote it, and what must be in it.

Names and layouts are those of HuggingFace's `BertForPreTraining` in PyTorch (a matrix is
[outputs, inputs]); the span boundary head has the names of the original SpanBERT code
(`cls.pair_target_predictions`).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.models.span_bert_backbone import POSITION_EMBEDDINGS, TABLE_SIZES
from spanbert_tf.text.vocabulary import Casing

TOKEN_TABLE = "bert.embeddings.word_embeddings.weight"
SEGMENT_TABLE = "bert.embeddings.token_type_embeddings.weight"
# Arguments of SpanBertBackbone, and the tables whose rows they count; SegaBERT's as its authors
# call them.
POSITION_TABLES = {
    "max_sequence_length": "bert.embeddings.position_embeddings.weight",
    "num_paragraphs": "bert.embeddings.para_position_embeddings.weight",
    "num_sentences": "bert.embeddings.sent_position_embeddings.weight",
    "max_sentence_length": "bert.embeddings.token_position_embeddings.weight",
}
SPAN_POSITIONS = "cls.pair_target_predictions.position_embeddings.weight"
ENCODER, POOLER, MASKED_LM_HEAD = "encoder", "pooler", "masked_lm_head"
SPAN_BOUNDARY_HEAD, NEXT_SENTENCE_HEAD = "span_boundary_head", "next_sentence_head"
SPAN_CLASSIFIERS = "span_classifiers"  # of `BertForQuestionAnswering`
# Of `BertForSequenceClassification`, whose own name, `classifier`, other classes give theirs, too.
TEXT_CLASSIFIER = "text_classifier"
TOKEN_CLASSIFIER = "token_classifier"  # of `BertForTokenClassification`, as well
COREFERENCE = "coreference"  # of the original's resolver
BERT_EPSILON = 1e-12  # of LayerNorm, in the original code
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
_TIED = ("cls.predictions.decoder.weight", "cls.pair_target_predictions.decoder.weight")
_TIED_BIASES = {"cls.predictions.decoder.bias": "cls.predictions.bias"}
# Variables of the original's coreference resolvers (mandarjoshi90/coref, `independent.py`,
# `util.py`). Their layouts are ours: matrices are [inputs, outputs], and a network's input and the
# features of a pair have their parts in the same order.
_RESOLVER = "coreference."  # of their names in a `Checkpoint`
LINEAR = ("output_weights", "output_bias")
NETWORK = ("hidden_weights_0", "hidden_bias_0", *LINEAR)
TABLES = (
    "span_width_embeddings",
    "span_width_prior_embeddings",
    "genre_embeddings",
    "antecedent_distance_emb",
    "coref_layer/same_speaker_emb",
    "coref_layer/antecedent_distance_emb",
    "coref_layer/segment_distance/segment_distance_embeddings",
)
_SEGMENTS = TABLES[-1]
_LINEAR_SCOPES = ("mention_word_attn", "src_projection", "coref_layer/f")
_NETWORK_SCOPES = ("mention_scores", "width_scores", "coref_layer/slow_antecedent_scores")
# In TensorFlow 1's checkpoints, `/` between the parts.
VARIABLES = frozenset(
    (
        *TABLES,
        *LINEAR,  # of the prior distance, which has no scope of its own
        *(f"{scope}/{name}" for scope in _LINEAR_SCOPES for name in LINEAR),
        *(f"{scope}/{name}" for scope in _NETWORK_SCOPES for name in NETWORK),
    )
)
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
        """What each part of this checkpoint must hold: part → name → shape."""
        return expected_shapes(self.sizes, self.arrays)

    def found_parts(self) -> list[str]:
        """The parts that are there, whole."""
        return [
            part for part, shapes in self.parts().items() if shapes.keys() <= self.arrays.keys()
        ]

    def unused(self) -> list[str]:
        """Names of arrays that no part knows."""
        known = {name for shapes in self.parts().values() for name in shapes}
        return sorted(self.arrays.keys() - known)


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
    if checkpoint.sizes["num_layers"] > len(arrays):  # a name is made for each weight of each layer
        raise BadInputError(
            f"{path}: the configuration says {checkpoint.sizes['num_layers']:,} layers, and the "
            f"checkpoint holds {len(arrays):,} arrays; it belongs to another model"
        )
    for part, shapes in checkpoint.parts().items():
        for name, shape in shapes.items():
            if name in arrays and arrays[name].shape != shape:
                raise BadInputError(
                    f"{path}: {name} has shape {list(arrays[name].shape)}, the configuration says "
                    f"{list(shape)}; it belongs to another model"
                )
            if part == ENCODER and name not in arrays:
                raise BadInputError(f"{path}: lacks {name}; it holds no whole encoder")
    copies = dict.fromkeys(_TIED, TOKEN_TABLE) | _TIED_BIASES
    for name, original in copies.items():
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


def expected_shapes(
    sizes: Mapping[str, int | float | str], arrays: Mapping[str, Array]
) -> dict[str, Shapes]:
    """Part → name → shape of everything that a checkpoint of these sizes can hold.

    A table of span positions, classifiers and a resolver tell their own sizes.
    """
    width, vocabulary_size = sizes["hidden_dim"], sizes["vocabulary_size"]
    encoder = {
        TOKEN_TABLE: (vocabulary_size, width),
        **{
            POSITION_TABLES[size]: (sizes[size], width)
            for size in POSITION_TABLES
            if size in read_tables(sizes["position_embeddings"])
        },
        **_layer_norm("bert.embeddings.LayerNorm", width),
    }
    if sizes["position_embeddings"] != "segment_aware":
        encoder[SEGMENT_TABLE] = (sizes["num_segments"], width)
    for number in range(int(sizes["num_layers"])):
        encoder |= _encoder_layer(f"bert.encoder.layer.{number}", width, sizes["intermediate_dim"])
    predictions, boundary = "cls.predictions", "cls.pair_target_predictions"
    num_positions, position_dim = _table_shape(arrays, SPAN_POSITIONS)
    return {
        ENCODER: encoder,
        POOLER: _dense("bert.pooler.dense", width, width),
        MASKED_LM_HEAD: {
            **_dense(f"{predictions}.transform.dense", width, width),
            **_layer_norm(f"{predictions}.transform.LayerNorm", width),
            f"{predictions}.bias": (vocabulary_size,),
        },
        SPAN_BOUNDARY_HEAD: {
            SPAN_POSITIONS: (num_positions, position_dim),
            **_dense(f"{boundary}.mlp_layer_norm.linear1", 2 * width + position_dim, width),
            **_layer_norm(f"{boundary}.mlp_layer_norm.layer_norm1", width),
            **_dense(f"{boundary}.mlp_layer_norm.linear2", width, width),
            **_layer_norm(f"{boundary}.mlp_layer_norm.layer_norm2", width),
            f"{boundary}.bias": (vocabulary_size,),
        },
        NEXT_SENTENCE_HEAD: _dense("cls.seq_relationship", width, 2),
        SPAN_CLASSIFIERS: _dense("qa_outputs", width, 2),
        **{
            name: _dense(name, width, len(arrays.get(f"{name}.weight", ())))
            for name in (TEXT_CLASSIFIER, TOKEN_CLASSIFIER)
        },
        COREFERENCE: _coreference_shapes(width, arrays),
    }


def _table_shape(arrays: Mapping[str, Array], name: str) -> tuple[int, int]:
    """Rows and columns of a table; none where it is missing, or has another number of axes."""
    shape = arrays[name].shape if name in arrays else ()
    return shape if len(shape) == 2 else (0, 0)


def _encoder_layer(prefix: str, width: int, intermediate_dim: int) -> Shapes:
    shapes = {}
    for name in ("query", "key", "value"):
        shapes |= _dense(f"{prefix}.attention.self.{name}", width, width)
    return {
        **shapes,
        **_dense(f"{prefix}.attention.output.dense", width, width),
        **_layer_norm(f"{prefix}.attention.output.LayerNorm", width),
        **_dense(f"{prefix}.intermediate.dense", width, intermediate_dim),
        **_dense(f"{prefix}.output.dense", intermediate_dim, width),
        **_layer_norm(f"{prefix}.output.LayerNorm", width),
    }


def _dense(prefix: str, num_inputs: int, num_outputs: int) -> Shapes:
    return {f"{prefix}.weight": (num_outputs, num_inputs), f"{prefix}.bias": (num_outputs,)}


def _layer_norm(prefix: str, width: int) -> Shapes:
    return {f"{prefix}.weight": (width,), f"{prefix}.bias": (width,)}


def standard_name(variable: str) -> str:
    """The name in a `Checkpoint` of a variable of theirs."""
    return _RESOLVER + variable.replace("/", ".")


def variable_name(name: str) -> str | None:
    """The variable of theirs that a name in a `Checkpoint` stands for; `None` for any other."""
    return name.removeprefix(_RESOLVER).replace(".", "/") if name.startswith(_RESOLVER) else None


def _coreference_shapes(hidden_dim: int, arrays: Mapping[str, Array]) -> dict[str, tuple[int, ...]]:
    """Name → shape of what a checkpoint holds; the tables and one bias tell the sizes."""
    head = {name: arrays.get(standard_name(name), ()) for name in VARIABLES}
    max_span_width, feature_dim = _table_shape(arrays, standard_name("span_width_embeddings"))
    ffnn_dim = len(head["mention_scores/hidden_bias_0"])
    num_genres, max_segments = (len(head[name]) for name in ("genre_embeddings", _SEGMENTS))
    span_dim = 3 * hidden_dim + feature_dim
    rows = (max_span_width, max_span_width, num_genres, 10, 2, 10, max_segments)
    shapes = {name: (count, feature_dim) for name, count in zip(TABLES, rows, strict=True)}
    networks = {
        "mention_scores": span_dim,
        "width_scores": feature_dim,
        "coref_layer/slow_antecedent_scores": 3 * span_dim + 4 * feature_dim,
    }
    for scope, input_dim in networks.items():
        sizes = ((input_dim, ffnn_dim), (ffnn_dim,), (ffnn_dim, 1), (1,))
        shapes |= {f"{scope}/{name}": size for name, size in zip(NETWORK, sizes, strict=True)}
    linear = {
        "": (feature_dim, 1),
        "mention_word_attn/": (hidden_dim, 1),
        "src_projection/": (span_dim, span_dim),
        "coref_layer/f/": (2 * span_dim, span_dim),
    }
    for scope, size in linear.items():
        shapes |= {f"{scope}output_weights": size, f"{scope}output_bias": size[1:]}
    return {standard_name(name): shape for name, shape in shapes.items()}


def head_settings(hidden_dim: int, arrays: Mapping[str, Array]) -> dict[str, int]:
    """Arguments of the resolver that the shapes of a checkpoint tell."""
    shapes = _coreference_shapes(hidden_dim, arrays)
    max_span_width, feature_dim = shapes[standard_name("span_width_embeddings")]
    return {
        "max_span_width": max_span_width,
        "feature_dim": feature_dim,
        "ffnn_dim": shapes[standard_name("mention_scores/hidden_bias_0")][0],
        "max_segments": shapes[standard_name(_SEGMENTS)][0],
    }

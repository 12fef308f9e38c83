"""The table of BERT's arrays: the name and the layout of each array in every format.

A `Checkpoint` has the names of `BertForPreTraining` of `transformers` in PyTorch, where a matrix is
[outputs, inputs]; its span boundary head has the names of the original SpanBERT code. Each other
column of the table holds the array's name in another format. `{}` in a name stands for the number
of an encoder layer. In the other formats an array called `kernel` is [inputs, outputs].

To read or write another format, add a column to `Entry` and to the table. `find_entry` then finds
the entry of an array of that format, and `entries_of` lists the arrays to write. To add an array,
add an entry; if only some kinds of positions have it, say which. `convert` then finds the kind of a
checkpoint by its arrays, and the first axis of such an array by the argument that the shape names.
"""

import functools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from spanbert_tf.config.positions import POSITION_EMBEDDINGS, Positions

# The parts of a checkpoint, in the order in which `convert` prints them.
ENCODER = "encoder"
POOLER = "pooler"
MASKED_LM_HEAD = "masked_lm_head"
SPAN_BOUNDARY_HEAD = "span_boundary_head"
NEXT_SENTENCE_HEAD = "next_sentence_head"
SPAN_CLASSIFIERS = "span_classifiers"  # the head of `BertForQuestionAnswering`
# The head of `BertForSequenceClassification`. `transformers` calls it `classifier`, and uses the
# same name for the heads of other classes.
TEXT_CLASSIFIER = "text_classifier"
TOKEN_CLASSIFIER = "token_classifier"  # the head of `BertForTokenClassification`
COREFERENCE = "coreference"  # the head of the original code's coreference resolver
PARTS = (
    ENCODER,
    POOLER,
    MASKED_LM_HEAD,
    SPAN_BOUNDARY_HEAD,
    NEXT_SENTENCE_HEAD,
    SPAN_CLASSIFIERS,
    TEXT_CLASSIFIER,
    TOKEN_CLASSIFIER,
    COREFERENCE,
)

# Values of `Entry.heads`. Keras and the Model Garden give the attention heads an axis of their own:
# outputs are split into [inputs, heads, width of one head], inputs into
# [heads, width of one head, outputs].
SPLIT_OUTPUTS = "outputs"
SPLIT_INPUTS = "inputs"
# Regular expressions for what may precede a name of this table in a format.
_PREFIXES = {"name": "", "tf1": "", "model_garden": "(?:.*/)?"}


class Entry(NamedTuple):
    """One array, or the same array of each encoder layer.

    Attributes:
        part: one of `PARTS`.
        name: name of the array in a `Checkpoint`.
        shape: its shape in a `Checkpoint`: numbers, arguments of `SpanBertBackbone`, and keys of
            `checkpoint.task_head_sizes`.
        keras: path of attributes from a Keras model or layer to the variable. It starts at the
            backbone for the encoder and the pooler, and at the head for every head.
        tf1: name in a checkpoint of Google's code, or `None` if that code has no such array.
        model_garden: name in a checkpoint of the Model Garden, or `None` if it has no such array.
        objects: path of attributes from an encoder of the Model Garden to the variable, or `None`
            if the array is never written in that format.
        is_matrix: whether the array is a matrix [outputs, inputs] in a `Checkpoint`.
        heads: which axis Keras and the Model Garden split into [heads, width of one head]:
            `SPLIT_OUTPUTS`, `SPLIT_INPUTS`, or `""` for none.
        positions: kinds of positions (`config.positions`) whose encoders have the array.
    """

    part: str
    name: str
    shape: tuple[int | str, ...]
    keras: str
    tf1: str | None = None
    model_garden: str | None = None
    objects: str | None = None
    is_matrix: bool = False
    heads: str = ""
    positions: tuple[str, ...] = tuple(POSITION_EMBEDDINGS)

    def of_layer(self, layer: int | str) -> "Entry":
        """Returns the entry of one encoder layer: every `{}` is replaced by the layer's number."""

        def numbered(name: str | None) -> str | None:
            return None if name is None else name.format(layer)

        return self._replace(
            name=self.name.format(layer),
            keras=self.keras.format(layer),
            tf1=numbered(self.tf1),
            model_garden=numbered(self.model_garden),
            objects=numbered(self.objects),
        )

    def name_in(self, column: str) -> str:
        """Returns the array's name in a column of the table.

        Raises:
            ValueError: the format has no such array.
        """
        name = getattr(self, column)
        if name is None:
            raise ValueError(f"{self.name} has no name in {column}")
        return name

    def is_transposed(self, name: str) -> bool:
        """Whether the array is stored as [inputs, outputs] under this name in another format."""
        return self.is_matrix and name.endswith("kernel")

    def joined_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape that an array of another format has without an axis of heads."""
        if self.heads == SPLIT_OUTPUTS and self.is_matrix and len(shape) == 3:
            return (shape[0], shape[1] * shape[2])
        if self.heads == SPLIT_OUTPUTS and not self.is_matrix and len(shape) == 2:
            return (shape[0] * shape[1],)
        if self.heads == SPLIT_INPUTS and self.is_matrix and len(shape) == 3:
            return (shape[0] * shape[1], shape[2])
        return shape

    def split_shape(self, shape: tuple[int, ...], num_heads: int) -> tuple[int, ...]:
        """Returns the reverse of `joined_shape`, with -1 for the width of one head."""
        if self.heads == SPLIT_OUTPUTS:
            return (*shape[:-1], num_heads, -1)
        if self.heads == SPLIT_INPUTS and self.is_matrix:
            return (num_heads, -1, shape[-1])
        return shape


def _dense(
    part: str,
    name: str,
    *,
    inputs: int | str,
    outputs: int | str,
    keras: str = "",
    tf1: str | None = None,
    model_garden: str | None = None,
    objects: str | None = None,
    heads: str = "",
) -> Iterator[Entry]:
    """The matrix and the bias of a dense layer.

    Args:
        part: the part of the layer.
        name: name of the layer in a `Checkpoint`.
        inputs: number of inputs, as in `Entry.shape`.
        outputs: number of outputs, as in `Entry.shape`.
        keras: path of attributes to the layer. `""`: the layer is the head itself.
        tf1: name of the layer, as the next two; `None`: the format does not have it.
        model_garden: name of the layer.
        objects: path of attributes to the layer.
        heads: as in `Entry`.
    """
    shapes = {"kernel": (outputs, inputs), "bias": (outputs,)}
    for array, variable in (("weight", "kernel"), ("bias", "bias")):
        yield Entry(
            part,
            f"{name}.{array}",
            shapes[variable],
            keras=_joined(keras, ".", variable) or variable,
            tf1=_joined(tf1, "/", variable),
            model_garden=_joined(model_garden, "/", variable),
            objects=_joined(objects, ".", variable),
            is_matrix=variable == "kernel",
            heads=heads,
        )


def _layer_norm(
    part: str,
    name: str,
    *,
    keras: str,
    tf1: str | None = None,
    model_garden: str | None = None,
    objects: str | None = None,
) -> Iterator[Entry]:
    """The scale and the offset of a layer normalization; the arguments are those of `_dense`."""
    for array, variable in (("weight", "gamma"), ("bias", "beta")):
        yield Entry(
            part,
            f"{name}.{array}",
            ("hidden_dim",),
            keras=f"{keras}.{variable}",
            tf1=_joined(tf1, "/", variable),
            model_garden=_joined(model_garden, "/", variable),
            objects=_joined(objects, ".", variable),
        )


def _joined(layer: str | None, separator: str, variable: str) -> str | None:
    """Returns the name of a variable of a layer; `None` if the layer has no name."""
    return f"{layer}{separator}{variable}" if layer else None


def _kinds(has_array: Callable[[Positions], bool]) -> tuple[str, ...]:
    """Returns the kinds of positions whose encoders have an array."""
    return tuple(kind for kind, reads in POSITION_EMBEDDINGS.items() if has_array(reads))


def _resolver(tf1: str, *, shape: tuple[int | str, ...], keras: str) -> Entry:
    """An array of the coreference resolver. A `Checkpoint` stores it in the original's layout."""
    return Entry(COREFERENCE, RESOLVER + tf1.replace("/", "."), shape, keras, tf1)


def _linear(scope: str, *, inputs: int | str, outputs: int | str, keras: str) -> Iterator[Entry]:
    """The matrix and the bias of a linear layer of the resolver."""
    yield _resolver(f"{scope}output_weights", shape=(inputs, outputs), keras=f"{keras}.kernel")
    yield _resolver(f"{scope}output_bias", shape=(outputs,), keras=f"{keras}.bias")


def _network(scope: str, *, inputs: str, keras: str) -> Iterator[Entry]:
    """The two layers of a scoring network of the resolver."""
    for array, shape, variable in (
        ("hidden_weights_0", (inputs, "ffnn_dim"), "hidden_kernel"),
        ("hidden_bias_0", ("ffnn_dim",), "hidden_bias"),
        ("output_weights", ("ffnn_dim", 1), "output_kernel"),
        ("output_bias", (1,), "output_bias"),
    ):
        yield _resolver(f"{scope}{array}", shape=shape, keras=f"{keras}.{variable}")


TOKEN_TABLE = "bert.embeddings.word_embeddings.weight"
PLACE_TABLE = "bert.embeddings.position_embeddings.weight"  # of the place in the row
SEGMENT_TABLE = "bert.embeddings.token_type_embeddings.weight"
SPAN_POSITIONS = "cls.pair_target_predictions.position_embeddings.weight"
MASKED_LM_BIAS = "cls.predictions.bias"
POOLER_BIAS = "bert.pooler.dense.bias"
RESOLVER = "coreference."  # before the names of the original's variables

# `Entry` explains the columns. A row of `_dense` or `_layer_norm` names a layer. Its two arrays
# have the layer's names, followed by `kernel` and `bias`, or `gamma` and `beta`. The tables
# of SegaBERT's positions (paragraph, sentence, token) have its authors' names. The names of the
# resolver are those of mandarjoshi90/coref (`independent.py`, `util.py`).
TABLE: tuple[Entry, ...] = (
    Entry(
        ENCODER,
        TOKEN_TABLE,
        shape=("vocabulary_size", "hidden_dim"),
        keras="token_embedding.embeddings",
        tf1="bert/embeddings/word_embeddings",
        model_garden="word_embeddings/embeddings",
        objects="_embedding_layer.embeddings",
    ),
    Entry(
        ENCODER,
        PLACE_TABLE,
        shape=("max_sequence_length", "hidden_dim"),
        keras="position_embedding.position_embeddings",
        tf1="bert/embeddings/position_embeddings",
        model_garden="position_embedding/embeddings",
        objects="_position_embedding_layer._position_embeddings",
        positions=_kinds(lambda reads: reads.in_row),
    ),
    Entry(
        ENCODER,
        "bert.embeddings.para_position_embeddings.weight",
        shape=("num_paragraphs", "hidden_dim"),
        keras="segment_aware_embedding.tables.paragraph_indices.embeddings",
        tf1="bert/embeddings/para_position_embeddings",
        positions=_kinds(lambda reads: "paragraph_indices" in reads.indices),
    ),
    Entry(
        ENCODER,
        "bert.embeddings.sent_position_embeddings.weight",
        shape=("num_sentences", "hidden_dim"),
        keras="segment_aware_embedding.tables.sentence_indices.embeddings",
        tf1="bert/embeddings/sent_position_embeddings",
        positions=_kinds(lambda reads: "sentence_indices" in reads.indices),
    ),
    Entry(
        ENCODER,
        "bert.embeddings.token_position_embeddings.weight",
        shape=("max_sentence_length", "hidden_dim"),
        keras="segment_aware_embedding.tables.token_indices.embeddings",
        tf1="bert/embeddings/token_position_embeddings",
        positions=_kinds(lambda reads: "token_indices" in reads.indices),
    ),
    *_layer_norm(
        ENCODER,
        "bert.embeddings.LayerNorm",
        keras="embeddings_layer_norm",
        tf1="bert/embeddings/LayerNorm",
        model_garden="embeddings/layer_norm",
        objects="_embedding_norm_layer",
    ),
    Entry(
        ENCODER,
        SEGMENT_TABLE,
        shape=("num_segments", "hidden_dim"),
        keras="segment_embedding.embeddings",
        tf1="bert/embeddings/token_type_embeddings",
        model_garden="type_embeddings/embeddings",
        objects="_type_embedding_layer.embeddings",
        positions=_kinds(lambda reads: reads.segments),
    ),
    *_dense(
        ENCODER,
        "bert.encoder.layer.{}.attention.self.query",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="transformer_layers.{}._self_attention_layer._query_dense",
        tf1="bert/encoder/layer_{}/attention/self/query",
        model_garden="transformer/layer_{}/self_attention/query",
        objects="_transformer_layers.{}._attention_layer._query_dense",
        heads=SPLIT_OUTPUTS,
    ),
    *_dense(
        ENCODER,
        "bert.encoder.layer.{}.attention.self.key",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="transformer_layers.{}._self_attention_layer._key_dense",
        tf1="bert/encoder/layer_{}/attention/self/key",
        model_garden="transformer/layer_{}/self_attention/key",
        objects="_transformer_layers.{}._attention_layer._key_dense",
        heads=SPLIT_OUTPUTS,
    ),
    *_dense(
        ENCODER,
        "bert.encoder.layer.{}.attention.self.value",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="transformer_layers.{}._self_attention_layer._value_dense",
        tf1="bert/encoder/layer_{}/attention/self/value",
        model_garden="transformer/layer_{}/self_attention/value",
        objects="_transformer_layers.{}._attention_layer._value_dense",
        heads=SPLIT_OUTPUTS,
    ),
    *_dense(
        ENCODER,
        "bert.encoder.layer.{}.attention.output.dense",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="transformer_layers.{}._self_attention_layer._output_dense",
        tf1="bert/encoder/layer_{}/attention/output/dense",
        model_garden="transformer/layer_{}/self_attention/attention_output",
        objects="_transformer_layers.{}._attention_layer._output_dense",
        heads=SPLIT_INPUTS,
    ),
    *_layer_norm(
        ENCODER,
        "bert.encoder.layer.{}.attention.output.LayerNorm",
        keras="transformer_layers.{}._self_attention_layer_norm",
        tf1="bert/encoder/layer_{}/attention/output/LayerNorm",
        model_garden="transformer/layer_{}/self_attention_layer_norm",
        objects="_transformer_layers.{}._attention_layer_norm",
    ),
    *_dense(
        ENCODER,
        "bert.encoder.layer.{}.intermediate.dense",
        inputs="hidden_dim",
        outputs="intermediate_dim",
        keras="transformer_layers.{}._feedforward_intermediate_dense",
        tf1="bert/encoder/layer_{}/intermediate/dense",
        model_garden="transformer/layer_{}/intermediate",
        objects="_transformer_layers.{}._intermediate_dense",
    ),
    *_dense(
        ENCODER,
        "bert.encoder.layer.{}.output.dense",
        inputs="intermediate_dim",
        outputs="hidden_dim",
        keras="transformer_layers.{}._feedforward_output_dense",
        tf1="bert/encoder/layer_{}/output/dense",
        model_garden="transformer/layer_{}/output",
        objects="_transformer_layers.{}._output_dense",
    ),
    *_layer_norm(
        ENCODER,
        "bert.encoder.layer.{}.output.LayerNorm",
        keras="transformer_layers.{}._feedforward_layer_norm",
        tf1="bert/encoder/layer_{}/output/LayerNorm",
        model_garden="transformer/layer_{}/output_layer_norm",
        objects="_transformer_layers.{}._output_layer_norm",
    ),
    *_dense(
        POOLER,
        "bert.pooler.dense",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="pooled_dense",
        tf1="bert/pooler/dense",
        model_garden="pooler_transform",
        objects="_pooler_layer",
    ),
    *_dense(
        MASKED_LM_HEAD,
        "cls.predictions.transform.dense",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="_intermediate_dense",
        tf1="cls/predictions/transform/dense",
        model_garden="cls/predictions/transform/dense",
    ),
    *_layer_norm(
        MASKED_LM_HEAD,
        "cls.predictions.transform.LayerNorm",
        keras="_intermediate_layer_norm",
        tf1="cls/predictions/transform/LayerNorm",
        model_garden="cls/predictions/transform/LayerNorm",
    ),
    Entry(
        MASKED_LM_HEAD,
        MASKED_LM_BIAS,
        shape=("vocabulary_size",),
        keras="_bias",
        tf1="cls/predictions/output_bias",
        model_garden="cls/predictions/output_bias/bias",
    ),
    Entry(
        SPAN_BOUNDARY_HEAD,
        SPAN_POSITIONS,
        shape=("max_span_targets", "span_position_dim"),
        keras="position_embedding.embeddings",
    ),
    *_dense(
        SPAN_BOUNDARY_HEAD,
        "cls.pair_target_predictions.mlp_layer_norm.linear1",
        inputs="boundary_dim",
        outputs="hidden_dim",
        keras="dense_layers.0",
    ),
    *_layer_norm(
        SPAN_BOUNDARY_HEAD,
        "cls.pair_target_predictions.mlp_layer_norm.layer_norm1",
        keras="layer_norms.0",
    ),
    *_dense(
        SPAN_BOUNDARY_HEAD,
        "cls.pair_target_predictions.mlp_layer_norm.linear2",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="dense_layers.1",
    ),
    *_layer_norm(
        SPAN_BOUNDARY_HEAD,
        "cls.pair_target_predictions.mlp_layer_norm.layer_norm2",
        keras="layer_norms.1",
    ),
    Entry(
        SPAN_BOUNDARY_HEAD,
        "cls.pair_target_predictions.bias",
        shape=("vocabulary_size",),
        keras="bias",
    ),
    Entry(
        NEXT_SENTENCE_HEAD,
        "cls.seq_relationship.weight",
        shape=(2, "hidden_dim"),
        keras="kernel",
        tf1="cls/seq_relationship/output_weights",
        model_garden="next_sentence/logits/kernel",
        is_matrix=True,
    ),
    Entry(
        NEXT_SENTENCE_HEAD,
        "cls.seq_relationship.bias",
        shape=(2,),
        keras="bias",
        tf1="cls/seq_relationship/output_bias",
        model_garden="next_sentence/logits/bias",
    ),
    Entry(
        SPAN_CLASSIFIERS,
        "qa_outputs.weight",
        shape=(2, "hidden_dim"),
        keras="kernel",
        tf1="cls/squad/output_weights",
        is_matrix=True,
    ),
    Entry(
        SPAN_CLASSIFIERS,
        "qa_outputs.bias",
        shape=(2,),
        keras="bias",
        tf1="cls/squad/output_bias",
    ),
    *_dense(
        TEXT_CLASSIFIER,
        TEXT_CLASSIFIER,
        inputs="hidden_dim",
        outputs="num_text_classes",
    ),
    *_dense(
        TOKEN_CLASSIFIER,
        TOKEN_CLASSIFIER,
        inputs="hidden_dim",
        outputs="num_token_classes",
    ),
    _resolver(
        "span_width_embeddings",
        shape=("max_span_width", "feature_dim"),
        keras="mention_scorer.width_embeddings",
    ),
    _resolver(
        "span_width_prior_embeddings",
        shape=("max_span_width", "feature_dim"),
        keras="mention_scorer.width_prior_embeddings",
    ),
    _resolver(
        "genre_embeddings",
        shape=("num_genres", "feature_dim"),
        keras="antecedent_scorer.genre_embeddings",
    ),
    _resolver(
        "antecedent_distance_emb",
        shape=(10, "feature_dim"),
        keras="antecedent_scorer.prior_distance_embeddings",
    ),
    _resolver(
        "coref_layer/same_speaker_emb",
        shape=(2, "feature_dim"),
        keras="antecedent_scorer.speaker_embeddings",
    ),
    _resolver(
        "coref_layer/antecedent_distance_emb",
        shape=(10, "feature_dim"),
        keras="antecedent_scorer.distance_embeddings",
    ),
    _resolver(
        "coref_layer/segment_distance/segment_distance_embeddings",
        shape=("max_segments", "feature_dim"),
        keras="antecedent_scorer.segment_embeddings",
    ),
    *_network(
        "mention_scores/",
        inputs="span_dim",
        keras="mention_scorer.mention_network",
    ),
    *_network(
        "width_scores/",
        inputs="feature_dim",
        keras="mention_scorer.width_network",
    ),
    *_network(
        "coref_layer/slow_antecedent_scores/",
        inputs="pair_dim",
        keras="antecedent_scorer.pair_network",
    ),
    *_linear(
        "",
        inputs="feature_dim",
        outputs=1,
        keras="antecedent_scorer.prior_distance_scores",
    ),
    *_linear(
        "mention_word_attn/",
        inputs="hidden_dim",
        outputs=1,
        keras="mention_scorer.head_attention",
    ),
    *_linear(
        "src_projection/",
        inputs="span_dim",
        outputs="span_dim",
        keras="antecedent_scorer.source_projection",
    ),
    *_linear(
        "coref_layer/f/",
        inputs="gate_dim",
        outputs="span_dim",
        keras="antecedent_scorer.gate",
    ),
)
# The arrays that show the kind of positions, since not every kind has them, by the arguments of
# `SpanBertBackbone` that count their rows. A table of segments may be there for any kind.
POSITION_TABLES = {
    str(entry.shape[0]): entry.name
    for entry in TABLE
    if entry.positions != tuple(POSITION_EMBEDDINGS) and entry.name != SEGMENT_TABLE
}
# A pre-trainer of the Model Garden has two poolers: the one that was trained in its next-sentence
# head, and the encoder's own. The encoder's own is not read if both are there.
NEXT_SENTENCE_POOLER = tuple(
    _dense(
        POOLER,
        "bert.pooler.dense",
        inputs="hidden_dim",
        outputs="hidden_dim",
        keras="pooled_dense",
        tf1="bert/pooler/dense",
        model_garden="next_sentence/pooler_dense",
    )
)


def entries_of(part: str, num_layers: int) -> Iterator[Entry]:
    """Yields the entries of a part: first the single arrays, then those of each encoder layer."""
    entries = [entry for entry in TABLE if entry.part == part]
    for entry in entries:
        if "{}" not in entry.name:
            yield entry
    for layer in range(num_layers):
        for entry in entries:
            if "{}" in entry.name:
                yield entry.of_layer(layer)


def read_tables(position_embeddings: str) -> set[str]:
    """Returns the keys of `POSITION_TABLES` whose arrays an encoder with such positions has."""
    read = {entry.name for entry in TABLE if position_embeddings in entry.positions}
    return {size for size, name in POSITION_TABLES.items() if name in read}


def parts_of(column: str) -> list[str]:
    """Returns the parts that a format can store: those with a name in its column of the table."""
    named = {entry.part for entry in TABLE if getattr(entry, column) is not None}
    return [part for part in PARTS if part in named]


def find_entry(name: str, column: str) -> Entry | None:
    """Finds the entry of an array by its name in another format.

    Args:
        name: name of the array in a checkpoint of that format.
        column: `"name"`, `"tf1"` or `"model_garden"`.

    Returns:
        The entry, for an encoder layer with its number; `None` if the table does not have the name.
    """
    for pattern, entry in _patterns(column):
        found = pattern.fullmatch(name)
        if found:
            return entry.of_layer(found.group("layer")) if "{}" in entry.name else entry
    return None


@functools.cache
def _patterns(column: str) -> list[tuple[re.Pattern[str], Entry]]:
    """Returns a regular expression for each name of a column, with its entry."""
    patterns = []
    for entry in (*TABLE, *NEXT_SENTENCE_POOLER):
        name = getattr(entry, column)
        if name is not None:
            escaped = re.escape(name).replace(r"\{\}", r"(?P<layer>\d+)")
            patterns.append((re.compile(_PREFIXES[column] + escaped), entry))
    return patterns

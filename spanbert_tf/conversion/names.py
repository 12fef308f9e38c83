"""The table of BERT's arrays: what each is called, and how it lies, in every format.

Names in a `Checkpoint` are those of `BertForPreTraining` of `transformers` in PyTorch, where a
matrix is [outputs, inputs]; the span boundary head has the names of the original SpanBERT code. A
column of the table holds an array's name in another format, and `{}` stands for the number of an
encoder layer. In every other format an array called `kernel` is [inputs, outputs].

To read or write another format, add a column to `Entry` and to the table. `find_entry` then finds
what an array of that format is, and `entries_of` lists the names to write.
"""

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

# The parts of a checkpoint, in the order of the printed table.
ENCODER = "encoder"
POOLER = "pooler"
MASKED_LM_HEAD = "masked_lm_head"
SPAN_BOUNDARY_HEAD = "span_boundary_head"
NEXT_SENTENCE_HEAD = "next_sentence_head"
SPAN_CLASSIFIERS = "span_classifiers"  # the head of `BertForQuestionAnswering`
# The head of `BertForSequenceClassification`. `transformers` calls it `classifier`, and gives the
# heads of other classes the same name.
TEXT_CLASSIFIER = "text_classifier"
TOKEN_CLASSIFIER = "token_classifier"  # the head of `BertForTokenClassification`
COREFERENCE = "coreference"  # the head of the original's coreference resolver
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

# Attention heads that are an axis of their own: [inputs, heads, width of one] or
# [heads, width of one, outputs].
HEADS_OF_OUTPUTS, HEADS_OF_INPUTS = "outputs", "inputs"
# Parts of which Google's names are ours with other separators.
_PARTS_OF_GOOGLE = (ENCODER, POOLER, MASKED_LM_HEAD)
# What may stand before a name of this table in a format.
_PREFIXES = {"tf1": "", "model_garden": "(?:.*/)?"}


class Entry(NamedTuple):
    """One array, or the same array of each encoder layer.

    Attributes:
        part: one of `PARTS`.
        name: its name in a `Checkpoint`.
        shape: its shape in a `Checkpoint`: numbers, arguments of `SpanBertBackbone`, and names of
            `checkpoint.head_dimensions`.
        keras: the attributes that lead to the variable from the Keras model or layer that holds the
            part: the backbone for the encoder and the pooler, the head for every head.
        tf1: its name in a checkpoint of Google's code; `None`: that code has no such array.
        model_garden: its name in a checkpoint of the Model Garden.
        objects: the attributes that lead to it from an encoder of the Model Garden; `None`: it is
            read, not written.
        is_matrix: whether it is [outputs, inputs] in a `Checkpoint`.
        heads: whether outputs or inputs have an axis of attention heads in Keras and the Model
            Garden.
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

    def of_layer(self, layer: int | str) -> "Entry":
        """Returns the entry of one encoder layer, with its number in place of every `{}`."""
        columns = {
            column: value.format(layer)
            for column, value in self._asdict().items()
            if isinstance(value, str)
        }
        return self._replace(**columns)

    def is_transposed(self, theirs: str) -> bool:
        """Whether the array of this name in another format is [inputs, outputs]."""
        return self.is_matrix and theirs.endswith("kernel")

    def joined_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the array in another format, once attention heads have no axis."""
        if self.heads == HEADS_OF_OUTPUTS and self.is_matrix and len(shape) == 3:
            return (shape[0], shape[1] * shape[2])
        if self.heads == HEADS_OF_OUTPUTS and not self.is_matrix and len(shape) == 2:
            return (shape[0] * shape[1],)
        if self.heads == HEADS_OF_INPUTS and self.is_matrix and len(shape) == 3:
            return (shape[0] * shape[1], shape[2])
        return shape

    def split_shape(self, shape: tuple[int, ...], num_heads: int) -> tuple[int, ...]:
        """The reverse of `joined_shape`; -1 is the width of one head."""
        if self.heads == HEADS_OF_OUTPUTS:
            return (*shape[:-1], num_heads, -1)
        if self.heads == HEADS_OF_INPUTS and self.is_matrix:
            return (num_heads, -1, shape[-1])
        return shape


def _layer(
    part: str,
    name: str,
    arrays: dict[str, tuple[str, tuple[int | str, ...]]],
    keras: str,
    garden: str | None,
    objects: str | None,
    heads: str = "",
) -> Iterator[Entry]:
    """The arrays of a layer: our last name → everyone else's, and the shape."""
    google = None
    if part in _PARTS_OF_GOOGLE:
        google = name.replace("layer.{}", "layer_{}").replace(".", "/")
    for ours, (last, shape) in arrays.items():
        yield Entry(
            part,
            f"{name}.{ours}",
            shape,
            f"{keras}.{last}".removeprefix("."),
            google and f"{google}/{last}",
            garden and f"{garden}/{last}",
            objects and f"{objects}.{last}",
            is_matrix=last == "kernel",
            heads=heads,
        )


def _dense(
    part: str,
    name: str,
    inputs: int | str,
    outputs: int | str,
    keras: str = "",
    garden: str | None = None,
    objects: str | None = None,
    *,
    heads: str = "",
) -> Iterator[Entry]:
    """The matrix and the bias of a dense layer."""
    arrays = {"weight": ("kernel", (outputs, inputs)), "bias": ("bias", (outputs,))}
    return _layer(part, name, arrays, keras, garden, objects, heads)


def _layer_norm(
    part: str, name: str, keras: str, garden: str | None = None, objects: str | None = None
) -> Iterator[Entry]:
    """The scale and the offset of a layer normalization."""
    arrays = {"weight": ("gamma", ("hidden_dim",)), "bias": ("beta", ("hidden_dim",))}
    return _layer(part, name, arrays, keras, garden, objects)


def _embeddings(
    name: str, size: str, keras: str, garden: str | None = None, objects: str | None = None
) -> Entry:
    """A table of the embeddings, with as many rows as an argument of the backbone says."""
    google = name.replace(".", "/").removesuffix("/weight")
    return Entry(ENCODER, name, (size, "hidden_dim"), keras, google, garden, objects)


def _resolver(tf1: str, shape: tuple[int | str, ...], keras: str) -> Entry:
    """An array of the coreference resolver, which has the original's layout here as well."""
    return Entry(COREFERENCE, RESOLVER + tf1.replace("/", "."), shape, keras, tf1)


def _linear(scope: str, inputs: int | str, outputs: int | str, keras: str) -> Iterator[Entry]:
    """A linear layer of the resolver."""
    yield _resolver(f"{scope}output_weights", (inputs, outputs), f"{keras}.kernel")
    yield _resolver(f"{scope}output_bias", (outputs,), f"{keras}.bias")


def _network(scope: str, inputs: str, keras: str) -> Iterator[Entry]:
    """A scoring network of the resolver."""
    yield _resolver(f"{scope}hidden_weights_0", (inputs, "ffnn_dim"), f"{keras}.hidden_kernel")
    yield _resolver(f"{scope}hidden_bias_0", ("ffnn_dim",), f"{keras}.hidden_bias")
    yield _resolver(f"{scope}output_weights", ("ffnn_dim", 1), f"{keras}.output_kernel")
    yield _resolver(f"{scope}output_bias", (1,), f"{keras}.output_bias")


TOKEN_TABLE = "bert.embeddings.word_embeddings.weight"
SEGMENT_TABLE = "bert.embeddings.token_type_embeddings.weight"
# Arguments of `SpanBertBackbone`, and the tables whose rows they count.
POSITION_TABLES = {
    "max_sequence_length": "bert.embeddings.position_embeddings.weight",
    "num_paragraphs": "bert.embeddings.para_position_embeddings.weight",
    "num_sentences": "bert.embeddings.sent_position_embeddings.weight",
    "max_sentence_length": "bert.embeddings.token_position_embeddings.weight",
}
SPAN_POSITIONS = "cls.pair_target_predictions.position_embeddings.weight"
MASKED_LM_BIAS = "cls.predictions.bias"
POOLER_BIAS = "bert.pooler.dense.bias"
RESOLVER = "coreference."  # before the names of the original's variables

# Rows: our name and the shape; Keras; the Model Garden's name and its objects. Google's names are
# ours with other separators, so that rows state them where they differ. The tables of SegaBERT's
# positions (paragraph, sentence, token) have its authors' names. The resolver's variables are those
# of mandarjoshi90/coref (`independent.py`, `util.py`).
# fmt: off
TABLE: tuple[Entry, ...] = (
    _embeddings(TOKEN_TABLE, "vocabulary_size", "token_embedding.embeddings",
        "word_embeddings/embeddings", "_embedding_layer.embeddings"),
    _embeddings(POSITION_TABLES["max_sequence_length"], "max_sequence_length",
        "position_embedding.position_embeddings",
        "position_embedding/embeddings", "_position_embedding_layer._position_embeddings"),
    _embeddings(POSITION_TABLES["num_paragraphs"], "num_paragraphs",
        "segment_aware_embedding.tables.paragraph_indices.embeddings"),
    _embeddings(POSITION_TABLES["num_sentences"], "num_sentences",
        "segment_aware_embedding.tables.sentence_indices.embeddings"),
    _embeddings(POSITION_TABLES["max_sentence_length"], "max_sentence_length",
        "segment_aware_embedding.tables.token_indices.embeddings"),
    *_layer_norm(ENCODER, "bert.embeddings.LayerNorm",
        "embeddings_layer_norm",
        "embeddings/layer_norm", "_embedding_norm_layer"),
    _embeddings(SEGMENT_TABLE, "num_segments", "segment_embedding.embeddings",
        "type_embeddings/embeddings", "_type_embedding_layer.embeddings"),
    *_dense(ENCODER, "bert.encoder.layer.{}.attention.self.query", "hidden_dim", "hidden_dim",
        "transformer_layers.{}._self_attention_layer._query_dense",
        "transformer/layer_{}/self_attention/query",
        "_transformer_layers.{}._attention_layer._query_dense", heads=HEADS_OF_OUTPUTS),
    *_dense(ENCODER, "bert.encoder.layer.{}.attention.self.key", "hidden_dim", "hidden_dim",
        "transformer_layers.{}._self_attention_layer._key_dense",
        "transformer/layer_{}/self_attention/key",
        "_transformer_layers.{}._attention_layer._key_dense", heads=HEADS_OF_OUTPUTS),
    *_dense(ENCODER, "bert.encoder.layer.{}.attention.self.value", "hidden_dim", "hidden_dim",
        "transformer_layers.{}._self_attention_layer._value_dense",
        "transformer/layer_{}/self_attention/value",
        "_transformer_layers.{}._attention_layer._value_dense", heads=HEADS_OF_OUTPUTS),
    *_dense(ENCODER, "bert.encoder.layer.{}.attention.output.dense", "hidden_dim", "hidden_dim",
        "transformer_layers.{}._self_attention_layer._output_dense",
        "transformer/layer_{}/self_attention/attention_output",
        "_transformer_layers.{}._attention_layer._output_dense", heads=HEADS_OF_INPUTS),
    *_layer_norm(ENCODER, "bert.encoder.layer.{}.attention.output.LayerNorm",
        "transformer_layers.{}._self_attention_layer_norm",
        "transformer/layer_{}/self_attention_layer_norm",
        "_transformer_layers.{}._attention_layer_norm"),
    *_dense(ENCODER, "bert.encoder.layer.{}.intermediate.dense", "hidden_dim", "intermediate_dim",
        "transformer_layers.{}._feedforward_intermediate_dense",
        "transformer/layer_{}/intermediate", "_transformer_layers.{}._intermediate_dense"),
    *_dense(ENCODER, "bert.encoder.layer.{}.output.dense", "intermediate_dim", "hidden_dim",
        "transformer_layers.{}._feedforward_output_dense",
        "transformer/layer_{}/output", "_transformer_layers.{}._output_dense"),
    *_layer_norm(ENCODER, "bert.encoder.layer.{}.output.LayerNorm",
        "transformer_layers.{}._feedforward_layer_norm",
        "transformer/layer_{}/output_layer_norm", "_transformer_layers.{}._output_layer_norm"),
    *_dense(POOLER, "bert.pooler.dense", "hidden_dim", "hidden_dim",
        "pooled_dense",
        "pooler_transform", "_pooler_layer"),
    *_dense(MASKED_LM_HEAD, "cls.predictions.transform.dense", "hidden_dim", "hidden_dim",
        "_intermediate_dense",
        "cls/predictions/transform/dense"),
    *_layer_norm(MASKED_LM_HEAD, "cls.predictions.transform.LayerNorm",
        "_intermediate_layer_norm",
        "cls/predictions/transform/LayerNorm"),
    Entry(MASKED_LM_HEAD, MASKED_LM_BIAS, ("vocabulary_size",),
        "_bias", "cls/predictions/output_bias", "cls/predictions/output_bias/bias"),
    Entry(SPAN_BOUNDARY_HEAD, SPAN_POSITIONS, ("max_span_targets", "span_position_dim"),
        "position_embedding.embeddings"),
    *_dense(SPAN_BOUNDARY_HEAD, "cls.pair_target_predictions.mlp_layer_norm.linear1",
        "boundary_dim", "hidden_dim", "dense_layers.0"),
    *_layer_norm(SPAN_BOUNDARY_HEAD, "cls.pair_target_predictions.mlp_layer_norm.layer_norm1",
        "layer_norms.0"),
    *_dense(SPAN_BOUNDARY_HEAD, "cls.pair_target_predictions.mlp_layer_norm.linear2",
        "hidden_dim", "hidden_dim", "dense_layers.1"),
    *_layer_norm(SPAN_BOUNDARY_HEAD, "cls.pair_target_predictions.mlp_layer_norm.layer_norm2",
        "layer_norms.1"),
    Entry(SPAN_BOUNDARY_HEAD, "cls.pair_target_predictions.bias", ("vocabulary_size",), "bias"),
    Entry(NEXT_SENTENCE_HEAD, "cls.seq_relationship.weight", (2, "hidden_dim"),
        "kernel", "cls/seq_relationship/output_weights", "next_sentence/logits/kernel",
        is_matrix=True),
    Entry(NEXT_SENTENCE_HEAD, "cls.seq_relationship.bias", (2,),
        "bias", "cls/seq_relationship/output_bias", "next_sentence/logits/bias"),
    Entry(SPAN_CLASSIFIERS, "qa_outputs.weight", (2, "hidden_dim"),
        "kernel", "cls/squad/output_weights", is_matrix=True),
    Entry(SPAN_CLASSIFIERS, "qa_outputs.bias", (2,), "bias", "cls/squad/output_bias"),
    *_dense(TEXT_CLASSIFIER, TEXT_CLASSIFIER, "hidden_dim", "num_text_classes"),
    *_dense(TOKEN_CLASSIFIER, TOKEN_CLASSIFIER, "hidden_dim", "num_token_classes"),
    _resolver("span_width_embeddings", ("max_span_width", "feature_dim"),
        "mention_scorer.width_embeddings"),
    _resolver("span_width_prior_embeddings", ("max_span_width", "feature_dim"),
        "mention_scorer.width_prior_embeddings"),
    _resolver("genre_embeddings", ("num_genres", "feature_dim"),
        "antecedent_scorer.genre_embeddings"),
    _resolver("antecedent_distance_emb", (10, "feature_dim"),
        "antecedent_scorer.prior_distance_embeddings"),
    _resolver("coref_layer/same_speaker_emb", (2, "feature_dim"),
        "antecedent_scorer.speaker_embeddings"),
    _resolver("coref_layer/antecedent_distance_emb", (10, "feature_dim"),
        "antecedent_scorer.distance_embeddings"),
    _resolver("coref_layer/segment_distance/segment_distance_embeddings",
        ("max_segments", "feature_dim"), "antecedent_scorer.segment_embeddings"),
    *_network("mention_scores/", "span_dim", "mention_scorer.mention_network"),
    *_network("width_scores/", "feature_dim", "mention_scorer.width_network"),
    *_network("coref_layer/slow_antecedent_scores/", "pair_dim", "antecedent_scorer.pair_network"),
    *_linear("", "feature_dim", 1, "antecedent_scorer.prior_distance_scores"),
    *_linear("mention_word_attn/", "hidden_dim", 1, "mention_scorer.head_attention"),
    *_linear("src_projection/", "span_dim", "span_dim", "antecedent_scorer.source_projection"),
    *_linear("coref_layer/f/", "gate_dim", "span_dim", "antecedent_scorer.gate"),
)
# A pre-trainer of the Model Garden holds the pooler that was trained in its next-sentence head, and
# the encoder's own beside it, which is not read.
HEAD_POOLER = tuple(
    _dense(POOLER, "bert.pooler.dense", "hidden_dim", "hidden_dim",
        "pooled_dense", "next_sentence/pooler_dense")
)
# fmt: on


def entries_of(part: str, num_layers: int) -> Iterator[Entry]:
    """The entries of a part, one encoder layer after another; every `{}` is filled in."""
    entries = [entry for entry in TABLE if entry.part == part]
    for entry in entries:
        if "{}" not in entry.name:
            yield entry
    for layer in range(num_layers):
        for entry in entries:
            if "{}" in entry.name:
                yield entry.of_layer(layer)


def parts_of(column: str) -> list[str]:
    """The parts that another format has a place for: those whose arrays have that column."""
    return [
        part
        for part in PARTS
        if any(entry.part == part and getattr(entry, column) is not None for entry in TABLE)
    ]


def find_entry(theirs: str, column: str) -> Entry | None:
    """The entry of an array by its name in another format; `None`: the table does not have it.

    Args:
        theirs: name of the array in a checkpoint of that format.
        column: `"tf1"` or `"model_garden"`.
    """
    for pattern, entry in _patterns(column):
        if found := pattern.fullmatch(theirs):
            return entry.of_layer(found.group("layer")) if "{}" in entry.name else entry
    return None


@functools.cache
def _patterns(column: str) -> list[tuple[re.Pattern, Entry]]:
    patterns = []
    for entry in (*TABLE, *HEAD_POOLER):
        theirs = getattr(entry, column)
        if theirs is not None:
            name = re.escape(theirs).replace(r"\{\}", r"(?P<layer>\d+)")
            patterns.append((re.compile(_PREFIXES[column] + name), entry))
    return patterns

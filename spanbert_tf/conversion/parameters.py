"""Which Keras variable holds which array of a `Checkpoint`.

H width, V vocabulary entries, N heads, D width of a head.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import keras
import keras_hub
import numpy as np

from spanbert_tf.conversion.checkpoint import (
    COREFERENCE,
    LINEAR,
    NETWORK,
    POSITION_TABLES,
    SEGMENT_TABLE,
    SPAN_POSITIONS,
    TABLES,
    TOKEN_TABLE,
    Array,
    LazyArray,
    standard_name,
)
from spanbert_tf.layers import CoreferenceHead, ScoringNetwork, SpanBoundaryHead
from spanbert_tf.models import SpanBertPretrainer
from spanbert_tf.models.span_bert_backbone import TABLE_SIZES
from spanbert_tf.models.span_bert_task import SpanBertTask


class Parameter(NamedTuple):
    """One variable.

    Attributes:
        name: name of the array in a `Checkpoint`.
        variable: variable of the Keras model.
        is_matrix: whether the array is [outputs, inputs] and the variable [inputs, outputs], where
            Keras' attention has N and D in place of H.
        num_inputs: inputs of a matrix.
    """

    name: str
    variable: keras.Variable
    is_matrix: bool = False
    num_inputs: int = 0

    def assign(self, array: Array) -> None:
        """Gives the variable an array's values."""
        is_alike = isinstance(array, _Held) and array.parameter.is_matrix == self.is_matrix
        if is_alike and keras.backend.backend() == "tensorflow":
            # Of another model in Keras' layout. Variables of one type hold one piece of memory,
            # until either is changed. (JAX lets a step overwrite what it is given.)
            values = keras.ops.convert_to_tensor(array.parameter.variable)
            self.variable.assign(keras.ops.reshape(values, self.variable.shape))
            return
        values = np.asarray(array).T if self.is_matrix else np.asarray(array)
        self.variable.assign(values.reshape(self.variable.shape))

    def to_array(self) -> np.ndarray:
        """The variable's values as float32, in the checkpoint's layout."""
        values = np.asarray(keras.ops.convert_to_numpy(self.variable), "float32")
        if self.is_matrix:
            return np.ascontiguousarray(values.reshape(self.num_inputs, -1).T)
        return values.reshape(-1) if values.ndim == 2 and self.name.endswith("bias") else values

    def lazy(self) -> "_Held":
        """What `to_array` returns, when it is asked for."""
        shape = tuple(self.variable.shape)
        if self.is_matrix:
            shape = (math.prod(shape) // self.num_inputs, self.num_inputs)
        elif len(shape) == 2 and self.name.endswith("bias"):
            shape = (math.prod(shape),)
        return _Held(shape, self)


class _Held(LazyArray):
    """An array that a variable holds."""

    def __init__(self, shape: tuple[int, ...], parameter: Parameter) -> None:
        super().__init__(shape, parameter.to_array)
        self.parameter = parameter


def assign_parameters(parameters: list[Parameter], arrays: Mapping[str, Array]) -> None:
    """Gives variables the arrays of their names."""
    for parameter in parameters:
        parameter.assign(arrays[parameter.name])


def encoder_parameters(backbone: keras_hub.models.Backbone) -> list[Parameter]:
    """The parameters of a `SpanBertBackbone` or KerasHub's `BertBackbone`, without the pooler."""
    parameters = [
        Parameter(TOKEN_TABLE, backbone.token_embedding.embeddings),
        *_position_tables(backbone),
        *_layer_norm("bert.embeddings.LayerNorm", backbone.embeddings_layer_norm),
    ]
    for number, layer in enumerate(backbone.transformer_layers):
        parameters += _encoder_layer(f"bert.encoder.layer.{number}", layer, backbone)
    return parameters


def _position_tables(backbone: keras_hub.models.Backbone) -> Iterator[Parameter]:
    if backbone.position_embedding is not None:
        table = backbone.position_embedding.position_embeddings
        yield Parameter(POSITION_TABLES["max_sequence_length"], table)
    if backbone.segment_embedding is not None:
        yield Parameter(SEGMENT_TABLE, backbone.segment_embedding.embeddings)
    segment_aware = getattr(backbone, "segment_aware_embedding", None)
    for name, table in segment_aware.tables.items() if segment_aware else ():
        yield Parameter(POSITION_TABLES[TABLE_SIZES[name]], table.embeddings)


def pooler_parameters(backbone: keras_hub.models.Backbone) -> list[Parameter]:
    """The parameters of the dense layer over [CLS]."""
    return list(_dense("bert.pooler.dense", backbone.pooled_dense, backbone.hidden_dim))


def masked_lm_parameters(head: keras_hub.layers.MaskedLMHead, width: int) -> list[Parameter]:
    """The parameters of a masked-language-model head, without the tied token embedding."""
    prefix = "cls.predictions"
    return [
        *_dense(f"{prefix}.transform.dense", head._intermediate_dense, width),
        *_layer_norm(f"{prefix}.transform.LayerNorm", head._intermediate_layer_norm),
        Parameter(f"{prefix}.bias", head._bias),
    ]


def further_head_parameters(pretrainer: SpanBertPretrainer) -> list[Parameter]:
    """Those of the heads that only pre-training needs."""
    width, parameters = pretrainer.backbone.hidden_dim, []
    if pretrainer.span_boundary_head is not None:
        parameters += _span_boundary_parameters(pretrainer.span_boundary_head, width)
    if pretrainer.next_sentence_head is not None:
        parameters += _dense("cls.seq_relationship", pretrainer.next_sentence_head, width)
    return parameters


def _span_boundary_parameters(head: SpanBoundaryHead, width: int) -> list[Parameter]:
    """Without the tied token embedding."""
    prefix = "cls.pair_target_predictions"
    num_inputs = (2 * width + head.span_position_dim, width)
    parameters = [Parameter(SPAN_POSITIONS, head.position_embedding.embeddings)]
    for number in (0, 1):
        mlp = f"{prefix}.mlp_layer_norm"
        dense, norm = head.dense_layers[number], head.layer_norms[number]
        parameters += _dense(f"{mlp}.linear{number + 1}", dense, num_inputs[number])
        parameters += _layer_norm(f"{mlp}.layer_norm{number + 1}", norm)
    return [*parameters, Parameter(f"{prefix}.bias", head.bias)]


def head_parameters(task: SpanBertTask) -> list[Parameter]:
    """The parameters of a fine-tuned task's head, which is its `checkpoint_part`."""
    if task.checkpoint_part == COREFERENCE:
        return _coreference_parameters(task.head)
    head = task.dense_head
    return list(_dense(head.array_name, getattr(task, head.layer), task.backbone.hidden_dim))


def _encoder_layer(
    prefix: str, layer: keras_hub.layers.TransformerEncoder, backbone: keras_hub.models.Backbone
) -> Iterator[Parameter]:
    width = backbone.hidden_dim
    attention = layer._self_attention_layer
    for name in ("query", "key", "value"):
        dense = getattr(attention, f"_{name}_dense")
        yield from _dense(f"{prefix}.attention.self.{name}", dense, width)  # [H, N, D]
    yield from _dense(f"{prefix}.attention.output.dense", attention._output_dense, width)
    yield from _layer_norm(f"{prefix}.attention.output.LayerNorm", layer._self_attention_layer_norm)
    yield from _dense(f"{prefix}.intermediate.dense", layer._feedforward_intermediate_dense, width)
    output = layer._feedforward_output_dense
    yield from _dense(f"{prefix}.output.dense", output, backbone.intermediate_dim)
    yield from _layer_norm(f"{prefix}.output.LayerNorm", layer._feedforward_layer_norm)


def _dense(prefix: str, dense: keras.layers.Layer, num_inputs: int) -> Iterator[Parameter]:
    yield Parameter(f"{prefix}.weight", dense.kernel, is_matrix=True, num_inputs=num_inputs)
    yield Parameter(f"{prefix}.bias", dense.bias)


def _layer_norm(prefix: str, norm: keras.layers.LayerNormalization) -> Iterator[Parameter]:
    yield Parameter(f"{prefix}.weight", norm.gamma)
    yield Parameter(f"{prefix}.bias", norm.beta)


def _coreference_parameters(head: CoreferenceHead) -> list[Parameter]:
    """One of depth 1 lacks the gate."""
    mentions, antecedents = head.mention_scorer, head.antecedent_scorer
    tables = (
        mentions.width_embeddings,
        mentions.width_prior_embeddings,
        antecedents.genre_embeddings,
        antecedents.prior_distance_embeddings,
        antecedents.speaker_embeddings,
        antecedents.distance_embeddings,
        antecedents.segment_embeddings,
    )
    pairs = list(zip(TABLES, tables, strict=True))
    pairs += _network("mention_scores/", mentions.mention_network)
    pairs += _network("width_scores/", mentions.width_network)
    pairs += _network("coref_layer/slow_antecedent_scores/", antecedents.pair_network)
    pairs += _linear("", antecedents.prior_distance_scores)
    pairs += _linear("mention_word_attn/", mentions.head_attention)
    pairs += _linear("src_projection/", antecedents.source_projection)
    if antecedents.depth > 1:
        pairs += _linear("coref_layer/f/", antecedents.gate)
    return [Parameter(standard_name(name), variable) for name, variable in pairs]


def _network(scope: str, network: ScoringNetwork) -> Iterator[tuple[str, keras.Variable]]:
    variables = (
        network.hidden_kernel,
        network.hidden_bias,
        network.output_kernel,
        network.output_bias,
    )
    for name, variable in zip(NETWORK, variables, strict=True):
        yield scope + name, variable


def _linear(scope: str, dense: keras.layers.Dense) -> Iterator[tuple[str, keras.Variable]]:
    for name, variable in zip(LINEAR, (dense.kernel, dense.bias), strict=True):
        yield scope + name, variable

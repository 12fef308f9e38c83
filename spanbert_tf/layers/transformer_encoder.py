"""KerasHub's transformer layer with fewer and larger operations.

B rows, S positions, N heads, D width of a head, H = N · D.
"""

from collections.abc import Sequence

import keras
import keras_hub
from keras import ops

from spanbert_tf.layers.adapted_projection import AdaptedProjection, is_plain
from spanbert_tf.layers.shared_graph import call_in_training, is_shared
from spanbert_tf.layers.training_operations import (
    apply_dropout,
    project_and_normalize,
    project_at_once,
    training_attention,
    widen,
)

if _ON_JAX := keras.backend.backend() == "jax":
    from spanbert_tf.layers import jax_operations

_MASKED, _MASKED_FLOAT16 = -1e9, -3e4  # added to the scores of padding


@keras.saving.register_keras_serializable(package="spanbert_tf")
class TransformerEncoder(keras_hub.layers.TransformerEncoder):
    """The same computation, weights and names as `keras_hub.layers.TransformerEncoder`.

    What differs, measured on a CPU (`python -m benchmarks.question_answering`):

    - queries, keys and values are one matrix product and one transposition;
    - all products with weights are of matrices [B · S, H], with which TensorFlow puts bias and
      GELU into the product at inference;
    - padding is added to the attention's scores in place of a selection over [B, N, S, S];
    - in training, all is as `training_operations` says, and `shared_graph`.

    The class keeps KerasHub's name, which is part of the paths in files of weights.

    `attention_dropout` is the rate of attention's weights; by default it is `dropout`, as in BERT.
    On JAX, attention without it is Keras' one operation, which takes a fused kernel if it can;
    with it, `jax_operations.can_drop_at_once` says where that kernel drops as well.

    It supports BERT's variant alone: normalisation after the residual. Where one of its layers is
    quantized, adapted by Keras or watched (GPTQ, AWQ), or without a mask, it is KerasHub's.

    With `recompute` (Chen et al., 2016) training keeps the layer's inputs alone, and computes the
    rest again for the gradients, with the same dropout.

    Call arguments:
        inputs: float tensor [B, S, H].
        padding_mask: int or bool tensor [B, S], 0 for padding; `None`: there is none.
        training: bool. Whether to apply dropout.
        dropouts: of attention, its output and the feed-forward network, in place of its own.

    Returns:
        A float tensor [B, S, H].
    """

    recompute, _seed_on_jax = False, 0

    def __init__(self, *args: object, attention_dropout: float | None = None, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.attention_dropout = attention_dropout

    def build(self, inputs_shape: Sequence[int | None]) -> None:
        """As in KerasHub, whose layer knows one rate."""
        own = self.dropout
        of_attention = own if self.attention_dropout is None else self.attention_dropout
        self.dropout = max(own, of_attention)  # a dropout of 0 would have no random numbers
        super().build(inputs_shape)
        self.dropout = own
        self._self_attention_layer._dropout = of_attention
        self._self_attention_layer._dropout_layer.rate = of_attention
        self._self_attention_dropout.rate = self._feedforward_dropout.rate = own
        if _ON_JAX and of_attention:
            dropout = self._self_attention_layer._dropout_layer  # not built: it has no path itself
            self._seed_on_jax = jax_operations.first_seed(dropout, self.path)

    def get_config(self) -> dict:
        """As in Keras."""
        return {**super().get_config(), "attention_dropout": self.attention_dropout}

    def adapt_whole_matrices(self) -> None:
        """From now on, `enable_lora` of queries, keys and values adapts a matrix, not each head."""
        attention = self._self_attention_layer
        for dense in (attention.query_dense, attention.key_dense, attention.value_dense):
            dense.__class__ = AdaptedProjection  # not before: Keras quantizes no class but its own

    def call(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        training: bool | None = None,
        dropouts: tuple | None = None,
    ) -> keras.KerasTensor:
        attention = self._self_attention_layer
        if padding_mask is None or not all(map(is_plain, self._products(attention))):
            return super().call(inputs, padding_mask=padding_mask, training=training)
        own = attention._dropout_layer, self._self_attention_dropout, self._feedforward_dropout
        if training and dropouts is None and (self.recompute or is_shared(self)):
            return call_in_training(self, inputs, padding_mask, own)
        dropouts = dropouts or own
        batch_size, length = ops.shape(inputs)[:2]
        hidden_dim = inputs.shape[-1]
        x = ops.reshape(inputs, (-1, hidden_dim))  # [B · S, H]
        heads = self._attend(attention, x, padding_mask, batch_size, length, dropouts[0], training)
        norms = self._self_attention_layer_norm, self._feedforward_layer_norm
        dense = attention.output_dense
        x = project_and_normalize(dense, heads, x, dropouts[1], norms[0], training)
        wide, dense = self._widen(x, training), self._feedforward_output_dense
        x = project_and_normalize(dense, wide, x, dropouts[2], norms[1], training)
        return ops.reshape(x, (batch_size, length, hidden_dim))

    def _products(self, attention: keras.layers.MultiHeadAttention) -> list[keras.layers.Layer]:
        """The layers whose kernels `call` reads."""
        names = ("query", "key", "value", "output")
        projections = [getattr(attention, f"{name}_dense") for name in names]
        return [*projections, self._feedforward_intermediate_dense, self._feedforward_output_dense]

    def _widen(self, x: keras.KerasTensor, training: bool | None) -> keras.KerasTensor:
        """The first layer of the feed-forward network, [B · S, intermediate_dim]."""
        dense = self._feedforward_intermediate_dense
        is_exact = dense.activation is keras.activations.gelu
        return widen(dense, x) if training and is_exact else dense(x)

    def _attend(
        self,
        attention: keras.layers.MultiHeadAttention,
        x: keras.KerasTensor,
        padding_mask: keras.KerasTensor,
        batch_size: int | keras.KerasTensor,
        length: int | keras.KerasTensor,
        dropout: keras.layers.Dropout,
        training: bool | None,
    ) -> keras.KerasTensor:
        """Self-attention, [B · S, H]."""
        hidden_dim = x.shape[-1]
        head_dim = hidden_dim // self.num_heads
        parts = (attention.query_dense, attention.key_dense, attention.value_dense)
        kernels = [ops.reshape(part._kernel, (hidden_dim, hidden_dim)) for part in parts]
        biases = [ops.reshape(part.bias, (hidden_dim,)) for part in parts]
        projected = project_at_once(x, kernels, training)  # [B · S, 3 H]
        projected = ops.add(projected, ops.concatenate(biases, axis=0))
        if any(part.lora_enabled for part in parts):
            # Beside the kernels: no gradient of these is computed, and in half precision a small
            # change is not rounded away (Hu et al., 4.1: the same input, the outputs added).
            changes = [part.adapt(x) for part in parts]
            projected = ops.add(projected, ops.concatenate(changes, axis=1))
        by_head = ops.reshape(projected, (batch_size, length, 3, self.num_heads, head_dim))
        rate = dropout.rate if training else 0.0
        if _ON_JAX and (not rate or jax_operations.can_drop_at_once(by_head)):
            heads = jax_operations.attend_at_once(by_head, padding_mask, rate, self._seed_on_jax)
            return ops.reshape(heads, (-1, hidden_dim))
        by_part = ops.transpose(by_head, (2, 0, 3, 1, 4))  # [3, B, N, S, D]
        query, key, value = ops.unstack(by_part, 3, axis=0)
        query = ops.multiply(query, ops.cast(head_dim**-0.5, query.dtype))
        is_half = keras.backend.standardize_dtype(query.dtype) == "float16"
        is_padding = 1 - ops.cast(padding_mask, query.dtype)  # [B, S]
        padding = (is_padding * (_MASKED_FLOAT16 if is_half else _MASKED))[:, None, None, :]
        if keras.backend.backend() == "tensorflow" and training:
            heads = training_attention(dropout, query, key, value, padding)
        else:
            scores = ops.matmul(query, ops.transpose(key, (0, 1, 3, 2)))  # [B, N, S, S]
            weights = ops.softmax(scores + padding, axis=-1)
            weights = apply_dropout(dropout, weights, training)
            heads = ops.matmul(weights, value)  # [B, N, S, D]
        return ops.reshape(ops.transpose(heads, (0, 2, 1, 3)), (-1, hidden_dim))

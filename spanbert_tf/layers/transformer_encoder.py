"""A transformer layer of BERT's encoder.

Shapes: B rows, S positions, N heads, D width of a head, H = N · D width of the encoder, R = B · S,
I width of the feed-forward network.
"""

from collections.abc import Sequence

import keras
from keras import ops

from spanbert_tf.layers import operations
from spanbert_tf.layers.low_rank_adapter import LowRankAdapter
from spanbert_tf.layers.operations.plain import Dropout, LayerConstants

_PROJECTIONS = ("query", "key", "value")


@keras.saving.register_keras_serializable(package="spanbert_tf")
class TransformerEncoder(keras.layers.Layer):
    """Self-attention and a feed-forward network, each followed by a residual and a normalization.

    It computes the same as `keras_hub.layers.TransformerEncoder` with the activation `"gelu"`. Its
    weights have the same names, so both classes read each other's files of weights. It is faster on
    a CPU (`python -m benchmarks.question_answering`), because

    - queries, keys and values are computed by one matrix product and one transposition;
    - all products with kernels are products of matrices [R, H], with which TensorFlow fuses bias
      and GELU in inference;
    - padding is added to the attention scores, instead of a selection over [B, N, S, S];
    - training stores less and computes less, see `operations`.

    The layer contains Keras layers, which hold the weights, and computes with these weights itself.
    It can neither be quantized nor adapted by Keras' `enable_lora`; use `lora_rank` instead.

    Args:
        intermediate_dim: int. Width of the feed-forward network.
        num_heads: int. Number of attention heads; must divide the width of the inputs.
        dropout: float. Dropout rate.
        attention_dropout: float. Dropout rate of the attention weights; by default `dropout`, as in
            BERT. On JAX, attention without dropout can take a fused kernel.
        layer_norm_epsilon: float. Epsilon of both layer normalizations.
        kernel_initializer: initializer of the kernels.
        lora_rank: int. Rank of low-rank adapters (Hu et al., 2021), see `LowRankAdapter`. Only the
            adapters are trained then. `None`: no adapters.
        lora_alpha: float. Scale of the adapters; by default `lora_rank`.
        lora_targets: names of the projections with an adapter, among `"query"`, `"key"` and
            `"value"`; by default queries and values (Hu et al., 4.2).

    Raises:
        ValueError: `lora_targets` names another projection; from `build`, `num_heads` does not
            divide the width of the inputs; from a call, Keras has quantized or adapted a layer
            inside.

    Attributes:
        gradient_checkpointing: bool. Whether training stores only the inputs of the layer, and
            computes the rest again for the gradients (Chen et al., 2016), with the same dropout.
        adapters: dict from names of projections to their `LowRankAdapter`.

    Call arguments:
        inputs: float tensor [B, S, H].
        padding_mask: int or bool tensor [B, S], 0 for padding. `None` if there is no padding.
        training: bool. Whether to apply dropout.

    Returns:
        A float tensor [B, S, H].
    """

    def __init__(
        self,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        layer_norm_epsilon: float = 1e-5,
        kernel_initializer: str | keras.initializers.Initializer = "glorot_uniform",
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        lora_targets: Sequence[str] = ("query", "value"),
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        if not set(lora_targets) <= set(_PROJECTIONS):
            raise ValueError(f"lora_targets must be of {_PROJECTIONS}. Received: {lora_targets}")
        self.intermediate_dim = intermediate_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.lora_rank = lora_rank
        self.lora_alpha = lora_alpha
        self.lora_targets = list(lora_targets)
        self.gradient_checkpointing = False
        self.supports_masking = True

    def build(self, inputs_shape: tuple[int | None, ...]) -> None:
        hidden_dim = inputs_shape[-1]
        if hidden_dim is None or hidden_dim % self.num_heads:
            raise ValueError(
                f"num_heads must divide the width of the inputs. Received: num_heads="
                f"{self.num_heads}, inputs of width {hidden_dim}"
            )
        attention_dropout = self.attention_dropout
        if attention_dropout is None:
            attention_dropout = self.dropout
        # The attributes and layers have KerasHub's names, which are the paths in files of weights.
        self._self_attention_layer = keras.layers.MultiHeadAttention(
            num_heads=self.num_heads,
            key_dim=hidden_dim // self.num_heads,
            dropout=attention_dropout,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name="self_attention_layer",
        )
        self._self_attention_layer.build(inputs_shape, inputs_shape)
        self._self_attention_layer_norm = self._layer_norm("self_attention_layer_norm")
        self._self_attention_layer_norm.build(inputs_shape)
        self._self_attention_dropout = self._dropout("self_attention_dropout")
        self._feedforward_layer_norm = self._layer_norm("feedforward_layer_norm")
        self._feedforward_layer_norm.build(inputs_shape)
        self._feedforward_intermediate_dense = self._dense(
            self.intermediate_dim, "gelu", "feedforward_intermediate_dense"
        )
        self._feedforward_intermediate_dense.build(inputs_shape)
        self._feedforward_output_dense = self._dense(hidden_dim, None, "feedforward_output_dense")
        self._feedforward_output_dense.build((*inputs_shape[:-1], self.intermediate_dim))
        self._feedforward_dropout = self._dropout("feedforward_dropout")
        weights_dropout = self._self_attention_layer._dropout_layer
        self._kernel_seed = operations.kernel_seed(weights_dropout, self.path)
        self.adapters = {}
        if self.lora_rank is not None:
            self.adapters = self._build_adapters(hidden_dim, self.lora_rank)
            self.freeze_all_but_adapters()

    def freeze_all_but_adapters(self) -> None:
        """Freezes all layers inside except the adapters."""
        adapters = {id(adapter) for adapter in self.adapters.values()}
        for layer in self._flatten_layers(include_self=False):
            if id(layer) not in adapters:
                layer.trainable = False

    def _layer_norm(self, name: str) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name
        )

    def _dropout(self, name: str) -> keras.layers.Dropout:
        return keras.layers.Dropout(self.dropout, dtype=self.dtype_policy, name=name)

    def _dense(self, units: int, activation: str | None, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def _build_adapters(self, hidden_dim: int, rank: int) -> dict[str, LowRankAdapter]:
        adapters = {}
        for name in self.lora_targets:
            adapter = LowRankAdapter(
                rank, self.lora_alpha, dtype=self.dtype_policy, name=f"{name}_adapter"
            )
            adapter.build((None, hidden_dim))
            adapters[name] = adapter
        return adapters

    def call(
        self,
        inputs: keras.KerasTensor,
        padding_mask: keras.KerasTensor | None = None,
        training: bool | None = None,
    ) -> keras.KerasTensor:
        self._check_layers()
        if padding_mask is None:
            padding_mask = ops.ones(ops.shape(inputs)[:2], "int32")
        if not training:
            return self.compute(inputs, LayerConstants(padding_mask), training=False)
        constants = LayerConstants(
            padding_mask,
            Dropout.draw(self._self_attention_layer._dropout_layer, self._kernel_seed),
            Dropout.draw(self._self_attention_dropout),
            Dropout.draw(self._feedforward_dropout),
        )
        return operations.call_in_training(self, inputs, constants)

    def compute(
        self,
        inputs: keras.KerasTensor,
        constants: LayerConstants,
        training: bool,
    ) -> keras.KerasTensor:
        """Computes the outputs of the layer as a pure function of the arguments and the weights.

        Args:
            inputs: float tensor [B, S, H].
            constants: the padding and the dropouts of the call.
            training: whether gradients will be computed.

        Returns:
            A float tensor [B, S, H].
        """
        batch_size, length = ops.shape(inputs)[:2]
        hidden_dim = inputs.shape[-1]
        x = ops.reshape(inputs, (-1, hidden_dim))  # [R, H]

        projected = self._project(x, training)  # [R, 3 H]
        head_dim = hidden_dim // self.num_heads
        by_head = ops.reshape(projected, (batch_size, length, 3, self.num_heads, head_dim))
        heads = operations.attention(
            by_head, constants.padding_mask, constants.weights_dropout, training
        )  # [B, S, N, D]
        heads = ops.reshape(heads, (-1, hidden_dim))
        x = operations.project_and_normalize(
            self._self_attention_layer.output_dense,
            heads,
            x,
            constants.attention_dropout,
            self._self_attention_layer_norm,
            training,
        )

        inner = operations.dense_gelu(self._feedforward_intermediate_dense, x, training)  # [R, I]
        x = operations.project_and_normalize(
            self._feedforward_output_dense,
            inner,
            x,
            constants.network_dropout,
            self._feedforward_layer_norm,
            training,
        )
        return ops.reshape(x, (batch_size, length, hidden_dim))

    def _project(self, x: keras.KerasTensor, training: bool) -> keras.KerasTensor:
        """Computes the queries, keys and values of rows [R, H], side by side, [R, 3 H]."""
        hidden_dim = x.shape[-1]
        attention = self._self_attention_layer
        layers = (attention.query_dense, attention.key_dense, attention.value_dense)
        kernels = [ops.reshape(layer.kernel, (hidden_dim, hidden_dim)) for layer in layers]
        biases = [ops.reshape(layer.bias, (hidden_dim,)) for layer in layers]
        projected = operations.fused_projection(x, kernels, training)
        projected = ops.add(projected, ops.concatenate(biases, axis=0))
        if not self.adapters:
            return projected
        changes = []
        for name in _PROJECTIONS:
            if name in self.adapters:
                changes.append(self.adapters[name](x))
            else:
                changes.append(ops.zeros_like(x))
        return ops.add(projected, ops.concatenate(changes, axis=1))

    def _check_layers(self) -> None:
        """Raises an error if Keras has changed layers inside, whose kernels `compute` reads."""
        for layer in self._flatten_layers(include_self=False):
            is_quantized = getattr(layer, "quantization_mode", None) is not None
            if is_quantized or getattr(layer, "lora_enabled", False):
                raise ValueError(
                    f"{layer.path}: was quantized or adapted by Keras, which {type(self).__name__} "
                    "does not support; for low-rank adapters give lora_rank to the constructor, or "
                    "to `SpanBertBackbone.from_preset`"
                )

    def compute_output_shape(self, inputs_shape: tuple[int | None, ...]) -> tuple:
        return inputs_shape

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "num_heads": self.num_heads,
            "dropout": self.dropout,
            "attention_dropout": self.attention_dropout,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "lora_rank": self.lora_rank,
            "lora_alpha": self.lora_alpha,
            "lora_targets": list(self.lora_targets),
        }

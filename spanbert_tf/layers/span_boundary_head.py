"""The head of the span boundary objective.

Shapes: B rows, S positions, K prediction slots, H width, V entries of the vocabulary.
"""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBoundaryHead(keras.layers.Layer):
    """Predicts each token of a masked span from the two tokens just outside of the span.

    See SpanBERT, section 3.2. Let x be the outputs of the encoder, s and e the first and the last
    position of a span, and p a table of position embeddings. For the token at position i,

        h0 = [x_(s-1); x_(e+1); p_(i-s+1)]
        h1 = LayerNorm(GeLU(W1 h0))
        y  = LayerNorm(GeLU(W2 h1))

    The logits are the product of y with the tied token embedding, plus a bias. Only the K
    prediction slots are computed.

    Args:
        token_embedding: a `TiedEmbedding`.
        max_span_targets: int. Maximum number of targets of a span, the rows of the table p.
        span_position_dim: int. Width of the position embeddings (section 4.2: 200).
        layer_norm_epsilon: float. Epsilon of both LayerNorms.
        initializer: initializer of the kernels and of p.

    Call arguments:
        sequence_output: outputs of the encoder, float [B, S, H].
        left_positions: s - 1 for each slot, int [B, K].
        right_positions: e + 1 for each slot, int [B, K].
        offsets: i - s for each slot, int [B, K]. Larger offsets get the last row of p.

    Returns:
        Logits, float32 [B, K, V].

    Example:
    ```python
    backbone = spanbert_tf.models.SpanBertBackbone(28996, 12, 12, 768, 3072)
    head = spanbert_tf.layers.SpanBoundaryHead(backbone.token_embedding)
    outputs = np.ones((1, 12, 768), "float32")
    # The span of positions 3 and 4 lies between positions 2 and 5.
    head(outputs, np.array([[2, 2]]), np.array([[5, 5]]), np.array([[0, 1]]))  # [1, 2, 28996]
    ```
    """

    def __init__(
        self,
        token_embedding: keras.layers.ReversibleEmbedding,
        max_span_targets: int = 20,
        span_position_dim: int = 200,
        layer_norm_epsilon: float = 1e-12,
        initializer: str | keras.initializers.Initializer = "glorot_uniform",
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.token_embedding = token_embedding
        self.max_span_targets = max_span_targets
        self.span_position_dim = span_position_dim
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer = keras.initializers.get(initializer)
        self.position_embedding = keras.layers.Embedding(
            max_span_targets,
            span_position_dim,
            embeddings_initializer=self.initializer.clone(),
            dtype=self.dtype_policy,
            name="position_embedding",
        )
        width = token_embedding.output_dim
        self.dense_layers = [self._dense(width, "dense_1"), self._dense(width, "dense_2")]
        self.layer_norms = [self._layer_norm("layer_norm_1"), self._layer_norm("layer_norm_2")]

    def _dense(self, width: int, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            width,
            activation="gelu",  # Keras' default is the exact one (erf)
            kernel_initializer=self.initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def _layer_norm(self, name: str) -> keras.layers.LayerNormalization:
        return keras.layers.LayerNormalization(
            epsilon=self.layer_norm_epsilon,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(
        self,
        sequence_output_shape: tuple,
        left_positions_shape: tuple,
        right_positions_shape: tuple,
        offsets_shape: tuple,
    ) -> None:
        width = sequence_output_shape[-1]
        self.position_embedding.build((None, None))
        input_width = 2 * width + self.span_position_dim
        for dense, layer_norm in zip(self.dense_layers, self.layer_norms, strict=True):
            dense.build((None, None, input_width))
            layer_norm.build((None, None, width))
            input_width = width
        self.bias = self.add_weight(
            shape=(self.token_embedding.input_dim,), initializer="zeros", name="bias"
        )
        self.built = True

    def call(
        self,
        sequence_output: keras.KerasTensor,
        left_positions: keras.KerasTensor,
        right_positions: keras.KerasTensor,
        offsets: keras.KerasTensor,
    ) -> keras.KerasTensor:
        def boundary(positions: keras.KerasTensor) -> keras.KerasTensor:
            return ops.take_along_axis(sequence_output, positions[:, :, None], axis=1)

        positions = self.position_embedding(ops.minimum(offsets, self.max_span_targets - 1))
        left = boundary(left_positions)  # [B, K, H]
        right = boundary(right_positions)
        x = ops.concatenate([left, right, positions], axis=-1)  # [B, K, 2 H + span_position_dim]
        for dense, layer_norm in zip(self.dense_layers, self.layer_norms, strict=True):
            x = layer_norm(dense(x))  # [B, K, H]
        logits = self.token_embedding(x, reverse=True)  # [B, K, V]
        # The logits are float32, like those of KerasHub's head in a graph.
        return ops.add(ops.cast(logits, "float32"), ops.cast(self.bias, "float32"))

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "token_embedding": keras.layers.serialize(self.token_embedding),
            "max_span_targets": self.max_span_targets,
            "span_position_dim": self.span_position_dim,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer": keras.initializers.serialize(self.initializer),
        }

    @classmethod
    def from_config(cls, config: dict) -> "SpanBoundaryHead":
        token_embedding = keras.layers.deserialize(config.pop("token_embedding"))
        return cls(token_embedding=token_embedding, **config)

"""A feed-forward network with one hidden layer and one output, whose input comes in parts."""

import keras
from keras import ops

from spanbert_tf.layers.bert_initializer import bert_initializer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class ScoringNetwork(keras.layers.Layer):
    """`ReLU(x · W + b)`, dropout, and one linear output.

    The first layer is linear, so of an input that is put together of parts each part can be
    projected alone, once wherever it occurs, and the projections added: `project`, then `score`.

    Args:
        input_dim: int.
        hidden_dim: int.
        dropout: float. Rate after the hidden layer.

    Call arguments:
        inputs: float [..., input_dim].

    Returns:
        float32 [...].
    """

    def __init__(self, input_dim: int, hidden_dim: int, dropout: float = 0.3, **kwargs) -> None:
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.hidden_dim = hidden_dim
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.hidden_kernel = self.add_weight(
            shape=(input_dim, hidden_dim), initializer=bert_initializer(), name="hidden_kernel"
        )
        self.hidden_bias = self.add_weight(
            shape=(hidden_dim,), initializer="zeros", name="hidden_bias"
        )
        self.output_kernel = self.add_weight(
            shape=(hidden_dim, 1), initializer=bert_initializer(), name="output_kernel"
        )
        self.output_bias = self.add_weight(shape=(1,), initializer="zeros", name="output_bias")
        self.built = True

    def call(self, inputs: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        return self.score(self.project(inputs, 0) + self.bias(), training)

    def project(self, part: keras.KerasTensor, first_row: int) -> keras.KerasTensor:
        """The share of the hidden layer's input that a part of the network's input has.

        Args:
            part: float [..., width].
            first_row: where the part begins in the input.

        Returns:
            float [..., hidden_dim].
        """
        kernel = self.hidden_kernel[first_row : first_row + part.shape[-1]]
        return ops.matmul(part, ops.cast(kernel, self.compute_dtype))

    def bias(self) -> keras.KerasTensor:
        """What is added to the projections of all parts, once."""
        return ops.cast(self.hidden_bias, self.compute_dtype)

    def score(self, hidden: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        """The output, float32 [...], from the hidden layer's input, float [..., hidden_dim]."""
        hidden = self.dropout(ops.relu(hidden), training=training)
        output = ops.matmul(hidden, ops.cast(self.output_kernel, self.compute_dtype))[..., 0]
        return ops.cast(output, "float32") + ops.cast(self.output_bias, "float32")

    def get_config(self) -> dict:
        config = super().get_config()
        config.update(
            {
                "input_dim": self.input_dim,
                "hidden_dim": self.hidden_dim,
                "dropout": self.dropout.rate,
            }
        )
        return config

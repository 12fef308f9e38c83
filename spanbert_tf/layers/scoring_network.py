"""What the scorers of mentions and of antecedents share: a network whose input comes in parts, and
work on a long axis piece by piece, so that what it needs between does not grow with it.

B batch, N positions of the axis, Q positions of a chunk, C chunks.
"""

from collections.abc import Callable, Sequence

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
        kernel = ops.cast(kernel, self.compute_dtype)
        return ops.matmul(ops.cast(part, self.compute_dtype), kernel)

    def bias(self) -> keras.KerasTensor:
        """What is added to the projections of all parts, once."""
        return ops.cast(self.hidden_bias, self.compute_dtype)

    def score(self, hidden: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        """The output, float32 [...], from the hidden layer's input, float [..., hidden_dim]."""
        hidden = self.dropout(ops.relu(hidden), training=training)
        output = ops.matmul(hidden, ops.cast(self.output_kernel, self.compute_dtype))[..., 0]
        return ops.cast(output, "float32") + ops.cast(self.output_bias, "float32")

    def get_config(self) -> dict:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "hidden_dim": self.hidden_dim,
            "dropout": self.dropout.rate,
        }


def map_chunks(
    function: Callable[..., tuple[keras.KerasTensor, ...]],
    inputs: Sequence[keras.KerasTensor],
    output_widths: Sequence[int],
    chunk_size: int,
    look_ahead: int = 0,
) -> tuple[keras.KerasTensor, ...]:
    """Calls a function on each chunk of the second axis, and puts its results together.

    Args:
        function: tensors [B, Q + look_ahead, …], zeros after the last position → float32 tensors
            [B, Q, width].
        inputs: tensors [B, N, …].
        output_widths: the last axis of each result.
        chunk_size: Q.
        look_ahead: positions after a chunk that the function sees, too.

    Returns:
        Tensors [B, N, width].
    """
    batch, length = ops.shape(inputs[0])[0], ops.shape(inputs[0])[1]
    num_chunks = -(-length // chunk_size)
    room = num_chunks * chunk_size + look_ahead - length
    padded = [
        ops.pad(values, [[0, 0], [0, room]] + [[0, 0]] * (len(values.shape) - 2))
        for values in inputs
    ]
    within = ops.arange(chunk_size + look_ahead, dtype="int32")

    def call(_: object, number: keras.KerasTensor) -> tuple:
        places = ops.cast(number, "int32") * chunk_size + within
        results = function(*(ops.take(values, places, axis=1) for values in padded))
        return results, results

    carry = tuple(ops.zeros((batch, chunk_size, width), "float32") for width in output_widths)
    _, results = ops.scan(call, carry, ops.arange(num_chunks, dtype="int32"))  # [C, B, Q, width]
    return tuple(
        ops.reshape(ops.moveaxis(values, 0, 1), (batch, num_chunks * chunk_size, width))[:, :length]
        for values, width in zip(results, output_widths, strict=True)
    )


def gather_rows(values: keras.KerasTensor, indices: keras.KerasTensor) -> keras.KerasTensor:
    """Rows of each example by its own indices.

    Args:
        values: any [B, N, …].
        indices: int [B, …].

    Returns:
        A tensor of the indices' shape, followed by the values' own axes.
    """
    batch, length = ops.shape(values)[0], ops.shape(values)[1]
    flat = ops.reshape(values, (batch * length, *ops.shape(values)[2:]))
    first = ops.reshape(ops.arange(batch) * length, (-1, *[1] * (len(indices.shape) - 1)))
    return ops.take(flat, indices + ops.cast(first, indices.dtype), axis=0)

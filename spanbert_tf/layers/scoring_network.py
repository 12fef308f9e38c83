"""What the scorers of mentions and antecedents share.

A network whose input is a concatenation of parts, and computation of a long axis in chunks, so that
the memory for intermediate results does not grow with its length.

B batch, N positions of the axis, Q positions of a chunk, C chunks.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from spanbert_tf.layers.bert_initializer import bert_initializer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class ScoringNetwork(keras.layers.Layer):
    """`ReLU(x · W + b)`, dropout, and one linear output.

    The first layer is linear. Where the input is a concatenation of parts, each part can be
    projected alone, once for all inputs that it occurs in, and the projections added: `project`,
    then `score`.

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
        """What a part of the network's input contributes to the input of the hidden layer.

        Args:
            part: float [..., width].
            first_row: position in the network's input at which the part begins.

        Returns:
            float [..., hidden_dim].
        """
        kernel = self.hidden_kernel[first_row : first_row + part.shape[-1]]
        kernel = ops.cast(kernel, self.compute_dtype)
        return ops.matmul(ops.cast(part, self.compute_dtype), kernel)

    def bias(self) -> keras.KerasTensor:
        """The bias, which is added once to the projections of all parts."""
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
    """Calls a function on each chunk of the second axis, and concatenates its results.

    Args:
        function: takes tensors [B, Q + look_ahead, …], which are zero after the last position, and
            returns float32 tensors [B, Q, width].
        inputs: tensors [B, N, …].
        output_widths: the last axis of each result.
        chunk_size: Q.
        look_ahead: number of positions after a chunk that are passed to the function with it.

    Returns:
        Tensors [B, N, width].
    """
    batch, length = ops.shape(inputs[0])[:2]
    num_chunks = -(-length // chunk_size)
    padding = num_chunks * chunk_size + look_ahead - length
    padded = [pad_positions(values, padding) for values in inputs]
    offsets = ops.arange(chunk_size + look_ahead, dtype="int32")

    def call(_: object, index: keras.KerasTensor) -> tuple:
        positions = ops.cast(index, "int32") * chunk_size + offsets
        results = function(*(ops.take(values, positions, axis=1) for values in padded))
        return results, results

    carry = tuple(ops.zeros((batch, chunk_size, width), "float32") for width in output_widths)
    _, results = ops.scan(call, carry, ops.arange(num_chunks, dtype="int32"))  # [C, B, Q, width]
    joined = []
    for values, width in zip(results, output_widths, strict=True):
        by_row = ops.moveaxis(values, 0, 1)  # [B, C, Q, width]
        whole = ops.reshape(by_row, (batch, num_chunks * chunk_size, width))
        joined.append(whole[:, :length])
    return tuple(joined)


def pad_positions(values: keras.KerasTensor, padding: int | keras.KerasTensor) -> keras.KerasTensor:
    """Values [B, N, …] followed by zeros, [B, N + padding, …]."""
    other_axes = [[0, 0]] * (len(values.shape) - 2)
    return ops.pad(values, [[0, 0], [0, padding], *other_axes])


def gather_rows(values: keras.KerasTensor, indices: keras.KerasTensor) -> keras.KerasTensor:
    """Gathers rows of each example by the example's own indices.

    Args:
        values: any [B, N, …].
        indices: int [B, …].

    Returns:
        A tensor of the indices' shape, followed by the last axes of the values.
    """
    batch, length = ops.shape(values)[:2]
    flat = ops.reshape(values, (batch * length, *ops.shape(values)[2:]))
    first = ops.reshape(ops.arange(batch) * length, (-1, *[1] * (len(indices.shape) - 1)))
    return ops.take(flat, indices + ops.cast(first, indices.dtype), axis=0)

"""The network that scores mentions and antecedents, and its computation in chunks.

Computing a long axis in chunks limits the memory for intermediate results.

Shapes: B documents, T positions of the axis, Q positions of a chunk.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops

from spanbert_tf.layers.bert_initializer import bert_initializer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class ScoringNetwork(keras.layers.Layer):
    """A hidden layer with ReLU, dropout, and a linear output of one number.

    If the input is a concatenation of parts, `project` projects each part to the hidden layer, once
    for all inputs that contain it. The sum of the projections and of `bias` is the input of
    `score`.

    Args:
        input_dim: int. Width of the inputs.
        hidden_dim: int. Width of the hidden layer.
        dropout: float. Dropout rate after the hidden layer.

    Call arguments:
        inputs: float […, input_dim].

    Returns:
        Scores, float32 […].
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
        """Projects a part of the input to the hidden layer.

        Args:
            part: float […, width].
            first_row: index in the input at which the part starts.

        Returns:
            The projection, float […, hidden_dim].
        """
        kernel = self.hidden_kernel[first_row : first_row + part.shape[-1]]
        kernel = ops.cast(kernel, self.compute_dtype)
        return ops.matmul(ops.cast(part, self.compute_dtype), kernel)

    def bias(self) -> keras.KerasTensor:
        """Returns the bias to add to the sum of the projections of all parts."""
        return ops.cast(self.hidden_bias, self.compute_dtype)

    def score(self, hidden: keras.KerasTensor, training: bool | None = None) -> keras.KerasTensor:
        """Computes scores, float32 […], from the sum of projections, float […, hidden_dim]."""
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
        function: maps tensors [B, Q + look_ahead, …], which are zero after the last position, to
            float32 tensors [B, Q, width].
        inputs: tensors [B, T, …].
        output_widths: the width of each result.
        chunk_size: Q.
        look_ahead: number of positions after a chunk that the function gets, too.

    Returns:
        Tensors [B, T, width].
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
    indices = ops.arange(num_chunks, dtype="int32")
    _, results = ops.scan(call, carry, indices)  # [chunks, B, Q, width]
    joined = []
    for values, width in zip(results, output_widths, strict=True):
        by_row = ops.moveaxis(values, 0, 1)  # [B, chunks, Q, width]
        whole = ops.reshape(by_row, (batch, num_chunks * chunk_size, width))
        joined.append(whole[:, :length])
    return tuple(joined)


def pad_positions(values: keras.KerasTensor, padding: int | keras.KerasTensor) -> keras.KerasTensor:
    """Appends zeros to values, [B, T, …] → [B, T + padding, …]."""
    other_axes = [[0, 0]] * (len(values.shape) - 2)
    return ops.pad(values, [[0, 0], [0, padding], *other_axes])


def gather_rows(values: keras.KerasTensor, indices: keras.KerasTensor) -> keras.KerasTensor:
    """Gathers values of each document by the document's own indices.

    Args:
        values: any [B, T, …].
        indices: int [B, …].

    Returns:
        A tensor of the indices' shape, followed by the last axes of the values.
    """
    batch, length = ops.shape(values)[:2]
    flat = ops.reshape(values, (batch * length, *ops.shape(values)[2:]))
    first = ops.cast(ops.arange(batch) * length, indices.dtype)  # row of each document in `flat`
    other_axes = [1] * (len(indices.shape) - 1)
    return ops.take(flat, indices + ops.reshape(first, (-1, *other_axes)), axis=0)

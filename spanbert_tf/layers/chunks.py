"""Work on a long axis piece by piece, so that what it needs between does not grow with it.

B batch, N positions of the axis, Q positions of a chunk, C chunks.
"""

from collections.abc import Callable, Sequence

import keras
from keras import ops


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

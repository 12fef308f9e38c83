"""Rows of long texts go through a model a few at a time, so that its memory is bounded.

R rows, C of a chunk.
"""

from collections.abc import Callable

import tensorflow as tf

MAX_ROWS = 32  # what `predict` takes at once by default


def map_row_chunks(
    function: Callable[[tf.Tensor], object],
    rows: object,
    dtypes: object,
    max_rows: int | tf.Tensor = MAX_ROWS,
) -> object:
    """Applies a function to chunks of rows, one after the other, in a graph or not.

    Args:
        function: what `rows` is, of tensors [C, …] → a structure of tensors [C, …].
        rows: a structure of tensors [R, …].
        dtypes: structure of the types that the function returns.
        max_rows: C at most. Chunks have the same size, and the last row may be repeated for that.

    Returns:
        What the function returns, of tensors [R, …].
    """
    num_rows = tf.shape(tf.nest.flatten(rows)[0])[0]
    num_chunks = tf.maximum(-(-num_rows // max_rows), 1)  # the function has a say on no rows, too
    size = -(-num_rows // num_chunks)  # C

    def of_chunk(number: tf.Tensor) -> object:
        taken = tf.minimum(number * size + tf.range(size), num_rows - 1)
        return function(tf.nest.map_structure(lambda values: tf.gather(values, taken), rows))

    chunks = tf.map_fn(
        of_chunk, tf.range(num_chunks), parallel_iterations=1, fn_output_signature=dtypes
    )

    def joined(values: tf.Tensor) -> tf.Tensor:
        shape = tf.concat([[num_chunks * size], tf.shape(values)[2:]], axis=0)
        return tf.reshape(values, shape)[:num_rows]

    return tf.nest.map_structure(joined, chunks)

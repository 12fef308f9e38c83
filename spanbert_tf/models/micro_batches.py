"""Micro-batches: the equal parts of a batch whose gradients are added up, to save memory."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops


def equal_parts(batch: tuple, wanted: int) -> tuple[int | keras.KerasTensor, ...]:
    """How many parts of one size a batch has, `wanted` or the next number, and their size.

    The last batch of an epoch may not have as many rows as the others.

    Args:
        batch: a structure of tensors [B, …], or `None`.
        wanted: parts, at least 1; of fewer rows there are as many as rows.
    """
    rows = ops.shape(keras.tree.flatten(batch)[0])[0]
    array = np if isinstance(rows, int) else ops  # what compiles for a shape wants numbers
    numbers = array.arange(1, array.maximum(rows, 1) + 1)
    divides = (rows % numbers == 0) & (numbers >= array.minimum(wanted, rows))
    count = array.min(array.where(divides, numbers, rows))
    count = int(count) if isinstance(rows, int) else count
    return count, rows // count


def add_up_on_tensorflow(
    gradients_of: Callable[[tuple, Any], Sequence[Any]],
    batch: tuple,
    wanted: int,
    variables: Sequence[keras.Variable],
) -> list[Any]:
    """The sum of the gradients of the micro-batches, one after the other.

    Args:
        gradients_of: a micro-batch and how many there are → its share of the gradients.
        batch: as for `equal_parts`.
        wanted: as well.
        variables: those that the gradients are of.
    """
    import tensorflow as tf  # here: the number of parts is asked on JAX, too

    count, size = equal_parts(batch, wanted)

    def add_gradients(number: tf.Tensor, *sums: tf.Tensor) -> tuple[tf.Tensor, ...]:
        rows = number * size + tf.range(size)
        micro_batch = tf.nest.map_structure(
            lambda values: None if values is None else tf.gather(values, rows), batch
        )
        added = [
            total if gradient is None else total + tf.cast(gradient, total.dtype)
            for total, gradient in zip(sums, gradients_of(micro_batch, count), strict=True)
        ]
        return number + 1, *added

    # Zeros that are known when the graph is optimised become constants, which are never freed, and
    # to which nothing can be added in place.
    zeros = [tf.raw_ops.Empty(shape=v.shape, dtype=tf.float32, init=True) for v in variables]
    _, *sums = tf.while_loop(
        lambda number, *sums: number < count,
        add_gradients,
        (tf.constant(0), *zeros),
        parallel_iterations=1,  # as much memory as one micro-batch needs
        maximum_iterations=count,
    )
    return [tf.cast(total, v.dtype) for total, v in zip(sums, variables, strict=True)]

"""Divides a batch into micro-batches, whose gradients are added up to save memory.

Shapes: B rows of the batch.
"""

import keras
import numpy as np
from keras import ops


def equal_parts(batch: tuple, wanted: int) -> tuple[int | keras.KerasTensor, ...]:
    """Finds the number and the size of equal parts of a batch.

    The number is the smallest divisor of the number of rows that is at least `wanted`. A batch of
    fewer rows has one part for each row. The last batch of an epoch may have fewer rows than the
    others.

    Args:
        batch: a structure of tensors [B, …] and `None`.
        wanted: number of parts, at least 1.

    Returns:
        The number and the size of the parts: integers if the number of rows is known, otherwise
        int32 scalars.
    """
    num_rows = ops.shape(keras.tree.flatten(batch)[0])[0]
    is_known = isinstance(num_rows, int)
    array = np if is_known else ops  # JAX needs integers for its shapes
    candidates = array.arange(1, array.maximum(num_rows, 1) + 1)
    is_divisor = num_rows % candidates == 0
    is_enough = candidates >= array.minimum(wanted, num_rows)
    count = array.min(array.where(is_divisor & is_enough, candidates, num_rows))
    if is_known:
        count = int(count)
    return count, num_rows // count

"""Computes batches ahead of the model.

Autotuning is off, because it delays the deletion of iterators.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

_BATCHES_AHEAD = 2  # beside those that are being computed


def computed_ahead(parts: tf.data.Dataset, compute: Callable[..., Any]) -> tf.data.Dataset:
    """Computes batches in order, while the model computes the ones before.

    Args:
        parts: the data set of inputs.
        compute: graph function that maps an element of `parts` to a batch.
    """
    # Without autotuning, `AUTOTUNE` is the number of processors, at most 16. The thread that tunes
    # can miss that its iterator is deleted: it is woken before the flag is set that it then reads,
    # and sleeps on for up to a minute while the deletion waits (4 of 40 iterators, in 2.20).
    options = tf.data.Options()
    options.autotune.enabled = False
    batches = parts.map(compute, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return batches.prefetch(_BATCHES_AHEAD).with_options(options)

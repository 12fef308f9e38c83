"""Layers that are computed again for their gradient, in place of keeping what they computed.

`training.recompute` asks for it; `transformer_encoder` is the layer that can.
"""

from collections.abc import Callable
from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


class DrawnDropout:
    """A dropout layer whose next random number is drawn: each call drops the same values."""

    def __init__(self, layer: keras.layers.Dropout) -> None:
        self.rate, self.seed_generator = layer.rate, self
        self._seed = layer.seed_generator.next() if layer.rate else None
        self.next = lambda: self._seed

    def __call__(self, x: keras.KerasTensor, training: bool) -> keras.KerasTensor:
        """What the layer computes."""
        return keras.random.dropout(x, self.rate, seed=self._seed) if self.rate else x


def recomputed(
    function: Callable[[keras.KerasTensor], keras.KerasTensor], x: keras.KerasTensor
) -> keras.KerasTensor:
    """`function(x)`, a float tensor; it keeps `x` alone, and is computed again for its gradient."""
    if keras.backend.backend() != "tensorflow":
        return keras.remat(function)(x)

    def after(x: Any) -> Any:
        # What needs weights or seeds alone would be computed in advance for the second time.
        with tf.control_dependencies([x]):
            return function(x)

    return keras.remat(after)(x)

"""A layer's training as a function that all layers of an encoder share, or that is computed twice.

The layers are one computation with other weights. In TensorFlow's graphs a step calls one function
for each: it is traced, optimised and kept once, not 24 times. With `training.recompute`, on every
backend, a layer is computed again for its gradients (Chen et al., 2016).
"""

import contextlib
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import keras
from keras.src.backend.common.variables import AutocastScope

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
    from tensorflow.python.ops import control_flow_util

_FUNCTIONS = "_spanbert_tf_layers"  # attribute of the graph that calls them


class DrawnDropout:
    """A dropout layer whose random number is drawn: each call drops the same values."""

    def __init__(self, rate: float, seed: keras.KerasTensor | None) -> None:
        self.rate, self.seed_generator = rate, self
        self.next = lambda: seed

    def __call__(self, x: keras.KerasTensor, training: bool) -> keras.KerasTensor:
        """What the layer computes."""
        return keras.random.dropout(x, self.rate, seed=self.next()) if self.rate else x


def is_shared(layer: keras.layers.Layer) -> bool:
    """Whether a graph of TensorFlow is made that is to call a function for this layer.

    A function keeps what the gradients of all weights need, also of those that are frozen. And XLA
    would take its arguments for constants, since shapes are among the results.
    """
    if keras.backend.backend() != "tensorflow" or tf.executing_eagerly():
        return False
    is_compiled = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    return not is_compiled and (layer.recompute or all(w.trainable for w in layer.weights))


def call_in_training(
    layer: keras.layers.Layer,
    x: keras.KerasTensor,
    padding_mask: keras.KerasTensor,
    dropouts: Sequence[keras.layers.Dropout],
) -> keras.KerasTensor:
    """`layer(x, padding_mask=…, training=True)` with its dropouts' next random numbers.

    Args:
        layer: takes `dropouts`, and keeps its inputs alone where its `recompute` is true.
        x: float tensor [B, S, H].
        padding_mask: int or bool tensor [B, S].
        dropouts: the layer's own.
    """
    seeds = [dropout.seed_generator.next() if dropout.rate else None for dropout in dropouts]
    weights, call = layer.weights, _pure_call(layer, [dropout.rate for dropout in dropouts])
    if not is_shared(layer):
        return call(x, padding_mask, seeds)
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, _FUNCTIONS):
        setattr(graph, _FUNCTIONS, {})
    # Inlined, it would be there for each layer again.
    options = {"autograph": False, "experimental_attributes": {"_noinline": True}}
    key = (layer.recompute, *_description(layer), *(weight.trainable for weight in weights))
    function = getattr(graph, _FUNCTIONS).setdefault(key, tf.function(call, **options))
    with AutocastScope(None):  # what is cast here would be kept for the gradients
        values = [tf.convert_to_tensor(weight.value) for weight in weights]
    return function(x, padding_mask, seeds, *values)


def _description(layer: keras.layers.Layer) -> list[Hashable]:
    """What tells one layer's graph from another's, beside shapes and what is frozen."""
    found: list[Hashable] = []
    for part in layer._flatten_layers():
        found += [type(part), getattr(part, "activation", None)]  # which may be anybody's function
        try:
            found.append(repr(part.get_config() | {"name": None}))
        except TypeError:  # such a function
            found.append(id(part))
    return found


def _pure_call(layer: keras.layers.Layer, rates: list[float]) -> Callable:
    """The layer's call as a function of x, padding mask, seeds and weights; these are its own."""
    # TensorFlow keeps graphs for ever that have gradients of our own, and would keep the model.
    reference, is_recomputed = weakref.ref(layer), layer.recompute

    def call(x: Any, padding_mask: Any, seeds: Sequence, *values: Any) -> Any:
        def compute(x: Any, *values: Any) -> Any:
            layer, drawn = reference(), tuple(map(DrawnDropout, rates, seeds))
            # Gradients that nobody asks for would be computed, too.
            mapping = [
                (weight, value if weight.trainable else tf.stop_gradient(value))
                for weight, value in zip(layer.weights, values, strict=bool(values))
            ]
            with keras.StatelessScope(mapping) if mapping else contextlib.nullcontext():
                # `__call__`: its casts are to be there the second time, too.
                return layer(x, padding_mask=padding_mask, training=True, dropouts=drawn)

        return (keras.remat(compute) if is_recomputed else compute)(x, *values)

    return call

"""Dropout with half of the random bits."""

import math
from collections.abc import Sequence

import keras

_BITS = 16
_RANGE = 2**_BITS


def apply_dropout(
    layer: keras.layers.Dropout, x: keras.KerasTensor, training: bool | None
) -> keras.KerasTensor:
    """What the layer computes, from 16 random bits a value in place of 32, on TensorFlow and JAX.

    Random numbers are up to a tenth of a step on a processor, and more on a GPU. 16 bits tell rates
    apart by 1.5e-5; kept values are scaled by the rate that is really used. The layer's state
    advances as it does in Keras. Under `keras.distribution` it is Keras' own dropout: the generator
    of JAX that is fast on a device draws the numbers of the whole batch on each.

    Args:
        layer: has the rate and the state of the random numbers.
        x: float tensor of any shape.
        training: whether values are dropped.

    Returns:
        A tensor of the shape and type of `x`.
    """
    if not training or not layer.rate or not draws_own_bits():
        return layer(x, training=training)
    is_kept, scale = draw_kept(layer, keras.ops.shape(x))
    return x * (keras.ops.cast(is_kept, x.dtype) * keras.ops.cast(scale, x.dtype))


def draws_own_bits() -> bool:
    """Whether there is a generator of 16 bits a value for this backend."""
    return keras.backend.backend() in _DRAWS and not keras.distribution.distribution()


def draw_kept(layer: keras.layers.Dropout, shape: Sequence) -> tuple[keras.KerasTensor, float]:
    """Which values a layer keeps, bool in the given shape, and what those are multiplied with."""
    # Of the numbers that 16 bits can be, neither none nor all.
    num_kept = min(max(round((1 - layer.rate) * _RANGE), 1), _RANGE - 1)
    draw = _DRAWS[keras.backend.backend()]
    return draw(layer.seed_generator.next(), shape, num_kept), _RANGE / num_kept


def _draw_on_tensorflow(
    seed: keras.KerasTensor, shape: Sequence, num_kept: int
) -> keras.KerasTensor:
    import tensorflow as tf

    size = tf.reduce_prod(tf.stack(shape))
    words = tf.random.stateless_uniform(
        [(size + 1) // 2],
        tf.cast(seed, tf.int64),
        minval=None,  # all of int32
        maxval=None,
        dtype=tf.int32,
    )
    halves = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    return tf.reshape(halves < num_kept - _RANGE // 2, shape)


def _draw_on_jax(seed: keras.KerasTensor, shape: Sequence, num_kept: int) -> keras.KerasTensor:
    """As on TensorFlow, from the device's own generator: JAX' default computes each bit itself."""
    import jax

    size = math.prod(shape)
    key = jax.random.wrap_key_data(keras.ops.concatenate([seed, seed]), impl="rbg")
    words = jax.random.bits(key, [(size + 1) // 2], "uint32")
    halves = jax.lax.bitcast_convert_type(words, "uint16").reshape(-1)[:size]
    return halves.reshape(shape) < num_kept


_DRAWS = {"tensorflow": _draw_on_tensorflow, "jax": _draw_on_jax}

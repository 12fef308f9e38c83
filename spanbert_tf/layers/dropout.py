"""Dropout with half of the random bits."""

import keras

_BITS = 16
_RANGE = 2**_BITS


def apply_dropout(
    layer: keras.layers.Dropout, x: keras.KerasTensor, training: bool | None
) -> keras.KerasTensor:
    """What the layer computes, on TensorFlow from 16 random bits a value in place of 32.

    Random numbers are up to a tenth of a step on a processor. 16 bits tell rates apart by 1.5e-5;
    kept values are scaled by the rate that is really used. The layer's state advances as it does in
    Keras.

    Args:
        layer: has the rate and the state of the random numbers.
        x: float tensor of any shape.
        training: whether values are dropped.

    Returns:
        A tensor of the shape and type of `x`.
    """
    if not training or not layer.rate or keras.backend.backend() != "tensorflow":
        return layer(x, training=training)
    import tensorflow as tf

    num_kept = round((1 - layer.rate) * _RANGE)  # of the numbers that 16 bits can be
    size = tf.size(x)
    words = tf.random.stateless_uniform(
        [(size + 1) // 2],
        tf.cast(layer.seed_generator.next(), tf.int64),
        minval=None,  # all of int32
        maxval=None,
        dtype=tf.int32,
    )
    halves = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    is_kept = tf.reshape(halves < num_kept - _RANGE // 2, tf.shape(x))
    return x * (tf.cast(is_kept, x.dtype) * tf.cast(_RANGE / num_kept, x.dtype))

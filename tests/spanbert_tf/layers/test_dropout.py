"""Dropout from 16 bits a value: its rate, its scale, its randomness and its gradient."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.layers.dropout import apply_dropout


def dropped(layer, x):
    return np.asarray(tf.cast(apply_dropout(layer, x, training=True), tf.float32))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 0.001])
def test_the_rate_is_kept_and_the_mean_stays(rate):
    layer = keras.layers.Dropout(rate, seed=1)
    count = 1_000_001  # odd: one half of the last word is left over
    values = dropped(layer, tf.ones([count]))
    kept = (values > 0).mean()
    assert abs(kept - (1 - rate)) < 5 * (rate * (1 - rate) / count) ** 0.5 + 2**-16
    np.testing.assert_allclose(values[values > 0], 1 / (1 - rate), rtol=1e-4)


def test_neighbours_and_steps_are_independent():
    layer = keras.layers.Dropout(0.5, seed=1)
    first, second = (dropped(layer, tf.ones([1000, 999])).ravel() - 1 for _ in range(2))
    deviation = 1 / first.size**0.5
    for product in (first * second, first[1:] * first[:-1], first[2:] * first[:-2]):
        assert abs(product.mean()) < 5 * deviation  # of two fair coins' signs


def test_the_state_alone_decides():
    layers = [keras.layers.Dropout(0.3, seed=7) for _ in range(2)]
    x = tf.ones([64, 33])
    first = [dropped(layer, x) for layer in layers]
    np.testing.assert_array_equal(*first)
    assert (dropped(layers[0], x) != first[0]).any()
    layers[1].seed_generator.state.assign(layers[0].seed_generator.state)
    np.testing.assert_array_equal(*(dropped(layer, x) for layer in layers))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_pass_where_values_do(dtype):
    layer = keras.layers.Dropout(0.25, seed=3)
    x = tf.cast(tf.random.stateless_normal([50, 7], [1, 2]), dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = apply_dropout(layer, x, training=True)
    gradient = tape.gradient(y, x)
    assert y.dtype == gradient.dtype == x.dtype
    is_kept = np.asarray(tf.cast(y, tf.float32)) != 0
    scale = np.asarray(tf.cast(tf.cast(4 / 3, dtype), tf.float32))
    np.testing.assert_array_equal(tf.cast(gradient, tf.float32), is_kept * scale)


def test_nothing_is_dropped_at_inference_or_at_rate_0():
    x = tf.random.stateless_normal([5, 7], [1, 2])
    np.testing.assert_array_equal(apply_dropout(keras.layers.Dropout(0.5), x, training=False), x)
    np.testing.assert_array_equal(apply_dropout(keras.layers.Dropout(0.0), x, training=True), x)

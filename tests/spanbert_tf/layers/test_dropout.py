"""Dropout from 16 bits a value: its rate, its scale, its randomness and its gradient."""

import importlib.util
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from spanbert_tf.layers import operations
from spanbert_tf.layers.operations import plain
from spanbert_tf.layers.operations.plain import Dropout


def dropped(layer, x):
    return np.asarray(tf.cast(drop(layer, x), tf.float32))


def drop(layer, x):
    return operations.apply_dropout(x, Dropout.draw(layer))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 0.001])
def test_the_rate_is_kept_and_the_mean_stays(rate):
    layer = keras.layers.Dropout(rate, seed=1)
    count = 1_000_001  # odd: one half of the last word is left over
    values = dropped(layer, tf.ones([count]))
    kept = (values > 0).mean()
    assert abs(kept - (1 - rate)) < 5 * (rate * (1 - rate) / count) ** 0.5 + 2**-16
    np.testing.assert_allclose(values[values > 0], 1 / (1 - rate), rtol=1e-4)


@pytest.mark.parametrize("rate", [1e-6, 1 - 1e-6])
def test_rate_next_to_an_end_is_the_nearest_that_16_bits_tell(rate):
    values = dropped(keras.layers.Dropout(rate, seed=1), tf.ones([1_000_000]))
    assert 0 < (values > 0).sum() < values.size
    assert np.isfinite(values).all()


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
        y = drop(layer, x)
    gradient = tape.gradient(y, x)
    assert y.dtype == gradient.dtype == x.dtype
    is_kept = np.asarray(tf.cast(y, tf.float32)) != 0
    scale = np.asarray(tf.cast(tf.cast(4 / 3, dtype), tf.float32))
    np.testing.assert_array_equal(tf.cast(gradient, tf.float32), is_kept * scale)


def test_nothing_is_dropped_at_rate_0():
    x = tf.random.stateless_normal([5, 7], [1, 2])
    np.testing.assert_array_equal(drop(keras.layers.Dropout(0.0), x), x)
    np.testing.assert_array_equal(operations.apply_dropout(x, Dropout()), x)


def test_a_drawn_number_drops_what_kerass_own_layer_drops():
    """Where a backend has no operation of its own."""
    x = tf.ones([64, 33])
    ours = plain.apply_dropout(x, Dropout.draw(keras.layers.Dropout(0.3, seed=7)))
    np.testing.assert_array_equal(ours, keras.layers.Dropout(0.3, seed=7)(x, training=True))


ON_JAX = """
import sys
import jax, keras, numpy as np
from spanbert_tf.layers import operations
from spanbert_tf.layers.operations.plain import Dropout

def drop(layer, x):
    return operations.apply_dropout(x, Dropout.draw(layer))

layer = keras.layers.Dropout(0.25, seed=7)
x = keras.ops.ones((1000, 999))
first, second = drop(layer, x), drop(layer, x)
again = drop(keras.layers.Dropout(0.25, seed=7), x)
half = keras.ops.cast(np.linspace(-2, 2, 350).reshape(50, 7), "bfloat16")
state = layer.seed_generator.state.value
gradient = jax.grad(lambda x: drop_of(state, x).sum())

def drop_of(state, x):
    with keras.StatelessScope([(layer.seed_generator.state, state)]):
        return drop(layer, x)

found = {
    "first": first, "second": second, "again": again,
    "compiled": jax.jit(drop_of)(state, x), "as_it_comes": drop_of(state, x),
    "half": drop_of(state, half).astype("float32"), "gradient": gradient(half).astype("float32"),
    "off": operations.apply_dropout(x, Dropout()),
}
np.savez(sys.argv[1], **found)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed")
def test_on_jax(tmp_path):
    """All properties from above in one process."""
    path = tmp_path / "found.npz"
    environment = os.environ | {"KERAS_BACKEND": "jax", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", ON_JAX, str(path)]
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr[-3000:]
    found = dict(np.load(path))
    first, second = found["first"], found["second"]
    for values in (first, second):
        assert abs((values > 0).mean() - 0.75) < 5 * (0.75 * 0.25 / values.size) ** 0.5
        np.testing.assert_allclose(values[values > 0], 4 / 3, rtol=1e-6)
    signs = [(values > 0) - 0.75 for values in (first.ravel(), second.ravel())]
    for product in (signs[0] * signs[1], signs[0][1:] * signs[0][:-1]):
        assert abs(product.mean()) < 5 * 0.75 * 0.25 / first.size**0.5  # independent coins
    np.testing.assert_array_equal(found["again"], first)
    np.testing.assert_array_equal(found["compiled"], found["as_it_comes"])
    is_kept = found["half"] != 0
    np.testing.assert_array_equal(found["gradient"], is_kept * np.float32(found["gradient"].max()))
    assert found["gradient"].max() == pytest.approx(4 / 3, rel=2**-8)
    np.testing.assert_array_equal(found["off"], 1.0)

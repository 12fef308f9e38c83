"""The GELU of training beside PyTorch's exact one."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

from spanbert_tf.layers import operations

# Tails included: there 1 + erf(x) loses what erfc would keep, and a product with x must stay small.
VALUES = np.concatenate([np.linspace(-12, 12, 4001), np.random.default_rng(0).normal(size=1000)])


def training_gelu(dtype):
    """A function: of a projection by 1."""
    dense = keras.layers.Dense(1, "gelu", kernel_initializer="ones", dtype=dtype)
    dense.build((None, 1))
    return lambda x: tf.reshape(operations.dense_gelu(dense, tf.reshape(x, (-1, 1)), True), (-1,))


def value_and_gradient(x, upstream):
    x, upstream = tf.constant(x), tf.constant(upstream)
    gelu = training_gelu(x.dtype.name)

    @tf.function
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = gelu(x)
        return y, tape.gradient(y, x, output_gradients=upstream)

    return [np.asarray(tf.cast(part, tf.float32)) for part in compute(x)]


def of_pytorch(x, upstream):
    x = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.gelu(x)
    y.backward(torch.tensor(upstream, dtype=torch.float64))
    return y.detach().numpy(), x.grad.numpy()


def test_values_and_gradients_are_pytorchs_in_float32():
    upstream = np.random.default_rng(1).normal(size=VALUES.shape)
    ours = value_and_gradient(VALUES.astype("float32"), upstream.astype("float32"))
    for actual, expected in zip(ours, of_pytorch(VALUES, upstream), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.mark.parametrize(("dtype", "step"), [("bfloat16", 2**-8), ("float16", 2**-11)])
def test_half_precision_is_rounded_once(dtype, step):
    x = tf.cast(tf.constant(VALUES), dtype)
    ones = tf.ones_like(x)
    exact = of_pytorch(np.asarray(tf.cast(x, tf.float64)), np.ones(x.shape))
    for actual, expected in zip(value_and_gradient(x, ones), exact, strict=True):
        np.testing.assert_array_less(abs(actual - expected), abs(expected) * step + 1e-6)


def test_it_is_the_activation_of_inference():
    x = tf.constant(VALUES, tf.float32)
    np.testing.assert_allclose(training_gelu("float32")(x), keras.activations.gelu(x), atol=2e-6)

"""What a training step on JAX computes in place of TensorFlow's operations."""

import math
from collections.abc import Callable, Sequence

import jax
import keras
from jax import numpy as jnp


def draw_bits(seed: jax.Array, shape: Sequence[int], num_kept: int) -> jax.Array:
    """As on TensorFlow, from the device's own generator: JAX' default computes each bit itself."""
    size = math.prod(shape)
    key = jax.random.wrap_key_data(keras.ops.concatenate([seed, seed]), impl="rbg")
    words = jax.random.bits(key, [(size + 1) // 2], "uint32")
    halves = jax.lax.bitcast_convert_type(words, "uint16").reshape(-1)[:size]
    return halves.reshape(shape) < num_kept


def gelu(x: jax.Array, gaussian: Callable[..., tuple]) -> jax.Array:
    """`x · Φ(x)` of `gaussian`'s Φ and φ; keeps `x` alone, and derives when it is asked to.

    A GPU spends its time on memory here.
    """

    @jax.custom_vjp
    def compute(x: jax.Array) -> jax.Array:
        values, shares, _ = gaussian(x, jax.lax.erf)
        return (values * shares).astype(x.dtype)

    def derive(x: jax.Array, gradient: jax.Array) -> tuple[jax.Array]:
        values, shares, densities = gaussian(x, jax.lax.erf)
        slopes = shares + values * densities
        return ((gradient.astype("float32") * slopes).astype(x.dtype),)

    compute.defvjp(lambda x: (compute(x), x), derive)
    return compute(x)


def normalize(x: jax.Array, scale: jax.Array, shift: jax.Array, epsilon: float) -> jax.Array:
    """Layer normalisation of values in half precision, [..., H], with `scale` and `shift` [H].

    Mean and variance come from one pass, in float32: the variance as `E[x²] - E[x]²`. What that
    loses is less than what the values were rounded by. The gradient is the known formula in place
    of one for each operation.
    """

    def mean(values: jax.Array) -> jax.Array:
        return jnp.mean(values, axis=-1, keepdims=True)

    @jax.custom_vjp
    def compute(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
        return forward(x, scale, shift)[0]

    def forward(x: jax.Array, scale: jax.Array, shift: jax.Array) -> tuple:
        values = x.astype("float32")
        center = mean(values)  # [..., 1]
        variance = jnp.maximum(mean(values**2) - center**2, 0.0)
        inverse = jax.lax.rsqrt(variance + epsilon)
        normalized = (values - center) * inverse * scale + shift
        return normalized.astype(x.dtype), (x, center, inverse, scale)

    def backward(kept: tuple, gradient: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        x, center, inverse, scale = kept
        normalized = (x.astype("float32") - center) * inverse
        gradient = gradient.astype("float32")
        rows = tuple(range(x.ndim - 1))
        scaled = gradient * scale
        of_x = scaled - mean(scaled) - normalized * mean(scaled * normalized)
        return (
            (inverse * of_x).astype(x.dtype),
            jnp.sum(gradient * normalized, axis=rows).astype(scale.dtype),
            jnp.sum(gradient, axis=rows).astype(scale.dtype),
        )

    compute.defvjp(forward, backward)
    return compute(x, scale, shift)

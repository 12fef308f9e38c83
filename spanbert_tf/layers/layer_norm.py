"""LayerNorm (Ba et al. 2016) with fewer passes over memory, for half precision on JAX."""

from typing import Any

import keras

_HALF = ("bfloat16", "float16")


def apply_layer_norm(
    layer: keras.layers.LayerNormalization, x: keras.KerasTensor
) -> keras.KerasTensor:
    """What the layer computes, over the last axis.

    Of values in half precision on JAX, mean and variance come from one pass, in float32: the
    variance as `E[x²] - E[x]²`. What that loses is less than what the values were rounded by. The
    gradient is the known formula in place of one for each operation. Everything else is left to
    Keras.

    Args:
        layer: has scale, shift and epsilon.
        x: float tensor [..., H].

    Returns:
        A tensor of the shape of `x`, in the layer's type.
    """
    is_half = keras.backend.standardize_dtype(x.dtype) in _HALF
    if keras.backend.backend() != "jax" or not is_half:
        return layer(x)
    return _normalize(x, layer.gamma.value, layer.beta.value, layer.epsilon)


def _normalize(x: Any, scale: Any, shift: Any, epsilon: float) -> Any:
    import jax
    from jax import numpy as jnp

    def mean(values: jax.Array) -> jax.Array:
        return jnp.mean(values, axis=-1, keepdims=True)

    @jax.custom_vjp
    def normalize(x: jax.Array, scale: jax.Array, shift: jax.Array) -> jax.Array:
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

    normalize.defvjp(forward, backward)
    return normalize(x, scale, shift)

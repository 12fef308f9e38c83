"""What a training step on JAX computes in place of TensorFlow's operations."""

import math
import os
import zlib
from collections.abc import Callable, Sequence

import jax
import keras
from jax import numpy as jnp
from keras.src.backend.jax import nn as keras_nn

# In XLA_FLAGS before JAX sees a card: the same bits from one run to the next. XLA's own products in
# Triton have no settings then, which JAX 0.11 fails of.
DETERMINISTIC = "--xla_gpu_deterministic_ops=true --xla_gpu_enable_triton_gemm=false"
# XLA ends the process when it records an attention that drops (JAX 0.11: `local_device_ordinal`).
_RECORDED = "--xla_gpu_enable_command_buffer"


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


def can_drop_at_once(by_head: jax.Array) -> bool:
    """Whether `attend_at_once` can drop weights of queries, keys and values [B, S, 3, N, D].

    That is cuDNN's attention alone, and where XLA_FLAGS has XLA record no commands. cuDNN counts
    its random numbers itself, in each process from 0 on: a run that goes on draws others than one
    that was not stopped, so a run that is to have the same bits does without. Of several devices
    each would drop the same.
    """
    flags = dict(flag.partition("=")[::2] for flag in os.environ.get("XLA_FLAGS", "").split())
    is_recorded = flags.get(_RECORDED, "all") != ""
    if is_recorded or flags.get(DETERMINISTIC.partition("=")[0], "false") != "false":
        return False
    if jax.default_backend() == "tpu" or keras.distribution.distribution():
        return False
    part = jax.ShapeDtypeStruct((*by_head.shape[:2], *by_head.shape[3:]), by_head.dtype)
    return part.shape[1] % 2 == 0 and keras_nn._can_use_flash_attention(part, part, part, None)


def first_seed(dropout: keras.layers.Dropout, path: str) -> int:
    """That of the layer at `path`: another one for each layer and run, or layer in a graph."""
    seed = dropout.seed_generator.state.value[0]
    return zlib.crc32(path.encode()) if isinstance(seed, jax.core.Tracer) else int(seed)


def attend_at_once(by_head: jax.Array, is_token: jax.Array, rate: float, seed: int) -> jax.Array:
    """Self-attention as one operation, with dropout of its weights or without.

    Args:
        by_head: queries, keys and values, float [B, S, 3, N, D].
        is_token: int or bool [B, S], 0 for padding.
        rate: of dropout; above 0 only where `can_drop_at_once` says so.
        seed: of the random numbers, in the compiled code.

    Returns:
        A float array [B, S, N, D].
    """
    query, key, value = keras.ops.unstack(by_head, 3, axis=2)  # [B, S, N, D]
    batch_size, length, _, head_dim = query.shape
    mask = keras.ops.cast(is_token, "bool")[:, None, None, :]
    mask = jnp.broadcast_to(mask, (batch_size, 1, length, length))  # cuDNN's takes no other
    if rate:
        from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention

        options = {"scale": head_dim**-0.5, "dropout_rate": rate, "seed": seed}
        return dot_product_attention(query, key, value, mask=mask, **options)
    # Keras' kernel for TPUs reads the first row's mask for all rows; cuDNN's takes no odd length in
    # training, which Keras asks too late where layers are recomputed. Else it is as the device can.
    fused = False if length % 2 or jax.default_backend() == "tpu" else None
    return keras.ops.dot_product_attention(query, key, value, mask=mask, flash_attention=fused)

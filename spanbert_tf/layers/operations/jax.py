"""The operations of a transformer layer on JAX; the functions are those of `plain`.

Shapes: B rows, S positions, N heads, D width of a head, H = N · D width of the encoder.
"""

import functools
import math
import os
import zlib
from collections.abc import Sequence

import jax
import keras
from jax import numpy as jnp
from keras import ops
from keras.src.backend.jax import nn as keras_nn

from spanbert_tf.layers.operations import plain
from spanbert_tf.layers.operations.plain import NUM_16_BITS, Dropout

call_in_training = plain.call_in_training
fused_projection = plain.fused_projection
placeholder_zeros = plain.placeholder_zeros
vocabulary_crossentropy = plain.vocabulary_crossentropy

# With these XLA_FLAGS, set before JAX initializes a GPU, a run computes the same bits each time.
# JAX 0.11 fails with them unless XLA's matrix products by Triton are switched off.
DETERMINISTIC = "--xla_gpu_deterministic_ops=true --xla_gpu_enable_triton_gemm=false"
# XLA aborts when it records attention with dropout (JAX 0.11: `local_device_ordinal`).
_RECORDED = "--xla_gpu_enable_command_buffer"
_MULTIPLE = 64  # to which the rows of a table are padded in a matrix product


def kernel_seed(layer: keras.layers.Dropout, path: str) -> int:
    """See `plain`; the seed differs between layers and runs.

    In a model without values, which is only compiled, it depends only on the layer.
    """
    if not layer.rate:
        return 0
    seed = layer.seed_generator.state.value[0]
    if isinstance(seed, jax.core.Tracer):
        return zlib.crc32(path.encode())
    return int(seed)


def apply_dropout(x: jax.Array, dropout: Dropout) -> jax.Array:
    """See `plain`; this draws 16 random bits for each element by the generator of the device.

    JAX's default generator is computed in software. Under `keras.distribution`, Keras' dropout is
    used, because the generator would draw the numbers of the whole batch on each device.
    """
    if not dropout.rate or dropout.seed is None or keras.distribution.distribution():
        return plain.apply_dropout(x, dropout)
    num_kept = plain.num_kept_of_16_bits(dropout.rate)
    is_kept = _draw_bits(dropout.seed, x.shape) < num_kept
    scale = NUM_16_BITS / num_kept
    return x * (ops.cast(is_kept, x.dtype) * ops.cast(scale, x.dtype))


def _draw_bits(seed: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Draws 16 random bits for each element of a shape, uint16."""
    size = math.prod(shape)
    key = jax.random.wrap_key_data(ops.concatenate([seed, seed]), impl="rbg")
    words = jax.random.bits(key, [(size + 1) // 2], "uint32")
    halves = jax.lax.bitcast_convert_type(words, "uint16").reshape(-1)[:size]
    return halves.reshape(shape)


def attention(
    by_head: jax.Array, padding_mask: jax.Array, dropout: Dropout, training: bool
) -> jax.Array:
    """See `plain`; this is one operation without dropout, or if a kernel supports dropout."""
    if dropout.rate and not _can_drop_in_kernel(by_head):
        drop = functools.partial(apply_dropout, dropout=dropout)
        return plain.attend(by_head, padding_mask, drop)
    return _attend_in_kernel(by_head, padding_mask, dropout)


def _can_drop_in_kernel(by_head: jax.Array) -> bool:
    """Whether a kernel supports dropout of the weights of attention over [B, S, 3, N, D].

    Only cuDNN's kernel does, if XLA_FLAGS switches off the recording of commands. It is not used

    - in a deterministic run: cuDNN counts its random numbers from 0 in each process, so a resumed
      run would draw other numbers than an uninterrupted one;
    - on several devices, which would drop the same values.
    """
    flags = dict(flag.partition("=")[::2] for flag in os.environ.get("XLA_FLAGS", "").split())
    is_recorded = flags.get(_RECORDED, "all") != ""
    is_deterministic = flags.get(DETERMINISTIC.partition("=")[0], "false") != "false"
    if is_recorded or is_deterministic:
        return False
    if jax.default_backend() == "tpu" or keras.distribution.distribution():
        return False
    part = jax.ShapeDtypeStruct((*by_head.shape[:2], *by_head.shape[3:]), by_head.dtype)
    can_use_kernel = keras_nn._can_use_flash_attention(part, part, part, bias=None)
    return part.shape[1] % 2 == 0 and can_use_kernel


def _attend_in_kernel(by_head: jax.Array, padding_mask: jax.Array, dropout: Dropout) -> jax.Array:
    """Computes attention as one operation, float [B, S, N, D]."""
    query, key, value = ops.unstack(by_head, 3, axis=2)  # [B, S, N, D]
    batch_size, length, _, head_dim = query.shape
    mask = ops.cast(padding_mask, "bool")[:, None, None, :]
    mask = jnp.broadcast_to(
        mask, (batch_size, 1, length, length)
    )  # the only shape that cuDNN takes
    if dropout.rate:
        from jax._src.cudnn.fused_attention_stablehlo import dot_product_attention

        return dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            scale=head_dim**-0.5,
            dropout_rate=dropout.rate,
            seed=dropout.kernel_seed,
        )
    # Keras' kernel for TPUs uses the mask of the first row for all rows. cuDNN takes no odd length
    # in training, and Keras checks this too late with gradient checkpointing.
    fused = None  # Keras chooses
    if length % 2 or jax.default_backend() == "tpu":
        fused = False
    return ops.dot_product_attention(query, key, value, mask=mask, flash_attention=fused)


def dense_gelu(dense: keras.layers.Dense, x: jax.Array, training: bool) -> jax.Array:
    """See `plain`; in training, this stores only the projection.

    The gradient computes the derivative again, since a GPU is limited by memory transfers here.
    """
    if not training:
        return plain.dense_gelu(dense, x, training)
    return _gelu(plain.project(dense, x))


@jax.custom_vjp
def _gelu(x: jax.Array) -> jax.Array:
    values, distribution, _ = plain.gelu_terms(x)
    return (values * distribution).astype(x.dtype)


def _gelu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _gelu(x), x


def _gelu_backward(x: jax.Array, upstream: jax.Array) -> tuple[jax.Array]:
    values, distribution, density = plain.gelu_terms(x)
    slopes = distribution + values * density
    return ((upstream.astype("float32") * slopes).astype(x.dtype),)


_gelu.defvjp(_gelu_forward, _gelu_backward)


def project_and_normalize(
    dense: keras.layers.Layer,
    x: jax.Array,
    residual: jax.Array,
    dropout: Dropout,
    norm: keras.layers.LayerNormalization,
    training: bool,
) -> jax.Array:
    """See `plain`; this normalizes values in half precision in one pass."""
    total = apply_dropout(plain.project(dense, x), dropout) + residual
    if total.dtype not in (jnp.bfloat16, jnp.float16):
        return norm(total)
    return _normalize(total, norm.gamma.value, norm.beta.value, norm.epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _normalize(x: jax.Array, gamma: jax.Array, beta: jax.Array, epsilon: float) -> jax.Array:
    """Normalizes values in half precision, […, H], with gamma and beta [H].

    Mean and variance are computed in one pass in float32, the variance as E[x²] - E[x]². This loses
    less precision than the rounding of the values.
    """
    return _normalize_forward(x, gamma, beta, epsilon)[0]


def _normalize_forward(
    x: jax.Array, gamma: jax.Array, beta: jax.Array, epsilon: float
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    values = x.astype("float32")
    mean = jnp.mean(values, axis=-1, keepdims=True)  # [..., 1]
    square_mean = jnp.mean(values**2, axis=-1, keepdims=True)
    variance = jnp.maximum(square_mean - mean**2, 0.0)
    inverse = jax.lax.rsqrt(variance + epsilon)
    outputs = (values - mean) * inverse * gamma + beta
    return outputs.astype(x.dtype), (x, mean, inverse, gamma)


def _normalize_backward(
    epsilon: float, kept: tuple[jax.Array, ...], upstream: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, mean, inverse, gamma = kept
    normalized = (x.astype("float32") - mean) * inverse
    x_gradient, gamma_gradient, beta_gradient = plain.normalization_gradients(
        upstream.astype("float32"), normalized, inverse, gamma
    )
    return (
        x_gradient.astype(x.dtype),
        gamma_gradient.astype(gamma.dtype),
        beta_gradient.astype(gamma.dtype),
    )


_normalize.defvjp(_normalize_forward, _normalize_backward)


def tied_logits(rows: jax.Array, table: jax.Array) -> jax.Array:
    """See `plain`; this pads the table to a multiple of 64 rows.

    A GPU uses slower kernels for other sizes, such as BERT's 30,522.
    """
    num_entries = table.shape[0]
    table = ops.pad(table, [(0, -num_entries % _MULTIPLE), (0, 0)])
    return plain.tied_logits(rows, table)[:, :num_entries]

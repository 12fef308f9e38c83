"""Parts of a transformer layer that training steps compute faster than Keras does.

B rows, N heads, S positions, D width of a head, H width of a layer.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
elif keras.backend.backend() == "jax":
    from spanbert_tf.layers import jax_operations

_RANGE = 2**16  # of a random number
_OWN_BITS = ("tensorflow", "jax")  # backends with a generator of 16 bits a value


def apply_dropout(
    layer: keras.layers.Dropout, x: keras.KerasTensor, training: bool | None
) -> keras.KerasTensor:
    """What the layer computes, from 16 random bits a value in place of 32, on TensorFlow and JAX.

    Random numbers are up to a tenth of a step on a processor, and more on a GPU. 16 bits tell rates
    apart by 1.5e-5; kept values are scaled by the rate that is really used. The layer's state
    advances as it does in Keras. Under `keras.distribution` it is Keras' own dropout: the generator
    of JAX that is fast on a device draws the numbers of the whole batch on each.
    """
    if not training or not layer.rate or not draws_own_bits():
        return layer(x, training=training)
    is_kept, scale = draw_kept(layer, keras.ops.shape(x))
    return x * (keras.ops.cast(is_kept, x.dtype) * keras.ops.cast(scale, x.dtype))


def draws_own_bits() -> bool:
    """Whether there is a generator of 16 bits a value for this backend."""
    return keras.backend.backend() in _OWN_BITS and not keras.distribution.distribution()


def draw_kept(layer: keras.layers.Dropout, shape: Sequence) -> tuple[keras.KerasTensor, float]:
    """Which values a layer keeps, bool in the given shape, and what those are multiplied with."""
    # Of the numbers that 16 bits can be, neither none nor all.
    num_kept = min(max(round((1 - layer.rate) * _RANGE), 1), _RANGE - 1)
    draw = jax_operations.draw_bits if keras.backend.backend() == "jax" else _draw_bits
    return draw(layer.seed_generator.next(), shape, num_kept), _RANGE / num_kept


def _draw_bits(seed: keras.KerasTensor, shape: Sequence, num_kept: int) -> keras.KerasTensor:
    size = tf.reduce_prod(tf.cast(tf.stack(shape), tf.int64))
    words = tf.random.stateless_uniform(
        [(size + 1) // 2],
        tf.cast(seed, tf.int64),
        minval=None,  # all of int32
        maxval=None,
        dtype=tf.int32,
    )
    halves = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    return tf.reshape(halves < num_kept - _RANGE // 2, shape)


def project_at_once(x: Any, kernels: Sequence[Any], training: bool | None) -> Any:
    """`x` [R, H] times K kernels [H, H] beside each other, [R, K · H]; the joined are not kept."""
    if not training or keras.backend.backend() != "tensorflow":
        return keras.ops.matmul(x, keras.ops.concatenate(kernels, axis=1))

    @tf.custom_gradient
    def project(x: tf.Tensor, *kernels: tf.Tensor) -> tuple[tf.Tensor, object]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.control_dependencies([upstream]):  # or it would be the first one, held so long
                joined = tf.concat(kernels, axis=1)
            of_kernels = tf.split(tf.matmul(x, upstream, transpose_a=True), len(kernels), axis=1)
            return tf.matmul(upstream, joined, transpose_b=True), *of_kernels

        return tf.matmul(x, tf.concat(kernels, axis=1)), gradient

    return project(x, *kernels)


def training_attention(
    dropout: keras.layers.Dropout, query: Any, key: Any, value: Any, padding: Any
) -> Any:
    """Attention (Vaswani et al. 2017, equation 1), with dropout of its weights.

    Its tensors [B, N, S, S] are the largest of a layer, and each pass over them is a trip to
    memory. The softmax' gradient needs, for each query, the sum over the keys of weight times
    gradient, which is the product of the output with the output's gradient (Dao et al. 2022,
    appendix B.2) and takes no such pass; dropped weights are selected away, and the scale of the
    kept ones is a factor of the output. Beside the weights only the dropout's bits are kept.

    Args:
        dropout: has the rate, which may be 0, and the state of the random numbers.
        query: float tensor [B, N, S, D], divided by the square root of D.
        key: float tensor [B, N, S, D].
        value: float tensor [B, N, S, D].
        padding: float tensor, added to the scores; its shape broadcasts to [B, N, S, S].

    Returns:
        A tensor of the shape and type of `value`.
    """
    batch_size, num_heads, length, _ = keras.ops.shape(query)
    is_kept, scale = None, 1.0
    if dropout.rate:
        is_kept, scale = draw_kept(dropout, (batch_size, num_heads, length, length))
    zero, scale = tf.zeros([], query.dtype), tf.cast(scale, query.dtype)

    def drop(weights: tf.Tensor) -> tf.Tensor:
        return weights if is_kept is None else tf.where(is_kept, weights, zero)

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, object]:
        scores = tf.matmul(query, key, transpose_b=True) + padding  # [B, N, S, S]
        weights = tf.nn.softmax(scores)
        heads = tf.matmul(drop(weights), value)  # [B, N, S, D]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = upstream * scale
            products = tf.cast(upstream, tf.float32) * tf.cast(heads, tf.float32)
            means = tf.reduce_sum(products, axis=-1, keepdims=True)  # [B, N, S, 1]
            of_kept = tf.matmul(upstream, value, transpose_b=True)  # [B, N, S, S]
            of_scores = weights * (drop(of_kept) - tf.cast(means, weights.dtype))
            with tf.control_dependencies([upstream]):  # or it would be the first one, held so long
                kept = drop(weights)
            return (
                tf.matmul(of_scores, key),
                tf.matmul(of_scores, query, transpose_a=True),
                tf.matmul(kept, upstream, transpose_a=True),
            )

        return heads * scale, gradient

    return attend(query, key, value)


def training_gelu(x: keras.KerasTensor) -> keras.KerasTensor:
    """`x · Φ(x)`, with a derivative of its own: `Φ(x) + x · φ(x)`, in float32.

    The backends' own take `erfc` and compute it in pieces. On a processor TensorFlow's is three
    times as slow as `erf`, eight times in bfloat16, and keeps every piece; this one keeps the
    derivative. Inference keeps the backends', which TensorFlow makes part of the matrix product.
    """
    if keras.backend.backend() == "jax":
        return jax_operations.gelu(x, _gaussian)
    if keras.backend.backend() != "tensorflow":
        return keras.activations.gelu(x)

    @tf.custom_gradient
    def gelu(x: tf.Tensor) -> tuple[tf.Tensor, object]:
        values, shares, densities = _gaussian(x, tf.math.erf)
        slopes = tf.cast(shares + values * densities, x.dtype)
        return tf.cast(values * shares, x.dtype), lambda gradient: gradient * slopes

    return gelu(x)


def _gaussian(x: Any, erf: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """x, Φ(x) and φ(x) in float32."""
    values = keras.ops.cast(x, "float32")
    scaled = values * math.sqrt(0.5)
    shares = 0.5 + 0.5 * erf(scaled)
    densities = keras.ops.exp(-keras.ops.square(scaled)) * (1 / math.sqrt(2 * math.pi))
    return values, shares, densities


def apply_layer_norm(layer: keras.layers.LayerNormalization, x: Any) -> Any:
    """What the layer computes of [..., H], over the last axis.

    Values in half precision on JAX go through the memory once; everything else is left to Keras.
    """
    is_half = keras.backend.standardize_dtype(x.dtype) in ("bfloat16", "float16")
    if keras.backend.backend() != "jax" or not is_half:
        return layer(x)
    return jax_operations.normalize(x, layer.gamma.value, layer.beta.value, layer.epsilon)

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


def draw_kept(layer: keras.layers.Dropout, shape: Sequence) -> tuple[Any, float]:
    """Which values a layer keeps, bool in the given shape (`None`: all), and their factor."""
    if not layer.rate:
        return None, 1.0
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


def widen(dense: keras.layers.Dense, x: Any) -> Any:
    """GELU of a projection of `x` [R, H] to [R, I]: `y · Φ(y)`, whose slope is `Φ(y) + y · φ(y)`.

    The backends' own GELU takes `erfc` and computes it in pieces. On a processor TensorFlow's is
    three times as slow as `erf`, eight times in bfloat16, and keeps every piece; beside `x` this
    one keeps the derivative. Inference keeps the backends', which TensorFlow makes part of the
    matrix product.
    """
    if keras.backend.backend() == "jax":
        return jax_operations.gelu(keras.ops.matmul(x, dense.kernel) + dense.bias, _gaussian)
    if keras.backend.backend() != "tensorflow":
        return dense(x)

    @tf.custom_gradient
    def compute(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        projected = tf.nn.bias_add(tf.matmul(x, kernel), bias)
        values, shares, densities = _gaussian(projected, tf.math.erf)
        slopes = tf.cast(shares + values * densities, x.dtype)  # [R, I]
        return tf.cast(values * shares, x.dtype), lambda g: _of_product(x, kernel, g * slopes)

    return compute(x, *map(tf.convert_to_tensor, (dense.kernel, dense.bias)))


def _of_product(x: Any, kernel: Any, upstream: Any) -> tuple[Any, Any, Any]:
    """Gradients of `x`, kernel and bias, of a projection's."""
    of_kernel = tf.matmul(x, upstream, transpose_a=True)
    of_bias = tf.raw_ops.BiasAddGrad(out_backprop=upstream)
    return tf.matmul(upstream, kernel, transpose_b=True), of_kernel, of_bias


def project_and_normalize(
    dense: keras.layers.Layer,
    x: Any,
    residual: Any,
    dropout: keras.layers.Dropout,
    norm: keras.layers.LayerNormalization,
    training: bool | None,
) -> Any:
    """`norm(residual + dropout(dense(x)))` of `x` [R, I] and `residual` [R, H], as that.

    In training on TensorFlow it keeps `x`, what it normalises and the dropout's bits, of eight
    tensors that Keras' operations keep. Values in half precision on JAX are read once.
    """
    kernel = keras.ops.reshape(dense.kernel, (-1, residual.shape[-1]))
    if training and keras.backend.backend() == "tensorflow":
        return _project_and_normalize(kernel, dense.bias, x, residual, dropout, norm)
    projected = keras.ops.add(keras.ops.matmul(x, kernel), dense.bias)
    total = apply_dropout(dropout, projected, training) + residual
    is_half = keras.backend.standardize_dtype(total.dtype) in ("bfloat16", "float16")
    if keras.backend.backend() != "jax" or not is_half:
        return norm(total)
    return jax_operations.normalize(total, norm.gamma.value, norm.beta.value, norm.epsilon)


def _project_and_normalize(
    kernel: Any, bias: Any, x: Any, residual: Any, dropout: Any, norm: Any
) -> Any:
    is_kept, scale = draw_kept(dropout, tf.shape(residual))

    def drop(values: tf.Tensor) -> tf.Tensor:
        scaled = values * tf.cast(scale, values.dtype)
        return values if is_kept is None else tf.where(is_kept, scaled, tf.zeros([], values.dtype))

    wide = keras.backend.result_type(residual.dtype, "float32")

    @tf.custom_gradient
    def compute(
        x: tf.Tensor, residual: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor, *of_norm: tf.Tensor
    ) -> tuple[tf.Tensor, Callable]:
        total = drop(tf.nn.bias_add(tf.matmul(x, kernel), bias)) + residual  # [R, H]
        mean, variance = tf.nn.moments(tf.cast(total, wide), [-1], keepdims=True)  # [R, 1]
        inverse = tf.math.rsqrt(variance + norm.epsilon)
        gamma, beta = (tf.cast(part, wide) for part in of_norm)  # [H]
        outputs = (tf.cast(total, wide) - mean) * inverse * gamma + beta

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.control_dependencies([upstream]):  # or it would be computed at once, and kept
                normalized = (tf.cast(total, wide) - mean) * inverse
            upstream = tf.cast(upstream, wide)
            scaled = upstream * gamma
            first = tf.reduce_mean(scaled, axis=-1, keepdims=True)  # [R, 1]
            second = tf.reduce_mean(scaled * normalized, axis=-1, keepdims=True)
            of_total = tf.cast(inverse * (scaled - first - normalized * second), x.dtype)
            of_gamma, of_beta = (
                tf.cast(tf.reduce_sum(part, axis=0), of_norm[0].dtype)
                for part in (upstream * normalized, upstream)
            )
            of_x, of_kernel, of_bias = _of_product(x, kernel, drop(of_total))
            return of_x, of_total, of_kernel, of_bias, of_gamma, of_beta

        return tf.cast(outputs, x.dtype), gradient

    return compute(x, residual, *map(tf.convert_to_tensor, (kernel, bias, norm.gamma, norm.beta)))


def _gaussian(x: Any, erf: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    """x, Φ(x) and φ(x) in float32."""
    values = keras.ops.cast(x, "float32")
    scaled = values * math.sqrt(0.5)
    shares = 0.5 + 0.5 * erf(scaled)
    densities = keras.ops.exp(-keras.ops.square(scaled)) * (1 / math.sqrt(2 * math.pi))
    return values, shares, densities

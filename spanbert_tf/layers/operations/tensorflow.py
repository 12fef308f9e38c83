"""The operations of a transformer layer on TensorFlow; the functions are those of `plain`.

In training they keep less between the forward and the backward pass than Keras' operations, and
compute less: each docstring says what. Inference takes Keras' operations, which TensorFlow fuses.

B rows, S positions, N heads, D width of a head, H width of a layer, R = B · S, I width of the
feed-forward network.
"""

import math
import mmap
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from spanbert_tf.layers.operations import plain, shared_graph
from spanbert_tf.layers.operations.plain import NUM_16_BITS, Dropout

call_in_training = shared_graph.call_in_training
kernel_seed = plain.kernel_seed


def apply_dropout(x: tf.Tensor, dropout: Dropout) -> tf.Tensor:
    """As in `plain`, from 16 random bits a value in place of 32.

    Drawing random numbers takes up to a tenth of a training step on a CPU.
    """
    is_kept, scale = dropout_mask(dropout, tf.shape(x))
    if is_kept is None:
        return x
    return x * (tf.cast(is_kept, x.dtype) * tf.cast(scale, x.dtype))


def dropout_mask(
    dropout: Dropout, shape: Sequence[int | tf.Tensor]
) -> tuple[tf.Tensor | None, float]:
    """Which values of a shape are kept, bool (`None`: all of them), and the scale of the kept."""
    if not dropout.rate:
        return None, 1.0
    num_kept = plain.num_kept_of_16_bits(dropout.rate)
    size = tf.reduce_prod(tf.cast(tf.stack(shape), tf.int64))
    words = tf.random.stateless_uniform(
        [(size + 1) // 2],
        tf.cast(dropout.seed, tf.int64),
        minval=None,  # all of int32
        maxval=None,
        dtype=tf.int32,
    )
    halves = tf.reshape(tf.bitcast(words, tf.int16), [-1])[:size]
    is_kept = tf.reshape(halves < num_kept - NUM_16_BITS // 2, shape)
    return is_kept, NUM_16_BITS / num_kept


def fused_projection(
    x: tf.Tensor, kernels: Sequence[keras.KerasTensor], training: bool
) -> tf.Tensor:
    """As in `plain`; in training the concatenated kernels are not kept for the gradients."""
    if not training:
        return plain.fused_projection(x, kernels, training)

    @tf.custom_gradient
    def project(x: tf.Tensor, *kernels: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Without the dependency TensorFlow would reuse the first concatenation, and keep it.
            with tf.control_dependencies([upstream]):
                joined = tf.concat(kernels, axis=1)
            of_joined = tf.matmul(x, upstream, transpose_a=True)
            of_kernels = tf.split(of_joined, len(kernels), axis=1)
            return tf.matmul(upstream, joined, transpose_b=True), *of_kernels

        return tf.matmul(x, tf.concat(kernels, axis=1)), gradient

    return project(x, *kernels)


def attention(
    by_head: tf.Tensor, padding_mask: tf.Tensor, dropout: Dropout, training: bool
) -> tf.Tensor:
    """As in `plain`; in training see `training_attention`."""
    if not training:
        return plain.attention(by_head, padding_mask, dropout, training)
    query, key, value = plain.split_heads(by_head)
    padding = plain.padding_scores(padding_mask, query.dtype)
    heads = training_attention(query, key, value, padding, dropout)
    return tf.transpose(heads, (0, 2, 1, 3))


def training_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, padding: tf.Tensor, dropout: Dropout
) -> tf.Tensor:
    """Attention that keeps its weights and the bits of its dropout for the gradients, no more.

    Its tensors [B, N, S, S] are the largest of a layer, and each pass over them is a trip to
    memory. The gradient of the softmax needs, for each query, the sum over the keys of weight times
    gradient, which is the product of the output with the output's gradient (Dao et al., 2022,
    appendix B.2) and takes no such pass. Dropped weights are selected away, and the scale of the
    kept ones is a factor of the output.

    Args:
        query: float tensor [B, N, S, D], divided by √D.
        key: float tensor [B, N, S, D].
        value: float tensor [B, N, S, D].
        padding: float tensor, added to the scores; its shape broadcasts to [B, N, S, S].
        dropout: of the attention weights.

    Returns:
        A tensor of the shape and type of `value`.
    """
    batch_size, num_heads, length, _ = keras.ops.shape(query)
    is_kept, scale = dropout_mask(dropout, (batch_size, num_heads, length, length))
    zero = tf.zeros([], query.dtype)
    scale = tf.cast(scale, query.dtype)

    def drop(weights: tf.Tensor) -> tf.Tensor:
        if is_kept is None:
            return weights
        return tf.where(is_kept, weights, zero)

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        scores = tf.matmul(query, key, transpose_b=True) + padding  # [B, N, S, S]
        weights = tf.nn.softmax(scores)
        heads = tf.matmul(drop(weights), value)  # [B, N, S, D]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = upstream * scale
            products = tf.cast(upstream, tf.float32) * tf.cast(heads, tf.float32)
            means = tf.reduce_sum(products, axis=-1, keepdims=True)  # [B, N, S, 1]
            of_kept = tf.matmul(upstream, value, transpose_b=True)  # [B, N, S, S]
            of_scores = weights * (drop(of_kept) - tf.cast(means, weights.dtype))
            # Without the dependency TensorFlow would keep the dropped weights from above.
            with tf.control_dependencies([upstream]):
                kept = drop(weights)
            of_query = tf.matmul(of_scores, key)
            of_key = tf.matmul(of_scores, query, transpose_a=True)
            of_value = tf.matmul(kept, upstream, transpose_a=True)
            return of_query, of_key, of_value

        return heads * scale, gradient

    return attend(query, key, value)


def dense_gelu(dense: keras.layers.Dense, x: tf.Tensor, training: bool) -> tf.Tensor:
    """As in `plain`; in training from `erf`, and only the derivative is kept beside `x`.

    TensorFlow's own GELU takes `erfc`, which on a CPU is three times as slow as `erf`, and eight
    times in bfloat16; and its gradient keeps every intermediate result. In inference TensorFlow
    makes its own GELU part of the matrix product.
    """
    if not training:
        return plain.dense_gelu(dense, x, training)

    @tf.custom_gradient
    def compute(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        projected = tf.nn.bias_add(tf.matmul(x, kernel), bias)
        values, distribution, density = plain.gelu_terms(projected)
        slopes = tf.cast(distribution + values * density, x.dtype)  # [R, I]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            return _projection_gradients(x, kernel, upstream * slopes)

        return tf.cast(values * distribution, x.dtype), gradient

    return compute(x, tf.convert_to_tensor(dense.kernel), tf.convert_to_tensor(dense.bias))


def _projection_gradients(
    x: tf.Tensor, kernel: tf.Tensor, upstream: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of `x`, kernel and bias of a projection."""
    of_x = tf.matmul(upstream, kernel, transpose_b=True)
    of_kernel = tf.matmul(x, upstream, transpose_a=True)
    of_bias = tf.raw_ops.BiasAddGrad(out_backprop=upstream)
    return of_x, of_kernel, of_bias


def project_and_normalize(
    dense: keras.layers.Layer,
    x: tf.Tensor,
    residual: tf.Tensor,
    dropout: Dropout,
    norm: keras.layers.LayerNormalization,
    training: bool,
) -> tf.Tensor:
    """As in `plain`; in training `x`, the normalized sum and the dropout's bits are kept.

    Keras' operations keep eight tensors.
    """
    if not training:
        return plain.project_and_normalize(dense, x, residual, dropout, norm, training)
    is_kept, scale = dropout_mask(dropout, tf.shape(residual))
    wide = keras.backend.result_type(residual.dtype, "float32")

    def drop(values: tf.Tensor) -> tf.Tensor:
        if is_kept is None:
            return values
        scaled = values * tf.cast(scale, values.dtype)
        return tf.where(is_kept, scaled, tf.zeros([], values.dtype))

    @tf.custom_gradient
    def compute(
        x: tf.Tensor,
        residual: tf.Tensor,
        kernel: tf.Tensor,
        bias: tf.Tensor,
        gamma: tf.Tensor,
        beta: tf.Tensor,
    ) -> tuple[tf.Tensor, Callable]:
        total = drop(tf.nn.bias_add(tf.matmul(x, kernel), bias)) + residual  # [R, H]
        mean, variance = tf.nn.moments(tf.cast(total, wide), [-1], keepdims=True)  # [R, 1]
        inverse = tf.math.rsqrt(variance + norm.epsilon)
        wide_gamma = tf.cast(gamma, wide)
        outputs = (tf.cast(total, wide) - mean) * inverse * wide_gamma + tf.cast(beta, wide)

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Without the dependency TensorFlow would normalize in the forward pass, and keep it.
            with tf.control_dependencies([upstream]):
                normalized = (tf.cast(total, wide) - mean) * inverse
            of_total, of_gamma, of_beta = plain.normalization_gradients(
                tf.cast(upstream, wide), normalized, inverse, wide_gamma
            )
            of_total = tf.cast(of_total, x.dtype)
            of_x, of_kernel, of_bias = _projection_gradients(x, kernel, drop(of_total))
            of_gamma = tf.cast(of_gamma, gamma.dtype)
            of_beta = tf.cast(of_beta, beta.dtype)
            return of_x, of_total, of_kernel, of_bias, of_gamma, of_beta

        return tf.cast(outputs, x.dtype), gradient

    return compute(
        x,
        residual,
        keras.ops.reshape(dense.kernel, (-1, residual.shape[-1])),
        tf.convert_to_tensor(dense.bias),
        tf.convert_to_tensor(norm.gamma),
        tf.convert_to_tensor(norm.beta),
    )


def tied_logits(rows: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """As in `plain`, without a transposed table, whose gradient would be transposed, too."""
    return tf.matmul(rows, table, transpose_b=True)


def placeholder_zeros(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    """As in `plain`, of memory that the system gives when it is first written."""
    has_numpy = dtype in ("float32", "float16")
    if not (tf.executing_eagerly() and has_numpy):
        return plain.placeholder_zeros(shape, dtype)
    num_elements = math.prod(shape)
    num_bytes = num_elements * np.dtype(dtype).itemsize
    # Pages of their own: `np.zeros` may get memory that was used before, and then writes to it.
    memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    values = np.frombuffer(memory, dtype, num_elements).reshape(shape)
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())


def vocabulary_crossentropy(labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """As in `plain`, from the softmax, which is one fast kernel on a CPU.

    TensorFlow's own loss computes one exponential after the other for its gradient there, and
    Keras' `argmax` passes over the logits four times to tell -0.0 from 0.0; with a vocabulary of
    28,996 the two took a tenth of a small model's step.
    """
    shape = tf.shape(labels)
    labels = tf.reshape(tf.cast(labels, tf.int32), [-1])  # [N]
    rows = tf.reshape(logits, [-1, logits.shape[-1]])  # [N, V]
    best = tf.argmax(rows, axis=-1, output_type=tf.int32)  # [N]
    indices = tf.range(tf.size(labels))
    label_places = tf.stack([indices, labels], axis=1)  # [N, 2]
    best_places = tf.stack([indices, best], axis=1)  # [N, 2]

    @tf.custom_gradient
    def crossentropy(rows: tf.Tensor) -> tuple[tf.Tensor, object]:
        shares = tf.nn.softmax(rows)  # [N, V]
        label_shares = tf.gather_nd(shares, label_places)
        # The largest share is at least 1 / V, so its logarithm is finite; that of the label's share
        # may be minus infinity.
        gaps = tf.gather_nd(rows, best_places) - tf.gather_nd(rows, label_places)
        losses = gaps - tf.math.log(tf.gather_nd(shares, best_places))  # [N]

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # On a CPU the softmax of NaN is finite, and must not be trained on. The loss is used in
            # its place because `tf.debugging.enable_check_numerics` stops at a constant NaN.
            upstream = tf.where(tf.math.is_finite(losses), upstream, losses)
            return tf.tensor_scatter_nd_update(
                shares * upstream[:, None], label_places, (label_shares - 1.0) * upstream
            )

        return losses, gradient

    return tf.reshape(crossentropy(rows), shape), tf.reshape(best == labels, shape)

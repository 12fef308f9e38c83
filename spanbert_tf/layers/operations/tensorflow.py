"""The operations of a transformer layer on TensorFlow; the functions are those of `plain`.

In training they store less than Keras' operations between the forward and the backward pass, and
compute less; each docstring says what. Inference uses Keras' operations, which TensorFlow fuses.

Shapes: B rows, S positions, N heads, D width of a head, H = N · D width of the encoder, R = B · S,
I width of the feed-forward network, V entries of the vocabulary.
"""

import math
import mmap
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from spanbert_tf.layers.operations import plain, shared_graph
from spanbert_tf.layers.operations.custom_gradient import custom_gradient
from spanbert_tf.layers.operations.plain import NUM_16_BITS, Dropout

call_in_training = shared_graph.call_in_training
kernel_seed = plain.kernel_seed


def apply_dropout(x: tf.Tensor, dropout: Dropout) -> tf.Tensor:
    """See `plain`; this uses 16 random bits for each element instead of 32.

    Drawing random numbers takes up to a tenth of a training step on a CPU.
    """
    is_kept, scale = dropout_mask(dropout, tf.shape(x))
    if is_kept is None:
        return x
    return x * (tf.cast(is_kept, x.dtype) * tf.cast(scale, x.dtype))


def dropout_mask(
    dropout: Dropout, shape: Sequence[int | tf.Tensor]
) -> tuple[tf.Tensor | None, float]:
    """Returns which elements are kept, bool (`None` for all), and the scale of kept elements."""
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
    """See `plain`; in training, the concatenated kernels are not stored for the gradients."""
    if not training:
        return plain.fused_projection(x, kernels, training)

    @custom_gradient
    def project(x: tf.Tensor, *kernels: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, ...]:
            # Without the dependency, TensorFlow would store and reuse the first concatenation.
            with tf.control_dependencies([upstream]):
                joined = tf.concat(kernels, axis=1)
            joined_gradient = tf.matmul(x, upstream, transpose_a=True)
            kernel_gradients = tf.split(joined_gradient, len(kernels), axis=1)
            return tf.matmul(upstream, joined, transpose_b=True), *kernel_gradients

        return tf.matmul(x, tf.concat(kernels, axis=1)), gradient

    return project(x, *kernels)


def attention(
    by_head: tf.Tensor, padding_mask: tf.Tensor, dropout: Dropout, training: bool
) -> tf.Tensor:
    """See `plain`, and for training `training_attention`."""
    if not training:
        return plain.attention(by_head, padding_mask, dropout, training)
    query, key, value = plain.queries_keys_values(by_head)
    padding = plain.padding_scores(padding_mask, query.dtype)
    heads = training_attention(query, key, value, padding, dropout)
    return tf.transpose(heads, (0, 2, 1, 3))


def training_attention(
    query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, padding: tf.Tensor, dropout: Dropout
) -> tf.Tensor:
    """Computes attention, and stores only its weights and the dropout mask for the gradients.

    The tensors [B, N, S, S] are the largest of a layer, and each pass over them costs the transfer
    from and to memory. The gradient of the softmax needs, for each query, the sum over the keys of
    weight times gradient. It equals the product of the output and its gradient (Dao et al., 2022,
    appendix B.2), which needs no such pass. Dropped weights are replaced by 0, and the scale of
    kept weights is applied to the output.

    Args:
        query: float tensor [B, N, S, D], divided by √D.
        key: float tensor [B, N, S, D].
        value: float tensor [B, N, S, D].
        padding: float tensor to add to the scores; its shape broadcasts to [B, N, S, S]. It is a
            constant: no gradient flows to it.
        dropout: dropout of the attention weights.

    Returns:
        A tensor of the shape and dtype of `value`.
    """
    batch_size, num_heads, length, _ = keras.ops.shape(query)
    is_kept, scale = dropout_mask(dropout, (batch_size, num_heads, length, length))
    zero = tf.zeros([], query.dtype)
    scale = tf.cast(scale, query.dtype)

    def drop(weights: tf.Tensor) -> tf.Tensor:
        if is_kept is None:
            return weights
        return tf.where(is_kept, weights, zero)

    @custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        scores = tf.matmul(query, key, transpose_b=True) + padding  # [B, N, S, S]
        weights = tf.nn.softmax(scores)
        heads = tf.matmul(drop(weights), value)  # [B, N, S, D]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = upstream * scale
            products = tf.cast(upstream, tf.float32) * tf.cast(heads, tf.float32)
            means = tf.reduce_sum(products, axis=-1, keepdims=True)  # [B, N, S, 1]
            kept_gradient = tf.matmul(upstream, value, transpose_b=True)  # [B, N, S, S]
            scores_gradient = weights * (drop(kept_gradient) - tf.cast(means, weights.dtype))
            # Without the dependency, TensorFlow would store the result of `drop` from above.
            with tf.control_dependencies([upstream]):
                kept = drop(weights)
            query_gradient = tf.matmul(scores_gradient, key)
            key_gradient = tf.matmul(scores_gradient, query, transpose_a=True)
            value_gradient = tf.matmul(kept, upstream, transpose_a=True)
            return query_gradient, key_gradient, value_gradient

        return heads * scale, gradient

    return attend(query, key, value)


def dense_gelu(dense: keras.layers.Dense, x: tf.Tensor, training: bool) -> tf.Tensor:
    """See `plain`; in training, this uses `erf`, and stores only `x` and the derivative.

    TensorFlow's GELU uses `erfc`, which on a CPU is three times as slow as `erf`, and eight times
    as slow in bfloat16. Its gradient stores every intermediate result. In inference, TensorFlow
    fuses its own GELU with the matrix product.
    """
    if not training:
        return plain.dense_gelu(dense, x, training)

    @custom_gradient
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
    """Computes the gradients of `x`, of the kernel and of the bias of a projection."""
    x_gradient = tf.matmul(upstream, kernel, transpose_b=True)
    kernel_gradient = tf.matmul(x, upstream, transpose_a=True)
    bias_gradient = tf.raw_ops.BiasAddGrad(out_backprop=upstream)
    return x_gradient, kernel_gradient, bias_gradient


def project_and_normalize(
    dense: keras.layers.Layer,
    x: tf.Tensor,
    residual: tf.Tensor,
    dropout: Dropout,
    norm: keras.layers.LayerNormalization,
    training: bool,
) -> tf.Tensor:
    """See `plain`; in training, this stores `x`, the normalized sum and the dropout mask.

    Keras' operations store eight tensors.
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

    @custom_gradient
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
            # Without the dependency, TensorFlow would store the result of the forward pass.
            with tf.control_dependencies([upstream]):
                normalized = (tf.cast(total, wide) - mean) * inverse
            total_gradient, gamma_gradient, beta_gradient = plain.normalization_gradients(
                tf.cast(upstream, wide), normalized, inverse, wide_gamma
            )
            total_gradient = tf.cast(total_gradient, x.dtype)
            projection = _projection_gradients(x, kernel, drop(total_gradient))
            x_gradient, kernel_gradient, bias_gradient = projection
            return (
                x_gradient,
                total_gradient,
                kernel_gradient,
                bias_gradient,
                tf.cast(gamma_gradient, gamma.dtype),
                tf.cast(beta_gradient, beta.dtype),
            )

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
    """See `plain`; this does not transpose the table and its gradient."""
    return tf.matmul(rows, table, transpose_b=True)


def placeholder_zeros(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    """See `plain`; the system provides the memory only when it is first written."""
    has_numpy = dtype in ("float32", "float16")
    if not (tf.executing_eagerly() and has_numpy):
        return plain.placeholder_zeros(shape, dtype)
    num_elements = math.prod(shape)
    num_bytes = num_elements * np.dtype(dtype).itemsize
    # Not `np.zeros`, which may get used memory and then writes zeros to it.
    memory = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    values = np.frombuffer(memory, dtype, num_elements).reshape(shape)
    return tf.experimental.dlpack.from_dlpack(values.__dlpack__())


def vocabulary_crossentropy(labels: tf.Tensor, logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """See `plain`; this uses the softmax, which is one fast kernel on a CPU.

    On a CPU, TensorFlow's loss computes its gradient by one exponential after the other, and Keras'
    `argmax` passes over the logits four times to distinguish -0.0 from 0.0. With a vocabulary of
    28,996 entries, both took a tenth of the step of a small model.
    """
    shape = tf.shape(labels)
    labels = tf.reshape(tf.cast(labels, tf.int32), [-1])  # [targets]
    rows = tf.reshape(logits, [-1, logits.shape[-1]])  # [targets, V]
    best = tf.argmax(rows, axis=-1, output_type=tf.int32)  # [targets]
    indices = tf.range(tf.size(labels))
    label_indices = tf.stack([indices, labels], axis=1)  # [targets, 2]
    best_indices = tf.stack([indices, best], axis=1)  # [targets, 2]

    @custom_gradient
    def crossentropy(rows: tf.Tensor) -> tuple[tf.Tensor, Callable]:
        shares = tf.nn.softmax(rows)  # [targets, V]
        label_shares = tf.gather_nd(shares, label_indices)
        # The largest share is at least 1 / V, so its logarithm is finite. The logarithm of the
        # label's share may be minus infinity.
        gaps = tf.gather_nd(rows, best_indices) - tf.gather_nd(rows, label_indices)
        losses = gaps - tf.math.log(tf.gather_nd(shares, best_indices))  # [targets]

        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            # On a CPU, the softmax of a row with a NaN is finite in all other entries (TensorFlow
            # 2.20). The loss, which is not finite, replaces the gradient. A constant NaN would stop
            # programs that use `tf.debugging.enable_check_numerics`.
            upstream = tf.where(tf.math.is_finite(losses), upstream, losses)
            return tf.tensor_scatter_nd_update(
                shares * upstream[:, None], label_indices, (label_shares - 1.0) * upstream
            )

        return losses, gradient

    return tf.reshape(crossentropy(rows), shape), tf.reshape(best == labels, shape)

"""Attention for training steps on TensorFlow, with a gradient of its own.

B rows, N heads, S positions, D width of a head.
"""

from typing import Any

import keras

from spanbert_tf.layers.dropout import draw_kept


def training_attention(
    dropout: keras.layers.Dropout, query: Any, key: Any, value: Any, padding: Any
) -> Any:
    """Attention (Vaswani et al. 2017, equation 1) with dropout of its weights.

    Its tensors [B, N, S, S] are the largest of a layer, and each pass over them is a trip to
    memory. The softmax' gradient needs, for each query, the sum over the keys of weight times
    gradient, which is the product of the output with the output's gradient (Dao et al. 2022,
    appendix B.2) and takes no such pass; dropped weights are selected away, and the scale of the
    kept ones is a factor of the output. Nothing of the dropout but its bits is kept.

    Args:
        dropout: has the rate and the state of the random numbers.
        query: float tensor [B, N, S, D], divided by the square root of D.
        key: float tensor [B, N, S, D].
        value: float tensor [B, N, S, D].
        padding: float tensor, added to the scores; its shape broadcasts to [B, N, S, S].

    Returns:
        A tensor of the shape and type of `value`.
    """
    import tensorflow as tf

    batch_size, num_heads, length, _ = keras.ops.shape(query)
    is_kept, scale = draw_kept(dropout, (batch_size, num_heads, length, length))
    zero, scale = tf.zeros([], query.dtype), tf.cast(scale, query.dtype)

    @tf.custom_gradient
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, object]:
        scores = tf.matmul(query, key, transpose_b=True) + padding  # [B, N, S, S]
        weights = tf.nn.softmax(scores)
        kept = tf.where(is_kept, weights, zero)
        heads = tf.matmul(kept, value)  # [B, N, S, D]

        def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            upstream = upstream * scale
            products = tf.cast(upstream, tf.float32) * tf.cast(heads, tf.float32)
            means = tf.reduce_sum(products, axis=-1, keepdims=True)  # [B, N, S, 1]
            of_kept = tf.matmul(upstream, value, transpose_b=True)  # [B, N, S, S]
            of_scores = kept * of_kept - weights * tf.cast(means, weights.dtype)
            return (
                tf.matmul(of_scores, key),
                tf.matmul(of_scores, query, transpose_a=True),
                tf.matmul(kept, upstream, transpose_a=True),
            )

        return heads * scale, gradient

    return attend(query, key, value)

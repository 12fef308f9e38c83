"""The exact GELU (Hendrycks and Gimpel 2016) for training steps."""

import math

import keras


def training_gelu(x: keras.KerasTensor) -> keras.KerasTensor:
    """`x · Φ(x)`, whose derivative is computed with it.

    TensorFlow's own takes `erfc`, three times as slow as `erf` on a processor and eight times in
    bfloat16, and computes it in pieces whose results are all kept. This one computes in float32 and
    keeps the derivative, `Φ(x) + x · φ(x)`. Inference keeps TensorFlow's, which becomes part of the
    matrix product there.

    Args:
        x: float tensor of any shape.

    Returns:
        A tensor of the shape and type of `x`.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.activations.gelu(x)
    import tensorflow as tf

    @tf.custom_gradient
    def gelu(x: tf.Tensor) -> tuple[tf.Tensor, object]:
        values = tf.cast(x, tf.float32)
        scaled = values * math.sqrt(0.5)
        shares = 0.5 + 0.5 * tf.math.erf(scaled)  # Φ
        densities = tf.exp(-tf.square(scaled)) * (1 / math.sqrt(2 * math.pi))  # φ
        slopes = tf.cast(shares + values * densities, x.dtype)
        return tf.cast(values * shares, x.dtype), lambda gradient: gradient * slopes

    return gelu(x)

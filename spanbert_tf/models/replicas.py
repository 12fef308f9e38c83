"""Means over a global batch that the replicas of a `tf.distribute` strategy share."""

import keras
from keras import ops


def num_replicas() -> int:
    """How many replicas the current strategy has."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def global_mean_share(total: keras.KerasTensor, count: keras.KerasTensor) -> keras.KerasTensor:
    """This replica's share of the mean over all replicas' values.

    Keras adds the replicas' gradients up, and divides by their number only those losses that
    `compile` was given, not what `compute_loss` returns. So the shares add up to the mean over
    the global batch, not to a mean of means.

    Args:
        total: float32 [], the weighted sum of this replica's values.
        count: float32 [], the sum of their weights.

    Returns:
        float32 [], 0 if no replica has a value.
    """
    if num_replicas() > 1:
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is not None:
            count = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
    return ops.divide_no_nan(total, count)


def weighted_mean_share(
    values: keras.KerasTensor, weights: keras.KerasTensor | None
) -> keras.KerasTensor:
    """This replica's share of the weighted mean over the global batch.

    Args:
        values: float [B, …].
        weights: numbers [B, …] with as many axes or fewer, or a last axis of 1 more; `None`: all 1.

    Returns:
        float32 [], 0 if all weights are 0.
    """
    values = ops.cast(values, "float32")
    weights = weights_of(values, weights)
    return global_mean_share(ops.sum(values * weights), ops.sum(weights))


def weights_of(values: keras.KerasTensor, weights: keras.KerasTensor | None) -> keras.KerasTensor:
    """The weight of each value, float32 [B, …].

    Args:
        values: numbers [B, …].
        weights: as for `weighted_mean_share`.
    """
    ones = ops.ones_like(values, dtype="float32")
    if weights is None:
        return ones
    weights = ops.cast(weights, "float32")
    if len(weights.shape) > len(values.shape):
        weights = ops.squeeze(weights, axis=-1)
    while len(weights.shape) < len(values.shape):
        weights = ops.expand_dims(weights, axis=-1)
    return weights * ones

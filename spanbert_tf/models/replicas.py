"""Means over the global batch when it is shared by the replicas of a `tf.distribute` strategy."""

import keras
from keras import ops


def global_mean_share(total: keras.KerasTensor, count: keras.KerasTensor) -> keras.KerasTensor:
    """This replica's share of the mean over all replicas' values.

    Keras adds the replicas' gradients up, and divides by their number only those losses that
    `compile` was given, not what `compute_loss` returns. So the shares add up to the mean over
    the global batch, not to a mean of means.

    Args:
        total: float32 [], the sum of this replica's values.
        count: float32 [], how many they are.

    Returns:
        float32 [], 0 if no replica has a value.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            count = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
    return total / ops.maximum(count, 1.0)

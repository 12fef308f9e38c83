"""Means over the global batch when it is shared by the replicas of a `tf.distribute` strategy."""

import keras
from keras import ops


def global_mean_share(total: keras.KerasTensor, count: keras.KerasTensor) -> keras.KerasTensor:
    """This replica's share of the mean over all replicas' values, times the number of replicas.

    Keras divides a replica's loss by the number of replicas and adds the gradients up, so the sum
    of what is left is the mean over the global batch, not a mean of means.

    Args:
        total: float32 [], the sum of this replica's values.
        count: float32 [], how many they are.

    Returns:
        float32 [], 0 if no replica has a value.
    """
    num_replicas = 1
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            num_replicas = context.num_replicas_in_sync
            count = context.all_reduce(tf.distribute.ReduceOp.SUM, count)
    return total * num_replicas / ops.maximum(count, 1.0)

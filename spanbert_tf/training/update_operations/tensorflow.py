"""The operations of an update on TensorFlow, in the context of a replica of any strategy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from spanbert_tf.training.optimizer import AdamStep

HAS_ALL_REDUCE = True
# Gradients are sent in packs of this size, those of the last layers first. The large model has
# 1.35 GB of them.
_BYTES_PER_PACK = 2**25


def sum_over_replicas(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices], dtype: str | None
) -> list[tf.Tensor]:
    """Makes gradients dense and adds them up over the replicas.

    Args:
        gradients: this replica's gradients.
        dtype: the dtype in which gradients are sent; `None` for the dtype of each gradient.
    """
    dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return dense
    sent = [tf.cast(gradient, dtype or gradient.dtype) for gradient in dense]
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=_BYTES_PER_PACK)
    sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sent, options)
    return [tf.cast(total, own.dtype) for total, own in zip(sums, dense, strict=True)]


def of_first_replica(values: tf.Tensor) -> tf.Tensor:
    """Returns the values of the first replica on all replicas.

    All replicas compute the same sums, but their last bits may differ, for example with the number
    of CPU threads. Weights that are clipped by different norms would drift apart.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    is_first = context.replica_id_in_sync_group == 0
    shared = tf.where(is_first, values, tf.zeros_like(values))  # x + 0 has the bits of x
    return context.all_reduce(tf.distribute.ReduceOp.SUM, shared)


def sum_of_squares(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Computes the sum of the squares of all elements, by a kernel that stores no squares."""
    # Not `tf.add_n`: TensorFlow's graph optimizer sorts its summands by their names.
    return 2.0 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(gradient) for gradient in gradients]))


def multiply_no_nan(gradient: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Multiplies; the product is 0 if the factor is 0, even if the gradient is not finite."""
    return tf.math.multiply_no_nan(gradient, tf.cast(factor, gradient.dtype))


def apply_adam(
    gradient: tf.Tensor,
    variable: keras.Variable,
    moments: tuple[keras.Variable, keras.Variable],
    step: "AdamStep",
) -> None:
    """Decays a variable and takes Adam's step, in place; see `plain.apply_adam`."""
    handle = variable.value.handle  # of this replica
    if step.decay is not None:
        # Not `variable * (1 - …)`: float32 would round the decay of a step away.
        decay = tf.convert_to_tensor(variable.value) * step.decay
        tf.raw_ops.AssignSubVariableOp(resource=handle, value=decay)
    first, second = moments
    tf.raw_ops.ResourceApplyAdam(  # one operation, which passes over the memory once
        var=handle,
        m=first.value.handle,
        v=second.value.handle,
        beta1_power=step.powers[0],
        beta2_power=step.powers[1],
        lr=step.rate,
        beta1=step.betas[0],
        beta2=step.betas[1],
        epsilon=step.epsilon,
        grad=gradient,
    )


def assign(variable: keras.Variable, value: tf.Tensor) -> None:
    """Assigns a value to this replica's copy of a variable; all replicas assign the same value."""
    value = tf.cast(value, variable.dtype)
    tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)

"""The operations of an update on TensorFlow, in the context of a replica of any strategy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

if TYPE_CHECKING:
    from spanbert_tf.training.optimizer import AdamStep

HAS_ALL_REDUCE = True
_BYTES_PER_PACK = 2**25  # of 1.35 GB (large) are added up at once, the last layers' gradients first


def sum_over_replicas(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices], dtype: str | None
) -> list[tf.Tensor]:
    """Makes gradients dense and adds them up over the replicas.

    Args:
        gradients: this replica's gradients.
        dtype: the type that is sent; `None`: their own.
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
    """The first replica's values, on all of them.

    Each computes the same sums, but the last bit depends on the number of its CPU's threads, for
    one; weights that are clipped by it would drift apart.
    """
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    is_first = context.replica_id_in_sync_group == 0
    shared = tf.where(is_first, values, tf.zeros_like(values))  # x + 0 has the bits of x
    return context.all_reduce(tf.distribute.ReduceOp.SUM, shared)


def sum_of_squares(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """The sum of the squares of all elements, by a kernel that stores no squares."""
    # Not `tf.add_n`: TensorFlow's rewriter of graphs orders its summands by their names.
    return 2.0 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(gradient) for gradient in gradients]))


def multiply_no_nan(gradient: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """The product; 0 where the factor is 0, even if the gradient is not finite."""
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
    """Assigns to this replica's copy; the others assign the same."""
    value = tf.cast(value, variable.dtype)
    tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)

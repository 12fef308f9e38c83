"""The operations of an update in `keras.ops`, where the global batch is one array."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import keras
from keras import ops

if TYPE_CHECKING:
    from spanbert_tf.training.optimizer import AdamStep

HAS_ALL_REDUCE = False  # XLA adds up gradients, in their own type


def sum_over_replicas(
    gradients: Sequence[keras.KerasTensor], dtype: None
) -> Sequence[keras.KerasTensor]:
    """Returns the gradients unchanged: they are those of the global batch."""
    return gradients


def of_first_replica(values: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the values unchanged."""
    return values


def sum_of_squares(gradients: Sequence[keras.KerasTensor]) -> keras.KerasTensor:
    """Computes the sum of the squares of all elements."""
    return sum(ops.sum(ops.square(gradient)) for gradient in gradients)


def multiply_no_nan(gradient: keras.KerasTensor, factor: keras.KerasTensor) -> keras.KerasTensor:
    """Multiplies; the product is 0 if the factor is 0, even if the gradient is not finite."""
    factor = ops.cast(factor, gradient.dtype)
    return ops.where(ops.equal(factor, 0.0), ops.zeros_like(gradient), gradient * factor)


def apply_adam(
    gradient: keras.KerasTensor,
    variable: keras.Variable,
    moments: tuple[keras.Variable, keras.Variable],
    step: "AdamStep",
) -> None:
    """Decays a variable (Loshchilov and Hutter, 2019) and takes Adam's step (Kingma and Ba, 2015).

    Like TensorFlow's `ResourceApplyAdam`, it adds epsilon before it corrects the second moment.

    Args:
        gradient: gradient of the variable, of its shape and type.
        variable: the variable to update.
        moments: the first and the second moment of the gradients, which are updated, too.
        step: coefficients of the step.
    """
    if step.decay is not None:
        # Not `variable * (1 - …)`: float32 would round the decay of a step away.
        variable.assign_sub(variable * step.decay)
    beta_1, beta_2 = step.betas
    first, second = moments
    # 1 - 0.999 in float32, as in TensorFlow's operation, is 1.3e-5 less than 0.001.
    first.assign_add((gradient - first.value) * (1 - beta_1))
    second.assign_add((ops.square(gradient) - second.value) * (1 - beta_2))
    rate = step.rate * ops.sqrt(1 - step.powers[1]) / (1 - step.powers[0])
    variable.assign_sub(rate * first.value / (ops.sqrt(second.value) + step.epsilon))


def assign(variable: keras.Variable, value: keras.KerasTensor) -> None:
    """Assigns a value to a variable."""
    variable.assign(value)

"""The numbers of Adam's step, and the update on JAX, where the global batch is one array."""

from typing import Any, NamedTuple

import keras
from keras import ops


class StepValues(NamedTuple):
    """The numbers of one step of Adam, all [].

    Attributes:
        rate: learning rate.
        powers: both betas to the power of the step.
        betas: the decays of the moments.
        epsilon: added to the root of the second moment.
    """

    rate: keras.KerasTensor
    powers: tuple[keras.KerasTensor, keras.KerasTensor]
    betas: tuple[keras.KerasTensor, keras.KerasTensor]
    epsilon: keras.KerasTensor


def apply_to_arrays(optimizer: Any, sums: list, variables: list[keras.Variable]) -> None:
    """Updates variables with gradients, or leaves the update out where these are not finite.

    A branch may not assign to variables, so both ways are computed, and one is taken; their arrays
    never change, so that those from before an assignment are still there after it.

    Args:
        optimizer: an `AdamW`.
        sums: gradients of the variables.
        variables: in the same order.
    """
    norms = optimizer._norms(sums, variables)  # [clips]
    state = [*variables, *optimizer.variables]
    before = [variable.value for variable in state]
    optimizer._take_step(sums, norms, variables)
    optimizer._finish(sums, norms, variables)
    updated = [variable.value for variable in state]
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    optimizer._skip()
    is_finite = ops.all(ops.isfinite(norms))
    for variable, value in zip(state, updated, strict=True):
        variable.assign(ops.where(is_finite, value, variable.value))


def adam_step(
    gradient: keras.KerasTensor,
    variable: keras.Variable,
    moments: tuple[keras.Variable, keras.Variable],
    step: StepValues,
) -> None:
    """Adam's step (Kingma and Ba, 2015), as TensorFlow's `ResourceApplyAdam` takes it.

    Args:
        gradient: of the variable.
        variable: what to update.
        moments: the first and the second, which are updated, too.
        step: the numbers of the step.
    """
    beta_1, beta_2 = step.betas
    first, second = moments
    # 1 - 0.999 in float32, as in TensorFlow's operation, is 1.3e-5 less than 0.001.
    first.assign_add((gradient - first.value) * (1 - beta_1))
    second.assign_add((ops.square(gradient) - second.value) * (1 - beta_2))
    rate = step.rate * ops.sqrt(1 - step.powers[1]) / (1 - step.powers[0])
    variable.assign_sub(rate * first.value / (ops.sqrt(second.value) + step.epsilon))

"""BERT's learning-rate schedule, and what each variable is trained with: groups of them."""

import dataclasses
from collections.abc import Sequence

import keras


@keras.saving.register_keras_serializable(package="spanbert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to the peak, then linear decay to 0 (SpanBERT 4.2).

    Steps count from 0. The rate grows from `learning_rate / warmup_steps` in the first step to
    `learning_rate` in step `warmup_steps - 1`, still has that value in step `warmup_steps`, falls
    after it, and would be 0 in step `total_steps`, the first that is not trained: no step is spent
    on a rate of 0.

    Variables that are trained from a later step on warm up from there, and join the line that the
    others fall along.

    Args:
        learning_rate: the peak.
        warmup_steps: steps of the warm-up; 0 begins at the peak.
        total_steps: steps of the whole schedule, more than `warmup_steps`.
        first_step: step in which the warm-up begins; the rate is 0 before.
    """

    def __init__(
        self, learning_rate: float, warmup_steps: int, total_steps: int, first_step: int = 0
    ) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"warmup_steps ({warmup_steps}) must be at least 0 and less than total_steps "
                f"({total_steps})"
            )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.first_step = first_step

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        """The float32 learning rate of a step (a scalar, any integer or float type)."""
        # float32 holds every step below 2**24 = 16.8 M exactly.
        step = keras.ops.cast(step, "float32")
        decay = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        warmup = (step + (1.0 - self.first_step)) / max(self.warmup_steps, 1)
        return self.learning_rate * keras.ops.maximum(keras.ops.minimum(decay, warmup), 0.0)

    def get_config(self) -> dict:
        """The arguments of the constructor."""
        names = ("learning_rate", "warmup_steps", "total_steps", "first_step")
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class VariableGroup:
    """Variables that are trained with values of their own, such as a task's new layers.

    Attributes:
        paths: paths of the variables (`keras.Variable.path`).
        learning_rate: schedule of their learning rate; gradients must be 0 or left out before its
            `first_step`, from which the moments of the gradients are counted.
        weight_decay: decoupled, with the exceptions of `AdamW`.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the norm of these gradients alone; `None`: they count with those
            of all other variables.
    """

    paths: tuple[str, ...]
    learning_rate: WarmupLinearDecay
    weight_decay: float
    epsilon: float
    global_clipnorm: float | None = None


@dataclasses.dataclass(frozen=True)
class VariableValues:
    """What one variable is trained with, its group's values or the optimizer's.

    Attributes:
        schedule: of its group; `None`: the optimizer's.
        factor: what the learning rate is multiplied with.
        weight_decay: decoupled; 0 where none is wanted.
        epsilon: added to the root of the second moment.
        clip: which limit of the gradients' norm holds, a number of those limits.
    """

    schedule: WarmupLinearDecay | None
    factor: float
    weight_decay: float
    epsilon: float
    clip: int


def values_of_variables(
    optimizer: keras.optimizers.AdamW, variables: Sequence[keras.Variable]
) -> tuple[list[float | None], list[VariableValues]]:
    """The limit of each clip, `None` for none, and what each variable is trained with.

    The first limit is that of all variables that have no other; then come the groups' and, where
    each variable is clipped by itself, those.

    Args:
        optimizer: an `AdamW`.
        variables: all that it trains.

    Raises:
        ValueError: a group names another variable, or one that a group before it names.
    """
    known, numbers = {variable.path for variable in variables}, {}
    for number, group in enumerate(optimizer.groups):
        for path in group.paths:
            if path not in known or path in numbers:
                what = "in two groups" if path in numbers else "no variable that is trained"
                raise ValueError(f"groups: {path!r} is {what}")
            numbers[path] = number
    limits = [optimizer.global_clipnorm, *(group.global_clipnorm for group in optimizer.groups)]
    values = []
    for variable in variables:
        number, clip = numbers.get(variable.path), 0
        group = None if number is None else optimizer.groups[number]
        own = group or optimizer
        if group and group.global_clipnorm is not None:
            clip = 1 + number
        elif optimizer.clipnorm is not None:
            clip = len(limits)
            limits.append(optimizer.clipnorm)
        weight_decay = own.weight_decay if optimizer._use_weight_decay(variable) else None
        values.append(
            VariableValues(
                schedule=group and group.learning_rate,
                factor=optimizer.learning_rate_factors.get(variable.path, 1.0),
                weight_decay=weight_decay or 0.0,
                epsilon=own.epsilon,
                clip=clip,
            )
        )
    return limits, values

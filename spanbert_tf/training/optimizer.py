"""AdamW with BERT's schedule, BERT's exceptions from weight decay, and groups of variables.

Start to read at `AdamW.apply`. `update_operations` has the operations that differ by backend.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import keras
from keras import ops

from spanbert_tf.training import update_operations

# Biases and LayerNorm's scales and shifts (BERT, `optimization.py`). The rule goes by name:
# KerasHub's attention biases are 2-D, so the number of dimensions does not tell them apart.
_NOT_DECAYED = ("bias", "gamma", "beta")
# The values of `keras.optimizers.LossScaleOptimizer`.
_FIRST_LOSS_SCALE = 2.0**15
_UPDATES_AT_SCALE = 2_000
# Options of Keras' optimizers that are refused, and why.
_REFUSED = {
    "gradient_accumulation_steps": "fails under replication; use the configuration's "
    "training.accumulation_steps",
    "amsgrad": "is not supported: each variable has its own epsilon, and may have no correction",
    "clipvalue": "is not supported; gradients are clipped by norms: global_clipnorm, or clipnorm",
    "loss_scale_factor": "is not supported; use dynamic_loss_scale",
}


@keras.saving.register_keras_serializable(package="spanbert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to the peak, then linear decay to 0 (SpanBERT 4.2).

    Steps count from 0. The rate grows from `learning_rate / warmup_steps` in the first step to
    `learning_rate` in step `warmup_steps - 1`, still has that value in step `warmup_steps`, and
    decreases afterwards. It would reach 0 in step `total_steps`, after the last trained step, so
    no step has a rate of 0.

    With `first_step` the warm-up starts later, for variables that are frozen before. Afterwards
    their rate follows the same linear decay.

    Args:
        learning_rate: the peak.
        warmup_steps: number of steps of the warm-up; with 0 the schedule starts at the peak.
        total_steps: number of steps of the whole schedule; must exceed `warmup_steps`.
        first_step: step in which the warm-up starts; the rate is 0 before it.
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
        """Computes the learning rate of a step, float32; the step is a scalar of any type."""
        # float32 represents every step below 2**24 = 16.8 M exactly.
        step = ops.cast(step, "float32")
        decay = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        warmup = (step + (1.0 - self.first_step)) / max(self.warmup_steps, 1)
        return self.learning_rate * ops.maximum(ops.minimum(decay, warmup), 0.0)

    def get_config(self) -> dict:
        """Returns the arguments of the constructor."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "first_step": self.first_step,
        }


@dataclasses.dataclass(frozen=True)
class VariableGroup:
    """Variables that are trained with their own values, such as a task's new layers.

    Attributes:
        paths: paths of the variables (`keras.Variable.path`).
        learning_rate: schedule of their learning rate. Before its `first_step` the gradients must
            be 0 or left out. Bias correction counts the steps from there.
        weight_decay: decoupled weight decay, with the exceptions of `AdamW`.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the norm of the group's gradients; `None` clips them together
            with the gradients of all other variables.
    """

    paths: tuple[str, ...]
    learning_rate: WarmupLinearDecay
    weight_decay: float
    epsilon: float
    global_clipnorm: float | None = None


@dataclasses.dataclass(frozen=True)
class VariableValues:
    """The values by which one variable is trained: those of its group or of the optimizer.

    Attributes:
        schedule: schedule of the group; `None` for the learning rate of the optimizer.
        factor: factor of the learning rate.
        weight_decay: decoupled weight decay; 0 for none.
        epsilon: added to the root of the second moment.
        clip: index of the limit by which the gradient is clipped.
    """

    schedule: WarmupLinearDecay | None
    factor: float
    weight_decay: float
    epsilon: float
    clip: int


def values_of_variables(
    optimizer: "AdamW", variables: Sequence[keras.Variable]
) -> tuple[list[float | None], list[VariableValues]]:
    """Returns the limits by which gradients are clipped, and the values of each variable.

    The first limit applies to all variables that have no other one. The limits of the groups
    follow. With `clipnorm`, a limit for each remaining variable follows. `None` means no limit.

    Args:
        optimizer: the optimizer, with its groups.
        variables: all variables that the optimizer trains.

    Raises:
        ValueError: a group names a variable that is not trained or that is in another group.
    """
    group_of_path = _groups_of_paths(optimizer.groups, {variable.path for variable in variables})
    limits = [optimizer.global_clipnorm]
    limits += [group.global_clipnorm for group in optimizer.groups]
    values = []
    for variable in variables:
        group = None
        clip = 0
        if variable.path in group_of_path:
            index = group_of_path[variable.path]
            group = optimizer.groups[index]
            if group.global_clipnorm is not None:
                clip = 1 + index
        if clip == 0 and optimizer.clipnorm is not None:
            clip = len(limits)
            limits.append(optimizer.clipnorm)
        own = group or optimizer
        weight_decay = 0.0
        if own.weight_decay and optimizer._use_weight_decay(variable):
            weight_decay = own.weight_decay
        values.append(
            VariableValues(
                schedule=None if group is None else group.learning_rate,
                factor=optimizer.learning_rate_factors.get(variable.path, 1.0),
                weight_decay=weight_decay,
                epsilon=own.epsilon,
                clip=clip,
            )
        )
    return limits, values


def _groups_of_paths(groups: Sequence[VariableGroup], known: set[str]) -> dict[str, int]:
    """Maps the path of a variable to the index of its group."""
    indices: dict[str, int] = {}
    for index, group in enumerate(groups):
        for path in group.paths:
            if path in indices:
                raise ValueError(f"groups: {path!r} is in two groups")
            if path not in known:
                raise ValueError(f"groups: {path!r} is no variable that is trained")
            indices[path] = index
    return indices


class AdamStep(NamedTuple):
    """The coefficients of one step of Adam; scalars of the variable's type.

    Attributes:
        rate: the learning rate.
        powers: both betas to the power of the step; 0 without bias correction.
        betas: decay rates of the moments.
        epsilon: added to the root of the second moment.
        decay: fraction by which weight decay reduces the variable; `None` for no decay.
    """

    rate: keras.KerasTensor
    powers: tuple[keras.KerasTensor, keras.KerasTensor]
    betas: tuple[keras.KerasTensor, keras.KerasTensor]
    epsilon: keras.KerasTensor
    decay: keras.KerasTensor | None


def clip_factors(
    norms: keras.KerasTensor, limits: Sequence[float | None], scale: keras.KerasTensor | float
) -> list[keras.KerasTensor | float]:
    """Computes the factors that unscale and clip gradients: 1 / scale, or less above a limit.

    Args:
        norms: for each limit, the norm of its gradients of the scaled loss, float32 [limits].
        limits: limits of the norms of the unscaled gradients; `None` for no limit.
        scale: factor by which the loss was scaled.
    """
    factors = []
    for norm, limit in zip(ops.unstack(norms, len(limits)), limits, strict=True):
        factor = 1.0
        if limit:
            factor = limit / ops.maximum(norm / scale, limit)
        factors.append(factor / scale)
    return factors


def next_loss_scale(
    scale: keras.KerasTensor, num_updates: keras.KerasTensor, is_finite: keras.KerasTensor
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """Computes the scale of the next loss, and the number of updates at that scale.

    The scale doubles after 2,000 updates. A skipped update halves it, down to 1.

    Args:
        scale: scale of the loss, float32 scalar.
        num_updates: number of updates at this scale before this one, int32 scalar.
        is_finite: whether the gradients are finite; otherwise the update is skipped.
    """
    grows = ops.equal(num_updates, _UPDATES_AT_SCALE - 1)
    larger = scale * ops.where(grows, 2.0, 1.0)
    smaller = ops.maximum(scale / 2.0, 1.0)
    is_new_scale = ops.logical_or(grows, ops.logical_not(is_finite))
    return ops.where(is_finite, larger, smaller), ops.where(is_new_scale, 0, num_updates + 1)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW for BERT, with the same result on one device and on many.

    It differs from Keras 3.15 in these points:

    - Biases and LayerNorm are exempt from weight decay by name. The exemption is an argument of the
      constructor, so it survives `get_config` and saving.
    - Bias correction of the moments is optional. BertAdam (Devlin et al., 2019, `optimization.py`)
      has none.
    - Gradients of embedding look-ups are made dense first. They arrive as `tf.IndexedSlices` with
      an index for every occurrence of a token. Keras squares each occurrence in Adam's second
      moment and in the global norm, instead of their sum.
    - Gradients are added up over the replicas before they are clipped, not after.
    - If the gradients' global norm is not finite on any replica, the update is skipped.
      `skipped_in_a_row` counts the updates that were skipped since the last finite one.
    - `gradient_norm` is the gradients' global norm before clipping, of the last finite update.
    - With `dynamic_loss_scale`, for float16, a skipped update halves the scale of the loss, down to
      1, and 2,000 finite updates double it. (`keras.optimizers.LossScaleOptimizer` checks only the
      first replica.)

    Args:
        bias_correction: whether the moments are corrected for starting at 0.
        exclude_from_weight_decay: last words of the names of variables without weight decay. `bias`
            is the last word of `query_bias`, too.
        dynamic_loss_scale: whether `scale_loss` scales the loss.
        all_reduce_dtype: dtype in which replicas add up their gradients; by default the dtype of
            each gradient.
        groups: groups of variables with their own values; all other variables use the
            optimizer's. An optimizer with groups cannot be saved with its model.
        learning_rate_factors: maps the path of a variable to the factor of its learning rate.
        **kwargs: as for `keras.optimizers.AdamW`. `clipnorm` clips the gradient of each variable
            separately, except in groups that have `global_clipnorm`.

    Raises:
        ValueError: an option is not supported; or, from `build`, a group names a variable that is
            not trained or that is in another group.
    """

    def __init__(
        self,
        *args: object,
        bias_correction: bool = True,
        exclude_from_weight_decay: Sequence[str] = _NOT_DECAYED,
        dynamic_loss_scale: bool = False,
        all_reduce_dtype: str | None = None,
        groups: Sequence[VariableGroup] = (),
        learning_rate_factors: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        for name, reason in _REFUSED.items():
            if kwargs.get(name):
                raise ValueError(f"{name} {reason}")
        if all_reduce_dtype and not update_operations.HAS_ALL_REDUCE:
            raise ValueError("all_reduce_dtype needs TensorFlow: on JAX, XLA adds up the gradients")
        super().__init__(*args, **kwargs)
        self.bias_correction = bias_correction
        if isinstance(exclude_from_weight_decay, str):
            exclude_from_weight_decay = (exclude_from_weight_decay,)
        self.not_decayed = tuple(exclude_from_weight_decay)
        self.dynamic_loss_scale = dynamic_loss_scale
        self.all_reduce_dtype = all_reduce_dtype
        self.groups = tuple(groups)
        self.learning_rate_factors = dict(learning_rate_factors or {})
        self.exclude_from_weight_decay(
            var_names=[rf"(^|[/_]){re.escape(n)}(/replica_\d+)?(:\d+)?$" for n in self.not_decayed]
        )

    @property
    def schedule(self) -> keras.optimizers.schedules.LearningRateSchedule | float:
        """The learning rate or schedule of the constructor; `learning_rate` is the current rate."""
        return self._learning_rate

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates the variables that updates need."""
        if self.built:
            return
        self.skipped_in_a_row = self._add_scalar("skipped_in_a_row", "int32", 0)
        self.gradient_norm = self._add_scalar("gradient_norm", "float32", 0.0)
        if self.dynamic_loss_scale:
            self.loss_scale = self._add_scalar("loss_scale", "float32", _FIRST_LOSS_SCALE)
            self.updates_at_scale = self._add_scalar("updates_at_scale", "int32", 0)
        super().build(variables)
        self._limits, self._values = values_of_variables(self, variables)

    def _add_scalar(self, name: str, dtype: str, value: float) -> keras.Variable:
        initializer = keras.initializers.Constant(value)
        return self.add_variable((), initializer, dtype, aggregation="none", name=name)

    def scale_loss(self, loss: keras.KerasTensor) -> keras.KerasTensor:
        """Multiplies the loss by the current loss scale; `apply` takes gradients of the result."""
        if not self.dynamic_loss_scale:
            return loss
        return loss * self.loss_scale.value

    def apply(
        self,
        grads: Sequence[keras.KerasTensor | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates the variables, or skips the update if a gradient is not finite.

        A skipped update is a step of size 0 with gradients of 0 that leaves the moments unchanged.
        There is no branch for it, because a branch would double the graph of all variables.

        Args:
            grads: gradients of the scaled loss of the global batch. On TensorFlow they are those of
                the replica's share of the loss. A variable whose gradient is `None` is not changed;
                micro-batches have zeros in place of `None`.
            trainable_variables: variables of the gradients; by default those of `build`.
        """
        variables = list(trainable_variables or self._trainable_variables)
        self.build(variables)
        pairs = [pair for pair in zip(grads, variables, strict=True) if pair[0] is not None]
        gradients = [gradient for gradient, _ in pairs]
        variables = [variable for _, variable in pairs]

        gradients = update_operations.sum_over_replicas(gradients, self.all_reduce_dtype)
        values = [self._values[self._get_variable_index(variable)] for variable in variables]
        norms = update_operations.of_first_replica(self._norms(gradients, values))
        is_finite = ops.all(ops.isfinite(norms))
        scale = self.loss_scale.value if self.dynamic_loss_scale else 1.0
        factors = [
            ops.where(is_finite, factor, 0.0) for factor in clip_factors(norms, self._limits, scale)
        ]

        steps: dict[tuple, AdamStep] = {}  # shared by variables: each takes a dozen operations
        for gradient, variable, own in zip(gradients, variables, values, strict=True):
            if getattr(variable, "overwrite_with_gradient", False):  # a scale of Keras' float8
                variable.assign(ops.where(is_finite, gradient, variable.value))
                continue
            key = (id(own.schedule), own.factor, own.epsilon, own.weight_decay, variable.dtype)
            if key not in steps:
                steps[key] = self._step_of(own, variable.dtype, is_finite)
            gradient = update_operations.multiply_no_nan(gradient, factors[own.clip])
            gradient = ops.cast(gradient, variable.dtype)
            index = self._get_variable_index(variable)
            moments = (self._momentums[index], self._velocities[index])
            update_operations.apply_adam(gradient, variable, moments, steps[key])
            if variable.constraint is not None:
                constrained = variable.constraint(variable.value)
                variable.assign(ops.where(is_finite, constrained, variable.value))
        if self.use_ema:
            self._update_averages(is_finite)
        self._count(is_finite, ops.norm(norms) / scale)

    def _norms(
        self, gradients: Sequence[keras.KerasTensor], values: Sequence[VariableValues]
    ) -> keras.KerasTensor:
        """Computes the norm of the gradients of each limit, float32 [limits]; 0 without gradients.

        A norm is finite only if all its gradients are, so one pass over the gradients serves both
        clipping and the check.
        """
        clipped: list[list[keras.KerasTensor]] = [[] for _ in self._limits]
        for gradient, own in zip(gradients, values, strict=True):
            clipped[own.clip].append(gradient)
        squares = [
            update_operations.sum_of_squares(part) if part else ops.zeros((), "float32")
            for part in clipped
        ]
        return ops.sqrt(ops.stack(squares))

    def _step_of(
        self, values: VariableValues, dtype: str, is_finite: keras.KerasTensor
    ) -> AdamStep:
        """Computes the coefficients of the step of variables with these values."""
        iterations = self.iterations.value
        learning_rate = self.learning_rate
        first_step = 0
        if values.schedule is not None:
            learning_rate = values.schedule(iterations)
            first_step = values.schedule.first_step
        rate = ops.cast(learning_rate, dtype) * values.factor
        rate = ops.where(is_finite, rate, 0.0)
        powers = (ops.zeros((), dtype), ops.zeros((), dtype))
        if self.bias_correction:
            step = ops.cast(iterations + 1, dtype)
            if first_step:  # `iterations` may be behind `first_step`: it counts no skipped updates
                step = ops.maximum(step - first_step, 1.0)
            powers = (self.beta_1**step, self.beta_2**step)

        def one_if_skipped(value: float) -> keras.KerasTensor:
            return ops.where(is_finite, ops.cast(value, dtype), 1.0)

        return AdamStep(
            rate,
            powers,
            betas=(one_if_skipped(self.beta_1), one_if_skipped(self.beta_2)),
            epsilon=one_if_skipped(values.epsilon),  # with an epsilon of 0 the step would be 0 / 0
            decay=rate * values.weight_decay if values.weight_decay else None,
        )

    def _update_averages(self, is_finite: keras.KerasTensor) -> None:
        """Updates the moving averages of the variables, as Keras does."""
        updates = self.iterations.value + 1
        momentum = ops.where(ops.equal(updates, 1), 0.0, self.ema_momentum)
        momentum = ops.where(is_finite, momentum, 1.0)
        averages = self._model_variables_moving_average
        for variable, average in zip(self._trainable_variables, averages, strict=True):
            if average is None:
                continue
            share = ops.cast(momentum, variable.dtype)
            average.assign(share * average.value + (1 - share) * variable.value)
            if self.ema_overwrite_frequency:
                is_due = ops.equal(updates % self.ema_overwrite_frequency, 0)
                is_due = ops.logical_and(is_due, is_finite)
                variable.assign(ops.where(is_due, average.value, variable.value))

    def _count(self, is_finite: keras.KerasTensor, norm: keras.KerasTensor) -> None:
        """Updates the counters, the gradient norm and the loss scale after an update."""
        assign = update_operations.assign
        assign(self.skipped_in_a_row, ops.where(is_finite, 0, self.skipped_in_a_row.value + 1))
        assign(self.gradient_norm, ops.where(is_finite, norm, self.gradient_norm.value))
        if self.dynamic_loss_scale:
            scale, num_updates = next_loss_scale(
                self.loss_scale.value, self.updates_at_scale.value, is_finite
            )
            assign(self.loss_scale, scale)
            assign(self.updates_at_scale, num_updates)
        iterations = self.iterations.value
        assign(self.iterations, iterations + ops.cast(is_finite, self.iterations.dtype))

    def get_config(self) -> dict:
        """Returns the arguments of the constructor.

        Raises:
            ValueError: the optimizer has groups, which cannot be saved.
        """
        if self.groups:
            raise ValueError("an optimizer with groups of variables cannot be saved")
        return {
            **super().get_config(),
            "bias_correction": self.bias_correction,
            "exclude_from_weight_decay": list(self.not_decayed),
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "all_reduce_dtype": self.all_reduce_dtype,
            "learning_rate_factors": self.learning_rate_factors,
        }

"""AdamW with BERT's schedule, BERT's exceptions from weight decay, and groups of variables.

An update is read from `AdamW.apply`. What differs between backends is in `update_operations`.
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
_FIRST_LOSS_SCALE, _UPDATES_AT_SCALE = 2.0**15, 2_000  # those of Keras
# Options of Keras' optimizers that are refused, and why.
_REFUSED = {
    "gradient_accumulation_steps": "fails under replication; use the configuration's "
    "training.accumulation_steps",
    "amsgrad": "is not here: the step has an epsilon for each variable, and may correct no bias",
    "clipvalue": "is not here; gradients are clipped by norms: global_clipnorm, or clipnorm",
    "loss_scale_factor": "is not here; dynamic_loss_scale finds one",
}


@keras.saving.register_keras_serializable(package="spanbert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to the peak, then linear decay to 0 (SpanBERT 4.2).

    Steps count from 0. The rate grows from `learning_rate / warmup_steps` in the first step to
    `learning_rate` in step `warmup_steps - 1`, still has that value in step `warmup_steps`, and
    falls after it. It would be 0 in step `total_steps`, which is not trained any more: no step is
    spent on a rate of 0.

    Variables that are trained from a later step on warm up from there, and join the linear decay
    of the others.

    Args:
        learning_rate: the peak.
        warmup_steps: steps of the warm-up; with 0 the schedule begins at the peak.
        total_steps: steps of the whole schedule, more than `warmup_steps`.
        first_step: step in which the warm-up begins; the rate is 0 before it.
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
        """The learning rate of a step, float32; the step is a scalar of any type."""
        # float32 represents every step below 2**24 = 16.8 M exactly.
        step = ops.cast(step, "float32")
        decay = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        warmup = (step + (1.0 - self.first_step)) / max(self.warmup_steps, 1)
        return self.learning_rate * ops.maximum(ops.minimum(decay, warmup), 0.0)

    def get_config(self) -> dict:
        """The arguments of the constructor."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
            "first_step": self.first_step,
        }


@dataclasses.dataclass(frozen=True)
class VariableGroup:
    """Variables that are trained with values of their own, such as a task's new layers.

    Attributes:
        paths: paths of the variables (`keras.Variable.path`).
        learning_rate: schedule of their learning rate. Before its `first_step` gradients must be 0
            or left out; the steps of bias correction are counted from there.
        weight_decay: decoupled, with the exceptions of `AdamW`.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the norm of these gradients alone; `None`: they are part of the
            norm of all other variables.
    """

    paths: tuple[str, ...]
    learning_rate: WarmupLinearDecay
    weight_decay: float
    epsilon: float
    global_clipnorm: float | None = None


@dataclasses.dataclass(frozen=True)
class VariableValues:
    """The values that one variable is trained with: those of its group, or the optimizer's.

    Attributes:
        schedule: schedule of the group; `None`: the optimizer's learning rate.
        factor: factor of the learning rate.
        weight_decay: decoupled weight decay; 0 for none.
        epsilon: added to the root of the second moment.
        clip: index of the limit that its gradient is clipped by.
    """

    schedule: WarmupLinearDecay | None
    factor: float
    weight_decay: float
    epsilon: float
    clip: int


def values_of_variables(
    optimizer: "AdamW", variables: Sequence[keras.Variable]
) -> tuple[list[float | None], list[VariableValues]]:
    """The limits that gradients are clipped by, and the values of each variable.

    The first limit is that of all variables without another one. Limits of the groups follow, and,
    where each variable is clipped by itself, one for each. `None` is no limit.

    Args:
        optimizer: the optimizer, with its groups.
        variables: all variables that it trains.

    Raises:
        ValueError: a group names a variable that is not trained, or that another group names.
    """
    group_of_path = _groups_of_paths(optimizer.groups, {variable.path for variable in variables})
    limits = [optimizer.global_clipnorm]
    limits += [group.global_clipnorm for group in optimizer.groups]
    values = []
    for variable in variables:
        index = group_of_path.get(variable.path)
        group = None if index is None else optimizer.groups[index]
        clip = 0
        if group is not None and group.global_clipnorm is not None:
            clip = 1 + index
        elif optimizer.clipnorm is not None:
            clip = len(limits)
            limits.append(optimizer.clipnorm)
        own = group or optimizer
        weight_decay = 0.0
        if own.weight_decay and optimizer._use_weight_decay(variable):
            weight_decay = own.weight_decay
        values.append(
            VariableValues(
                schedule=group and group.learning_rate,
                factor=optimizer.learning_rate_factors.get(variable.path, 1.0),
                weight_decay=weight_decay,
                epsilon=own.epsilon,
                clip=clip,
            )
        )
    return limits, values


def _groups_of_paths(groups: Sequence[VariableGroup], known: set[str]) -> dict[str, int]:
    """Path of a variable → index of its group."""
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
        rate: learning rate.
        powers: both betas to the power of the step; 0 without bias correction.
        betas: decay rates of the moments.
        epsilon: added to the root of the second moment.
        decay: share of the variable that decays in this step; `None` for no decay.
    """

    rate: keras.KerasTensor
    powers: tuple[keras.KerasTensor, keras.KerasTensor]
    betas: tuple[keras.KerasTensor, keras.KerasTensor]
    epsilon: keras.KerasTensor
    decay: keras.KerasTensor | None


def clip_factors(
    norms: keras.KerasTensor, limits: Sequence[float | None], scale: keras.KerasTensor | float
) -> list[keras.KerasTensor | float]:
    """What the gradients of each clip are multiplied with: 1 / scale, or less above the limit.

    Args:
        norms: norms of the gradients of the scaled loss, float32 [clips].
        limits: limits of the norms of the unscaled gradients; `None`: no limit.
        scale: what the loss was multiplied with.
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
    """The scale of the next loss and its number of updates.

    The scale doubles after 2,000 updates, and halves, to 1 at least, where one is left out.

    Args:
        scale: scale of the loss, float32 scalar.
        num_updates: number of updates at this scale before this one, int32 scalar.
        is_finite: whether the gradients are finite, or the update is left out.
    """
    grows = ops.equal(num_updates, _UPDATES_AT_SCALE - 1)
    larger = scale * ops.where(grows, 2.0, 1.0)
    smaller = ops.maximum(scale / 2.0, 1.0)
    begins_anew = ops.logical_or(grows, ops.logical_not(is_finite))
    return ops.where(is_finite, larger, smaller), ops.where(begins_anew, 0, num_updates + 1)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW for BERT, with the same result on one device and on many.

    It differs from Keras 3.15 in these points:

    - Biases and LayerNorm are exempt from weight decay, by name. The exemption is an argument, so
      it survives `get_config` and saving.
    - Bias correction of the moments is optional. BertAdam (Devlin et al., 2019, `optimization.py`)
      has none.
    - Gradients of embedding look-ups are made dense first. They arrive as `tf.IndexedSlices` with
      an index for every occurrence of a token. Keras squares those occurrences one by one in Adam's
      second moment and in the global norm, where the square of their sum is meant.
    - Gradients are added up over the replicas before they are clipped, not after.
    - If the gradients' global norm is not finite, on whichever replica, the update changes nothing.
      `skipped_in_a_row` counts the updates that were left out since the last finite one.
    - `gradient_norm` is the gradients' global norm before clipping, in the last finite update.
    - With `dynamic_loss_scale`, for float16, a scale is halved then, to 1 at least, and doubled
      after 2,000 finite updates. (`keras.optimizers.LossScaleOptimizer` only looks at the first
      replica.)

    Args:
        bias_correction: whether the moments are corrected for beginning at 0.
        exclude_from_weight_decay: last parts of the names of variables that do not decay.
        dynamic_loss_scale: whether `scale_loss` scales the loss.
        all_reduce_dtype: type in which replicas add up their gradients; by default their own.
        groups: variables with values of their own; all others use the optimizer's. An optimizer
            with groups cannot be saved with its model.
        learning_rate_factors: path of a variable → factor of its learning rate.
        **kwargs: as for `keras.optimizers.AdamW`. `clipnorm` limits the gradient of each variable
            by itself, except in groups with a limit of their own.

    Raises:
        ValueError: an option is not supported; or `build` is given other variables than those of
            the groups, or one that two groups name.
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
            raise ValueError("all_reduce_dtype is TensorFlow's alone: on JAX XLA adds gradients up")
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
        """The learning rate as it was given; `learning_rate` is the rate of the current step."""
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
        """Scales the loss whose gradients `apply` takes."""
        if not self.dynamic_loss_scale:
            return loss
        return loss * self.loss_scale.value

    def apply(
        self,
        grads: Sequence[keras.KerasTensor | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates the variables, or leaves the update out if a gradient is not finite.

        Without a branch, which would be one more graph of all variables: an update that is left
        out is a step of size 0 with gradients of 0, from which the moments learn nothing.

        Args:
            grads: gradients of the scaled loss of the global batch; on TensorFlow, in a replica's
                context, of the replica's share of it. A variable whose gradient is `None` remains
                as it is; micro-batches have zeros in place of `None`.
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

        steps: dict[tuple, AdamStep] = {}  # shared: each is a dozen operations of the graph
        for gradient, variable, own in zip(gradients, variables, values, strict=True):
            if getattr(variable, "overwrite_with_gradient", False):  # a range of Keras' float8
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
        """The norm of the gradients of each clip, float32 [clips]; 0 for a clip without gradients.

        One pass over the gradients tells how long they are and whether all are finite.
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
        """The coefficients of the step of variables with these values."""
        iterations, learning_rate, first_step = self.iterations.value, self.learning_rate, 0
        if values.schedule is not None:
            learning_rate = values.schedule(iterations)
            first_step = values.schedule.first_step
        rate = ops.cast(learning_rate, dtype) * values.factor
        rate = ops.where(is_finite, rate, 0.0)
        powers = (ops.zeros((), dtype), ops.zeros((), dtype))
        if self.bias_correction:
            step = ops.cast(iterations + 1, dtype)
            if first_step:  # updates that were left out let `iterations` lag behind
                step = ops.maximum(step - first_step, 1.0)
            powers = (self.beta_1**step, self.beta_2**step)

        def one_if_left_out(value: float) -> keras.KerasTensor:
            return ops.where(is_finite, ops.cast(value, dtype), 1.0)

        return AdamStep(
            rate,
            powers,
            betas=(one_if_left_out(self.beta_1), one_if_left_out(self.beta_2)),
            epsilon=one_if_left_out(values.epsilon),  # an epsilon of 0 would divide 0 by 0
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
        """Counts the update, or that it was left out, and finds the next loss scale."""
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
        """The arguments of the constructor.

        Raises:
            ValueError: there are groups, which cannot be saved.
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

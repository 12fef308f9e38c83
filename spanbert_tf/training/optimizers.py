"""AdamW with BERT's schedule, BERT's exceptions from weight decay, and groups of variables."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import keras
from keras import ops

from spanbert_tf.training.schedule import WarmupLinearDecay
from spanbert_tf.training.variable_groups import VariableGroup

# As Keras chooses its own optimizers' base.
if keras.backend.backend() == "jax":
    from spanbert_tf.training.array_update import ArrayUpdate as BackendUpdate
else:
    from spanbert_tf.training.replicated_update import ReplicatedUpdate as BackendUpdate

# Biases and LayerNorm's scales and shifts (BERT, `optimization.py`). The rule goes by name:
# KerasHub's attention biases are 2-D, so the number of dimensions does not tell.
_NOT_DECAYED = ("bias", "gamma", "beta")
_FIRST_LOSS_SCALE, _UPDATES_AT_SCALE = 2.0**15, 2_000  # Keras' own


@keras.saving.register_keras_serializable(package="spanbert_tf")
class AdamW(BackendUpdate, keras.optimizers.AdamW):
    """Keras' AdamW for BERT, with the same result for one device and for many.

    What Keras 3.15 does otherwise:

    - biases and LayerNorm are exempt from weight decay, by name; the exemption is an argument, so
      that it survives `get_config` and saving;
    - the moments' bias is corrected only if that is wanted. BertAdam (Devlin et al., 2019,
      `optimization.py`) does not;
    - gradients of embedding look-ups are made dense first. They arrive as `tf.IndexedSlices` with
      an index for every occurrence of a token; Keras squares those occurrences one by one in
      Adam's second moment and in the global norm, where the square of their sum is meant;
    - gradients are added up over the replicas before they are clipped, not after;
    - gradients whose global norm is not finite, on whichever replica, change nothing. How many
      updates were left out since the last one is in `skipped_in_a_row`;
    - the gradients' global norm before clipping, of the last update, is in `gradient_norm`;
    - with `dynamic_loss_scale`, for float16, the scale is halved then, and doubled after 2,000
      finite updates. (`keras.optimizers.LossScaleOptimizer` looks at the first replica only.)

    Args:
        bias_correction: whether the moments are corrected for beginning at 0.
        exclude_from_weight_decay: last parts of the names of variables that are not decayed.
        dynamic_loss_scale: whether `scale_loss` scales.
        groups: variables with values of their own; all others have the optimizer's.
        learning_rate_factors: path of a variable → what its learning rate is multiplied with.
        **kwargs: as for `keras.optimizers.AdamW`. `clipnorm` limits the gradient of each variable
            by itself, but for those of groups with a limit of their own.

    Raises:
        ValueError: an option that does not work here, or `build` gets other variables than those
            of the groups, or one that two of them name.
    """

    def __init__(
        self,
        *args: object,
        bias_correction: bool = True,
        exclude_from_weight_decay: Sequence[str] = _NOT_DECAYED,
        dynamic_loss_scale: bool = False,
        groups: Sequence[VariableGroup | Mapping] = (),
        learning_rate_factors: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        if kwargs.get("gradient_accumulation_steps"):
            raise ValueError(
                "gradient_accumulation_steps fails under replication; use the configuration's "
                "training.accumulation_steps"
            )
        if kwargs.get("amsgrad") and (groups or not bias_correction):
            raise ValueError(
                "amsgrad knows no groups and corrects the bias: Keras' step has one epsilon for all"
            )
        super().__init__(*args, **kwargs)
        self.bias_correction = bias_correction
        self.not_decayed = tuple(exclude_from_weight_decay)
        self.dynamic_loss_scale = dynamic_loss_scale
        self.groups = tuple(
            group if isinstance(group, VariableGroup) else VariableGroup.from_config(group)
            for group in groups
        )
        self.learning_rate_factors = dict(learning_rate_factors or {})
        self.exclude_from_weight_decay(
            var_names=[rf"(^|[/_]){re.escape(n)}(/replica_\d+)?(:\d+)?$" for n in self.not_decayed]
        )

    @property
    def schedule(self) -> keras.optimizers.schedules.LearningRateSchedule | float:
        """The learning rate as it was given; `learning_rate` is that of the current step."""
        return self._learning_rate

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Adds the variables that the updates need."""
        if self.built:
            return

        def scalar(name: str, dtype: str, value: float) -> keras.Variable:
            initializer = keras.initializers.Constant(value)
            return self.add_variable((), initializer, dtype, aggregation="none", name=name)

        self.skipped_in_a_row = scalar("skipped_in_a_row", "int32", 0)
        self.gradient_norm = scalar("gradient_norm", "float32", 0.0)
        if self.dynamic_loss_scale:
            self.loss_scale = scalar("loss_scale", "float32", _FIRST_LOSS_SCALE)
            self.updates_at_scale = scalar("updates_at_scale", "int32", 0)
        super().build(variables)
        group_of_path = self._group_of_path({variable.path for variable in variables})
        # The limit of each clip, `None` for none. The first is that of all variables that have no
        # other; then come the groups' and, where each variable is clipped by itself, those.
        self._limits = [self.global_clipnorm, *(group.global_clipnorm for group in self.groups)]
        self._values = [self._values_of(v, group_of_path.get(v.path)) for v in variables]

    def _group_of_path(self, known: set[str]) -> dict[str, VariableGroup]:
        found: dict[str, VariableGroup] = {}
        for group in self.groups:
            for path in group.paths:
                if path not in known or path in found:
                    what = "in two groups" if path in found else "no variable that is trained"
                    raise ValueError(f"groups: {path!r} is {what}")
                found[path] = group
        return found

    def _values_of(self, variable: keras.Variable, group: VariableGroup | None) -> "_Values":
        own = group is not None
        decay = (group.weight_decay if own else self.weight_decay) or 0.0
        clip = 0
        if own and group.global_clipnorm is not None:
            clip = 1 + self.groups.index(group)
        elif self.clipnorm is not None:
            clip = len(self._limits)
            self._limits.append(self.clipnorm)
        return _Values(
            group=group,
            learning_rate_factor=self.learning_rate_factors.get(variable.path, 1.0),
            weight_decay=decay if self._use_weight_decay(variable) else 0.0,
            epsilon=group.epsilon if own else self.epsilon,
            clip=clip,
        )

    def scale_loss(self, loss: keras.KerasTensor) -> keras.KerasTensor:
        """The loss to take gradients of, for `apply`."""
        return loss * self.loss_scale.value if self.dynamic_loss_scale else loss

    def _update(
        self,
        sums: list[keras.KerasTensor],
        norms: keras.KerasTensor,
        variables: list[keras.Variable],
    ) -> None:
        """Updates the variables with the global batch's gradients, whose norms are [clips]."""
        self._scalars = _Scalars()
        scale = 1.0
        if self.dynamic_loss_scale:
            scale = self.loss_scale.value
            grows = ops.equal(self.updates_at_scale.value, _UPDATES_AT_SCALE - 1)
            self.assign(self.loss_scale, scale * ops.where(grows, 2.0, 1.0))
            self.assign(self.updates_at_scale, ops.where(grows, 0, self.updates_at_scale.value + 1))
        self.assign(self.skipped_in_a_row, 0)
        self.assign(self.gradient_norm, ops.norm(norms) / scale)
        limits = self._limits
        if any(limits) or self.dynamic_loss_scale:
            factors = [
                limit / ops.maximum(norm / scale, limit) if limit else 1.0
                for limit, norm in zip(limits, ops.unstack(norms, len(limits)), strict=True)
            ]
            clips = [self._values[self._get_variable_index(v)].clip for v in variables]
            sums = [g * (factors[clip] / scale) for g, clip in zip(sums, clips, strict=True)]
        keras.optimizers.AdamW.apply(self, sums, variables)

    def _skip(self) -> None:
        """Leaves an update out."""
        self.assign_add(self.skipped_in_a_row, 1)
        if self.dynamic_loss_scale:
            self.assign(self.loss_scale, self.loss_scale.value / 2.0)
            self.assign(self.updates_at_scale, 0)

    def _clip_gradients(self, grads: list[keras.KerasTensor]) -> list[keras.KerasTensor]:
        """Keras' clipping by value; `_update` has clipped by norms."""
        return super()._clip_gradients(grads) if self.clipvalue else grads

    def _apply_weight_decay(self, variables: list[keras.Variable]) -> None:
        """Nothing: `update_step` decays."""

    def update_step(
        self,
        gradient: keras.KerasTensor,
        variable: keras.Variable,
        learning_rate: keras.KerasTensor,
    ) -> None:
        """The decay, then Adam's step."""
        values = self._values[self._get_variable_index(variable)]
        learning_rate, powers = self._scalars.get(
            (id(values.group), values.learning_rate_factor, variable.dtype),
            lambda: self._rate_and_powers(values, variable.dtype, learning_rate),
        )
        if values.weight_decay:
            # Not `variable * (1 - …)`: float32 would round the decay's share of a step away.
            variable.assign_sub(variable * (learning_rate * values.weight_decay))
        if self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        self._adam_step(gradient, variable, learning_rate, powers, values.epsilon)

    def _rate_and_powers(
        self, values: "_Values", dtype: str, learning_rate: keras.KerasTensor
    ) -> tuple[keras.KerasTensor, tuple[keras.KerasTensor, keras.KerasTensor]]:
        """The learning rate of a variable, and both betas to the power of the step.

        Of powers of 0 the step corrects no bias.
        """
        first_step = 0
        if values.group is not None:
            learning_rate = values.group.learning_rate(self.iterations.value)
            first_step = values.group.learning_rate.first_step
        learning_rate = ops.cast(learning_rate, dtype) * values.learning_rate_factor
        if not self.bias_correction:
            return learning_rate, (ops.zeros((), dtype), ops.zeros((), dtype))
        step = ops.cast(self.iterations.value + 1, dtype)
        if first_step:  # moments begin then; updates that were left out let `iterations` lag
            step = ops.maximum(step - first_step, 1.0)
        return learning_rate, (self.beta_1**step, self.beta_2**step)

    def get_config(self) -> dict:
        """The arguments of the constructor."""
        return {
            **super().get_config(),
            "bias_correction": self.bias_correction,
            "exclude_from_weight_decay": list(self.not_decayed),
            "dynamic_loss_scale": self.dynamic_loss_scale,
            "groups": [group.to_config() for group in self.groups],
            "learning_rate_factors": self.learning_rate_factors,
        }


@dataclasses.dataclass(frozen=True)
class _Values:
    """What one variable is trained with."""

    group: VariableGroup | None
    learning_rate_factor: float
    weight_decay: float
    epsilon: float
    clip: int


class _Scalars:
    """What many variables share in one update; each would add a dozen operations to the graph."""

    def __init__(self) -> None:
        self._found: dict[tuple, tuple] = {}

    def get(self, key: tuple, compute: Callable[[], tuple]) -> tuple:
        """What was computed for a key, now or before."""
        if key not in self._found:
            self._found[key] = compute()
        return self._found[key]


def adamw(
    learning_rate: float = 1e-4,
    warmup_steps: int = 10_000,
    total_steps: int = 2_400_000,
    weight_decay: float = 0.1,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    global_clipnorm: float | None = 1.0,
    dynamic_loss_scale: bool = False,
) -> AdamW:
    """The optimizer of SpanBERT's pre-training; the defaults are the paper's (4.2).

    They are made for 2.4 M steps: a shorter training needs `warmup_steps` and `total_steps` of its
    own, or it ends before the rate has reached its peak.

    One step, with the gradient g clipped to a global norm and the learning rate r of the schedule:
    `w -= r * weight_decay * w` (kernels and embeddings only), then
    `w -= r * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)`.
    Epsilon is added before the bias correction of v, as in fairseq; PyTorch adds it after, which
    at t = 1 is an epsilon 32 times smaller. Where the gradients are well above 1e-8 the two agree.
    (The original BERT corrects no bias: `AdamW(bias_correction=False)`.)

    Args:
        learning_rate: peak of the schedule.
        warmup_steps: steps of linear warm-up.
        total_steps: step in which the linear decay reaches 0.
        weight_decay: decoupled decay, multiplied by the learning rate. The paper says 0.1, the
            released command 0.01.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: see above.
        global_clipnorm: limit of the gradients' global norm (released command); None: no clipping.
        dynamic_loss_scale: for models that compute in float16, see `AdamW`.

    Returns:
        A Keras optimizer for `model.compile`.
    """
    return AdamW(
        learning_rate=WarmupLinearDecay(learning_rate, warmup_steps, total_steps),
        weight_decay=weight_decay,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        global_clipnorm=global_clipnorm,
        dynamic_loss_scale=dynamic_loss_scale,
    )

"""AdamW with BERT's schedule, BERT's exceptions from weight decay, and groups of variables."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from spanbert_tf.training.array_updates import StepValues, adam_step, apply_to_arrays
from spanbert_tf.training.schedule import VariableGroup, VariableValues, values_of_variables

if _IS_TENSORFLOW := keras.backend.backend() == "tensorflow":
    import tensorflow as tf

# Biases and LayerNorm's scales and shifts (BERT, `optimization.py`). The rule goes by name:
# KerasHub's attention biases are 2-D, so the number of dimensions does not tell.
_NOT_DECAYED = ("bias", "gamma", "beta")
_FIRST_LOSS_SCALE, _UPDATES_AT_SCALE = 2.0**15, 2_000  # Keras' own
_BYTES_PER_PACK = 2**25  # of 1.35 GB (large) are added up at once, the last layers' gradients first
# Of Keras' options, those that do not work here, and why.
_REFUSED = {
    "gradient_accumulation_steps": "fails under replication; use the configuration's "
    "training.accumulation_steps",
    "amsgrad": "is not here: the step has an epsilon for each variable, and may correct no bias",
    "clipvalue": "is not here; gradients are clipped by norms: global_clipnorm, or clipnorm",
    "loss_scale_factor": "is not here; dynamic_loss_scale finds one",
}


@keras.saving.register_keras_serializable(package="spanbert_tf")
class AdamW(keras.optimizers.AdamW):
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
    - with `dynamic_loss_scale`, for float16, the scale is halved then, to 1 at least, and
      doubled after 2,000 finite updates. (`keras.optimizers.LossScaleOptimizer` looks at the
      first replica only.)

    Args:
        bias_correction: whether the moments are corrected for beginning at 0.
        exclude_from_weight_decay: last parts of the names of variables that are not decayed.
        dynamic_loss_scale: whether `scale_loss` scales.
        all_reduce_dtype: type in which replicas add up their gradients; by default their own.
        groups: variables with values of their own; all others have the optimizer's. An optimizer
            with groups cannot be saved with its model.
        learning_rate_factors: path of a variable → what its learning rate is multiplied with.
        **kwargs: as for `keras.optimizers.AdamW`. `clipnorm` limits the gradient of each variable
            by itself, but for those of groups with a limit of their own.

    Raises:
        ValueError: an option that does not work here, or `build` gets other variables than those
            of the groups, or one that two of them name.
    """

    held: frozenset[int] = frozenset()  # of variables that stay as they are, in a step on JAX

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
        if all_reduce_dtype and not _IS_TENSORFLOW:
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
        self._limits, self._values = values_of_variables(self, variables)

    def scale_loss(self, loss: keras.KerasTensor) -> keras.KerasTensor:
        """The loss to take gradients of, for `apply`."""
        return loss * self.loss_scale.value if self.dynamic_loss_scale else loss

    def apply(
        self,
        grads: Sequence[keras.KerasTensor | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates the variables, or none of them.

        Args:
            grads: gradients of the loss of the global batch; on TensorFlow, where it is called in
                a replica's context, of the replica's share of it. Variables whose gradient is
                `None` stay as they are.
            trainable_variables: in the same order; those of `build` by default.
        """
        variables = list(trainable_variables or self._trainable_variables)
        self.build(variables)
        kept = [
            (gradient, variable)
            for gradient, variable in zip(grads, variables, strict=True)
            if gradient is not None and id(variable) not in self.held
        ]
        sums, variables = [grad for grad, _ in kept], [variable for _, variable in kept]
        if _IS_TENSORFLOW:
            self._apply_on_replicas(sums, variables)
        else:
            apply_to_arrays(self, sums, variables)

    def _apply_on_replicas(self, grads: list, variables: list[keras.Variable]) -> None:
        """Adds up over the replicas of any strategy, and decides for all of them."""
        sums = [tf.convert_to_tensor(grad) for grad in grads]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            packs = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=_BYTES_PER_PACK)
            sent = [tf.cast(part, self.all_reduce_dtype or part.dtype) for part in sums]
            reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, sent, packs)
            sums = [tf.cast(one, part.dtype) for one, part in zip(reduced, sums, strict=True)]
        norms = self._norms(sums, variables)  # [clips]
        if context.num_replicas_in_sync > 1:
            # The first replica's: what each adds up differs in the last bit, by the number of its
            # processor's threads for one, and weights that are clipped by it would drift apart.
            is_first = context.replica_id_in_sync_group == 0
            ours = tf.where(is_first, norms, tf.zeros_like(norms))  # x + 0 has the bits of x
            norms = context.all_reduce(tf.distribute.ReduceOp.SUM, ours)
        self._is_finite = is_finite = tf.reduce_all(tf.math.is_finite(norms))
        self._take_step(sums, norms, variables)
        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            tf.cond(is_finite, lambda: self._finish(sums, norms, variables), self._skip)
        else:
            context.merge_call(self._finish_all_or_skip, args=(is_finite, sums, norms, variables))

    def _finish_all_or_skip(self, strategy: object, is_finite: Any, *of_replicas: object) -> None:
        """One decision for all replicas: they may not assign in a `tf.cond` of their own."""
        for_each_replica = strategy.extended.call_for_each_replica
        tf.cond(
            strategy.experimental_local_results(is_finite)[0],
            lambda: for_each_replica(self._finish, args=of_replicas),
            lambda: for_each_replica(self._skip),
        )

    def _norms(self, sums: list, variables: list[keras.Variable]) -> keras.KerasTensor:
        """The norm of the gradients of each clip, float32 [clips]; 0 for a clip without gradients.

        One pass over the gradients says how long they are and whether all are finite.
        """
        of_clips: list[list[keras.KerasTensor]] = [[] for _ in self._limits]
        for gradient, variable in zip(sums, variables, strict=True):
            of_clips[self._values_for(variable).clip].append(gradient)
        return ops.sqrt(ops.stack([_sum_of_squares(gradients) for gradients in of_clips]))

    def _values_for(self, variable: keras.Variable) -> VariableValues:
        return self._values[self._get_variable_index(variable)]

    def _take_step(self, sums: list, norms: keras.KerasTensor, variables: list) -> None:
        """Adam's step with the global batch's gradients, whose norms are [clips].

        Where they are not finite, TensorFlow takes a step of size 0 with gradients of 0, from which
        the moments learn nothing: a branch would be one more graph of all variables.
        """
        scale = self.loss_scale.value if self.dynamic_loss_scale else 1.0
        limits = zip(self._limits, ops.unstack(norms, len(self._limits)), strict=True)
        factors = [top / ops.maximum(norm / scale, top) if top else 1.0 for top, norm in limits]
        factors = [self._unless_skipped(factor / scale, 0.0) for factor in factors]
        multiply = tf.math.multiply_no_nan if _IS_TENSORFLOW else ops.multiply
        clipped, stepped = [], []
        for gradient, variable in zip(sums, variables, strict=True):
            if not self._overwrite_variable_with_gradient(variable):  # `apply` does, of float8
                factor = ops.cast(factors[self._values_for(variable).clip], gradient.dtype)
                clipped.append(multiply(gradient, factor))
                stepped.append(variable)
        # What many variables share is computed once: each would add a dozen operations.
        self._shared: dict[tuple, StepValues] = {}
        super()._backend_update_step(clipped, stepped, self.learning_rate)

    def _unless_skipped(self, value: keras.KerasTensor | float, other: float) -> Any:
        """A number of a step, and on TensorFlow another one in a step that changes nothing."""
        return tf.where(self._is_finite, value, other) if _IS_TENSORFLOW else value

    def _finish(self, sums: list, norms: keras.KerasTensor, variables: list) -> None:
        """What Keras does after a step, and what is told of it."""
        scale = self.loss_scale.value if self.dynamic_loss_scale else 1.0
        self.assign(self.skipped_in_a_row, 0)
        self.assign(self.gradient_norm, ops.norm(norms) / scale)
        if self.dynamic_loss_scale:  # last: what it multiplied is divided by the former one
            grows = ops.equal(self.updates_at_scale.value, _UPDATES_AT_SCALE - 1)
            self.assign(self.loss_scale, scale * ops.where(grows, 2.0, 1.0))
            self.assign(self.updates_at_scale, ops.where(grows, 0, self.updates_at_scale.value + 1))
        super().apply(sums, variables)

    def _skip(self) -> None:
        """Leaves an update out."""
        self.assign_add(self.skipped_in_a_row, 1)
        if self.dynamic_loss_scale:
            # By 0 nothing can be divided.
            self.assign(self.loss_scale, ops.maximum(self.loss_scale.value / 2.0, 1.0))
            self.assign(self.updates_at_scale, 0)

    # What Keras' `apply` would do, and `_take_step` has done.
    def _clip_gradients(self, grads: list) -> list:
        return grads

    def _all_reduce_sum_gradients(self, grads_and_vars: list[tuple]) -> list[tuple]:
        return grads_and_vars

    def _apply_weight_decay(self, variables: list[keras.Variable]) -> None:
        pass

    def _backend_update_step(self, grads: list, trainable_variables: list, rate: object) -> None:
        pass

    def update_step(
        self,
        gradient: keras.KerasTensor,
        variable: keras.Variable,
        learning_rate: keras.KerasTensor,
    ) -> None:
        """The decay, then Adam's step, with the epsilon of the variable."""
        values, number = self._values_for(variable), self._get_variable_index(variable)
        key = (id(values.schedule), values.factor, values.epsilon, variable.dtype)
        if key not in self._shared:
            self._shared[key] = self._step_values(values, variable.dtype, learning_rate)
        step = self._shared[key]
        if values.weight_decay:
            # Not `variable * (1 - …)`: float32 would round the decay's share of a step away.
            variable.assign_sub(variable * (step.rate * values.weight_decay))
        gradient = ops.cast(gradient, variable.dtype)
        first, second = self._momentums[number], self._velocities[number]
        if not _IS_TENSORFLOW:
            adam_step(gradient, variable, (first, second), step)
            return
        tf.raw_ops.ResourceApplyAdam(  # one operation, which goes through the memory once
            var=variable.handle,
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

    def _step_values(
        self, values: VariableValues, dtype: str, learning_rate: keras.KerasTensor
    ) -> StepValues:
        """The numbers of a variable's step; of powers of 0 it corrects no bias."""
        first_step = 0
        if values.schedule is not None:
            learning_rate = values.schedule(self.iterations.value)
            first_step = values.schedule.first_step
        rate = ops.cast(learning_rate, dtype) * values.factor
        powers = (ops.zeros((), dtype), ops.zeros((), dtype))
        if self.bias_correction:
            step = ops.cast(self.iterations.value + 1, dtype)
            if first_step:  # moments begin then; updates that were left out let `iterations` lag
                step = ops.maximum(step - first_step, 1.0)
            powers = (self.beta_1**step, self.beta_2**step)
        beta_1, beta_2, epsilon = (
            self._unless_skipped(ops.cast(value, dtype), 1.0)  # an epsilon of 0 would divide 0 by 0
            for value in (self.beta_1, self.beta_2, values.epsilon)
        )
        return StepValues(self._unless_skipped(rate, 0.0), powers, (beta_1, beta_2), epsilon)

    def get_config(self) -> dict:
        """The arguments of the constructor.

        Raises:
            ValueError: there are groups, which no file holds.
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


def _sum_of_squares(gradients: list[keras.KerasTensor]) -> keras.KerasTensor:
    """Of all elements, float32 []; on TensorFlow by a kernel that stores no squares."""
    if not gradients:
        return ops.zeros((), "float32")
    if _IS_TENSORFLOW:
        # Not `tf.add_n`: TensorFlow's rewriter of graphs orders its summands by their names.
        return 2.0 * tf.reduce_sum(tf.stack([tf.nn.l2_loss(gradient) for gradient in gradients]))
    return sum(ops.sum(ops.square(gradient)) for gradient in gradients)

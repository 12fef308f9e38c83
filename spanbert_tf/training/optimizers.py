"""AdamW with BERT's schedule and BERT's exceptions from weight decay."""

from collections.abc import Sequence

import keras
import tensorflow as tf

# Biases and LayerNorm scales and shifts are never decayed (BERT, `optimization.py`). The rule goes
# by name: KerasHub's attention biases are 2-D, so the number of dimensions does not tell.
_NOT_DECAYED = (r"(^|[/_])(bias|gamma|beta)(/replica_\d+)?(:\d+)?$",)
_FIRST_LOSS_SCALE, _UPDATES_AT_SCALE = 2.0**15, 2_000  # Keras' own


@keras.saving.register_keras_serializable(package="spanbert_tf")
class WarmupLinearDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up to the peak, then linear decay to 0 (SpanBERT 4.2).

    Steps count from 0. The rate grows from `learning_rate / warmup_steps` in the first step to
    `learning_rate` in step `warmup_steps - 1`, falls from step `warmup_steps` on, and would be 0
    in step `total_steps`, the first that is not trained: no step is spent on a rate of 0.

    Args:
        learning_rate: the peak.
        warmup_steps: steps of the warm-up; 0 begins at the peak.
        total_steps: steps of the whole schedule, more than `warmup_steps`.
    """

    def __init__(self, learning_rate: float, warmup_steps: int, total_steps: int) -> None:
        if not 0 <= warmup_steps < total_steps:
            raise ValueError(
                f"warmup_steps ({warmup_steps}) must be at least 0 and less than total_steps "
                f"({total_steps})"
            )
        self.learning_rate = learning_rate
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps

    def __call__(self, step: keras.KerasTensor) -> keras.KerasTensor:
        """The float32 learning rate of a step (a scalar, any integer or float type)."""
        # float32 holds every step below 2**24 = 16.8 M exactly.
        step = keras.ops.cast(step, "float32")
        decay = (self.total_steps - step) / (self.total_steps - self.warmup_steps)
        factor = keras.ops.maximum(decay, 0.0)
        if self.warmup_steps:
            factor = keras.ops.minimum(factor, (step + 1.0) / self.warmup_steps)
        return self.learning_rate * factor

    def get_config(self) -> dict:
        """The arguments of the constructor."""
        return {
            "learning_rate": self.learning_rate,
            "warmup_steps": self.warmup_steps,
            "total_steps": self.total_steps,
        }


@keras.saving.register_keras_serializable(package="spanbert_tf")
class AdamW(keras.optimizers.AdamW):
    """Keras' AdamW for BERT, with the same result for one device and for many.

    What Keras 3.15 does otherwise:

    - biases and LayerNorm are exempt from weight decay, by name; the exemption lives in the class,
      so that it survives `get_config` and saving;
    - gradients of embedding look-ups are made dense first. They arrive as `tf.IndexedSlices` with
      an index for every occurrence of a token; Keras squares those occurrences one by one in
      Adam's second moment and in the global norm, where the square of their sum is meant;
    - gradients are added up over the replicas before they are clipped, not after;
    - gradients whose global norm is not finite, on whichever replica, change nothing. How many
      updates were left out since the last one is in `skipped_in_a_row`;
    - with `dynamic_loss_scale`, for float16, the scale is halved then, and doubled after 2,000
      finite updates. (`keras.optimizers.LossScaleOptimizer` looks at the first replica only.)

    Args:
        dynamic_loss_scale: whether `scale_loss` scales.
        **kwargs: as for `keras.optimizers.AdamW`.
    """

    def __init__(self, *args: object, dynamic_loss_scale: bool = False, **kwargs: object) -> None:
        if kwargs.get("gradient_accumulation_steps"):
            raise ValueError(
                "gradient_accumulation_steps fails under replication; use the configuration's "
                "training.accumulation_steps"
            )
        super().__init__(*args, **kwargs)
        self.dynamic_loss_scale = dynamic_loss_scale
        self.exclude_from_weight_decay(var_names=_NOT_DECAYED)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Adds the variables that the updates need."""
        if self.built:
            return

        def scalar(name: str, dtype: str, value: float) -> keras.Variable:
            initializer = keras.initializers.Constant(value)
            return self.add_variable((), initializer, dtype, aggregation="none", name=name)

        self.skipped_in_a_row = scalar("skipped_in_a_row", "int32", 0)
        if self.dynamic_loss_scale:
            self.loss_scale = scalar("loss_scale", "float32", _FIRST_LOSS_SCALE)
            self.updates_at_scale = scalar("updates_at_scale", "int32", 0)
        super().build(variables)

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        """The loss to take gradients of, for `apply`."""
        return loss * self.loss_scale.value if self.dynamic_loss_scale else loss

    def apply(
        self,
        grads: Sequence[tf.Tensor | tf.IndexedSlices | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates the variables; call it in a replica's context, with the replica's gradients.

        Args:
            grads: gradients of the replica's share of the loss.
            trainable_variables: in the same order; those of `build` by default.
        """
        variables = list(trainable_variables or self._trainable_variables)
        self.build(variables)
        kept = [(g, v) for g, v in zip(grads, variables, strict=True) if g is not None]
        variables = [variable for _, variable in kept]
        sums = [tf.convert_to_tensor(grad) for grad, _ in kept]
        context = tf.distribute.get_replica_context()
        if context.num_replicas_in_sync > 1:
            sums = context.all_reduce(tf.distribute.ReduceOp.SUM, sums)
        # One pass over the gradients says how long they are and whether all are finite.
        norm = tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(grad) for grad in sums]))
        if tf.__internal__.distribute.strategy_supports_no_merge_call():
            is_finite = tf.math.is_finite(norm)
            tf.cond(is_finite, lambda: self._update(sums, norm, variables), self._skip)
        else:
            context.merge_call(self._update_all_or_skip, args=(sums, norm, variables))

    def _update_all_or_skip(
        self,
        strategy: tf.distribute.Strategy,
        sums: list[tf.Tensor],
        norm: tf.Tensor,
        variables: list[keras.Variable],
    ) -> None:
        """One decision for all replicas: updates may not stand in a replica's own `tf.cond`."""
        update = strategy.extended.call_for_each_replica
        tf.cond(
            tf.math.is_finite(strategy.experimental_local_results(norm)[0]),
            lambda: update(self._update, args=(sums, norm, variables)),
            lambda: update(self._skip),
        )

    def _update(
        self, sums: list[tf.Tensor], norm: tf.Tensor, variables: list[keras.Variable]
    ) -> None:
        scale = 1.0
        if self.dynamic_loss_scale:
            scale = self.loss_scale.value
            grows = tf.equal(self.updates_at_scale.value, _UPDATES_AT_SCALE - 1)
            self.assign(self.loss_scale, scale * tf.where(grows, 2.0, 1.0))
            self.assign(self.updates_at_scale, tf.where(grows, 0, self.updates_at_scale.value + 1))
        self.assign(self.skipped_in_a_row, 0)
        limit = self.global_clipnorm
        factor = limit / tf.maximum(norm / scale, limit) if limit else 1.0
        if limit or self.dynamic_loss_scale:
            sums = [grad * (factor / scale) for grad in sums]
        super().apply(sums, variables)

    def _clip_gradients(self, grads: list[tf.Tensor]) -> list[tf.Tensor]:
        """Keras' clipping, where it is not by the global norm: `_update` has done that."""
        return grads if self.global_clipnorm else super()._clip_gradients(grads)

    def _skip(self) -> None:
        self.assign_add(self.skipped_in_a_row, 1)
        if self.dynamic_loss_scale:
            self.assign(self.loss_scale, self.loss_scale.value / 2.0)
            self.assign(self.updates_at_scale, 0)

    def _all_reduce_sum_gradients(self, grads_and_vars: list[tuple]) -> list[tuple]:
        """Keras' sum over the replicas, which `apply` has done already."""
        return grads_and_vars

    def update_step(
        self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor
    ) -> None:
        """Keras' step in one operation, which goes through the memory once."""
        if self.amsgrad:
            return super().update_step(gradient, variable, learning_rate)
        number = self._get_variable_index(variable)
        step = tf.cast(self.iterations.value + 1, variable.dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[number].value.handle,
            v=self._velocities[number].value.handle,
            beta1_power=self.beta_1**step,
            beta2_power=self.beta_2**step,
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=self.beta_1,
            beta2=self.beta_2,
            epsilon=self.epsilon,
            grad=tf.cast(gradient, variable.dtype),
        )

    def get_config(self) -> dict:
        """The arguments of the constructor."""
        return {**super().get_config(), "dynamic_loss_scale": self.dynamic_loss_scale}


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

    One step, with the gradient g clipped to a global norm and the learning rate r of the schedule:
    `w -= r * weight_decay * w` (kernels and embeddings only), then
    `w -= r * sqrt(1 - beta_2**t) / (1 - beta_1**t) * m / (sqrt(v) + epsilon)`.
    Epsilon is added before the bias correction of v, as in fairseq and in the original BERT;
    PyTorch adds it after, which at t = 1 is an epsilon 32 times as large. Where the gradients are
    well above 1e-8 the two agree.

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

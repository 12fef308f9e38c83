"""AdamW with BERT's schedule and BERT's exceptions from weight decay."""

from collections.abc import Sequence

import keras
import tensorflow as tf

# Biases and LayerNorm scales and shifts are never decayed (BERT, `optimization.py`). The rule goes
# by name: KerasHub's attention biases are 2-D, so the number of dimensions does not tell.
_NOT_DECAYED = (r"(^|[/_])(bias|gamma|beta)(/replica_\d+)?(:\d+)?$",)


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
    """Keras' AdamW for BERT: by name, biases and LayerNorm are exempt from weight decay.

    Gradients of embedding look-ups are made dense first. They arrive as `tf.IndexedSlices` with
    an index for every occurrence of a token; Keras 3.15 squares those occurrences one by one in
    Adam's second moment and in the global norm, where the square of their sum is meant.

    The exemption lives in the class, so that it survives `get_config` and saving.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.exclude_from_weight_decay(var_names=_NOT_DECAYED)

    def apply(
        self,
        grads: Sequence[tf.Tensor | tf.IndexedSlices | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Updates the variables; see `keras.optimizers.Optimizer.apply`."""
        dense = [grad if grad is None else tf.convert_to_tensor(grad) for grad in grads]
        super().apply(dense, trainable_variables)


def adamw(
    learning_rate: float = 1e-4,
    warmup_steps: int = 10_000,
    total_steps: int = 2_400_000,
    weight_decay: float = 0.1,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-8,
    global_clipnorm: float | None = 1.0,
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
    )

"""BERT's learning-rate schedule."""

import keras


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

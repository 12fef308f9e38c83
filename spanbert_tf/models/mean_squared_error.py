"""The loss of regression."""

import keras
from keras import ops

from spanbert_tf.models.mean_loss import MeanLoss


@keras.saving.register_keras_serializable(package="spanbert_tf")
class MeanSquaredError(MeanLoss):
    """The mean squared error of the numbers of the global batch, in float32.

    Call arguments:
        y_true: numbers [B] or [B, 1].
        y_pred: float [B, 1].
        sample_weight: float [B]; 1 by default.

    Returns:
        float32 [], this replica's share of the mean over all numbers, by their weights.
    """

    def __init__(self, name: str = "mean_squared_error", **kwargs) -> None:
        super().__init__(name=name, **kwargs)

    def call(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        """The squared error of each number, float32 [B]."""
        y_true, y_pred = (ops.reshape(ops.cast(y, "float32"), (-1,)) for y in (y_true, y_pred))
        return ops.square(y_pred - y_true)

    def get_config(self) -> dict:
        return {"name": self.name}

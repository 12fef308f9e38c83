"""The loss of the tasks with one set of labels."""

import keras
from keras import ops

from spanbert_tf.models.mean_loss import MeanLoss


@keras.saving.register_keras_serializable(package="spanbert_tf")
class MeanCrossentropy(MeanLoss):
    """The mean cross-entropy of the labels of the global batch, in nats.

    Args:
        from_logits: bool. Whether predictions are logits, not probabilities.

    Call arguments:
        y_true: int [B, …].
        y_pred: float [B, …, classes].
        sample_weight: float [B, …] or [B]; 1 by default.

    Returns:
        float32 [], this replica's share of the weighted mean over all labels.
    """

    def __init__(self, from_logits: bool = True, name: str = "mean_crossentropy", **kwargs) -> None:
        super().__init__(name=name, **kwargs)
        self.from_logits = from_logits

    def call(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        """The cross-entropy of each label, float32 [B, …]."""
        y_pred = ops.cast(y_pred, "float32")
        return keras.losses.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=self.from_logits
        )

    def is_right(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        """Whether the most probable class is the label, bool [B, …]."""
        return ops.equal(ops.argmax(y_pred, axis=-1), ops.cast(y_true, "int32"))

    def get_config(self) -> dict:
        return {"name": self.name, "from_logits": self.from_logits}

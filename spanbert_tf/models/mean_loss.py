"""What the losses that are means over labels share."""

from abc import abstractmethod

import keras
from keras import ops

from spanbert_tf.models.objective_sums import ObjectiveSums
from spanbert_tf.models.replicas import weighted_mean_share, weights_of


class MeanLoss(keras.losses.Loss):
    """A mean over the labels of the global batch.

    Keras' own losses divide by the number of labels, those of weight 0 included, and by the number
    of replicas, which is a mean of means where their shares differ.

    Call arguments:
        y_true: labels.
        y_pred: predictions.
        sample_weight: float, of the labels or [B]; 1 by default.

    Returns:
        float32 [], this replica's share of the mean over all labels, by their weights.
    """

    def __call__(
        self,
        y_true: keras.KerasTensor,
        y_pred: keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        # In place of Keras' own reduction.
        return weighted_mean_share(self.call(y_true, y_pred), sample_weight)

    @abstractmethod
    def call(self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor) -> keras.KerasTensor:
        """The loss of each label, float32."""

    def is_right(
        self, y_true: keras.KerasTensor, y_pred: keras.KerasTensor
    ) -> keras.KerasTensor | None:
        """Whether each label is predicted; `None` where labels are no classes."""
        return None

    def sums(
        self,
        y_true: keras.KerasTensor,
        y_pred: keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
    ) -> ObjectiveSums:
        """What the loss is a mean of, and how many labels are predicted right; as `__call__`."""
        losses = self.call(y_true, y_pred)
        weights = weights_of(losses, sample_weight)
        is_right = self.is_right(y_true, y_pred)
        num_right = None
        if is_right is not None:
            num_right = ops.sum(weights * ops.cast(is_right, "float32"))
        return ObjectiveSums(ops.sum(weights * losses), num_right, ops.sum(weights))

"""Text classification whose best checkpoint is the one with the lowest validation loss."""

from typing import Literal

from spanbert_tf.tasks.text_classification.records import TextClassificationConfig
from spanbert_tf.tasks.text_classification.task import TextClassification
from spanbert_tf.training.checkpoints import Best


class ByLossConfig(TextClassificationConfig):
    task: Literal["by_loss"] = "by_loss"


class ByLoss(TextClassification):
    name, config_class = "by_loss", ByLossConfig
    best = Best("loss", "min")

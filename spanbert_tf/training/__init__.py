"""Training: the loop, optimizer, checkpoints, callbacks and strategies."""

from spanbert_tf.training.optimizers import adamw

__all__ = ["adamw"]

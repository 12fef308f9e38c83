"""Training: the loop, optimizer, checkpoints, callbacks and strategies."""

from spanbert_tf.training.configured_optimizer import adamw

__all__ = ["adamw"]

"""Optimizer, checkpoints and the runs."""

from spanbert_tf.training.optimizers import adamw

__all__ = ["adamw"]

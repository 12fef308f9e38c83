"""Optimizer, checkpoints and the pre-training run."""

from spanbert_tf.training.optimizers import adamw

__all__ = ["adamw"]

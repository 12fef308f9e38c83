"""Configurations: read, laid over their bases, overridden and checked without TensorFlow."""

from spanbert_tf.config.continuing import load_run_config, shape_values
from spanbert_tf.config.finetuning import (
    FinetuningConfig,
    FinetuningTrainingConfig,
)
from spanbert_tf.config.pretraining import PretrainingConfig, TrainingConfig, load_config
from spanbert_tf.config.settings import flat_values, shipped_directory, shipped_names

__all__ = [
    "FinetuningConfig",
    "FinetuningTrainingConfig",
    "PretrainingConfig",
    "TrainingConfig",
    "flat_values",
    "load_config",
    "load_run_config",
    "shape_values",
    "shipped_directory",
    "shipped_names",
]

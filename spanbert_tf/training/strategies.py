"""Devices and precision of a run."""

import tensorflow as tf

from spanbert_tf.config import TrainingConfig
from spanbert_tf.errors import ConfigurationError


def make_strategy(training: TrainingConfig) -> tf.distribute.Strategy:
    """The strategy that a configuration asks for.

    Raises:
        ConfigurationError: the batch cannot be cut into equal parts.
    """
    if training.strategy == "one_device":
        return tf.distribute.get_strategy()
    strategy = tf.distribute.MirroredStrategy()
    if training.batch_size % strategy.num_replicas_in_sync:
        raise ConfigurationError(
            f"training.batch_size: {training.batch_size} rows cannot be shared equally by "
            f"{strategy.num_replicas_in_sync} devices; change it, or set "
            "training.strategy=one_device"
        )
    return strategy


def choose_precision(precision: str) -> str:
    """The Keras dtype policy for `training.precision`.

    `auto` is `mixed_bfloat16` where every GPU computes in it (compute capability 8, A100 and
    newer), `mixed_float16` where every GPU has tensor cores (7, V100), and `float32` elsewhere.
    """
    if precision != "auto":
        return precision
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
    # Devices that say nothing about themselves count as the oldest.
    capability = min((d.get("compute_capability", (0, 0)) for d in details), default=(0, 0))
    if capability >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if capability >= (7, 0) else "float32"

"""Training: the run, the optimizer, checkpoints, the callback and the devices."""

from spanbert_tf.lazy import lazy_names

# Imported on first use, because commands import `training.cluster` before TensorFlow.
__getattr__, __dir__ = lazy_names(
    globals(), {"adamw": "spanbert_tf.training.configured_optimizer:adamw"}
)

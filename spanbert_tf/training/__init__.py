"""Training: the loop, optimizer, checkpoints, callbacks and strategies."""

from spanbert_tf.lazy import lazy_names

# Imported when it is asked for: commands ask `training.cluster` before TensorFlow is imported.
__getattr__, __dir__ = lazy_names(
    globals(), {"adamw": "spanbert_tf.training.configured_optimizer:adamw"}
)

"""From records to batches, as tf.data graphs.

Importing this package is cheap; the data sets need TensorFlow and are loaded when first used.
"""

from spanbert_tf.lazy import lazy_names

__getattr__, __dir__ = lazy_names(
    globals(), {"pretraining_dataset": "spanbert_tf.data.pretraining:pretraining_dataset"}
)

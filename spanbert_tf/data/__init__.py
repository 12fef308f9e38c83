"""From records to batches, as tf.data graphs.

Importing this package is cheap; the data sets need TensorFlow and are loaded when first used.
"""

from collections.abc import Callable


def __getattr__(name: str) -> Callable:
    if name == "pretraining_dataset":
        from spanbert_tf.data.pretraining import pretraining_dataset

        return pretraining_dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

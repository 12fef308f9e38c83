"""From records to batches, as tf.data graphs.

Importing this package is cheap; the data sets need TensorFlow and are loaded when first used.
"""

from collections.abc import Callable
from importlib import import_module

_MODULES = {
    "pretraining_dataset": "pretraining",
    "question_answering_dataset": "question_answering",
}


def __getattr__(name: str) -> Callable:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

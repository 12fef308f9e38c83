"""From records to batches, as tf.data graphs.

Importing this package is cheap; the data sets need TensorFlow and are loaded when first used.
"""

from collections.abc import Callable
from importlib import import_module

_MODULES = {
    "named_entities_dataset": "spanbert_tf.tasks.named_entities.dataset",
    "pretraining_dataset": "spanbert_tf.data.pretraining",
    "question_answering_dataset": "spanbert_tf.tasks.question_answering.dataset",
    "relation_extraction_dataset": "spanbert_tf.tasks.relation_extraction.dataset",
    "text_classification_dataset": "spanbert_tf.tasks.text_classification.dataset",
}


def __getattr__(name: str) -> Callable:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])

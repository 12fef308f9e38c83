"""From records to batches, as tf.data graphs.

Importing this package is cheap; the data sets need TensorFlow and are loaded when first used.
"""

from spanbert_tf.lazy import lazy_names

_MODULES = {
    "named_entities_dataset": "spanbert_tf.tasks.named_entities.dataset",
    "pretraining_dataset": "spanbert_tf.data.pretraining",
    "question_answering_dataset": "spanbert_tf.tasks.question_answering.dataset",
    "relation_extraction_dataset": "spanbert_tf.tasks.relation_extraction.dataset",
    "text_classification_dataset": "spanbert_tf.tasks.text_classification.dataset",
}
__getattr__, __dir__ = lazy_names(
    globals(), {name: f"{module}:{name}" for name, module in _MODULES.items()}
)

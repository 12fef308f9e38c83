"""The classifier of the relation between two entities of a text.

B rows, H width, C relations.
"""

import keras
import keras_hub

from spanbert_tf.models.label_classifier import LabelClassifier
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_relation_classifier_preprocessor import (
    SpanBertRelationClassifierPreprocessor,
)


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertRelationClassifier(LabelClassifier, keras_hub.models.Task):
    """An encoder with a linear classifier over the pooled [CLS] (SpanBERT, section 4.1, TACRED).

    Rows whose label is negative are not trained. `compile()` needs no loss.

    Args:
        backbone: a `SpanBertBackbone`.
        labels: names of the relations, the one of none first, such as `no_relation`.
        preprocessor: a `SpanBertRelationClassifierPreprocessor`, or `None` for rows that are packed
            already.
        dropout: float. Rate before the classifier.

    Returns:
        Logits, [B, C].

    Raises:
        ValueError: no label, or one twice; or a preprocessor is given, and the backbone reads
            SegaBERT's positions.

    Example:
    ```python
    labels = ["no_relation", "born_in"]
    classifier = spanbert_tf.models.SpanBertRelationClassifier.from_preset("preset/", labels=labels)
    x = {
        "text": ["Ann was born in Rome.", "Ann likes Oslo."],
        "subject": [[0, 3], [0, 3]],
        "object": [[16, 20], [10, 14]],
        "subject_type": ["", ""],
        "object_type": ["", ""],
    }
    classifier.compile()
    classifier.fit(x, [1, 0], batch_size=2)
    ```
    """

    _reads_pooler = True
    _objective = "relation_extraction"
    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertRelationClassifierPreprocessor

"""The classifier of the relation between two entities of a text.

Shapes: B rows, C relations.
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

    Rows with a negative label are not trained. `compile()` needs no loss.

    Args:
        backbone: a `SpanBertBackbone`.
        labels: names of the relations. The first one means that there is no relation, such as
            `no_relation`.
        preprocessor: a `SpanBertRelationClassifierPreprocessor`, or `None` if the inputs are packed
            rows.
        dropout: float. Dropout rate before the classifier.

    Returns:
        Logits, [B, C].

    Raises:
        ValueError: there are no labels or equal ones; or there is a preprocessor, and the backbone
            has SegaBERT's positions.

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

    reads_pooler = True
    objective = "relation_extraction"
    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertRelationClassifierPreprocessor

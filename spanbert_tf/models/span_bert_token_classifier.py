"""The classifier of tokens, for tasks such as named entity recognition.

Shapes: B rows, S positions, C classes.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import keras
import keras_hub

from spanbert_tf.models.label_classifier import LabelClassifier
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_task import DenseHead
from spanbert_tf.models.span_bert_token_classifier_preprocessor import (
    SpanBertTokenClassifierPreprocessor,
)

AggregationStrategy = Literal["simple", "first", "word"]


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTokenClassifier(LabelClassifier, keras_hub.models.Task):
    """An encoder with a linear classifier over each token (Devlin et al., 2019, section 5.3).

    Positions with a negative label are not trained: padding, special tokens, and all pieces of a
    word except the first. `compile()` needs no loss.

    Args:
        backbone: a `SpanBertBackbone`.
        labels: names of the classes, such as `["O", "B-PER", "I-PER"]`.
        preprocessor: a `SpanBertTokenClassifierPreprocessor`, or `None` if the inputs are packed
            rows.
        dropout: float. Dropout rate before the classifier.
        aggregation_strategy: the word pieces whose labels form the entities. `"simple"` and
            `"first"` are strategies of the `token-classification` pipeline of `transformers`:
            all pieces, or the first piece of each word of BERT's tokenizer, whose label counts for
            the word. `"word"` is for a model that was trained on the words of the data: the first
            piece of each word of the text (`text.words.word_starts`), such as `U.S.`.

    Returns:
        Logits, [B, S, C].

    Raises:
        ValueError: there are no labels or equal ones; the strategy is unknown; or there is a
            preprocessor, and the backbone has SegaBERT's positions.

    Example:
    ```python
    labels = ["O", "B-PER", "I-PER"]
    classifier = spanbert_tf.models.SpanBertTokenClassifier.from_preset("preset/", labels=labels)
    classifier.compile()
    classifier.fit(tf.ragged.constant([["Ann", "sat"], ["Bob"]]), tf.ragged.constant([[1, 0], [1]]))
    ```
    """

    dense_head = DenseHead("output_dense", "classifier", "TOKEN_CLS")
    objective = "token_classification"
    _labels_positions = True
    _has_outputs_of_positions = True
    backbone_cls = SpanBertBackbone
    preprocessor_cls = SpanBertTokenClassifierPreprocessor

    def __init__(
        self,
        backbone: SpanBertBackbone,
        labels: Sequence[str],
        preprocessor: SpanBertTokenClassifierPreprocessor | None = None,
        dropout: float = 0.1,
        aggregation_strategy: AggregationStrategy = "simple",
        **kwargs,
    ) -> None:
        if aggregation_strategy not in get_args(AggregationStrategy):
            raise ValueError(
                f"aggregation_strategy must be one of {get_args(AggregationStrategy)}. "
                f"Received: {aggregation_strategy!r}"
            )
        super().__init__(backbone, labels, preprocessor, dropout, **kwargs)
        self.aggregation_strategy = aggregation_strategy

    def get_config(self) -> dict:
        return {**super().get_config(), "aggregation_strategy": self.aggregation_strategy}

"""Packs texts or pairs of texts for `SpanBertTextClassifier`.

Shapes: B texts, S positions.
"""

import keras
import keras_hub

from spanbert_tf.models.preprocessing import TextRowPreprocessor
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextClassifierPreprocessor(
    TextRowPreprocessor, keras_hub.models.TextClassifierPreprocessor
):
    """Tokenizes and packs rows `[CLS] text [SEP]` or `[CLS] first [SEP] second [SEP]`.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Number of positions of a row; by default of `from_preset` that of the
            preset's preprocessor, or the maximum of its encoder.
        truncate: string. How pairs are truncated. `"round_robin"` shortens the longer text first,
            `"waterfall"` the second one.
        segment_aware: bool. Whether to return SegaBERT's positions. Each text is one paragraph of
            one sentence (`spanbert_tf.data.text_rows`).
        is_pair: bool. Whether predictors and exports take pairs of texts. `fit` of the classifier
            sets it according to its inputs. Calls take both.

    Call arguments:
        x: a string, string [B], or a tuple of two for pairs. The second text may be empty.
        y, sample_weight: returned unchanged.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`. `x` is a dict of `token_ids`, `segment_ids` and
        `padding_mask`, and with `segment_aware` of `paragraph_indices`, `sentence_indices` and
        `token_indices`, int32 [B, S].

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer("records/vocab.txt", lowercase=True)
    preprocessor = spanbert_tf.models.SpanBertTextClassifierPreprocessor(tokenizer, 16)
    preprocessor(["All fine.", "Not at all."])["token_ids"]  # [2, 16]
    preprocessor(x=(["A premise."], ["A hypothesis."]))["segment_ids"]  # [1, 16]
    ```
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 512,
        truncate: str = "round_robin",
        segment_aware: bool = False,
        is_pair: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(tokenizer, sequence_length, truncate, segment_aware, **kwargs)
        self.is_pair = is_pair

    def get_config(self) -> dict:
        return {**super().get_config(), "is_pair": self.is_pair}

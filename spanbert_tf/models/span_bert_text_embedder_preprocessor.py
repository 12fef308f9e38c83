"""Packs texts for `SpanBertTextEmbedder`."""

import keras
import keras_hub

from spanbert_tf.models.preprocessing import TextRowPreprocessor
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextEmbedderPreprocessor(
    TextRowPreprocessor, keras_hub.models.TextEmbedderPreprocessor
):
    """Tokenizes and packs rows `[CLS] text [SEP]` or `[CLS] first [SEP] second [SEP]`.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. As for `SpanBertTextClassifierPreprocessor`.
        truncate: string. As for `SpanBertTextClassifierPreprocessor`.
        segment_aware: bool. As for `SpanBertTextClassifierPreprocessor`.

    Call arguments:
        x: a string, string [B], or a tuple of two for pairs.
        y, sample_weight: returned unchanged.

    Returns:
        As `SpanBertTextClassifierPreprocessor`.
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

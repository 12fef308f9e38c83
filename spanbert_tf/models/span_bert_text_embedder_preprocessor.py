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
    """Tokenizes and packs: `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row; a new preprocessor of a preset has the
            length of the preset's own, or of its encoder.
        truncate: string. As for `SpanBertTextClassifierPreprocessor`, as what follows.
        segment_aware: bool.

    Call arguments:
        x: string, strings [B], or a tuple of two such for pairs.
        y, sample_weight: handed through.

    Returns:
        As `SpanBertTextClassifierPreprocessor`.
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

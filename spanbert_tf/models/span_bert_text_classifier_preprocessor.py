"""Packs texts, or pairs of texts, for `SpanBertTextClassifier`."""

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.models.text_packer import text_packer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTextClassifierPreprocessor(keras_hub.models.TextClassifierPreprocessor):
    """Tokenizes and packs: `[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row.
        truncate: string. How texts are cut to fit, as for `keras_hub.layers.MultiSegmentPacker`.

    Call arguments:
        x: string, string tensor [B], or a tuple of two for pairs.
        y, sample_weight: handed through.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is a dict of `token_ids`, `segment_ids`
        and `padding_mask`, int32 [B, sequence_length].
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def build(self, input_shape: tuple) -> None:
        # In place of the base class's.
        self.packer = text_packer(self.tokenizer, self.sequence_length, self.truncate)

    def call(
        self,
        x: tf.Tensor | tuple,
        y: tf.Tensor | None = None,
        sample_weight: tf.Tensor | None = None,
    ) -> dict | tuple:
        return self._pack(x, y, sample_weight)

    @preprocessing_function
    def _pack(
        self, x: tf.Tensor | tuple, y: tf.Tensor | None, sample_weight: tf.Tensor | None
    ) -> dict | tuple:
        segments = x if isinstance(x, tuple) else (x,)
        token_ids, segment_ids = self.packer(tuple(map(self.tokenizer, segments)))  # [B, S]
        features = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": tf.cast(token_ids != self.tokenizer.pad_token_id, tf.int32),
        }
        return keras.utils.pack_x_y_sample_weight(features, y, sample_weight)

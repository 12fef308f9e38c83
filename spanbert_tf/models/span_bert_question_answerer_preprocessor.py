"""Packs questions and passages for `SpanBertQuestionAnswerer`."""

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.models.text_packer import text_packer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertQuestionAnswererPreprocessor(keras_hub.models.Preprocessor):
    """Packs one row a question: `[CLS] passage [SEP] question [SEP]` (SpanBERT, section 4.1).

    What does not fit is cut off the passage; for passages of any length write records with
    `spanbert-tf prepare squad`, whose windows slide.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row.
        question_first: bool. `[CLS] question [SEP] passage [SEP]`.

    Call arguments:
        x: tuple of questions and passages, string tensors [B].
        y, sample_weight: handed through.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is a dict of `token_ids`, `segment_ids`
        and `padding_mask`, int32 [B, sequence_length].
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 512,
        question_first: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.question_first = question_first
        self.packer = None

    def build(self, input_shape: tuple) -> None:
        # "waterfall" gives the first segment its room first: it must be the question's.
        self.packer = text_packer(self.tokenizer, self.sequence_length, truncate="waterfall")

    def call(
        self, x: tuple, y: tf.Tensor | None = None, sample_weight: tf.Tensor | None = None
    ) -> dict | tuple:
        return self._pack(x, y, sample_weight)

    @preprocessing_function
    def _pack(self, x: tuple, y: tf.Tensor | None, sample_weight: tf.Tensor | None) -> dict | tuple:
        questions, passages = map(self.tokenizer, x)  # ragged [B, pieces]
        if self.question_first:
            segments = (questions, passages)
        else:
            room = tf.maximum(self.sequence_length - 3 - questions.row_lengths(), 0)  # [B]
            shown = tf.minimum(passages.row_lengths(), room)
            segments = (tf.RaggedTensor.from_tensor(passages.to_tensor(), shown), questions)
        token_ids, segment_ids = self.packer(segments)  # [B, S]
        features = {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": tf.cast(token_ids != self.tokenizer.pad_token_id, tf.int32),
        }
        return keras.utils.pack_x_y_sample_weight(features, y, sample_weight)

    def get_config(self) -> dict:
        config = super().get_config()
        config.update(
            {"sequence_length": self.sequence_length, "question_first": self.question_first}
        )
        return config

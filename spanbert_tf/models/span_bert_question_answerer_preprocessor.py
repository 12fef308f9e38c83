"""Packs questions and passages for `SpanBertQuestionAnswerer`."""

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.data.passage_windows import WindowPacker
from spanbert_tf.data.segment_positions import pair_positions
from spanbert_tf.data.tokenization import word_piece_tokenizer
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertQuestionAnswererPreprocessor(keras_hub.models.Preprocessor):
    """Packs one row a question: `[CLS] passage [SEP] question [SEP]` (SpanBERT, section 4.1).

    What does not fit is cut off the passage; for passages of any length write records with
    `spanbert-tf prepare squad`, whose windows slide.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row.
        question_first: bool. `[CLS] question [SEP] passage [SEP]`.
        segment_aware: bool. Tell SegaBERT's positions as well; needs `question_first`.

    Call arguments:
        x: tuple of questions and passages, string tensors [B].
        y, sample_weight: handed through.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is a dict of `token_ids`, `segment_ids`
        and `padding_mask`, and if `segment_aware` of `paragraph_indices`, `sentence_indices` and
        `token_indices`, int32 [B, sequence_length].

    Raises:
        ValueError: `segment_aware` without `question_first`.
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(
        self,
        tokenizer: SpanBertTokenizer,
        sequence_length: int = 512,
        question_first: bool = False,
        segment_aware: bool = False,
        **kwargs,
    ) -> None:
        if segment_aware and not question_first:
            raise ValueError("segment_aware needs question_first: the question is paragraph 0")
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length
        self.question_first = question_first
        self.segment_aware = segment_aware
        self.packer = None

    def build(self, input_shape: tuple) -> None:
        self.packer = WindowPacker(
            self.tokenizer.start_token_id,
            self.tokenizer.end_token_id,
            self.tokenizer.pad_token_id,
            sequence_length=self.sequence_length,
            stride=self.sequence_length,
            max_question_tokens=self.sequence_length,
            question_first=self.question_first,
        )
        if self.segment_aware:  # positions need offsets, which the tokenizer does not give
            self._word_piece = word_piece_tokenizer(
                self.tokenizer.get_vocabulary(), lowercase=self.tokenizer.lowercase
            )

    def call(
        self, x: tuple, y: tf.Tensor | None = None, sample_weight: tf.Tensor | None = None
    ) -> dict | tuple:
        return self._pack(x, y, sample_weight)

    @preprocessing_function
    def _pack(self, x: tuple, y: tf.Tensor | None, sample_weight: tf.Tensor | None) -> dict | tuple:
        texts = [tf.reshape(text, [-1]) for text in x]  # [B] each
        if self.segment_aware:
            (questions, starts), (passages, passage_starts) = (
                self._word_piece.tokenize_with_offsets(text)[:2] for text in texts
            )
            positions = pair_positions(*texts, starts, passage_starts)
        else:
            (questions, passages), positions = map(self.tokenizer, texts), None
        windows = self.packer(questions, passages, positions)
        # The first window of each passage.
        firsts = tf.searchsorted(windows.question_index, tf.range(questions.nrows(tf.int32)))
        room = [[0, 0], [0, self.sequence_length - tf.shape(windows.token_ids)[1]]]
        padding = {"token_ids": self.tokenizer.pad_token_id}
        features = {
            name: tf.pad(tf.gather(values, firsts), room, constant_values=padding.get(name, 0))
            for name, values in windows.features().items()
        }  # [B, sequence_length]
        return keras.utils.pack_x_y_sample_weight(features, y, sample_weight)

    def get_config(self) -> dict:
        config = super().get_config()
        config.update(
            {
                "sequence_length": self.sequence_length,
                "question_first": self.question_first,
                "segment_aware": self.segment_aware,
            }
        )
        return config

"""Packs texts and labelled words for `SpanBertTokenClassifier`.

Shapes: B texts, S positions.
"""

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.data.text_rows import TextRowPacker
from spanbert_tf.models.preprocessing import (
    TokenizedRowPreprocessor,
    flat_texts,
    is_one_text,
    of_one_text,
)
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.vocabulary import SpecialTokenIds

_NO_LABEL = -1


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTokenClassifierPreprocessor(TokenizedRowPreprocessor, keras_hub.models.Preprocessor):
    """Packs rows `[CLS] text [SEP]`, and truncates long texts.

    `spanbert-tf prepare named_entities` and exported models cut long texts into several rows
    instead.

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Number of positions of a row; by default of `from_preset` that of the
            preset's preprocessor, or the maximum of its encoder.

    Call arguments:
        x: a string, string [B], or words, string [B, words], ragged or not.
        y: if `x` are words, their classes, int [B, words], ragged or not. Each class becomes the
            label of the first piece of its word. Otherwise returned unchanged.
        sample_weight: weights of texts, float [B], which are returned unchanged; or weights of
            words in the shape of `y`.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`. `x` is a dict of `token_ids`, `segment_ids` and
        `padding_mask`, int32 [B, S]. If the inputs are words, `y` is int32 [B, S], and -1 for
        positions without a label.
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(self, tokenizer: SpanBertTokenizer, sequence_length: int = 512, **kwargs) -> None:
        super().__init__(tokenizer, sequence_length, **kwargs)

    def build(self, input_shape: tuple | None = None) -> None:
        special = SpecialTokenIds.from_vocabulary(self.tokenizer.get_vocabulary())
        self.packer = TextRowPacker(special, self.sequence_length)

    @preprocessing_function
    def _pack(
        self,
        x: tf.Tensor | tf.RaggedTensor,
        y: tf.Tensor | tf.RaggedTensor | None,
        sample_weight: tf.Tensor | tf.RaggedTensor | None,
    ) -> dict | tuple:
        if not isinstance(x, tf.RaggedTensor):
            x = tf.convert_to_tensor(x)  # NumPy arrays arrive unconverted in eager calls
            if x.shape.rank == 2:  # texts with equal numbers of words
                x = tf.RaggedTensor.from_tensor(x)
        has_words = isinstance(x, tf.RaggedTensor)
        tokens = self.tokenizer(x if has_words else flat_texts(x))
        if has_words:
            if y is not None:
                y = self._values_of_positions(tf.cast(_ragged(y), tf.int32), tokens, _NO_LABEL)
            if sample_weight is not None and sample_weight.shape[1:] not in ([], [1]):
                weights = tf.cast(_ragged(sample_weight), tf.float32)
                sample_weight = self._values_of_positions(weights, tokens, 0.0)
            tokens = tokens.merge_dims(1, 2)  # ragged [B, pieces]
        features = self.packer(tokens, pads_to_limit=True).features(segment_aware=False)
        if not has_words and is_one_text(x):
            features = of_one_text(features)
        return keras.utils.pack_x_y_sample_weight(features, y, sample_weight)

    def _values_of_positions(
        self, values: tf.RaggedTensor, tokens: tf.RaggedTensor, filler: float
    ) -> tf.Tensor:
        """Moves values of words [B, words] to the first pieces of the words, [B, S]."""
        lengths = tokens.values.row_lengths()  # [all words]
        tf.debugging.assert_equal(
            values.row_lengths(), tokens.row_lengths(), "each word must have one label"
        )
        is_first = tf.ragged.range(lengths).flat_values == 0  # [all pieces]
        piece_values = tf.where(is_first, tf.repeat(values.flat_values, lengths), filler)
        rows = tokens.with_flat_values(piece_values).merge_dims(1, 2)[:, : self.sequence_length - 2]
        dense = rows.to_tensor(filler, shape=[None, self.sequence_length - 2])
        return tf.pad(dense, [[0, 0], [1, 1]], constant_values=filler)


def _ragged(values: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
    if isinstance(values, tf.RaggedTensor):
        return values
    return tf.RaggedTensor.from_tensor(values)

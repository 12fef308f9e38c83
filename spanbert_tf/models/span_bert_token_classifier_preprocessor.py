"""Packs texts and labelled words for `SpanBertTokenClassifier`.

B texts, S positions.
"""

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.data.text_rows import TextRowPacker
from spanbert_tf.models.preprocessing import RowPreprocessor, flat_texts, is_one_text, of_one_text
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.models.span_bert_tokenizer import SpanBertTokenizer
from spanbert_tf.text.vocabulary import SpecialTokenIds

_NO_LABEL = -1


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTokenClassifierPreprocessor(RowPreprocessor, keras_hub.models.Preprocessor):
    """Packs `[CLS] text [SEP]`; what does not fit is cut off.

    (`spanbert-tf prepare named_entities` and exports go on with it in further rows.)

    Args:
        tokenizer: a `SpanBertTokenizer`.
        sequence_length: int. Positions of a packed row; a new preprocessor of a preset has the
            length of the preset's own, or of its encoder.

    Call arguments:
        x: string, string tensor [B], or words, strings [B, words], ragged or not.
        y: classes of the words, int [B, words], ragged or not; each is the label of the first piece
            of its word. Of texts: handed through.
        sample_weight: float [B], handed through; or of words, as `y`.

    Returns:
        `x`, `(x, y)` or `(x, y, sample_weight)`, where `x` is a dict of `token_ids`, `segment_ids`
        and `padding_mask`, int32 [B, S], and `y` of words int32 [B, S], -1 where there is no label.
    """

    backbone_cls = SpanBertBackbone
    tokenizer_cls = SpanBertTokenizer

    def __init__(self, tokenizer: SpanBertTokenizer, sequence_length: int = 512, **kwargs) -> None:
        super().__init__(**kwargs)
        self.tokenizer = tokenizer
        self.sequence_length = sequence_length

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
            x = tf.convert_to_tensor(x)  # outside of a graph NumPy's strings come as they are
            if x.shape.rank == 2:  # as many words in each
                x = tf.RaggedTensor.from_tensor(x)
        has_words = isinstance(x, tf.RaggedTensor)
        tokens = self.tokenizer(x if has_words else flat_texts(x))
        if has_words:
            if y is not None:
                y = self._of_positions(tf.cast(_ragged(y), tf.int32), tokens, _NO_LABEL)
            if sample_weight is not None and sample_weight.shape[1:] not in ([], [1]):  # of words
                weights = tf.cast(_ragged(sample_weight), tf.float32)
                sample_weight = self._of_positions(weights, tokens, 0.0)
            tokens = tokens.merge_dims(1, 2)  # ragged [B, pieces]
        features = self.packer(tokens, pads_to_limit=True).features(segment_aware=False)
        if not has_words and is_one_text(x):
            features = of_one_text(features)
        return keras.utils.pack_x_y_sample_weight(features, y, sample_weight)

    def _of_positions(
        self, values: tf.RaggedTensor, tokens: tf.RaggedTensor, filler: float
    ) -> tf.Tensor:
        """Values of words [B, words] at the first pieces of the words, [B, S]."""
        lengths = tokens.values.row_lengths()  # [all words]
        tf.debugging.assert_equal(
            values.row_lengths(), tokens.row_lengths(), "each word must have one label"
        )
        is_first = tf.ragged.range(lengths).flat_values == 0  # [all pieces]
        of_pieces = tf.where(is_first, tf.repeat(values.flat_values, lengths), filler)
        rows = tokens.with_flat_values(of_pieces).merge_dims(1, 2)[:, : self.sequence_length - 2]
        dense = rows.to_tensor(filler, shape=[None, self.sequence_length - 2])
        return tf.pad(dense, [[0, 0], [1, 1]], constant_values=filler)

    def get_config(self) -> dict:
        return {**super().get_config(), "sequence_length": self.sequence_length}


def _ragged(values: tf.Tensor | tf.RaggedTensor) -> tf.RaggedTensor:
    is_ragged = isinstance(values, tf.RaggedTensor)
    return values if is_ragged else tf.RaggedTensor.from_tensor(values)

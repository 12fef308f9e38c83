"""The tokenizer of presets: the one that prepared the records."""

from collections.abc import Iterable

import keras
import keras_hub
import tensorflow as tf
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.data.tokenization import word_piece_tokenizer
from spanbert_tf.data.vocabulary import END_TOKEN, MASK_TOKEN, PAD_TOKEN, START_TOKEN
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone

_SEPARATOR = "\x00"  # BERT's normalisation removes it from text


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTokenizer(keras_hub.tokenizers.WordPieceTokenizer):
    """BERT's WordPiece tokenizer, with the ids that `spanbert-tf prepare` writes.

    Preparation, presets and exported models call the same TensorFlow Text operation, so that a
    text has the same ids everywhere. KerasHub's `BertTokenizer` splits words by other rules.

    Args:
        vocabulary: path of a vocabulary, or its entries in order of their ids.
        lowercase: bool. Whether to lower-case the text and strip accents (uncased vocabularies).
        special_tokens_in_strings: bool. Whether `[MASK]` and the other special tokens in a text
            stand for themselves; otherwise they are text and become `[`, `MASK`, `]`.

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer.from_preset("preset/")
    tokenizer(["The quick brown fox."])
    ```
    """

    backbone_cls = SpanBertBackbone

    def __init__(
        self,
        vocabulary: str | Iterable[str] | None = None,
        lowercase: bool = False,
        special_tokens_in_strings: bool = False,
        **kwargs,
    ) -> None:
        for token, name in (
            (START_TOKEN, "cls_token"),
            (END_TOKEN, "sep_token"),
            (PAD_TOKEN, "pad_token"),
            (MASK_TOKEN, "mask_token"),
            (START_TOKEN, "start_token"),
            (END_TOKEN, "end_token"),
        ):
            self._add_special_token(token, name)
        super().__init__(
            vocabulary=vocabulary,
            lowercase=lowercase,
            special_tokens_in_strings=special_tokens_in_strings,
            **kwargs,
        )

    def _set_vocabulary_tf(self) -> None:
        super()._set_vocabulary_tf()  # for `detokenize`
        self._word_piece = word_piece_tokenizer(self.vocabulary, lowercase=self.lowercase)

    @preprocessing_function
    def _tokenize_tf(self, inputs: tf.Tensor) -> tf.RaggedTensor | tf.Tensor:
        texts = tf.convert_to_tensor(inputs)
        is_unbatched = texts.shape.rank == 0
        texts = tf.reshape(texts, [-1])  # [N]
        if self.special_tokens_in_strings:
            tokens = self._tokenize_around_special_tokens(texts)
        else:
            tokens = self._word_piece.tokenize(texts)  # ragged [N, pieces]
        if self.sequence_length:
            tokens = tokens.to_tensor(shape=[None, self.sequence_length])
        return tokens[0] if is_unbatched else tokens

    def _tokenize_around_special_tokens(self, texts: tf.Tensor) -> tf.RaggedTensor:
        names = sorted(self.special_tokens)
        pattern = "|".join(name.replace("[", r"\[").replace("]", r"\]") for name in names)
        marked = tf.strings.regex_replace(texts, f"({pattern})", f"{_SEPARATOR}\\1{_SEPARATOR}")
        parts = tf.strings.split(marked, _SEPARATOR)  # ragged [N, parts]
        flat = parts.flat_values  # [P]
        matches = flat[:, tf.newaxis] == tf.constant(names)  # [P, special tokens]
        is_special = tf.reduce_any(matches, axis=1)
        text_tokens = self._word_piece.tokenize(tf.where(is_special, "", flat))  # ragged [P, …]
        ids = tf.constant([self.token_to_id(name) for name in names])
        special_ids = tf.gather(ids, tf.argmax(tf.cast(matches, tf.int32), axis=1))
        special_tokens = tf.RaggedTensor.from_row_lengths(
            special_ids[is_special], tf.cast(is_special, tf.int64)
        )  # ragged [P, 0 or 1]
        tokens = tf.concat([text_tokens, special_tokens], axis=1)
        return parts.with_flat_values(tokens).merge_dims(1, 2)  # ragged [N, pieces]

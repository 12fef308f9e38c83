"""The tokenizer of presets: the one that prepared the records.

N texts, P parts of texts.
"""

import functools
import os
from collections.abc import Iterable

import keras
import keras_hub
import tensorflow as tf
import tensorflow_text as tf_text
from keras.src.saving.serialization_lib import in_safe_mode
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.models.keras_hub_presets import LoadsPresets
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    END_TOKEN,
    MASK_TOKEN,
    PAD_TOKEN,
    START_TOKEN,
    UNKNOWN_TOKEN,
    Casing,
    check_vocabulary,
    load_vocabulary,
)

# KerasHub's names, and those of BERT.
_SPECIAL_TOKENS = {
    "cls_token": START_TOKEN,
    "sep_token": END_TOKEN,
    "pad_token": PAD_TOKEN,
    "mask_token": MASK_TOKEN,
    "unk_token": UNKNOWN_TOKEN,
    "start_token": START_TOKEN,
    "end_token": END_TOKEN,
}
_SEPARATOR = "\x00"  # ends a word and is no part of one, wherever it stands in a text
# What KerasHub's class lets choose and BERT's text normalisation decides.
_DECIDED = ("split", "split_on_cjk", "suffix_indicator", "oov_token")


@functools.lru_cache(maxsize=8)
def _shared_detokenizer(vocabulary: tuple[str, ...], dtype: str) -> tf_text.FastWordpieceTokenizer:
    with tf.init_scope():  # a graph that is being traced would keep its table
        return tf_text.FastWordpieceTokenizer(
            list(vocabulary),
            token_out_type=dtype,
            suffix_indicator=CONTINUATION_PREFIX,
            unknown_token=UNKNOWN_TOKEN,
            no_pretokenization=True,
            support_detokenization=True,
        )


@keras.saving.register_keras_serializable(package="spanbert_tf")
class SpanBertTokenizer(LoadsPresets, keras_hub.tokenizers.WordPieceTokenizer):
    """BERT's WordPiece tokenizer, with the ids that `spanbert-tf prepare` writes.

    Preparation, presets and exported models call the same TensorFlow Text operation, so that a
    text has the same ids everywhere, called eagerly or in a graph. (KerasHub's own tokenizers run
    Python code when called eagerly, and split words by other rules than BERT.)

    Where the ids differ from those of HuggingFace `BertTokenizerFast`:

    * Control and format characters (zero-width spaces and joiners, soft hyphens, direction marks,
      NUL) end a word; there they vanish: `"a\u200bb"` is `a b` here and `a ##b` there. With
      `lowercase`, those that Unicode calls ignorable vanish here as well.
    * Private-use characters and U+FFFD are letters of their word, which is mostly `[UNK]`;
      there they vanish. Bytes that are not UTF-8 count as U+FFFD; there they cannot be given.
    * Punctuation and ideographs are those of a newer Unicode version and of the original BERT's
      table: U+2B820 to U+2B91F are ideographs (HuggingFace's table begins at U+2B920).
    * Where accents are stripped, case and compatibility forms are folded as well (NFKC_Casefold):
      `ß` becomes `ss`, `ﬁ` `fi`, `²` `2`, a final sigma a plain one; there they stay.
    * A word of more than 100 bytes is `[UNK]`; there, of more than 100 characters.
    * `[MASK]` and the like in a text are text, unless `special_tokens_in_strings`.

    Args:
        vocabulary: path of a vocabulary, or its entries in order of their ids.
        lowercase: bool. Whether to lower-case the text (uncased vocabularies).
        strip_accents: bool or `None`. Whether to strip accents as well; `None`: where the text is
            lower-cased, as in HuggingFace.
        special_tokens_in_strings: bool. Whether `[MASK]` and the other special tokens in a text
            stand for themselves; otherwise they are text and become `[`, `MASK`, `]`.
        sequence_length: int or `None`. Cuts and pads to so many ids, without special tokens.
        dtype: `"int32"`, ids; or `"string"`, the word pieces themselves, to look at. Preprocessors
            and presets for training take ids.

    Raises:
        BadInputError: the vocabulary cannot be used.
        ValueError: an option that BERT's text normalisation leaves no choice of, accents stripped
            from cased text, or another dtype.

    Example:
    ```python
    tokenizer = spanbert_tf.models.SpanBertTokenizer.from_preset("preset/")
    tokenizer(["The quick brown fox."])  # ragged int32 [1, 5]
    ```
    """

    backbone_cls = SpanBertBackbone

    def __init__(
        self,
        vocabulary: str | os.PathLike | Iterable[str] | None = None,
        lowercase: bool = False,
        strip_accents: bool | None = None,
        special_tokens_in_strings: bool = False,
        sequence_length: int | None = None,
        **kwargs,
    ) -> None:
        if decided := sorted(set(_DECIDED) & set(kwargs)):
            raise ValueError(f"{decided[0]} is no option of {type(self).__name__}")
        for name, token in _SPECIAL_TOKENS.items():
            self._add_special_token(token, name)
        super().__init__(
            vocabulary=vocabulary,
            lowercase=lowercase,
            strip_accents=Casing.of(lowercase, strip_accents).strip_accents,
            special_tokens_in_strings=special_tokens_in_strings,
            sequence_length=sequence_length,
            **kwargs,
        )
        if self.compute_dtype not in ("int32", "string"):
            raise ValueError(f"The dtype must be int32 or string. Received: {self.compute_dtype}")
        self.built = True  # Keras quantizes no task with a part that is not

    @property
    def casing(self) -> Casing:
        """What is done to the text."""
        return Casing(self.lowercase, self.strip_accents)

    def set_vocabulary(self, vocabulary: str | os.PathLike | Iterable[str] | None) -> None:
        """Sets and checks the vocabulary: a file's path, its entries, or `None` for later."""
        entries: str | list[str] | None = None
        if isinstance(vocabulary, str | os.PathLike):
            path = os.fspath(vocabulary)
            # In safe mode Keras reads no file that a configuration names: its class refuses.
            entries = path if in_safe_mode() else load_vocabulary(path)
        elif vocabulary is not None:
            entries = list(vocabulary)
            check_vocabulary(entries, "vocabulary")
        super().set_vocabulary(entries)

    def _set_vocabulary_tf(self) -> None:
        # KerasHub's own would build a detokenizer for each object.
        self._word_piece = WordPieceTokenizer.shared(self.vocabulary, self.casing)
        if self.compute_dtype == "string":
            with tf.init_scope():
                self._pieces = tf.constant(self.vocabulary)  # [vocabulary]

    def _maybe_initialized_tf(self) -> None:
        """Has what KerasHub's `detokenize` uses ready; most commands never call that."""
        self._fast_word_piece = _shared_detokenizer(tuple(self.vocabulary), self.compute_dtype)

    def tokenize(self, inputs: tf.Tensor) -> tf.RaggedTensor | tf.Tensor:
        """Ids of the texts' word pieces, or the pieces.

        Args:
            inputs: a string, or a string tensor of any rank, in UTF-8.

        Returns:
            Of the dtype, of the inputs' shape and one dimension more: ragged, or dense for a single
            text and where `sequence_length` is set.
        """
        self._check_vocabulary()
        return self._tokenize_tf(inputs)

    @preprocessing_function
    def _tokenize_tf(self, inputs: tf.Tensor) -> tf.RaggedTensor | tf.Tensor:
        texts = inputs if isinstance(inputs, tf.RaggedTensor) else tf.convert_to_tensor(inputs)
        if texts.shape.rank == 0:
            return self._tokenize_batch(texts[tf.newaxis])[0]
        if texts.shape.rank == 1:
            return self._tokenize_batch(texts)
        if not isinstance(texts, tf.RaggedTensor):
            texts = tf.RaggedTensor.from_tensor(texts, ragged_rank=texts.shape.rank - 1)
        return texts.with_flat_values(self._tokenize_batch(texts.flat_values))

    def _tokenize_batch(self, texts: tf.Tensor) -> tf.RaggedTensor | tf.Tensor:
        if self.special_tokens_in_strings:
            tokens = self._tokenize_around_special_tokens(texts)
        else:
            tokens = self._word_piece.tokenize(texts)  # ragged [N, pieces]
        padding: int | str = self.pad_token_id
        if self.compute_dtype == "string":
            tokens = tokens.with_flat_values(tf.gather(self._pieces, tokens.flat_values))
            padding = ""  # as in KerasHub
        if self.sequence_length:
            return tokens.to_tensor(padding, shape=[None, self.sequence_length])
        return tokens

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

    def get_config(self) -> dict:
        config = super().get_config()
        for name in (*_DECIDED, "special_tokens"):
            config.pop(name, None)
        return config

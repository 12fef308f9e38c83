"""The tokenizer of presets, which is the same that prepares records.

Shapes: B texts.
"""

import functools
import os
from collections.abc import Iterable
from typing import get_args

import keras
import keras_hub
import tensorflow as tf
import tensorflow_text as tf_text
from keras.src.saving.serialization_lib import in_safe_mode
from keras_hub.src.utils.tensor_utils import preprocessing_function

from spanbert_tf.models.keras_hub_presets import LoadsPresets
from spanbert_tf.models.span_bert_backbone import SpanBertBackbone
from spanbert_tf.text.languages import DEFAULT_LANGUAGE, WordSegmentation
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    END_TOKEN,
    MASK_TOKEN,
    PAD_TOKEN,
    START_TOKEN,
    UNKNOWN_TOKEN,
    TextRules,
    check_vocabulary,
    load_vocabulary,
)

# Names of attributes in KerasHub, and the tokens.
_SPECIAL_TOKENS = {
    "cls_token": START_TOKEN,
    "sep_token": END_TOKEN,
    "pad_token": PAD_TOKEN,
    "mask_token": MASK_TOKEN,
    "unk_token": UNKNOWN_TOKEN,
    "start_token": START_TOKEN,
    "end_token": END_TOKEN,
}
# NUL ends a word and is never part of one.
_SEPARATOR = "\x00"
# Options of KerasHub's class that BERT's text normalization determines.
_FIXED_OPTIONS = ("split", "split_on_cjk", "suffix_indicator", "oov_token")


@functools.lru_cache(maxsize=8)
def _shared_detokenizer(vocabulary: tuple[str, ...], dtype: str) -> tf_text.FastWordpieceTokenizer:
    with tf.init_scope():  # otherwise the table would belong to the graph being traced
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

    Preparation, presets and exported models call the same TensorFlow Text operation, so a text has
    the same ids everywhere, in eager calls and in graphs. KerasHub's tokenizers run Python code in
    eager calls, and split words by other rules than BERT.

    The ids differ from those of Hugging Face's `BertTokenizerFast` in these cases:

    * Control and format characters (zero-width spaces and joiners, soft hyphens, direction marks,
      NUL) end a word. Hugging Face removes them: `"a\u200bb"` is `a b` here and `a ##b` there.
      With `lowercase`, the characters that Unicode calls ignorable are removed here, too.
    * Private-use characters and U+FFFD are letters, and their word is mostly `[UNK]`. Hugging Face
      removes them. Bytes that are not UTF-8 count as U+FFFD; Hugging Face does not take bytes.
    * Punctuation and ideographs are those of a newer Unicode version and of the original BERT's
      table: U+2B820 to U+2B91F are ideographs (Hugging Face's table begins at U+2B920).
    * If accents are stripped, case and compatibility forms are folded, too (NFKC_Casefold): `ß`
      becomes `ss`, `ﬁ` `fi`, `²` `2`, a final sigma a normal one. Hugging Face keeps them.
    * A word of more than 100 bytes is `[UNK]`; for Hugging Face, one of more than 100 characters.
    * Special tokens in a text, such as `[MASK]`, are text, unless `special_tokens_in_strings`.

    Args:
        vocabulary: path of a vocabulary, or its entries in the order of their ids.
        lowercase: bool. Whether to lower-case texts, for uncased vocabularies.
        strip_accents: bool or `None`. Whether to strip accents; `None` strips them if texts are
            lower-cased, as Hugging Face does.
        special_tokens_in_strings: bool. Whether special tokens in a text, such as `[MASK]`, are
            special tokens. Otherwise they are text: `[`, `MASK`, `]`.
        sequence_length: int or `None`. Number of ids to which texts are truncated and padded. No
            special tokens are added.
        language: string. The language by whose rule preprocessors split texts into sentences.
        word_segmentation: string or `None`. How `spanbert-tf prepare pretraining` finds the words
            that masking takes: `"none"`, `"spaces"`, `"icu"`, `"jieba"` or `"spacy"`; `None`: as
            the language needs it. Word pieces do not depend on it.
        spacy_model: string or `None`. The name or path of spaCy's model, if words are found by
            `"spacy"`.
        dtype: `"int32"` for ids, or `"string"` for the word pieces. Preprocessors need ids.

    Raises:
        BadInputError: the vocabulary cannot be used.
        ValueError: an option has only one value in BERT's text normalization, accents are to be
            stripped from cased text, the language has no rule for sentences, there is no such way
            to find words, or the dtype is another one.

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
        language: str = DEFAULT_LANGUAGE,
        word_segmentation: WordSegmentation | None = None,
        spacy_model: str | None = None,
        **kwargs,
    ) -> None:
        fixed = sorted(set(_FIXED_OPTIONS) & set(kwargs))
        if fixed:
            raise ValueError(f"{fixed[0]} is no option of {type(self).__name__}")
        for name, token in _SPECIAL_TOKENS.items():
            self._add_special_token(token, name)
        text_rules = TextRules.of(lowercase, strip_accents, language)
        self.language = text_rules.language
        if word_segmentation not in (None, *get_args(WordSegmentation)):
            raise ValueError(f"word_segmentation={word_segmentation!r} is not known")
        self.word_segmentation = word_segmentation
        self.spacy_model = spacy_model
        super().__init__(
            vocabulary=vocabulary,
            lowercase=lowercase,
            strip_accents=text_rules.strip_accents,
            special_tokens_in_strings=special_tokens_in_strings,
            sequence_length=sequence_length,
            **kwargs,
        )
        if self.compute_dtype not in ("int32", "string"):
            raise ValueError(f"The dtype must be int32 or string. Received: {self.compute_dtype}")
        self.built = True  # Keras quantizes only tasks whose parts are all built

    @property
    def text_rules(self) -> TextRules:
        """How texts are lower-cased and stripped of accents, and the language of sentences."""
        return TextRules(self.lowercase, self.strip_accents, self.language)

    def set_vocabulary(self, vocabulary: str | os.PathLike | Iterable[str] | None) -> None:
        """Sets and checks the vocabulary: a path, its entries, or `None` to set it later."""
        entries: str | list[str] | None = None
        if isinstance(vocabulary, str | os.PathLike):
            path = os.fspath(vocabulary)
            # In safe mode, a configuration must not name a file, and Keras' class refuses a path.
            entries = path if in_safe_mode() else load_vocabulary(path)
        elif vocabulary is not None:
            entries = list(vocabulary)
            check_vocabulary(entries, "vocabulary")
        super().set_vocabulary(entries)

    def _set_vocabulary_tf(self) -> None:
        # KerasHub's method would build a detokenizer for each object.
        self._word_piece = WordPieceTokenizer.shared(self.vocabulary, self.text_rules)
        if self.compute_dtype == "string":
            with tf.init_scope():
                self._pieces = tf.constant(self.vocabulary)  # [vocabulary]

    def _maybe_initialized_tf(self) -> None:
        """Prepares KerasHub's `detokenize`, which calls this; most commands never do."""
        self._fast_word_piece = _shared_detokenizer(tuple(self.vocabulary), self.compute_dtype)

    def tokenize(self, inputs: tf.Tensor) -> tf.RaggedTensor | tf.Tensor:
        """Splits texts into word pieces.

        Args:
            inputs: a string, or a string tensor of any rank, in UTF-8.

        Returns:
            Ids or word pieces, according to the dtype, with one dimension more than the inputs. The
            result is dense for a single text and if `sequence_length` is set, otherwise ragged.
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
            tokens = self._word_piece.tokenize(texts)  # ragged [B, pieces]
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
        parts = tf.strings.split(marked, _SEPARATOR)  # ragged [B, parts of a text]
        flat = parts.flat_values  # [parts]
        matches = flat[:, tf.newaxis] == tf.constant(names)  # [parts, special tokens]
        is_special = tf.reduce_any(matches, axis=1)
        text_tokens = self._word_piece.tokenize(tf.where(is_special, "", flat))  # ragged [parts, …]
        ids = tf.constant([self.token_to_id(name) for name in names])
        special_ids = tf.gather(ids, tf.argmax(tf.cast(matches, tf.int32), axis=1))
        special_tokens = tf.RaggedTensor.from_row_lengths(
            special_ids[is_special], tf.cast(is_special, tf.int64)
        )  # ragged [parts, 0 or 1]
        tokens = tf.concat([text_tokens, special_tokens], axis=1)
        return parts.with_flat_values(tokens).merge_dims(1, 2)  # ragged [B, pieces]

    def get_config(self) -> dict:
        config = super().get_config()
        for name in (*_FIXED_OPTIONS, "special_tokens"):
            config.pop(name, None)
        config["language"] = self.language
        for name in ("word_segmentation", "spacy_model"):
            if getattr(self, name) is not None:
                config[name] = getattr(self, name)
        return config

"""The one tokenizer of the project: preparation, presets and exports all call it.

N texts, T word pieces of all texts.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from spanbert_tf.text.languages import WITHOUT_SPACES
from spanbert_tf.text.positions import find_sentences, segment_positions
from spanbert_tf.text.vocabulary import CONTINUATION_PREFIX, UNKNOWN_TOKEN, TextRules

_UTF8 = "UTF-8"
_TEXTS_AT_ONCE = 4096
# Longer words are [UNK]. In bytes: TensorFlow Text's default, which is as many letters of English.
_LONGEST_WORD = 100
# Where spaces part phrases, a phrase is a word: 200 characters of three bytes, the limit of BERT's
# own code. Of XQuAD's Thai, words of more than 100 bytes have 59 % of the characters.
_LONGEST_PHRASE = 600
# Traced once: operation by operation, offsets take a fifth of a second a call. A method in a graph
# has no hold on its object, so the public ones, which have, call it.
_in_graph = tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
_LETTERS = 0x20000  # no letter beyond has a lower case of its own
_DOTTED_CAPITAL_I = 0x130  # the one letter whose lower case is two characters
_DOT_ABOVE = 0x307


class WordPieceTokenizer(tf.Module):
    """BERT's text normalization and WordPiece in TensorFlow Text operations.

    Special tokens in the text are text: `[MASK]` becomes `[`, `MASK` (or its pieces), `]`.

    Args:
        vocabulary: entries in order of their ids.
        text_rules: what is done to the text first. With accents kept, each character is lower-cased
            alone, as HuggingFace does with `strip_accents: false`, and nothing else is changed.
    """

    def __init__(self, vocabulary: Sequence[str], text_rules: TextRules) -> None:
        super().__init__()
        self._lowercase = text_rules.lowercase
        self._stripper = None
        make_word_pieces = tf_text.FastBertTokenizer  # which cleans the text first
        if text_rules.lowercase and text_rules.strip_accents:
            # It cleans as well; another cleaning would change nothing and take its time.
            self._stripper = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=True)
            make_word_pieces = tf_text.FastWordpieceTokenizer
        self._word_pieces = make_word_pieces(
            list(vocabulary),
            max_bytes_per_word=longest_word(text_rules),
            suffix_indicator=CONTINUATION_PREFIX,
            unknown_token=UNKNOWN_TOKEN,
            token_out_type=tf.int32,
        )

    @classmethod
    def shared(cls, vocabulary: Sequence[str], text_rules: TextRules) -> "WordPieceTokenizer":
        """Returns the tokenizer of a vocabulary, built and traced once for all who ask.

        Building one for BERT's vocabulary takes 0.2 s, and tracing it as long; a command asks for
        several: for its records, its preset, the preset's golden sentences, the export.

        Args:
            vocabulary: entries in order of their ids.
            text_rules: as for the class.
        """
        return _shared_tokenizer(tuple(vocabulary), text_rules)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of the word pieces of texts, string [N]; ragged int32 [N, pieces]."""
        return self._tokenize(texts)

    @_in_graph
    def _tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._word_pieces.tokenize(self._normalize(texts)[0])

    def count(self, texts: tf.Tensor) -> tf.Tensor:
        """Counts the word pieces of each text of a request, string [N]; int64 [N]."""
        return self._count(texts)

    @functools.cached_property
    def _count(self) -> Callable[[tf.Tensor], tf.Tensor]:
        """Makes one graph of `count`: finding it among others takes as long as counting a text."""

        def count(texts: tf.Tensor) -> tf.Tensor:
            normalized = self._normalize(clean_texts(texts))[0]
            return self._word_pieces.tokenize(normalized).row_lengths()

        spec = tf.TensorSpec([None], tf.string)
        return tf.function(count, autograph=False).get_concrete_function(spec)

    def tokenize_with_offsets(
        self, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Returns word pieces and where they stand.

        A piece covers each character that it came from, whole: the `f` and the `i` of a ligature
        `ﬁ` both cover it.

        Args:
            texts: string [N], UTF-8.

        Returns:
            Ids (int32), first bytes and ends (int64, exclusive); each ragged [N, pieces].
        """
        return self._tokenize_with_offsets(texts)

    @_in_graph
    def _tokenize_with_offsets(
        self, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        normalized, origins = self._normalize(texts)
        ids, starts, ends = self._word_pieces.tokenize_with_offsets(normalized)
        if origins is None:
            return ids, starts, ends
        rows = tf.gather(origins.row_starts(), starts.value_rowids())  # [T]
        first_bytes = rows + starts.flat_values
        last_bytes = rows + ends.flat_values - 1
        return (
            ids,
            starts.with_flat_values(tf.gather(origins.flat_values, first_bytes)),
            ends.with_flat_values(tf.gather(_character_ends(origins), last_bytes)),
        )

    def _normalize(self, texts: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor | None]:
        """Normalizes texts, and returns for each of their bytes and their ends where it came from.

        The places are bytes of the original, ragged int64 [N, bytes + 1]; `None`: they stay.
        """
        if self._stripper is not None:
            return self._stripper.normalize_with_offsets(texts)
        return _lower_case(texts) if self._lowercase else (texts, None)


@functools.cache
def text_normalizer(text_rules: TextRules) -> Callable[[Sequence[str]], list[str]]:
    """Returns a function that normalizes texts as `WordPieceTokenizer` does before it cuts."""
    strips_accents = text_rules.lowercase and text_rules.strip_accents
    normalizer = tf_text.FastBertNormalizer(lower_case_nfd_strip_accents=strips_accents)

    def normalize(texts: Sequence[str]) -> list[str]:
        batch = tf.constant([text.encode("utf-8", "replace") for text in texts], tf.string)
        if text_rules.lowercase and not strips_accents:
            batch, _ = _lower_case(batch)
        return [text.decode() for text in normalizer.normalize(batch).numpy()]

    return normalize


def clean_texts(texts: tf.Tensor) -> tf.Tensor:
    """Replaces bytes that are not UTF-8 in the texts of a request, string [N]."""
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


@functools.lru_cache(maxsize=8)
def _shared_tokenizer(vocabulary: tuple[str, ...], text_rules: TextRules) -> WordPieceTokenizer:
    with tf.init_scope():  # a graph that is being traced would keep its tables
        return WordPieceTokenizer(vocabulary, text_rules)


def longest_word(text_rules: TextRules) -> int:
    """Returns the bytes of the longest word that is not `[UNK]`."""
    return _LONGEST_PHRASE if text_rules.language in WITHOUT_SPACES else _LONGEST_WORD


@dataclasses.dataclass(frozen=True)
class TokenizedText:
    """Word pieces of a text and where they stand in it.

    Attributes:
        token_ids: int32 [T].
        starts: int64 [T], first character of each.
        ends: int64 [T], the character after each.
        positions: int32 [T, 3], paragraph, sentence and token of `SegmentPositions`; [T, 0] unless
            they were asked for.
    """

    token_ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    positions: np.ndarray

    def span(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the pieces that cover a part of the text, the last one inclusive.

        Args:
            start: first character of the part.
            end: the character after it.

        Returns:
            First and last piece, or `None` where no piece lies in the part.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class TextTokenizer:
    """The project's one tokenizer, for texts in memory.

    Args:
        pieces: the vocabulary.
        text_rules: what is done to the text.
        segment_aware: whether to compute `positions`.
    """

    def __init__(
        self, pieces: Sequence[str], text_rules: TextRules, *, segment_aware: bool
    ) -> None:
        self._tokenizer = WordPieceTokenizer.shared(pieces, text_rules)
        self._language = text_rules.language
        self._segment_aware = segment_aware

    def __call__(
        self, texts: Sequence[str], *, first_paragraph: int = 0
    ) -> Iterator[TokenizedText]:
        """Yields the word pieces of the texts, in their order.

        Args:
            texts: any.
            first_paragraph: index of each text's first paragraph.
        """
        for first in range(0, len(texts), _TEXTS_AT_ONCE):
            some = texts[first : first + _TEXTS_AT_ONCE]
            batch = [text.encode("utf-8", "replace") for text in some]
            ids, starts, ends = self._tokenizer.tokenize_with_offsets(batch)
            columns: Sequence[tf.RaggedTensor] = ()
            if self._segment_aware:
                columns = segment_positions(
                    tf.constant(batch),
                    starts,
                    find_sentences(tf.constant(batch), self._language),
                    first_paragraph=first_paragraph,
                )
            positions = np.zeros([ids.flat_values.shape[0], len(columns)], "int32")
            for number, column in enumerate(columns):
                positions[:, number] = column.flat_values
            splits = ids.row_splits.numpy()[1:-1]
            places = (
                characters_before(tf.constant(batch), values.flat_values, ids.value_rowids())
                for values in (starts, ends)
            )
            flat = (ids.flat_values, *(tf.cast(values, tf.int64) for values in places))
            parts = (np.split(values, splits) for values in (*map(np.asarray, flat), positions))
            yield from map(TokenizedText, *parts)


def characters_before(texts: tf.Tensor, places: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Converts places in texts from bytes to characters.

    Args:
        texts: string [N], UTF-8.
        places: int [P], where a character begins or the text ends.
        rows: int [P], the text of each.

    Returns:
        int32 [P].
    """
    content = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)  # of all texts
    is_first = tf.bitwise.bitwise_and(content, tf.constant(0xC0, tf.uint8)) != 0x80
    before = tf.concat([[0], tf.cumsum(tf.cast(is_first, tf.int32))], axis=0)
    text_starts = tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64), exclusive=True)  # [N]
    first = tf.gather(text_starts, rows)
    return tf.gather(before, first + tf.cast(places, tf.int64)) - tf.gather(before, first)


def _character_ends(origins: tf.RaggedTensor) -> tf.Tensor:
    """Returns the end of the character from which each byte of normalized texts came [bytes].

    That is the next larger place; the bytes of one character have its first byte's.
    """
    places = origins.flat_values
    is_end = tf.scatter_nd(
        origins.row_limits()[:, tf.newaxis] - 1,
        tf.ones_like(origins.row_limits()),
        tf.shape(places, tf.int64),
    )  # the ends of the texts
    begins = (tf.concat([[-1], places[:-1]], axis=0) != places) | (is_end == 1)
    characters = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    firsts = tf.boolean_mask(places, begins)
    return tf.gather(tf.concat([firsts[1:], [0]], axis=0), characters)


def _lower_case(texts: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
    """Lower-cases each character, and returns the origin of each byte, too; see `_normalize`.

    (`tf.strings.lower` would go by the machine's language, and has no offsets.)
    """
    characters, starts = tf.strings.unicode_decode_with_offsets(texts, _UTF8)  # ragged [N, …]
    flat = characters.flat_values
    lowered = tf.gather(_lower_case_table(), tf.minimum(flat, _LETTERS - 1))
    lowered = tf.where(flat < _LETTERS, lowered, flat)
    lengths = tf.where(flat == _DOTTED_CAPITAL_I, 2, 1)
    which = tf.repeat(tf.range(tf.size(flat)), lengths)
    is_second = tf.concat([[False], which[1:] == which[:-1]], axis=0)[: tf.size(which)]
    lowered = tf.where(is_second, _DOT_ABOVE, tf.gather(lowered, which))
    rows = tf.repeat(characters.value_rowids(), lengths)
    places = tf.repeat(starts.flat_values, lengths)
    ragged = tf.RaggedTensor.from_value_rowids(lowered, rows, characters.nrows())
    sizes = 1 + sum(tf.cast(lowered >= bound, tf.int32) for bound in (0x80, 0x800, 0x10000))
    origins = tf.RaggedTensor.from_value_rowids(
        tf.repeat(places, sizes), tf.repeat(rows, sizes), characters.nrows()
    )
    ends = tf.cast(tf.strings.length(texts), tf.int64)[:, tf.newaxis]
    return tf.strings.unicode_encode(ragged, _UTF8), tf.concat([origins, ends], axis=1)


@functools.cache
def _lower_case_table() -> np.ndarray:
    """Returns the lower case of each character, int32; of `İ`, the first of its two."""
    return np.array([ord(chr(number).lower()[0]) for number in range(_LETTERS)], np.int32)

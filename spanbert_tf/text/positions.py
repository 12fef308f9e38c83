"""SegaBERT's paragraph, sentence and token index of each word piece, from text.

The rule of sentences is `spanbert_tf.text.sentences`, which is Python. A SavedModel cannot run it:
exports take the sentences beside the texts, and split texts that come without them with regular
expressions, which agree with the rule as well as they can.

N texts.
"""

import functools
import re
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.text.sentences import PUNKT_LANGUAGES, find_sentence_starts, punkt_splitter

# What may stand before a word, and what closes a sentence after its mark.
_BEFORE_WORD = r"(?:^|[\s\"`({\[:;&#*@)}\]-])"
_CLOSING = r"[\"')\]}\x{2018}\x{2019}\x{201C}\x{201D}\x{AB}\x{BB}]*"
# Marks of other scripts: those before white space, and those that need none, with what closes them.
# Each of the latter has three bytes, as has what replaces it.
_OTHER_MARKS = "\u061f\u06d4\u0964\u0965\u0589\u1362"
_WIDE_MARKS = "\u3002\uff01\uff1f\uff61\uff0e"
_WIDE_CLOSING = "\u201d\u2019\u300d\u300f\uff09\u3009\u300b\u3011"
_WIDE_END = "__\n"


class SegmentPositions(NamedTuple):
    """Where each token stands, ragged int32 [N, tokens]."""

    paragraph_indices: tf.RaggedTensor  # its paragraph in the text; the first has `first_paragraph`
    sentence_indices: tf.RaggedTensor  # its sentence in the paragraph, from 0
    token_indices: tf.RaggedTensor  # its place in the sentence, from 0


def segment_positions(
    texts: tf.Tensor,
    byte_starts: tf.RaggedTensor,
    sentence_starts: tf.RaggedTensor,
    *,
    first_paragraph: int,
) -> SegmentPositions:
    """Returns the positions of the tokens of texts. A line end ends a paragraph.

    Args:
        texts: string [N], UTF-8.
        byte_starts: ragged int64 [N, tokens], where each token begins.
        sentence_starts: ragged int64 [N, sentences], the byte where each sentence begins.
        first_paragraph: index of each text's first paragraph.
    """
    rows = byte_starts.value_rowids()  # [T] tokens of all texts
    first_bytes = tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64), exclusive=True)  # [N]
    places = byte_starts.flat_values + tf.gather(first_bytes, rows)  # [T]
    starts = sentence_starts.flat_values + tf.gather(first_bytes, sentence_starts.value_rowids())
    begins_text = changes(rows)
    begins_paragraph = begins_text | changes(_line_ends_before(texts, places))
    num_started = tf.searchsorted(starts, places, side="right")  # sentences up to each token
    begins_sentence = begins_paragraph | changes(num_started)

    tokens = tf.range(tf.size(rows))
    sentences = tf.cumsum(tf.cast(begins_sentence, tf.int32)) - 1  # numbered over all texts
    paragraphs = tf.cumsum(tf.cast(begins_paragraph, tf.int32)) - 1
    return SegmentPositions(
        byte_starts.with_flat_values(_since_first(paragraphs, rows) + first_paragraph),
        byte_starts.with_flat_values(_since_first(sentences, paragraphs)),
        byte_starts.with_flat_values(_since_first(tokens, sentences)),
    )


def pair_positions(
    questions: tf.Tensor,
    passages: tf.Tensor,
    question_starts: tf.RaggedTensor,
    passage_starts: tf.RaggedTensor,
    question_sentences: tf.RaggedTensor,
    passage_sentences: tf.RaggedTensor,
) -> tuple[SegmentPositions, SegmentPositions]:
    """Positions of questions, which are paragraph 0, and of passages, which begin with paragraph 1.

    Args:
        questions: string [N], UTF-8, a line each, see `as_line`.
        passages: string [N].
        question_starts: ragged int64 [N, tokens], the byte where each token begins.
        passage_starts: the same of the passages.
        question_sentences: ragged int64 [N, sentences], the byte where each sentence begins.
        passage_sentences: the same of the passages.
    """
    return (
        segment_positions(questions, question_starts, question_sentences, first_paragraph=0),
        segment_positions(passages, passage_starts, passage_sentences, first_paragraph=1),
    )


def as_line(texts: tf.Tensor) -> tf.Tensor:
    """Replaces the line ends of texts, string [N], so that each is one paragraph."""
    return tf.strings.regex_replace(texts, "\n", " ")


def find_sentences(texts: tf.Tensor, language: str) -> tf.RaggedTensor:
    """Finds the byte where each sentence begins, by the rule of records; in Python.

    Args:
        texts: string [N], UTF-8; bytes that are not UTF-8 are seen as one character each.
        language: whose rule it is.

    Returns:
        Ragged int64 [N, sentences].
    """
    find = functools.partial(_find_sentences, language)
    starts, counts = tf.numpy_function(find, [texts], (tf.int64, tf.int64), stateful=False)
    return tf.RaggedTensor.from_row_lengths(
        tf.ensure_shape(starts, [None]), tf.ensure_shape(counts, texts.shape[:1])
    )


def _find_sentences(language: str, texts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    starts: list[int] = []
    counts = []
    for raw in texts:
        text = raw.decode("utf-8", "surrogateescape")
        places = find_sentence_starts(text, language)
        counts.append(len(places))
        if not text.isascii():
            places = _places_in_bytes(text, places)
        starts += places
    return np.array(starts, np.int64), np.array(counts, np.int64)


def _places_in_bytes(text: str, places: list[int]) -> list[int]:
    """Converts ascending places in a text from characters to bytes."""
    found = []
    last = 0
    num_bytes = 0
    for place in places:
        num_bytes += len(text[last:place].encode("utf-8", "surrogateescape"))
        last = place
        found.append(num_bytes)
    return found


def given_sentences(texts: tf.Tensor, sentence_starts: tf.Tensor, language: str) -> tf.RaggedTensor:
    """Finds the byte where each sentence begins, from the characters where sentences begin.

    A text without any of these is split by `find_sentences_in_graph`.

    Args:
        texts: string [N], UTF-8.
        sentence_starts: int32 [N, S], the first character of each sentence, in any order. Numbers
            that are no place in the text, such as -1, are padding.
        language: whose rule splits the other texts.

    Returns:
        Ragged int64 [N, sentences].
    """
    ordered = tf.sort(sentence_starts, axis=1)
    lengths = tf.strings.length(texts, unit="UTF8_CHAR")
    is_place = (ordered >= 0) & (ordered < lengths[:, tf.newaxis])
    given = _bytes_of_characters(texts, tf.ragged.boolean_mask(ordered, is_place))
    others = tf.where(given.row_lengths() == 0, texts, "")
    return tf.concat([given, find_sentences_in_graph(others, language)], axis=1)


def _bytes_of_characters(texts: tf.Tensor, characters: tf.RaggedTensor) -> tf.RaggedTensor:
    """Converts places of characters to their first bytes, ragged int64 [N, places]."""
    content = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)  # of all texts
    is_first = tf.bitwise.bitwise_and(content, tf.constant(0xC0, tf.uint8)) != 0x80
    first_bytes = tf.where(is_first)[:, 0]  # of the characters of all texts
    rows = characters.value_rowids()  # [P] places
    before = tf.cumsum(tf.strings.length(texts, unit="UTF8_CHAR"), exclusive=True)  # [N]
    places = tf.gather(first_bytes, tf.gather(before, rows) + characters.flat_values)
    text_starts = tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64), exclusive=True)  # [N]
    return characters.with_flat_values(places - tf.gather(text_starts, rows))


def find_sentences_in_graph(texts: tf.Tensor, language: str) -> tf.RaggedTensor:
    """Does what `find_sentences` does, nearly, in TensorFlow operations that a server has.

    A sentence ends at white space after `.`, `!` or `?` and closing marks. After an abbreviation,
    an initial or an ellipsis it ends only before a word that often begins one, and after a number
    not before a lower-case letter.
    """
    marked = texts
    for pattern, replacement in _replacements(language):  # which keep the number of bytes
        marked = tf.strings.regex_replace(marked, pattern, replacement)
    content = tf.strings.bytes_split(marked)  # ragged [N, bytes]
    is_end = content.with_flat_values(content.flat_values == "\n")
    return tf.ragged.boolean_mask(tf.ragged.range(content.row_lengths()), is_end) + 1


_UNICODE_REPLACEMENTS = (
    (f"[{_WIDE_MARKS}]([^{_WIDE_MARKS}{_WIDE_CLOSING}])", rf"{_WIDE_END}\1"),
    (
        f"([{_WIDE_MARKS}][{_WIDE_CLOSING}]*)[{_WIDE_CLOSING}]([^{_WIDE_CLOSING}])",
        rf"\1{_WIDE_END}\2",
    ),
    (rf"([.!?{_OTHER_MARKS}]{_CLOSING})[ \t]([ \t]*\S)", "\\1\n\\2"),
)


@functools.cache
def _replacements(language: str) -> tuple[tuple[str, str], ...]:
    """Returns patterns and replacements: full stops that end nothing become `_`, ends line ends."""
    if language not in PUNKT_LANGUAGES:
        return _UNICODE_REPLACEMENTS
    splitter = punkt_splitter(language)
    letters = [word for word in splitter.abbreviations if word.strip(". ")]
    words = sorted(letters, key=lambda word: (-len(word), word))
    abbreviations = "|".join(re.escape(word) for word in words)
    starters = "|".join(sorted(word.capitalize() for word in splitter.sentence_starters))
    doubtful = rf"({_BEFORE_WORD}(?:(?i:{abbreviations})|\p{{L}})|\.\.)\."
    number = rf"({_BEFORE_WORD}-?[.,]?\p{{Nd}}[\p{{Nd}},.-]*)\."
    return (
        (rf"{doubtful}[ \t]([ \t]*(?:{starters})\b)", "\\1.\n\\2"),
        (doubtful, r"\1_"),
        (rf"{number}([ \t]+\p{{Ll}})", r"\1_\2"),
        (rf"([.!?]{_CLOSING})[ \t]([ \t]*\S)", "\\1\n\\2"),
    )


def _line_ends_before(texts: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Counts the line ends up to each byte [T] of the texts put together."""
    is_end = tf.strings.bytes_split(texts).flat_values == "\n"
    counts = tf.cumsum(tf.cast(is_end, tf.int32))
    return tf.gather(tf.concat([counts, [0]], axis=0), places)  # never empty


def changes(values: tf.Tensor) -> tf.Tensor:
    """Where an entry differs from the one before it, bool [P]; the first one does."""
    return tf.concat([tf.ones_like(values[:1], tf.bool), values[1:] != values[:-1]], axis=0)


def _since_first(values: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
    """Subtracts from ascending values the first one of their group [T]; groups ascend as well."""
    return values - tf.gather(tf.math.segment_min(values, groups), groups)

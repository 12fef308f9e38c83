"""SegaBERT's paragraph, sentence and token index of each word piece, from text, in a graph.

Preparation and serving of question answering call this one rule. Records for
pre-training are split by a library in Python, which cannot stand in a SavedModel.

N texts.
"""

from typing import NamedTuple

import tensorflow as tf

TITLES = r"(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|Gen|Col|Lt|Capt|Sgt|Rev|Gov|Sen|Rep|No|vs)"
# Titles, and single capitals as in "J. Doe" and "U.S.": their full stop ends no sentence.
_NO_END = rf"\b([A-Z]|{TITLES})\."
_CLOSING, _OPENING = r"[\"')\]\x{201D}\x{2019}]*", r"[\"'(\[\x{201C}\x{2018}]*"  # and curly ones
_END = rf"([.!?]{_CLOSING})[ \t]([ \t]*{_OPENING}[\p{{Lu}}\p{{Nd}}])"


class SegmentPositions(NamedTuple):
    """Where each token stands, ragged int32 [N, tokens]."""

    paragraph_indices: tf.RaggedTensor  # its paragraph in the text; the first has `first_paragraph`
    sentence_indices: tf.RaggedTensor  # its sentence in the paragraph, from 0
    token_indices: tf.RaggedTensor  # its place in the sentence, from 0


def segment_positions(
    texts: tf.Tensor, byte_starts: tf.RaggedTensor, *, first_paragraph: int
) -> SegmentPositions:
    """The positions of the tokens of texts.

    A line end ends a paragraph. A sentence ends with its paragraph, and at white space after `.`,
    `!` or `?` (and closing quotes and brackets) where an upper-case letter or a digit follows
    (after opening quotes and brackets); but not after a title such as `Mr.` or a single capital.

    Args:
        texts: string [N], UTF-8.
        byte_starts: ragged int64 [N, tokens], where each token begins.
        first_paragraph: index of each text's first paragraph.
    """
    # Each replacement keeps the number of bytes, so that the offsets stay right.
    marked = tf.strings.regex_replace(texts, _NO_END, r"\1_")
    marked = tf.strings.regex_replace(marked, _END, "\\1\n\\2")
    rows = byte_starts.value_rowids()  # [T] tokens of all texts
    first_bytes = tf.cumsum(tf.cast(tf.strings.length(texts), tf.int64), exclusive=True)  # [N]
    places = byte_starts.flat_values + tf.gather(first_bytes, rows)  # [T]
    begins_text = changes(rows)
    begins_paragraph = begins_text | changes(_line_ends_before(texts, places))
    begins_sentence = begins_paragraph | changes(_line_ends_before(marked, places))

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
) -> tuple[SegmentPositions, SegmentPositions]:
    """Positions of questions, which are paragraph 0, and of passages, which begin with paragraph 1.

    Args:
        questions: string [N], UTF-8.
        passages: string [N].
        question_starts: ragged int64 [N, tokens], bytes.
        passage_starts: the same of the passages.
    """
    lines = tf.strings.regex_replace(questions, "\n", " ")
    return (
        segment_positions(lines, question_starts, first_paragraph=0),
        segment_positions(passages, passage_starts, first_paragraph=1),
    )


def _line_ends_before(texts: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """How many line ends there are up to each byte [T] of the texts put together."""
    is_end = tf.strings.bytes_split(texts).flat_values == "\n"
    counts = tf.cumsum(tf.cast(is_end, tf.int32))
    return tf.gather(tf.concat([counts, [0]], axis=0), places)  # never empty


def changes(values: tf.Tensor) -> tf.Tensor:
    """Where an entry differs from the one before it, bool [P]; the first one does."""
    return tf.concat([tf.ones_like(values[:1], tf.bool), values[1:] != values[:-1]], axis=0)


def _since_first(values: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
    """Ascending values less the first one of their group [T]; groups ascend as well."""
    return values - tf.gather(tf.math.segment_min(values, groups), groups)

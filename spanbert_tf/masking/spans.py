"""Computes the span that each draw of a masking scheme would mask, for all draws at once.

Shapes: B rows, S positions, G blocks of a row (2 in pairs), C draws, E annotated spans.
Positions are *flat*, row · S + position, so one sorted list has the words of all rows.
"""

from fractions import Fraction
from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.random_bits import (
    FRACTION_BITS,
    Purpose,
    high_fraction,
    low_fraction,
    random_bits,
    scale,
)

_BLOCK_SHIFT = 24  # the counters of the draws of block g start at g · 2^24


class Blocks(NamedTuple):
    """Packed rows and their blocks of text, which are masked separately.

    If a row has fewer blocks than others, the missing ones are empty.

    Attributes:
        token_ids: int32 [B, S], with special tokens and padding.
        starts: position of the first token of each block, from left to right, int64 [B, G]. There
            is a special token between two blocks.
        lengths: number of tokens of each block, int64 [B, G]; 0 for an empty one.
    """

    token_ids: tf.Tensor
    starts: tf.Tensor
    lengths: tf.Tensor

    @property
    def flat_starts(self) -> tf.Tensor:
        """Flat position of the first token of each block, int64 [B, G, 1]."""
        num_rows, width = tf.unstack(tf.shape(self.token_ids, out_type=tf.int64))
        first_of_row = tf.range(num_rows)[:, tf.newaxis] * width  # [B, 1]
        return (first_of_row + self.starts)[:, :, tf.newaxis]

    def spread(self, values: tf.Tensor) -> tf.Tensor:
        """Spreads values of blocks [B or 1, G] to their positions, [B, S]; unchanged for G = 1.

        Positions between two blocks get the value of the block before.
        """
        positions = tf.range(tf.shape(self.token_ids, tf.int64)[1])
        spread = values[:, :1]
        for block in range(1, self.starts.shape[1]):  # G is small: faster than a gather
            is_later = positions >= self.starts[:, block : block + 1]  # [B, S]
            spread = tf.where(is_later, values[:, block : block + 1], spread)
        return spread

    def hold(self, positions: tf.Tensor) -> tf.Tensor:
        """Whether positions [B, K] belong to blocks; bool [B, K]."""
        positions = positions[:, :, tf.newaxis]
        starts = self.starts[:, tf.newaxis]  # [B, 1, G]
        ends = starts + self.lengths[:, tf.newaxis]
        return tf.reduce_any((positions >= starts) & (positions < ends), axis=-1)


class Words(NamedTuple):
    """The words of all rows.

    Attributes:
        starts: sorted flat positions where words start, and B · S; int64 [words + 1].
        first: index in `starts` of the first word of each block, int64 [B, G, 1].
        counts: number of words in each block, int64 [B, G, 1].
        indices: index in `starts` of the word at each flat position, int64 [B · S]; `None` if the
            scheme does not need all of them. Computing them takes as long as 12,000 searches.
    """

    starts: tf.Tensor
    first: tf.Tensor
    counts: tf.Tensor
    indices: tf.Tensor | None

    def containing(self, flat_positions: tf.Tensor) -> tf.Tensor:
        """Returns the index in `starts` of the word at each flat position; int64 of any shape."""
        if self.indices is not None:
            return tf.gather(self.indices, flat_positions)
        found = tf.searchsorted(self.starts, tf.reshape(flat_positions, [-1]), side="right")
        return tf.reshape(tf.cast(found, tf.int64) - 1, tf.shape(flat_positions))


class AnnotatedSpans(NamedTuple):
    """The annotated spans of records, sorted by their starts.

    Attributes:
        starts: position of the first token in the packed row, int64 [B, E].
        ends: position of the last token, int64 [B, E].
        first: index of the first span of each block, int64 [B, G, 1].
        counts: number of spans in each block, int64 [B, G, 1].
    """

    starts: tf.Tensor
    ends: tf.Tensor
    first: tf.Tensor
    counts: tf.Tensor


class Candidates(NamedTuple):
    """A span for each draw. All tensors are [B, G, C].

    Attributes:
        anchors: flat positions, int64. A draw counts only if the token there is not masked yet.
        starts: flat positions of the first tokens, int64.
        ends: flat positions of the last tokens, int64.
        is_annotated: whether the span is an annotated one, whose draw always counts, bool; `None`
            if the scheme has none.
    """

    anchors: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    is_annotated: tf.Tensor | None = None


def find_words(blocks: Blocks, starts_word: tf.Tensor, *, index_all: bool = False) -> Words:
    """Lists the words of all rows.

    Args:
        blocks: the packed rows.
        starts_word: bool [B, S], true at the first token of each word and at every position that
            is not in a word.
        index_all: whether to compute `Words.indices`.
    """
    flat_starts = blocks.flat_starts  # [B, G, 1]
    # The first token of a block starts a word, even if the block starts inside of a word.
    block_starts = tf.reshape(flat_starts, [-1])
    starts_word = tf.tensor_scatter_nd_update(
        tf.reshape(starts_word, [-1]),
        block_starts[:, tf.newaxis],
        tf.ones_like(block_starts, tf.bool),
    )
    word_starts = tf.concat(
        [tf.where(starts_word)[:, 0], tf.size(starts_word, tf.int64)[tf.newaxis]], axis=0
    )

    def index_of(positions: tf.Tensor) -> tf.Tensor:
        found = tf.searchsorted(word_starts, tf.reshape(positions, [-1]), side="left")
        return tf.reshape(tf.cast(found, tf.int64), tf.shape(positions))

    first = index_of(flat_starts)  # [B, G, 1]
    end = index_of(flat_starts + blocks.lengths[:, :, tf.newaxis])
    indices = tf.cumsum(tf.cast(starts_word, tf.int64)) - 1 if index_all else None
    return Words(word_starts, first, end - first, indices)


def draw_candidates(
    blocks: Blocks,
    words: Words,
    keys: tf.Tensor,
    draws: tf.Tensor,
    options: MaskingOptions,
    annotated: AnnotatedSpans | None = None,
) -> Candidates:
    """Computes the spans that draws would mask (paper, sections 3.1 and 6.1).

    Args:
        blocks: the packed rows.
        words: the words of the rows.
        keys: result of `row_keys`.
        draws: numbers of the draws, int64 [C].
        options: the scheme and its parameters.
        annotated: the records' spans, if the scheme uses them.
    """
    num_blocks = blocks.starts.shape[1]
    counters = (tf.range(num_blocks, dtype=tf.int64)[:, tf.newaxis] * 2**_BLOCK_SHIFT) + draws
    counters = counters[tf.newaxis]  # [1, G, C]
    bits = random_bits(keys, Purpose.ANCHOR_AND_LENGTH, counters)  # [B, G, C]
    scheme = options.chosen_scheme
    if scheme.unit == "piece":
        candidates = _spans_of_pieces(blocks, bits, options)
    else:
        candidates = _spans_of_words(blocks, words, bits, options)
    if annotated is None:
        return candidates
    # Other bits than those above, which decide where a span starts and how long it is.
    bits = random_bits(keys, Purpose.ANNOTATED_SPAN, counters)
    return _annotated_in_a_share(candidates, blocks, annotated, bits, scheme.share)


def _uniform_tokens(blocks: Blocks, bits: tf.Tensor) -> tf.Tensor:
    lengths = blocks.lengths[:, :, tf.newaxis]  # [B, G, 1]
    return blocks.flat_starts + scale(high_fraction(bits), lengths)


def _last_positions(blocks: Blocks) -> tf.Tensor:
    return blocks.flat_starts + blocks.lengths[:, :, tf.newaxis] - 1  # [B, G, 1]


def _spans_of_pieces(blocks: Blocks, bits: tf.Tensor, options: MaskingOptions) -> Candidates:
    anchors = _uniform_tokens(blocks, bits)
    ends = anchors + _geometric_lengths(low_fraction(bits), options) - 1
    return Candidates(anchors, anchors, tf.minimum(ends, _last_positions(blocks)))


def _spans_of_words(
    blocks: Blocks, words: Words, bits: tf.Tensor, options: MaskingOptions
) -> Candidates:
    if options.chosen_scheme.span_start == "word":
        chosen = words.first + scale(high_fraction(bits), words.counts)
        anchors = tf.gather(words.starts, chosen)
    else:
        anchors = _uniform_tokens(blocks, bits)
        chosen = words.containing(anchors)
    last_words = chosen + _geometric_lengths(low_fraction(bits), options) - 1
    following = tf.minimum(last_words + 1, tf.size(words.starts, tf.int64) - 1)
    ends = tf.minimum(tf.gather(words.starts, following) - 1, _last_positions(blocks))
    return Candidates(anchors, tf.gather(words.starts, chosen), ends)


def _annotated_in_a_share(
    others: Candidates, blocks: Blocks, annotated: AnnotatedSpans, bits: tf.Tensor, share: float
) -> Candidates:
    """Replaces a share of the draws by annotated spans, in blocks that have any."""
    take = high_fraction(bits) < round(share * 2**FRACTION_BITS)  # [B, G, C]
    take &= annotated.counts > 0
    num_rows, most = tf.unstack(tf.shape(annotated.starts, tf.int64))
    row_indices = tf.range(num_rows)[:, tf.newaxis]
    row_starts = row_indices * tf.shape(blocks.token_ids, tf.int64)[1]  # [B, 1]
    chosen = annotated.first + scale(low_fraction(bits), annotated.counts)
    # Indices in the flat list of spans.
    chosen = row_indices[:, :, tf.newaxis] * most + tf.where(take, chosen, 0)
    starts = tf.gather(tf.reshape(row_starts + annotated.starts, [-1]), chosen)
    ends = tf.gather(tf.reshape(row_starts + annotated.ends, [-1]), chosen)
    return Candidates(
        others.anchors,
        tf.where(take, starts, others.starts),
        tf.where(take, ends, others.ends),
        take,
    )


def _geometric_lengths(fractions: tf.Tensor, options: MaskingOptions) -> tf.Tensor:
    """Draws lengths in units by inverting the distribution function; int64 of the same shape."""
    if options.chosen_scheme.max_units == 1:
        return tf.ones_like(fractions)
    thresholds: list[int] = []
    total = Fraction(0)
    for probability in options.span_length_probabilities()[:-1]:
        total += probability
        thresholds.append(round(total * 2**FRACTION_BITS))
    shorter = tf.searchsorted(
        tf.constant(thresholds, tf.int64), tf.reshape(fractions, [-1]), side="right"
    )
    return tf.reshape(tf.cast(shorter, tf.int64) + 1, tf.shape(fractions))

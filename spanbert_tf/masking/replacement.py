"""Puts [MASK], a random token or the token itself where a token is masked (80 %, 10 %, 10 %).

B rows, S positions, K slots, V vocabulary entries.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.masking.candidates import Blocks, Words
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.random_bits import FRACTION_BITS, Stream, high_fraction, random_bits
from spanbert_tf.masking.targets import MaskedSpans

_TOKEN_BITS = 53  # finer than FRACTION_BITS: a token may occur once in a corpus of 10^10


class TokenDistribution(NamedTuple):
    """A distribution of tokens.

    Attributes:
        thresholds: int64 [V], the cumulated shares as fractions of 2^53.
    """

    thresholds: tf.Tensor

    @classmethod
    def from_counts(cls, counts: Sequence[int]) -> "TokenDistribution":
        """Builds the distribution from the weight of each vocabulary entry.

        Raises:
            ValueError: all counts are 0.
        """
        cumulated = np.cumsum(np.asarray(counts, np.int64)).tolist()
        if not cumulated or not cumulated[-1]:
            raise ValueError("the unigram counts are all 0")
        # Python integers: the products need more than 64 bits.
        thresholds = [(count << _TOKEN_BITS) // cumulated[-1] for count in cumulated]
        return cls(tf.constant(thresholds, tf.int64))

    def draw(self, bits: tf.Tensor) -> tf.Tensor:
        """A token id for each uint64 of random bits; int32, the same shape."""
        shift = tf.constant(64 - _TOKEN_BITS, tf.uint64)
        fractions = tf.cast(tf.bitwise.right_shift(bits, shift), tf.int64)
        found = tf.searchsorted(self.thresholds, tf.reshape(fractions, [-1]), side="right")
        return tf.reshape(found, tf.shape(fractions))


def replace_tokens(
    spans: MaskedSpans,
    blocks: Blocks,
    words: Words,
    keys: tf.Tensor,
    random_tokens: TokenDistribution,
    mask_token_id: int,
    options: MaskingOptions,
) -> tf.Tensor:
    """Replaces the masked tokens: one draw a unit, and one random token a position.

    Args:
        spans: the masked tokens.
        blocks: the packed rows.
        words: words of the same rows.
        keys: uint64 [B], from `row_keys`.
        random_tokens: where random tokens come from.
        mask_token_id: id of [MASK].
        options: the rates and the unit of replacement.

    Returns:
        int32 [B, S], the rows with replacements.
    """
    draws = high_fraction(
        random_bits(keys, Stream.REPLACEMENT, _unit_starts(spans, words, options.numbers.replaced))
    )  # [B, K]
    mask_below = round(options.mask_token_rate * 2**FRACTION_BITS)
    random_below = round((options.mask_token_rate + options.random_token_rate) * 2**FRACTION_BITS)
    # Unused slots stand at position 0 and write the [CLS] that is there.
    replacements = tf.where(spans.is_used & (draws < mask_below), mask_token_id, spans.token_ids)
    is_random = spans.is_used & (draws >= mask_below) & (draws < random_below)
    chosen = tf.where(is_random)  # [R, 2], a tenth of the slots
    bits = random_bits(
        tf.gather(keys, chosen[:, 0]), Stream.RANDOM_TOKEN, tf.gather_nd(spans.positions, chosen)
    )  # [R]
    replacements = tf.tensor_scatter_nd_update(replacements, chosen, random_tokens.draw(bits))
    updated = tf.tensor_scatter_nd_update(
        tf.reshape(blocks.token_ids, [-1]),
        tf.reshape(spans.flat_positions, [-1, 1]),
        tf.reshape(replacements, [-1]),
    )
    return tf.reshape(updated, tf.shape(blocks.token_ids))


def _unit_starts(spans: MaskedSpans, words: Words, unit: str) -> tf.Tensor:
    """The position by which each masked token's unit draws; int64 [B, K]."""
    if unit == "token":
        return spans.positions
    if unit == "span":
        return spans.span_starts
    word_starts = tf.gather(words.starts, words.containing(spans.flat_positions))
    return word_starts - (spans.flat_positions - spans.positions)

"""Masks a batch of packed rows: words → selection → masked tokens → replacement → targets.

A masked unit becomes [MASK] (80 %), becomes random tokens (10 %) or stays unchanged (10 %).

Shapes: B rows, S positions, K prediction slots, G blocks of a row, V entries of the vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.masking.budgets import block_budgets, scheduled_budgets
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.random_bits import (
    FRACTION_BITS,
    Purpose,
    high_fraction,
    random_bits,
    row_keys,
)
from spanbert_tf.masking.selection import select_tokens
from spanbert_tf.masking.spans import AnnotatedSpans, Blocks, Words, find_words
from spanbert_tf.masking.targets import MaskedTokens, list_masked_tokens, target_features
from spanbert_tf.text.vocabulary import MASK_TOKEN, begin_words

_TOKEN_BITS = 53  # finer than FRACTION_BITS: a token may occur once in a corpus of 10^10


class TokenDistribution(NamedTuple):
    """A distribution over the vocabulary.

    Attributes:
        thresholds: cumulative probabilities as fractions of 2^53, int64 [V].
    """

    thresholds: tf.Tensor

    @classmethod
    def from_counts(cls, counts: Sequence[int]) -> "TokenDistribution":
        """Makes a distribution from the weight of each entry of the vocabulary."""
        cumulated = np.cumsum(np.asarray(counts, np.int64)).tolist()
        if not cumulated or not cumulated[-1]:
            raise ValueError("the unigram counts are all 0")
        # Python's integers, because the products need more than 64 bits.
        thresholds = [(count << _TOKEN_BITS) // cumulated[-1] for count in cumulated]
        return cls(tf.constant(thresholds, tf.int64))

    def draw(self, bits: tf.Tensor) -> tf.Tensor:
        """Draws a token id for each uint64 of random bits; int32 of the same shape."""
        shift = tf.constant(64 - _TOKEN_BITS, tf.uint64)
        fractions = tf.cast(tf.bitwise.right_shift(bits, shift), tf.int64)
        found = tf.searchsorted(self.thresholds, tf.reshape(fractions, [-1]), side="right")
        return tf.reshape(found, tf.shape(fractions))


@dataclasses.dataclass(frozen=True)
class SpanMasker:
    """A masking scheme for one vocabulary.

    Attributes:
        options: the scheme and its parameters.
        is_word_start: whether each entry of the vocabulary starts a word, bool [V].
        random_tokens: distribution of random tokens.
        mask_token_id: id of [MASK].
        seed: seed of the run.
        schedule_steps: number of steps from the first rate to the last one, if the rate changes.
    """

    options: MaskingOptions
    is_word_start: tf.Tensor
    random_tokens: TokenDistribution
    mask_token_id: int
    seed: int = 0
    schedule_steps: int | None = None

    @classmethod
    def from_vocabulary(
        cls,
        vocabulary: Sequence[str],
        unigram_counts: Sequence[int] | None,
        options: MaskingOptions | None = None,
        seed: int = 0,
        schedule_steps: int | None = None,
    ) -> "SpanMasker":
        """Makes a masker.

        Args:
            vocabulary: entries in the order of their ids. Entries that start with `##` continue a
                word.
            unigram_counts: number of occurrences of each entry in the training corpus; needed only
                for `random_tokens="unigrams"`.
            options: the scheme and its parameters; SpanBERT's by default.
            seed: seed of the masks, which are a function of (seed, epoch, record id) and the rate.
            schedule_steps: number of steps from the first rate to the last one, if the rate
                changes.
        """
        options = options or MaskingOptions()
        if options.random_tokens == "uniform":
            unigram_counts = [1] * len(vocabulary)
        elif unigram_counts is None:
            raise ValueError('unigram_counts are missing; random_tokens="unigrams" reads them')
        return cls(
            options,
            tf.constant(begin_words(vocabulary)),
            TokenDistribution.from_counts(unigram_counts),
            list(vocabulary).index(MASK_TOKEN),
            seed,
            schedule_steps,
        )

    def __call__(
        self,
        blocks: Blocks,
        epochs: tf.Tensor,
        record_ids: tf.Tensor,
        num_slots: int,
        annotated: AnnotatedSpans | None = None,
        step: tf.Tensor | None = None,
        starts_word: tf.Tensor | None = None,
    ) -> dict[str, tf.Tensor]:
        """Masks each block of each row.

        Args:
            blocks: the packed rows.
            epochs: epoch of each row, int64 [B].
            record_ids: int64 [B].
            num_slots: K, from `MaskingOptions.num_slots`.
            annotated: the records' spans, if the scheme uses them.
            step: the step for which the rows are masked, from 0, int64 []. If the rate changes from
                step to step and this is `None`, the last rate counts.
            starts_word: bool [B, S], true at the first token of each word and at every position
                that is not in a word; `None`: as the vocabulary says it.

        Returns:
            A dict of `token_ids`, int32 [B, S], with replacements, and of the features of
            `target_features`.
        """
        keys = row_keys(self.seed, epochs, record_ids)
        if step is None or self.schedule_steps is None:
            budgets = block_budgets(blocks, self.options)  # [B, G]
        else:
            budgets = scheduled_budgets(blocks, self.options, step, self.schedule_steps)
        index_all = self.options.chosen_scheme.draws_single_words
        if starts_word is None:
            starts_word = tf.gather(self.is_word_start, blocks.token_ids)
        words = find_words(blocks, starts_word, index_all=index_all)
        masked = select_tokens(
            blocks, words, starts_word, keys, budgets, num_slots, self.options, annotated
        )
        tokens = list_masked_tokens(masked, blocks.token_ids, num_slots)
        token_ids = _replace_tokens(
            tokens, blocks, words, keys, self.random_tokens, self.mask_token_id, self.options
        )
        return {"token_ids": token_ids, **target_features(tokens, blocks, self.options)}


def _replace_tokens(
    tokens: MaskedTokens,
    blocks: Blocks,
    words: Words,
    keys: tf.Tensor,
    random_tokens: TokenDistribution,
    mask_token_id: int,
    options: MaskingOptions,
) -> tf.Tensor:
    """Replaces masked tokens, int32 [B, S]; one draw decides for each unit."""
    unit_starts = _unit_starts(tokens, words, options.chosen_scheme.replaced)  # [B, K]
    draws = high_fraction(random_bits(keys, Purpose.REPLACEMENT, unit_starts))  # [B, K]
    mask_below = round(options.mask_token_rate * 2**FRACTION_BITS)
    random_below = round((options.mask_token_rate + options.random_token_rate) * 2**FRACTION_BITS)
    # Unused slots have position 0, and write the [CLS] that is there.
    replacements = tf.where(tokens.is_used & (draws < mask_below), mask_token_id, tokens.token_ids)
    is_random = tokens.is_used & (draws >= mask_below) & (draws < random_below)
    chosen = tf.where(is_random)  # [random tokens, 2], a tenth of the slots
    bits = random_bits(
        tf.gather(keys, chosen[:, 0]), Purpose.RANDOM_TOKEN, tf.gather_nd(tokens.positions, chosen)
    )  # [random tokens]
    replacements = tf.tensor_scatter_nd_update(replacements, chosen, random_tokens.draw(bits))
    updated = tf.tensor_scatter_nd_update(
        tf.reshape(blocks.token_ids, [-1]),
        tf.reshape(tokens.flat_positions, [-1, 1]),
        tf.reshape(replacements, [-1]),
    )
    return tf.reshape(updated, tf.shape(blocks.token_ids))


def _unit_starts(tokens: MaskedTokens, words: Words, unit: str) -> tf.Tensor:
    """Returns, for each token, the position whose random number decides about its unit.

    The result is int64 [B, K].
    """
    if unit == "token":
        return tokens.positions
    if unit == "span":
        return tokens.span_starts
    word_starts = tf.gather(words.starts, words.containing(tokens.flat_positions))
    return word_starts - (tokens.flat_positions - tokens.positions)

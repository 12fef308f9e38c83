"""Chooses the tokens to mask: accepts candidates in order of their draws until the budget is met.

B rows, S positions, G blocks a row, C draws a round.

The definition is a loop: draw a span; if the token at its anchor is masked already, draw again;
mask the span's tokens that are not masked yet, from left to right, until the span or the budget
ends. Here a whole round of draws of all rows is decided at once, with the same result: each
position gets the candidate that would mask it (`ownership.py`), then candidates are granted tokens
in order until the budget is met; one may get a part.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.masking.candidates import (
    AnnotatedSpans,
    Blocks,
    Words,
    draw_candidates,
    find_words,
)
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.ownership import LARGEST_ROUND, find_owners
from spanbert_tf.masking.schemes import Scheme

# Draws that are enough for any block, in multiples of the row's length. A token that is left is
# drawn by one draw in 2 S at least, so one row in 10^25 would need more.
_MOST_DRAWS_A_POSITION = 128


def draws_per_round(num_slots: int, scheme: Scheme) -> int:
    """How many candidates to decide at once, so that few rows need another round.

    A geometric span masks 4.5 tokens on average, and 77 tokens of 512 needed 20.7 draws on
    average and 43 at most in 47,000 blocks. Single units are drawn again and again, too.
    """
    draws_a_slot = 0.5 if scheme.max_units > 1 else 1.25
    return min(LARGEST_ROUND, 10 + int(draws_a_slot * num_slots))


def select_tokens(
    blocks: Blocks,
    words: Words,
    is_word_start: tf.Tensor,
    keys: tf.Tensor,
    num_slots: int,
    options: MaskingOptions,
    annotated: AnnotatedSpans | None = None,
) -> tf.Tensor:
    """The tokens to mask: exactly ceil(rate · length) in every block.

    Args:
        blocks: the packed rows.
        words: words of the same rows.
        is_word_start: bool [V], whether a vocabulary entry begins a word.
        keys: uint64 [B], from `row_keys`.
        num_slots: K, the largest number of masked tokens a row.
        options: the scheme and its parameters.
        annotated: the spans that the scheme takes from the records, if it does.

    Returns:
        bool [B, S].

    Raises:
        tf.errors.InvalidArgumentError: a budget cannot be met, which would be an error of ours.
    """
    round_size = draws_per_round(num_slots, options.numbers)
    budgets = _budgets(blocks.lengths, num_slots, options)  # [B, G]
    first_draw = tf.constant(0, tf.int64)
    rows = _Rows(blocks, words, keys, annotated)
    masked, remaining = _mask_round(rows, first_draw, None, budgets, round_size, options)
    # Rows that need more draws than a round go on by themselves.
    late = tf.where(tf.reduce_any(remaining > 0, axis=1))[:, 0]  # [L]
    late_blocks = Blocks(*(tf.gather(values, late) for values in blocks))
    late_rows = _Rows(
        late_blocks,
        find_words(late_blocks, is_word_start),
        tf.gather(keys, late),
        annotated and AnnotatedSpans(*(tf.gather(values, late) for values in annotated)),
    )
    most_draws = _MOST_DRAWS_A_POSITION * tf.shape(blocks.token_ids, tf.int64)[1]

    def more_to_mask(first_draw: tf.Tensor, masked: tf.Tensor, remaining: tf.Tensor) -> tf.Tensor:
        del masked
        return tf.reduce_any(remaining > 0) & (first_draw < most_draws)

    def mask_more(
        first_draw: tf.Tensor, masked: tf.Tensor, remaining: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        result = _mask_round(late_rows, first_draw, masked, remaining, round_size, options)
        return first_draw + round_size, *result

    start = (first_draw + round_size, tf.gather(masked, late), tf.gather(remaining, late))
    _, late_masked, left_over = tf.while_loop(more_to_mask, mask_more, start)
    is_done = tf.debugging.assert_less(
        left_over,
        tf.constant(1, tf.int64),
        message="masking: after 128 draws a position a block's budget is not met",
    )
    with tf.control_dependencies([is_done]):
        return tf.tensor_scatter_nd_update(masked, late[:, tf.newaxis], late_masked)


def _budgets(lengths: tf.Tensor, num_slots: int, options: MaskingOptions) -> tf.Tensor:
    """ceil(rate · length), where float32 would round up, and int64 overflow with many digits.

    Args:
        lengths: int64 [B, G].
        num_slots: K.
        options: for the rate.

    Returns:
        int64 [B, G]: how many lengths of a list, the longest with a budget of 0, 1, … K, are less.
    """
    longest = [min(slots // options.exact_rate, tf.int64.max) for slots in range(num_slots + 1)]
    flat = tf.reshape(lengths, [-1])
    found = tf.searchsorted(tf.constant(longest, tf.int64), flat, out_type=tf.int64)
    return tf.reshape(found, tf.shape(lengths))


class _Rows(NamedTuple):
    """All that a round needs to know about some rows."""

    blocks: Blocks
    words: Words
    keys: tf.Tensor
    annotated: AnnotatedSpans | None


def _mask_round(
    rows: _Rows,
    first_draw: tf.Tensor,
    masked: tf.Tensor | None,
    remaining: tf.Tensor,
    round_size: int,
    options: MaskingOptions,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Masks what C further draws grant.

    Args:
        rows: R rows.
        first_draw: int64 [], number of the round's first draw.
        masked: bool [R, S], what is masked so far; `None`: nothing.
        remaining: int64 [R, G], tokens still to mask.
        round_size: C.
        options: the scheme and its parameters.

    Returns:
        `masked` and `remaining` after the round.
    """
    draws = first_draw + tf.range(round_size, dtype=tf.int64)
    candidates = draw_candidates(rows.blocks, rows.words, rows.keys, draws, options, rows.annotated)
    owner = find_owners(candidates, rows.blocks, masked)
    granted, num_granted = _within_budget(owner, rows.blocks, remaining, round_size)
    return granted if masked is None else masked | granted, remaining - num_granted


def _within_budget(
    owner: tf.Tensor, blocks: Blocks, remaining: tf.Tensor, round_size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Grants tokens to candidates in order, and to the last one from left to right.

    Args:
        owner: int32 [B, S], number of the candidate that masks a position, negative for none.
        blocks: the packed rows.
        remaining: int64 [B, G], tokens still to mask.
        round_size: C.
    """
    through = tf.cumsum(_tokens_of_candidates(owner, blocks, round_size), axis=-1)  # [B, G, C]
    fits = through <= remaining[:, :, tf.newaxis]
    num_whole = tf.reduce_sum(tf.cast(fits, tf.int32), axis=-1)  # [B, G]
    tokens_of_whole = tf.reduce_max(
        tf.where(fits, through, tf.zeros_like(through)), axis=-1
    )  # [B, G]
    last = blocks.spread(num_whole)  # the candidate that gets a part
    is_last = owner == last  # [B, S]
    part_end = _nth_position(is_last, remaining - tokens_of_whole, blocks)  # [B, G]
    positions = tf.range(tf.shape(owner, tf.int64)[1])
    is_part = is_last & (positions < blocks.spread(part_end))
    granted = ((owner >= 0) & (owner < last)) | is_part
    return granted, tf.minimum(remaining, through[:, :, -1])


def _nth_position(chosen: tf.Tensor, ordinals: tf.Tensor, blocks: Blocks) -> tf.Tensor:
    """One past the n-th chosen position of each block, its start for n = 0; int64 [B, G].

    Few positions are chosen: a list of them is cheaper than a running count over all.
    """
    flat_starts = blocks.flat_starts[:, :, 0]  # [B, G]
    flat = tf.where(tf.reshape(chosen, [-1]))[:, 0]  # [all chosen]
    before = tf.searchsorted(flat, tf.reshape(flat_starts, [-1]), out_type=tf.int64)
    last = tf.reshape(before, tf.shape(flat_starts)) + ordinals - 1  # index in `flat`
    flat = tf.concat([flat, tf.zeros([1], tf.int64)], axis=0)  # so that there is one
    found = tf.gather(flat, tf.clip_by_value(last, 0, tf.size(flat, tf.int64) - 1))
    row_starts = flat_starts - blocks.starts
    return tf.where(ordinals > 0, found - row_starts + 1, blocks.starts)


def _tokens_of_candidates(owner: tf.Tensor, blocks: Blocks, round_size: int) -> tf.Tensor:
    """How many tokens each candidate would mask; int64 [B, G, C]."""
    counts = []
    for block in range(blocks.starts.shape[1]):
        is_owned = owner >= 0
        if blocks.starts.shape[1] > 1:
            is_owned &= blocks.numbers == block
        per_owner = tf.math.bincount(
            tf.where(is_owned, owner, round_size),
            minlength=round_size + 1,
            maxlength=round_size + 1,
            dtype=tf.int64,
            axis=-1,
        )  # [B, C + 1]
        counts.append(per_owner[:, :round_size])
    return tf.stack(counts, axis=1)

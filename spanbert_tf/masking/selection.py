"""Selects the tokens to mask: accepts draws in their order until the budget is met.

The definition is a loop. Draw a span. If the token at its anchor is masked already, draw again.
Otherwise mask the tokens of the span that are not masked yet, from left to right, until the span or
the budget ends. Annotated spans are always accepted, as in the released code (`mask_entity`).

Here a whole round of draws of all rows is decided at once, with the same result. Each position gets
the candidate that would mask it: the first accepted candidate that covers it. Then candidates get
their tokens in order until the budget is met; the last one may get only some of its tokens.

Shapes: B rows, S positions, G blocks of a row, C draws of a round.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.schemes import MOST_ANNOTATED, ChosenScheme
from spanbert_tf.masking.spans import (
    AnnotatedSpans,
    Blocks,
    Candidates,
    Words,
    draw_candidates,
    find_words,
)

# A maximum number of draws, in multiples of S / (1 - share). A draw meets a token that is left
# with a probability of at least (1 - share) / S, so one row in 10^25 would need more draws.
_MOST_DRAWS = 64
_LARGEST_ROUND = 62  # number of bits of an int64 that candidates can use
_EARLIER_ROUND = 1 << 62  # the bit of all candidates that earlier rounds accepted
_FLOAT64_EXPONENT_SHIFT = 52
_FLOAT64_EXPONENT_BIAS = 1023


def _draws_per_round(num_slots: int, scheme: ChosenScheme) -> int:
    """Returns the number of draws of a round, of which few rows need a second one."""
    # A geometric span masks 4.5 tokens on average, and 77 tokens of 512 needed 20.7 draws on
    # average and 43 at most in 47,000 blocks. Single units are drawn again and again, too.
    draws_a_slot = 0.5 if scheme.max_units > 1 else 1.25
    round_size = 10 + int(draws_a_slot * num_slots)
    return round_size if scheme.draws_single_units else min(_LARGEST_ROUND, round_size)


def select_tokens(
    blocks: Blocks,
    words: Words,
    starts_word: tf.Tensor,
    keys: tf.Tensor,
    budgets: tf.Tensor,
    num_slots: int,
    options: MaskingOptions,
    annotated: AnnotatedSpans | None = None,
) -> tf.Tensor:
    """Selects the tokens to mask, exactly as many in each block as its budget.

    Args:
        blocks: the packed rows.
        words: the words of the rows.
        starts_word: what the words were found by, see `find_words`.
        keys: result of `row_keys`.
        budgets: number of tokens to mask in each block, int64 [B, G].
        num_slots: maximum number of masked tokens of a row.
        options: the scheme and its parameters.
        annotated: the records' spans, if the scheme uses them.

    Returns:
        The tokens to mask, bool [B, S].

    Raises:
        tf.errors.InvalidArgumentError: a budget is not met, which would be a bug.
    """
    round_size = _draws_per_round(num_slots, options.chosen_scheme)
    first_draw = tf.constant(0, tf.int64)
    rows = _Rows(blocks, words, keys, annotated)
    # `None` instead of an empty mask makes the first round of geometric spans 1.6 % faster.
    masked, remaining = _mask_round(rows, first_draw, None, budgets, round_size, options)
    # Only the few rows that need more draws take part in further rounds.
    late = tf.where(tf.reduce_any(remaining > 0, axis=1))[:, 0]  # [late rows]
    late_rows = _take_rows(rows, late, starts_word, options)
    share = min(options.chosen_scheme.share, MOST_ANNOTATED)
    most_draws = int(_MOST_DRAWS / (1 - share)) * tf.shape(blocks.token_ids, tf.int64)[1]

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
        message="masking: a block's budget is not met after draws that are enough for any",
    )
    with tf.control_dependencies([is_done]):
        return tf.tensor_scatter_nd_update(masked, late[:, tf.newaxis], late_masked)


class _Rows(NamedTuple):
    """The inputs of a round."""

    blocks: Blocks
    words: Words
    keys: tf.Tensor
    annotated: AnnotatedSpans | None


def _take_rows(
    rows: _Rows, indices: tf.Tensor, starts_word: tf.Tensor, options: MaskingOptions
) -> _Rows:
    """Takes the rows of some indices."""
    blocks = Blocks(*(tf.gather(values, indices) for values in rows.blocks))
    index_all = options.chosen_scheme.draws_single_words
    words = find_words(blocks, tf.gather(starts_word, indices), index_all=index_all)
    keys = tf.gather(rows.keys, indices)
    annotated = rows.annotated
    if annotated is not None:
        annotated = AnnotatedSpans(*(tf.gather(values, indices) for values in annotated))
    return _Rows(blocks, words, keys, annotated)


def _mask_round(
    rows: _Rows,
    first_draw: tf.Tensor,
    masked: tf.Tensor | None,
    remaining: tf.Tensor,
    round_size: int,
    options: MaskingOptions,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `masked`, bool [B, S], and `remaining`, int64 [B, G], after C further draws."""
    draws = first_draw + tf.range(round_size, dtype=tf.int64)
    candidates = draw_candidates(rows.blocks, rows.words, rows.keys, draws, options, rows.annotated)
    if options.chosen_scheme.draws_single_units:
        owner = _owners_of_units(candidates, rows.blocks, rows.words, masked)
    else:
        owner = find_owners(candidates, rows.blocks, masked)
    granted, num_granted = _within_budget(owner, rows.blocks, remaining, round_size)
    if masked is not None:
        granted |= masked
    return granted, remaining - num_granted


def _owners_of_units(
    candidates: Candidates, blocks: Blocks, words: Words, masked: tf.Tensor | None
) -> tf.Tensor:
    """Computes the same as `find_owners` if each candidate is one word or one word piece.

    Two candidates cover the same tokens or no common token, so the first draw of a unit is the
    accepted one. No bits are needed, and a round may have any number of draws.
    """
    num_positions = tf.size(blocks.token_ids)
    draws = tf.range(candidates.starts.shape[-1]) + tf.zeros_like(candidates.starts, tf.int32)
    first_draws = tf.math.unsorted_segment_min(
        tf.reshape(draws, [-1]), tf.reshape(candidates.starts, [-1]), num_positions
    )  # [B · S], the largest int32 where no drawn unit starts
    if words.indices is not None:
        first_draws = tf.gather(tf.gather(first_draws, words.starts[:-1]), words.indices)
    owner = tf.reshape(first_draws, tf.shape(blocks.token_ids))  # [B, S]
    is_owned = owner < tf.int32.max
    if masked is not None:
        is_owned &= ~masked
    return tf.where(is_owned, owner, -1)


def find_owners(candidates: Candidates, blocks: Blocks, masked: tf.Tensor | None) -> tf.Tensor:
    """Finds the candidate of a round that would mask each position if there were no budget.

    1. Each position gets an int64. Its bit c says whether candidate c covers the position.
    2. A candidate is rejected if an accepted one with a smaller index covers its anchor. This
       defines a fixed point with exactly one solution.
    3. The lowest accepted bit of a position is the candidate that masks it.

    Returns:
        Indices of candidates, int32 [B, S]; negative for none.
    """
    round_size = candidates.starts.shape[-1]
    covering = _covering_candidates(candidates, tf.size(blocks.token_ids))  # [B · S]
    before = _bits(round_size) - 1  # entry c has the bits below c
    earlier = tf.gather(covering, candidates.anchors) & before  # [B, G, C]
    if masked is not None:
        anchor_is_masked = tf.gather(tf.reshape(masked, [-1]), candidates.anchors)
        earlier |= tf.cast(anchor_is_masked, tf.int64) * _EARLIER_ROUND
    if candidates.is_annotated is not None:
        earlier = tf.where(candidates.is_annotated, tf.zeros_like(earlier), earlier)
    accepted = _accept(earlier, round_size)  # [B, G]
    covering = tf.reshape(covering, tf.shape(blocks.token_ids))  # [B, S]
    covering &= blocks.spread(accepted)
    # Isolate the lowest bit. The exponent of its float64 is its index, or -1023 without a bit.
    lowest = tf.bitcast(tf.cast(covering & -covering, tf.float64), tf.int64)
    exponent = tf.bitwise.right_shift(lowest, tf.constant(_FLOAT64_EXPONENT_SHIFT, tf.int64))
    owner = tf.cast(exponent, tf.int32) - _FLOAT64_EXPONENT_BIAS
    if masked is None:
        return owner
    return tf.where(masked, -1, owner)


def _bits(round_size: int) -> tf.Tensor:
    return tf.constant([1 << draw for draw in range(round_size)], tf.int64)  # [C]


def _covering_candidates(candidates: Candidates, num_positions: tf.Tensor) -> tf.Tensor:
    """Returns int64 [B · S]; bit c says whether candidate c of the block covers the position."""
    bits = _bits(candidates.starts.shape[-1]) + tf.zeros_like(candidates.starts)  # [B, G, C]
    changes = tf.math.unsorted_segment_sum(  # a third of the time of scatter_nd
        tf.reshape(tf.stack([bits, -bits]), [-1]),
        tf.reshape(tf.stack([candidates.starts, candidates.ends + 1]), [-1]),
        num_positions + 1,
    )
    return tf.cumsum(changes)[:-1]


def _accept(earlier: tf.Tensor, round_size: int) -> tf.Tensor:
    """Computes the set of accepted candidates as bits, int64 [B, G].

    Args:
        earlier: the candidates with a smaller index that cover the anchor of each candidate, as
            bits, and `_EARLIER_ROUND` if one of an earlier round does; int64 [B, G, C].
        round_size: C.
    """
    bits = _bits(round_size)

    def accept_given(accepted: tf.Tensor) -> tf.Tensor:
        holds = (earlier & accepted[:, :, tf.newaxis]) == 0
        return tf.reduce_sum(tf.where(holds, bits, tf.zeros_like(bits)), axis=-1) + _EARLIER_ROUND

    everything = tf.constant((1 << round_size) - 1 + _EARLIER_ROUND, tf.int64)
    start = tf.fill(tf.shape(earlier)[:2], everything)
    # After n passes, the first n candidates do not change any more, so C passes are enough.
    previous, accepted = tf.while_loop(
        lambda previous, accepted: tf.reduce_any(previous != accepted),
        lambda previous, accepted: (accepted, accept_given(accepted)),
        (start, accept_given(start)),
        maximum_iterations=round_size,
    )
    del previous
    return accepted


def _within_budget(
    owner: tf.Tensor, blocks: Blocks, remaining: tf.Tensor, round_size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Grants tokens to candidates in order, and to the last one from left to right.

    Returns:
        The granted positions, bool [B, S], and their number in each block, int64 [B, G].
    """
    num_tokens = _tokens_of_candidates(owner, blocks, round_size)  # [B, G, C]
    running_totals = tf.cumsum(num_tokens, axis=-1)
    fits = running_totals <= remaining[:, :, tf.newaxis]
    num_fitting = tf.reduce_sum(tf.cast(fits, tf.int32), axis=-1)  # [B, G]
    totals_that_fit = tf.where(fits, running_totals, tf.zeros_like(running_totals))
    num_granted_whole = tf.reduce_max(totals_that_fit, axis=-1)  # [B, G]
    # The candidates before this one get all their tokens. This one gets the rest of the budget.
    first_cut = blocks.spread(num_fitting)  # [B, S]
    is_cut = owner == first_cut
    part_end = _nth_position(is_cut, remaining - num_granted_whole, blocks)  # [B, G]
    positions = tf.range(tf.shape(owner, tf.int64)[1])
    is_in_part = is_cut & (positions < blocks.spread(part_end))
    granted = ((owner >= 0) & (owner < first_cut)) | is_in_part
    return granted, tf.minimum(remaining, running_totals[:, :, -1])


def _nth_position(chosen: tf.Tensor, ordinals: tf.Tensor, blocks: Blocks) -> tf.Tensor:
    """Returns the position after the n-th chosen one of each block, its start for n = 0."""
    flat_starts = blocks.flat_starts[:, :, 0]  # [B, G]
    # Few positions are chosen, so a list of them is cheaper than a running count over all.
    flat = tf.where(tf.reshape(chosen, [-1]))[:, 0]  # [all chosen]
    before = tf.searchsorted(flat, tf.reshape(flat_starts, [-1]), out_type=tf.int64)
    last = tf.reshape(before, tf.shape(flat_starts)) + ordinals - 1  # index in `flat`
    flat = tf.concat([flat, tf.zeros([1], tf.int64)], axis=0)  # so that it is not empty
    found = tf.gather(flat, tf.clip_by_value(last, 0, tf.size(flat, tf.int64) - 1))
    row_starts = flat_starts - blocks.starts
    return tf.where(ordinals > 0, found - row_starts + 1, blocks.starts)


def _tokens_of_candidates(owner: tf.Tensor, blocks: Blocks, round_size: int) -> tf.Tensor:
    """Counts the tokens that each candidate would mask; int64 [B, G, C]."""
    num_blocks = blocks.starts.shape[1]
    num_bins = num_blocks * round_size
    first_bins = blocks.spread(round_size * tf.range(num_blocks)[tf.newaxis])  # [1, 1] or [B, S]
    per_bin = tf.math.bincount(
        tf.where(owner >= 0, owner + first_bins, num_bins),
        minlength=num_bins + 1,
        maxlength=num_bins + 1,
        dtype=tf.int64,
        axis=-1,
    )  # [B, G · C + 1]; the last bin counts positions without an owner
    return tf.reshape(per_bin[:, :num_bins], [-1, num_blocks, round_size])

"""Chooses the tokens to mask: accepts candidates in order of their draws until the budget is met.

B rows, S positions, G blocks a row, C draws a round.

The definition is a loop: draw a span; if the token at its anchor is masked already, draw again;
mask the span's tokens that are not masked yet, from left to right, until the span or the budget
ends. An annotated span is accepted always, as in the released code (`mask_entity`): what of it is
not masked yet gets masked.

Here a whole round of draws of all rows is decided at once, with the same result: each position gets
the candidate that would mask it, the first accepted one that covers it; then candidates are granted
tokens in order until the budget is met; one may get a part.
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

# Draws that are enough for any block, in multiples of S / (1 - share): one of so many meets a token
# that is left, so one row in 10^25 would need more.
_MOST_DRAWS = 64
_LARGEST_ROUND = 62  # bits of an int64 that candidates can have
_EARLIER_ROUND = 1 << 62  # the bit of all candidates that earlier rounds accepted
_FLOAT64_EXPONENT_SHIFT, _FLOAT64_EXPONENT_BIAS = 52, 1023


def _draws_per_round(num_slots: int, scheme: ChosenScheme) -> int:
    """How many candidates to decide at once, so that few rows need another round."""
    # A geometric span masks 4.5 tokens on average, and 77 tokens of 512 needed 20.7 draws on
    # average and 43 at most in 47,000 blocks. Single units are drawn again and again, too.
    draws_a_slot = 0.5 if scheme.max_units > 1 else 1.25
    round_size = 10 + int(draws_a_slot * num_slots)
    return round_size if scheme.draws_single_units else min(_LARGEST_ROUND, round_size)


def select_tokens(
    blocks: Blocks,
    words: Words,
    is_word_start: tf.Tensor,
    keys: tf.Tensor,
    budgets: tf.Tensor,
    num_slots: int,
    options: MaskingOptions,
    annotated: AnnotatedSpans | None = None,
) -> tf.Tensor:
    """The tokens to mask, bool [B, S]: exactly as many in every block as its budget.

    `is_word_start`, bool [V], says whether a vocabulary entry begins a word; `keys` are of
    `row_keys`; `budgets` are int64 [B, G], tokens; `num_slots` is the largest number of masked
    tokens a row.

    Raises:
        tf.errors.InvalidArgumentError: a budget cannot be met, which would be an error of ours.
    """
    round_size = _draws_per_round(num_slots, options.chosen_scheme)
    first_draw = tf.constant(0, tf.int64)
    rows = _Rows(blocks, words, keys, annotated)
    # No mask at all in place of an empty one: the first round of geometric spans is 1.6 % faster.
    masked, remaining = _mask_round(rows, first_draw, None, budgets, round_size, options)
    # Few rows need more draws than a round: they go on by themselves.
    late = tf.where(tf.reduce_any(remaining > 0, axis=1))[:, 0]  # [L]
    late_blocks = Blocks(*(tf.gather(values, late) for values in blocks))
    late_rows = _Rows(
        late_blocks,
        find_words(late_blocks, is_word_start, index_all=options.chosen_scheme.draws_single_words),
        tf.gather(keys, late),
        annotated and AnnotatedSpans(*(tf.gather(values, late) for values in annotated)),
    )
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
    """`masked`, bool [B, S], and `remaining`, tokens, int64 [B, G], after C further draws."""
    draws = first_draw + tf.range(round_size, dtype=tf.int64)
    candidates = draw_candidates(rows.blocks, rows.words, rows.keys, draws, options, rows.annotated)
    if options.chosen_scheme.draws_single_units:
        owner = _owners_of_units(candidates, rows.blocks, rows.words, masked)
    else:
        owner = find_owners(candidates, rows.blocks, masked)
    granted, num_granted = _within_budget(owner, rows.blocks, remaining, round_size)
    return granted if masked is None else masked | granted, remaining - num_granted


def _owners_of_units(
    candidates: Candidates, blocks: Blocks, words: Words, masked: tf.Tensor | None
) -> tf.Tensor:
    """What `find_owners` finds, where each candidate is one word or one word piece.

    Two of them cover the same tokens or none, so that the first draw of a unit is the accepted one.
    Its number needs no bit, and a round may have any number of draws.
    """
    num_positions = tf.size(blocks.token_ids)
    draws = tf.range(candidates.starts.shape[-1]) + tf.zeros_like(candidates.starts, tf.int32)
    first_draws = tf.math.unsorted_segment_min(
        tf.reshape(draws, [-1]), tf.reshape(candidates.starts, [-1]), num_positions
    )  # [B · S], the largest int32 where no unit begins or none was drawn
    if words.indices is not None:
        first_draws = tf.gather(tf.gather(first_draws, words.starts[:-1]), words.indices)
    owner = tf.reshape(first_draws, tf.shape(blocks.token_ids))  # [B, S]
    is_owned = owner < tf.int32.max
    if masked is not None:
        is_owned &= ~masked
    return tf.where(is_owned, owner, -1)


def find_owners(candidates: Candidates, blocks: Blocks, masked: tf.Tensor | None) -> tf.Tensor:
    """The number, from 0, of the candidate that would mask each position if there were no budget.

    Of one round, in three steps; int32 [B, S], negative for none:

    1. every position gets an int64 whose bit c says that candidate c covers it;
    2. a candidate is rejected if an accepted one with a smaller number covers its anchor, which is
       a fixed point that has one solution;
    3. the lowest accepted bit of a position is the candidate that masks it.
    """
    round_size = candidates.starts.shape[-1]
    covering = _covering_candidates(candidates, tf.size(blocks.token_ids))  # [B · S]
    before = _bits(round_size) - 1  # for candidate c the bits below c
    earlier = tf.gather(covering, candidates.anchors) & before  # [B, G, C]
    if masked is not None:
        anchor_is_masked = tf.gather(tf.reshape(masked, [-1]), candidates.anchors)
        earlier |= tf.cast(anchor_is_masked, tf.int64) * _EARLIER_ROUND
    if candidates.is_annotated is not None:
        earlier = tf.where(candidates.is_annotated, tf.zeros_like(earlier), earlier)
    accepted = _accept(earlier, round_size)  # [B, G]
    covering = tf.reshape(covering, tf.shape(blocks.token_ids))  # [B, S]
    covering &= blocks.spread(accepted)
    # Isolate the lowest bit; the exponent of its float64 is its number, -1023 without a bit.
    lowest = tf.bitcast(tf.cast(covering & -covering, tf.float64), tf.int64)
    exponent = tf.bitwise.right_shift(lowest, tf.constant(_FLOAT64_EXPONENT_SHIFT, tf.int64))
    owner = tf.cast(exponent, tf.int32) - _FLOAT64_EXPONENT_BIAS
    return owner if masked is None else tf.where(masked, -1, owner)


def _bits(round_size: int) -> tf.Tensor:
    return tf.constant([1 << draw for draw in range(round_size)], tf.int64)  # [C]


def _covering_candidates(candidates: Candidates, num_positions: tf.Tensor) -> tf.Tensor:
    """int64 [B · S]: bit c is set where candidate c of the position's block covers it."""
    bits = _bits(candidates.starts.shape[-1]) + tf.zeros_like(candidates.starts)  # [B, G, C]
    changes = tf.math.unsorted_segment_sum(  # a third of the time of scatter_nd
        tf.reshape(tf.stack([bits, -bits]), [-1]),
        tf.reshape(tf.stack([candidates.starts, candidates.ends + 1]), [-1]),
        num_positions + 1,
    )
    return tf.cumsum(changes)[:-1]


def _accept(earlier: tf.Tensor, round_size: int) -> tf.Tensor:
    """The set of accepted candidates as bits, int64 [B, G].

    `earlier`, int64 [B, G, C], has the candidates with a smaller number that cover the anchor, and
    `_EARLIER_ROUND` where one of an earlier round does.
    """
    bits = _bits(round_size)

    def accept_given(accepted: tf.Tensor) -> tf.Tensor:
        holds = (earlier & accepted[:, :, tf.newaxis]) == 0
        return tf.reduce_sum(tf.where(holds, bits, tf.zeros_like(bits)), axis=-1) + _EARLIER_ROUND

    everything = tf.constant((1 << round_size) - 1 + _EARLIER_ROUND, tf.int64)
    start = tf.fill(tf.shape(earlier)[:2], everything)
    # After n passes the first n candidates are decided for good, so C passes are always enough.
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

    The granted positions, bool [B, S], and how many they are in each block, int64 [B, G].
    """
    num_tokens = _tokens_of_candidates(owner, blocks, round_size)  # [B, G, C]
    running_totals = tf.cumsum(num_tokens, axis=-1)
    fits = running_totals <= remaining[:, :, tf.newaxis]
    num_fitting = tf.reduce_sum(tf.cast(fits, tf.int32), axis=-1)  # [B, G]
    totals_that_fit = tf.where(fits, running_totals, tf.zeros_like(running_totals))
    num_granted_whole = tf.reduce_max(totals_that_fit, axis=-1)  # [B, G]
    # The candidates before this one fit whole; this one gets the rest of the budget.
    first_cut = blocks.spread(num_fitting)  # [B, S]
    is_cut = owner == first_cut
    part_end = _nth_position(is_cut, remaining - num_granted_whole, blocks)  # [B, G]
    positions = tf.range(tf.shape(owner, tf.int64)[1])
    is_in_part = is_cut & (positions < blocks.spread(part_end))
    granted = ((owner >= 0) & (owner < first_cut)) | is_in_part
    return granted, tf.minimum(remaining, running_totals[:, :, -1])


def _nth_position(chosen: tf.Tensor, ordinals: tf.Tensor, blocks: Blocks) -> tf.Tensor:
    """One past the n-th chosen position of each block, its start for n = 0; int64 [B, G]."""
    flat_starts = blocks.flat_starts[:, :, 0]  # [B, G]
    # Few positions are chosen: a list of them is cheaper than a running count over all.
    flat = tf.where(tf.reshape(chosen, [-1]))[:, 0]  # [all chosen]
    before = tf.searchsorted(flat, tf.reshape(flat_starts, [-1]), out_type=tf.int64)
    last = tf.reshape(before, tf.shape(flat_starts)) + ordinals - 1  # index in `flat`
    flat = tf.concat([flat, tf.zeros([1], tf.int64)], axis=0)  # so that there is one
    found = tf.gather(flat, tf.clip_by_value(last, 0, tf.size(flat, tf.int64) - 1))
    row_starts = flat_starts - blocks.starts
    return tf.where(ordinals > 0, found - row_starts + 1, blocks.starts)


def _tokens_of_candidates(owner: tf.Tensor, blocks: Blocks, round_size: int) -> tf.Tensor:
    """How many tokens each candidate would mask; int64 [B, G, C]."""
    num_blocks = blocks.starts.shape[1]
    num_bins = num_blocks * round_size
    first_bins = blocks.spread(round_size * tf.range(num_blocks)[tf.newaxis])  # [1, 1] or [B, S]
    per_bin = tf.math.bincount(
        tf.where(owner >= 0, owner + first_bins, num_bins),
        minlength=num_bins + 1,
        maxlength=num_bins + 1,
        dtype=tf.int64,
        axis=-1,
    )  # [B, G · C + 1], the last of positions without an owner
    return tf.reshape(per_bin[:, :num_bins], [-1, num_blocks, round_size])

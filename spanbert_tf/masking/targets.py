"""Lists the masked tokens and their spans, the features [B, K] of a batch.

Shapes: B rows, S positions, K prediction slots.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.spans import Blocks


class MaskedTokens(NamedTuple):
    """The masked tokens of each row, from left to right, and their spans. All are [B, K].

    Attributes:
        is_used: whether the slot has a masked token, bool. Unused slots come last.
        positions: position of the masked token, int64; 0 in unused slots.
        flat_positions: row · S + position, int64.
        token_ids: the token at the position before replacement, int32.
        span_starts: first position of the token's span, int64; 0 in unused slots.
        span_ends: last position of the token's span, int64; 0 in unused slots.
    """

    is_used: tf.Tensor
    positions: tf.Tensor
    flat_positions: tf.Tensor
    token_ids: tf.Tensor
    span_starts: tf.Tensor
    span_ends: tf.Tensor


def list_masked_tokens(masked: tf.Tensor, token_ids: tf.Tensor, num_slots: int) -> MaskedTokens:
    """Lists the masked tokens of each row. Spans that touch or overlap are merged.

    Args:
        masked: the tokens to mask, bool [B, S].
        token_ids: the rows before replacement, int32 [B, S].
        num_slots: K, at least the number of masked tokens of each row.
    """
    num_rows, width = tf.unstack(tf.shape(masked, out_type=tf.int64))
    # All masked tokens of the batch, row after row, and the index where each row starts.
    flat = tf.where(tf.reshape(masked, [-1]))[:, 0]  # [sum of budgets]
    row_starts = tf.range(num_rows + 1) * width  # [B + 1]
    begins = tf.searchsorted(flat, row_starts, out_type=tf.int64)[:, tf.newaxis]  # [B + 1, 1]
    slots = tf.range(num_slots, dtype=tf.int64)
    indices = begins[:-1] + slots  # [B, K]
    is_used = indices < begins[1:]
    beyond = num_rows * width  # larger than every position
    flat = tf.concat([flat, beyond[tf.newaxis]], axis=0)
    positions = tf.gather(flat, tf.minimum(indices, tf.size(flat, tf.int64) - 1))
    positions = positions - row_starts[:-1, tf.newaxis]
    # Unused slots get increasing positions beyond all others, like one more span.
    positions = tf.where(is_used, positions, beyond + slots)  # [B, K]
    # Position minus slot is constant inside of a span, and increases from one span to the next.
    offsets = positions - slots
    first_slots = tf.searchsorted(offsets, offsets, side="left", out_type=tf.int64)
    last_slots = tf.searchsorted(offsets, offsets, side="right", out_type=tf.int64) - 1

    def where_used(values: tf.Tensor) -> tf.Tensor:
        return tf.where(is_used, values, tf.zeros_like(values))

    used_positions = where_used(positions)
    flat_positions = used_positions + row_starts[:-1, tf.newaxis]
    return MaskedTokens(
        is_used,
        used_positions,
        flat_positions,
        tf.gather(tf.reshape(token_ids, [-1]), flat_positions),
        where_used(offsets + first_slots),
        where_used(offsets + last_slots),
    )


def target_features(
    tokens: MaskedTokens, blocks: Blocks, options: MaskingOptions
) -> dict[str, tf.Tensor]:
    """Makes the features of the MLM and SBO targets, int32 and float32 [B, K]; 0 for no target.

    Each masked token is an MLM target. It is also an SBO target (paper, section 3.2) if both
    neighbours of its span are tokens of the block, and the token is among the first
    `options.max_span_targets` tokens of the span.
    """
    left = tokens.span_starts - 1
    right = tokens.span_ends + 1
    offsets = tokens.positions - tokens.span_starts
    has_span_target = tokens.is_used & (offsets < options.max_span_targets)
    if not options.boundary_at_special_tokens:
        has_span_target &= blocks.hold(left) & blocks.hold(right)

    def where_target(values: tf.Tensor) -> tf.Tensor:
        return tf.where(has_span_target, tf.cast(values, tf.int32), 0)

    return {
        "mask_positions": tf.cast(tokens.positions, tf.int32),
        "mask_ids": tf.where(tokens.is_used, tokens.token_ids, 0),
        "mask_weights": tf.cast(tokens.is_used, tf.float32),
        "span_left_positions": where_target(left),
        "span_right_positions": where_target(right),
        "span_offsets": where_target(offsets),
        "span_weights": tf.cast(has_span_target, tf.float32),
    }

"""Lists the masked tokens and their spans: the [B, K] features of the batch.

B rows, S positions, K slots, V vocabulary entries.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.masking.spans import Blocks


class MaskedSpans(NamedTuple):
    """The masked tokens of each row, from left to right, and the merged span of each."""

    is_used: tf.Tensor  # bool [B, K], whether the slot holds a masked token; the others come last
    positions: tf.Tensor  # int64 [B, K], position of the masked token; 0 in unused slots
    flat_positions: tf.Tensor  # int64 [B, K], the same as row · S + position
    token_ids: tf.Tensor  # int32 [B, K], the token at that position before it was replaced
    span_starts: tf.Tensor  # int64 [B, K], first position of the token's span; 0 in unused slots
    span_ends: tf.Tensor  # int64 [B, K], last position of the token's span; 0 in unused slots


def list_masked_spans(masked: tf.Tensor, token_ids: tf.Tensor, num_slots: int) -> MaskedSpans:
    """Lists the masked tokens, at most `num_slots` a row, of rows before replacement.

    Spans that touch or overlap are one by now.
    """
    num_rows, width = tf.unstack(tf.shape(masked, out_type=tf.int64))
    # All masked tokens of the batch, row after row, and where each row begins in that list.
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
    # Unused slots count on beyond all positions, as if they were one more span.
    positions = tf.where(is_used, positions, beyond + slots)  # [B, K]
    # Position minus slot is constant inside a span and grows from one span to the next.
    offsets = positions - slots
    first_slots = tf.searchsorted(offsets, offsets, side="left", out_type=tf.int64)
    last_slots = tf.searchsorted(offsets, offsets, side="right", out_type=tf.int64) - 1

    def where_used(values: tf.Tensor) -> tf.Tensor:
        return tf.where(is_used, values, tf.zeros_like(values))

    used_positions = where_used(positions)
    flat_positions = used_positions + row_starts[:-1, tf.newaxis]
    return MaskedSpans(
        is_used,
        used_positions,
        flat_positions,
        tf.gather(tf.reshape(token_ids, [-1]), flat_positions),
        where_used(offsets + first_slots),
        where_used(offsets + last_slots),
    )


def target_features(
    spans: MaskedSpans, blocks: Blocks, options: MaskingOptions
) -> dict[str, tf.Tensor]:
    """The MLM and SBO targets of the batch contract, int32 and float32 [B, K]; 0 without a weight.

    Every masked token is an MLM target. It is an SBO target too (paper, section 3.2) if both
    neighbours of its span are tokens of the block and it is among the first
    `options.max_span_targets` tokens of the span.
    """
    left, right = spans.span_starts - 1, spans.span_ends + 1
    offsets = spans.positions - spans.span_starts
    has_span_target = spans.is_used & (offsets < options.max_span_targets)
    if not options.boundary_at_special_tokens:
        has_span_target &= blocks.hold(left) & blocks.hold(right)

    def where_target(values: tf.Tensor) -> tf.Tensor:
        return tf.where(has_span_target, tf.cast(values, tf.int32), 0)

    return {
        "mask_positions": tf.cast(spans.positions, tf.int32),
        "mask_ids": tf.where(spans.is_used, spans.token_ids, 0),
        "mask_weights": tf.cast(spans.is_used, tf.float32),
        "span_left_positions": where_target(left),
        "span_right_positions": where_target(right),
        "span_offsets": where_target(offsets),
        "span_weights": tf.cast(has_span_target, tf.float32),
    }

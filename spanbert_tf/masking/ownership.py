"""Which candidate would mask each position: the first accepted one that covers it.

B rows, S positions, G blocks a row, C draws a round.

A candidate is accepted if the token at its anchor is not masked yet: by an earlier round, or by an
accepted candidate with a smaller number. An annotated span is accepted always, as in the released
code (`mask_entity`): what of it is not masked yet gets masked.

1. every position gets an int64 whose bit c says that candidate c covers it;
2. a candidate is rejected if an accepted one with a smaller number covers its anchor, which is a
   fixed point that has one solution;
3. the lowest accepted bit of a position is the candidate that masks it.
"""

import tensorflow as tf

from spanbert_tf.masking.candidates import Blocks, Candidates

LARGEST_ROUND = 62  # bits of an int64 that candidates can have
_EARLIER_ROUND = 1 << 62  # the bit of all candidates that earlier rounds accepted
_FLOAT64_EXPONENT_SHIFT, _FLOAT64_EXPONENT_BIAS = 52, 1023


def find_owners(candidates: Candidates, blocks: Blocks, masked: tf.Tensor | None) -> tf.Tensor:
    """The number of the candidate that would mask each position if there were no budget.

    Args:
        candidates: one round of draws, at most 62.
        blocks: the packed rows.
        masked: bool [B, S], what earlier rounds masked; `None`: nothing.

    Returns:
        int32 [B, S], from 0 to C - 1; negative for none.
    """
    round_size = candidates.starts.shape[-1]
    covering = _covering_candidates(candidates, tf.size(blocks.token_ids))  # [B · S]
    earlier = tf.gather(covering, candidates.anchors) & (_bits(round_size) - 1)  # [B, G, C]
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
    """The set of accepted candidates as bits; int64 [B, G].

    Args:
        earlier: int64 [B, G, C], the candidates with a smaller number that cover the anchor;
            `_EARLIER_ROUND` is set where one of an earlier round does.
        round_size: C.
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

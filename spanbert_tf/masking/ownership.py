"""Which candidate would mask each position: the first accepted one that covers it.

B rows, S positions, G blocks a row, C draws a round.

A candidate is accepted if the token at its anchor is not masked yet: by an earlier round, or by an
accepted candidate with a smaller number. Geometric spans overlap in any way. The spans of the
other schemes are words (or word pieces), which are equal or apart, and annotated spans, which are
equal or apart among themselves: there, only the first draw of a span can be accepted.
"""

import tensorflow as tf

from spanbert_tf.masking.candidates import Blocks, Candidates

LARGEST_OVERLAPPING_ROUND = 62  # bits of an int64 that candidates can have
_EARLIER_ROUND = 1 << 62  # the bit of all candidates that earlier rounds accepted
_FLOAT64_EXPONENT_SHIFT, _FLOAT64_EXPONENT_BIAS = 52, 1023
_NO_DRAW = tf.int32.max
_LAYER_BITS = 32


def find_owners(
    candidates: Candidates, blocks: Blocks, masked: tf.Tensor | None, scheme: str
) -> tf.Tensor:
    """The number of the candidate that would mask each position if there were no budget.

    Args:
        candidates: one round of draws.
        blocks: the packed rows.
        masked: bool [B, S], what earlier rounds masked; `None`: nothing.
        scheme: the scheme that the candidates come from.

    Returns:
        int32 [B, S], from 0 to C - 1; negative for none.
    """
    if scheme == "geometric_spans":
        owner = _owners_among_overlapping(candidates, blocks, masked)
    elif scheme == "subwords":
        owner = _owners_among_pieces(candidates, blocks, masked)
    else:
        owner = _owners_among_units(candidates, blocks, masked)
    return owner if masked is None else tf.where(masked, -1, owner)


def _is_masked(masked: tf.Tensor, flat_positions: tf.Tensor) -> tf.Tensor:
    return tf.gather(tf.reshape(masked, [-1]), flat_positions)


def _owners_among_overlapping(
    candidates: Candidates, blocks: Blocks, masked: tf.Tensor | None
) -> tf.Tensor:
    """Owners among at most 62 spans that may overlap, int32 [B, S].

    1. every position gets an int64 whose bit c says that candidate c covers it;
    2. a candidate is rejected if an accepted one with a smaller number covers its anchor, which
       is a fixed point that has one solution;
    3. the lowest accepted bit of a position is the candidate that masks it.
    """
    round_size = candidates.starts.shape[-1]
    covering = _covering_candidates(candidates, tf.size(blocks.token_ids))  # [B · S]
    earlier = tf.gather(covering, candidates.anchors) & (_bits(round_size) - 1)  # [B, G, C]
    if masked is not None:
        earlier |= tf.cast(_is_masked(masked, candidates.anchors), tf.int64) * _EARLIER_ROUND
    accepted = _accept(earlier, round_size)  # [B, G]
    covering = tf.reshape(covering, tf.shape(blocks.token_ids))  # [B, S]
    covering &= blocks.spread(accepted)
    # Isolate the lowest bit; the exponent of its float64 is its number, -1023 without a bit.
    lowest = tf.bitcast(tf.cast(covering & -covering, tf.float64), tf.int64)
    exponent = tf.bitwise.right_shift(lowest, tf.constant(_FLOAT64_EXPONENT_SHIFT, tf.int64))
    return tf.cast(exponent, tf.int32) - _FLOAT64_EXPONENT_BIAS


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


def _owners_among_pieces(
    candidates: Candidates, blocks: Blocks, masked: tf.Tensor | None
) -> tf.Tensor:
    """Owners among single word pieces, int32 [B, S]."""
    draws = _countable_draws(candidates, masked)
    owner = _first_draws(draws, candidates.anchors, tf.size(blocks.token_ids, tf.int64))
    return tf.reshape(tf.where(owner == _NO_DRAW, -1, owner), tf.shape(blocks.token_ids))


def _owners_among_units(
    candidates: Candidates, blocks: Blocks, masked: tf.Tensor | None
) -> tf.Tensor:
    """Owners among words and annotated spans, int32 [B, S].

    A number per position, larger for earlier draws, in two layers: words in the low bits of an
    int64, annotated spans in the high bits. Spans of a layer are apart, so what their first tokens
    add to a running sum their ends take away again.
    """
    draws, starts = _countable_draws(candidates, masked), candidates.starts
    round_size, num_positions = starts.shape[-1], tf.size(blocks.token_ids, tf.int64)
    if candidates.is_annotated is None:
        first = _first_draws(draws, starts, num_positions)
        is_accepted = draws == tf.gather(first, starts)
    else:
        layer = tf.cast(candidates.is_annotated, tf.int64)
        first = _first_draws(draws, 2 * starts + layer, 2 * num_positions)
        first = tf.gather(tf.reshape(first, [-1, 2]), starts)  # [B, G, C, 2]
        of_words, of_spans = first[..., 0], first[..., 1]
        # A word that was masked before covers the anchor of a span. Where a span covers that of a
        # word, the earlier of both wins below.
        is_accepted = tf.where(
            candidates.is_annotated, (draws == of_spans) & (draws < of_words), draws == of_words
        )
    is_accepted &= draws != _NO_DRAW
    values = tf.cast(tf.where(is_accepted, round_size - draws, 0), tf.int64)
    if candidates.is_annotated is not None:
        values = tf.bitwise.left_shift(values, _LAYER_BITS * layer)
    changes = tf.math.unsorted_segment_sum(
        tf.reshape(tf.stack([values, -values]), [-1]),
        tf.reshape(tf.stack([starts, candidates.ends + 1]), [-1]),
        num_positions + 1,
    )
    layers = tf.reshape(tf.cumsum(changes)[:-1], tf.shape(blocks.token_ids))  # [B, S]
    of_words = tf.cast(layers & ((1 << _LAYER_BITS) - 1), tf.int32)
    of_spans = tf.cast(tf.bitwise.right_shift(layers, tf.constant(_LAYER_BITS, tf.int64)), tf.int32)
    earliest = tf.maximum(of_words, of_spans)
    return tf.where(earliest == 0, -1, round_size - earliest)


def _countable_draws(candidates: Candidates, masked: tf.Tensor | None) -> tf.Tensor:
    """The numbers of the draws, int32 [B, G, C]; `_NO_DRAW` where the anchor is masked."""
    draws = tf.range(candidates.starts.shape[-1]) + tf.zeros_like(candidates.starts, tf.int32)
    if masked is None:
        return draws
    return tf.where(_is_masked(masked, candidates.anchors), _NO_DRAW, draws)


def _first_draws(draws: tf.Tensor, units: tf.Tensor, num_units: tf.Tensor) -> tf.Tensor:
    """The first draw of each unit; int32 [num_units], `_NO_DRAW` for a unit without one."""
    return tf.math.unsorted_segment_min(tf.reshape(draws, [-1]), tf.reshape(units, [-1]), num_units)

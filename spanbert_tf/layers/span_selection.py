"""Chooses the best spans of a document such that none crosses another.

B documents, C candidates, K spans to choose, Q candidates of a block.
"""

import keras
from keras import ops

_BLOCK = 512


def select_spans(
    scores: keras.KerasTensor,
    limits: keras.KerasTensor,
    *,
    max_span_width: int,
    max_spans: int | keras.KerasTensor,
    no_score: float,
) -> tuple[keras.KerasTensor, keras.KerasTensor]:
    """The best candidates in order, each unless it crosses one before (Lee et al., 2018).

    Spans cross that overlap and neither of which holds the other. The outcome is that of one
    candidate after the other, the best first, of equal ones the first by (start, end); computed by
    blocks: what crosses a span chosen in an earlier block is out; inside a block, what crosses an
    accepted better one is rejected, and what no undecided better one crosses is accepted, until all
    is decided, mostly in four rounds.

    Args:
        scores: float32 [B, C]; candidate c begins at position c // max_span_width, and ends
            c % max_span_width later.
        limits: int32 [B], spans to choose at most; at most `max_spans`.
        max_span_width: widths of spans.
        max_spans: K.
        no_score: score of what is no candidate, or less.

    Returns:
        Candidates, int32 [B, K], ascending, that is by (start, end); and whether each is one, bool
        [B, K]: where fewer are left, the last ones are not, and their numbers are 0.
    """
    batch, num_candidates = ops.shape(scores)[0], ops.shape(scores)[1]
    num_blocks = -(-num_candidates // _BLOCK)
    order = ops.cast(ops.argsort(-scores, axis=-1), "int32")  # stable; [B, C]
    sorted_scores = ops.take_along_axis(scores, order, axis=1)
    room = [[0, 0], [0, num_blocks * _BLOCK - num_candidates]]
    order = ops.pad(order, room)
    sorted_scores = ops.pad(sorted_scores, room, constant_values=no_score)
    limits = limits[:, None]  # [B, 1]
    slots = ops.arange(max_spans, dtype="int32")[None]  # [1, K]

    def borders(candidates: keras.KerasTensor) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        starts = candidates // max_span_width
        return starts, starts + candidates % max_span_width

    def is_unfinished(
        number: keras.KerasTensor, chosen: keras.KerasTensor, counts: keras.KerasTensor
    ) -> keras.KerasTensor:
        return (number < num_blocks) & ops.any(counts < limits)

    def choose_of_block(
        number: keras.KerasTensor, chosen: keras.KerasTensor, counts: keras.KerasTensor
    ) -> tuple:
        candidates, block_scores = (
            ops.slice(values, (0, number * _BLOCK), (batch, _BLOCK))
            for values in (order, sorted_scores)
        )  # [B, Q]
        spans = borders(candidates)
        barred = _crossing(spans, borders(chosen)) & (slots < counts)[:, None]  # [B, Q, K]
        undecided = (block_scores > no_score) & ~ops.any(barred, axis=-1)
        earlier = ops.arange(_BLOCK)[None, :] < ops.arange(_BLOCK)[:, None]
        accepted = _accept(_crossing(spans, spans) & earlier[None], undecided)  # [B, Q]
        ranks = counts + ops.cumsum(ops.cast(accepted, "int32"), axis=1) - 1
        accepted = accepted & (ranks < limits)
        fits = (ranks[:, :, None] == slots[:, None]) & accepted[:, :, None]  # [B, Q, K]
        added = ops.sum(ops.where(fits, candidates[:, :, None], 0), axis=1)  # one or none of each
        num_accepted = ops.sum(ops.cast(accepted, "int32"), axis=1, keepdims=True)
        return number + 1, chosen + ops.cast(added, "int32"), counts + num_accepted

    chosen = ops.zeros((batch, max_spans), "int32")
    counts = ops.zeros((batch, 1), "int32")
    _, chosen, counts = ops.while_loop(
        is_unfinished, choose_of_block, (ops.convert_to_tensor(0, "int32"), chosen, counts)
    )
    is_chosen = slots < counts  # [B, K]
    ascending = ops.sort(ops.where(is_chosen, chosen, num_candidates), axis=-1)
    return ops.where(is_chosen, ascending, 0), is_chosen


def _crossing(
    spans: tuple[keras.KerasTensor, keras.KerasTensor],
    others: tuple[keras.KerasTensor, keras.KerasTensor],
) -> keras.KerasTensor:
    """Whether spans [B, M] cross others [B, N]; bool [B, M, N]."""
    (start, end), (other_start, other_end) = (
        [ops.expand_dims(border, axis) for border in borders]
        for borders, axis in ((spans, 2), (others, 1))
    )
    begins_inside = (start < other_start) & (other_start <= end) & (end < other_end)
    ends_inside = (other_start < start) & (start <= other_end) & (other_end < end)
    return begins_inside | ends_inside


def _accept(crosses: keras.KerasTensor, undecided: keras.KerasTensor) -> keras.KerasTensor:
    """The candidates of a block that no accepted better one crosses, bool [B, Q].

    Args:
        crosses: bool [B, Q, Q], whether each crosses a better one.
        undecided: bool [B, Q], those that may be accepted.
    """

    def decide(accepted: keras.KerasTensor, undecided: keras.KerasTensor) -> tuple:
        rejected = ops.any(crosses & accepted[:, None], axis=-1)
        undecided = undecided & ~rejected
        free = undecided & ~ops.any(crosses & undecided[:, None], axis=-1)
        return accepted | free, undecided & ~free

    accepted, _ = ops.while_loop(
        lambda accepted, undecided: ops.any(undecided),
        decide,
        (ops.zeros_like(undecided), undecided),
    )
    return accepted

"""The best spans of a row: exact, over all pairs of positions at once.

B rows, S positions, L tokens of an answer at most, K spans.
"""

from typing import NamedTuple

import keras
from keras import ops

NO_SPAN = -1e30  # score that marks an invalid span


class Spans(NamedTuple):
    """The best spans of each row, best first.

    Attributes:
        scores: float32 [B, K], start logit plus end logit; `NO_SPAN` or less where a row has fewer.
        starts: int32 [B, K], positions in the row.
        ends: int32 [B, K], inclusive; may exceed the row where the score is `NO_SPAN` or less.
        null_scores: float32 [B], of no answer: both logits of [CLS].
    """

    scores: keras.KerasTensor
    starts: keras.KerasTensor
    ends: keras.KerasTensor
    null_scores: keras.KerasTensor


def best_spans(
    start_logits: keras.KerasTensor,
    end_logits: keras.KerasTensor,
    is_passage: keras.KerasTensor,
    can_start: keras.KerasTensor,
    *,
    max_answer_tokens: int,
    num_spans: int,
) -> Spans:
    """All spans of passage tokens up to a length, the best of them by the sum of two logits.

    Args:
        start_logits: float32 [B, S].
        end_logits: float32 [B, S].
        is_passage: bool [B, S], positions that an answer may cover.
        can_start: bool [B, S], those of them where one may start.
        max_answer_tokens: L.
        num_spans: K.
    """
    length = ops.shape(start_logits)[1]
    starts = ops.where(can_start & is_passage, start_logits, NO_SPAN)
    ends = ops.where(is_passage, end_logits, NO_SPAN)
    padded = ops.pad(ends, ((0, 0), (0, max_answer_tokens - 1)), constant_values=NO_SPAN)
    positions = ops.arange(length)[:, None] + ops.arange(max_answer_tokens)[None]  # [S, L]
    scores = starts[:, :, None] + ops.take(padded, positions, axis=1)  # [B, S, L]
    flat = ops.reshape(scores, (-1, length * max_answer_tokens))
    # However short the rows, there are K to choose from.
    flat = ops.pad(flat, ((0, 0), (0, num_spans)), constant_values=2 * NO_SPAN)
    best, indices = ops.top_k(flat, num_spans)  # [B, K]
    best_starts = ops.minimum(indices // max_answer_tokens, length - 1)
    best_ends = best_starts + indices % max_answer_tokens
    null_scores = start_logits[:, 0] + end_logits[:, 0]
    return Spans(best, best_starts, best_ends, null_scores)

"""From the best spans of windows to the answers of questions: one rule for records and exports.

N questions, W windows of all of them, K spans of a window, C candidates of a question.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.serving.text_function import map_row_chunks
from spanbert_tf.tasks.question_answering.spans import NO_SPAN

SPANS_OF_A_WINDOW = 20  # as in the original code for SQuAD
_SPANS_OF_A_CANDIDATE = 8  # spans considered for each candidate, since texts recur
_BYTES_AT_ONCE = 1 << 24  # of contexts that are copied


class WindowSpans(NamedTuple):
    """The best spans of each window, in its passage.

    Attributes:
        question_index: int32 [W].
        scores: float32 [W, K]; `NO_SPAN` or less marks an invalid span.
        starts: int32 [W, K], bytes or characters of the passage.
        ends: int32 [W, K], exclusive.
        null_scores: float32 [W], of no answer.
    """

    question_index: tf.Tensor
    scores: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    null_scores: tf.Tensor


class AnswerCandidates(NamedTuple):
    """The possible answers of each question, best first, each text once.

    Attributes:
        scores: float32 [N, C], start logit plus end logit; `NO_SPAN` where there are fewer.
        probabilities: float32 [N, C], among these; 0 where there are fewer.
        texts: string [N, C].
        starts: int32 [N, C], in the unit of the spans.
        ends: int32 [N, C], exclusive.
        null_scores: float32 [N], the lowest of all windows.
        null_odds: float32 [N], how much better no answer is than the best one.
    """

    scores: tf.Tensor
    probabilities: tf.Tensor
    texts: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    null_scores: tf.Tensor
    null_odds: tf.Tensor


def best_candidates(
    contexts: tf.Tensor, spans: WindowSpans, *, num_candidates: int, unit: str
) -> AnswerCandidates:
    """The best spans of each question over all of its windows; each text counts once.

    Of spans with the same score the first one counts as better, then the shorter one.

    Args:
        contexts: string [N], the passages in UTF-8.
        spans: spans of the windows.
        num_candidates: C.
        unit: `"BYTE"` or `"UTF8_CHAR"`, of starts and ends.
    """
    num_questions = tf.shape(contexts)[0]
    spans_of_window = tf.shape(spans.scores)[1]
    scores, starts, ends = (
        tf.reshape(values, [-1]) for values in (spans.scores, spans.starts, spans.ends)
    )  # [W K] each
    owners = tf.repeat(spans.question_index, spans_of_window)
    ranked = _ranked(owners, scores, starts, ends)
    # Numbers of spans, ragged [N, spans of the question].
    chosen = tf.RaggedTensor.from_value_rowids(ranked, tf.gather(owners, ranked), num_questions)
    chosen = chosen[:, : _SPANS_OF_A_CANDIDATE * num_candidates]
    numbers, rows = chosen.values, chosen.value_rowids()
    first, end = tf.gather(starts, numbers), tf.gather(ends, numbers)
    texts = _cut(contexts, rows, first, end, unit)
    kept = tf.ragged.boolean_mask(
        chosen.with_values(tf.range(tf.size(numbers))), chosen.with_values(_is_new(rows, texts))
    )[:, :num_candidates]

    def dense(values: tf.Tensor, padding: float | int | str) -> tf.Tensor:
        found = kept.with_values(tf.gather(values, kept.values))
        return found.to_tensor(padding, shape=[None, num_candidates])  # [N, C]

    best_scores = dense(tf.gather(scores, numbers), NO_SPAN)
    probabilities = tf.where(best_scores > NO_SPAN, tf.nn.softmax(best_scores), 0.0)
    null_scores = tf.math.unsorted_segment_min(
        spans.null_scores, spans.question_index, num_questions
    )
    return AnswerCandidates(
        best_scores,
        probabilities,
        dense(texts, ""),
        dense(first, 0),
        dense(end, 0),
        null_scores,
        null_scores - best_scores[:, 0],
    )


def _cut(
    contexts: tf.Tensor, rows: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor, unit: str
) -> tf.Tensor:
    """The texts of spans, string [spans], each of the context that `rows` says.

    Each needs a copy of its whole context for a moment, so those of long contexts take turns.
    """
    longest = tf.reduce_max(tf.concat([tf.strings.length(contexts), [1]], axis=0))

    def cut(spans: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        row, start, end = spans
        return tf.strings.substr(tf.gather(contexts, row), start, end - start, unit=unit)

    at_once = tf.maximum(_BYTES_AT_ONCE // longest, 1)
    return map_row_chunks(cut, (rows, starts, ends), tf.string, at_once)


def _ranked(owners: tf.Tensor, scores: tf.Tensor, starts: tf.Tensor, ends: tf.Tensor) -> tf.Tensor:
    """Numbers of the valid spans, sorted by question, score, start and end."""
    order = tf.where(scores > NO_SPAN / 2)[:, 0]
    for key in (ends, starts, -scores, owners):  # the last one counts most
        order = tf.gather(order, tf.argsort(tf.gather(key, order), stable=True))
    return order


def _is_new(rows: tf.Tensor, texts: tf.Tensor) -> tf.Tensor:
    """Whether no earlier text of the same question equals this one, bool."""
    _, numbers = tf.unique(tf.strings.join([tf.strings.as_string(rows), texts], separator=" "))
    places = tf.range(tf.size(numbers))
    first = tf.math.unsorted_segment_min(places, numbers, tf.size(numbers))
    return tf.equal(places, tf.gather(first, numbers))

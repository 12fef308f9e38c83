"""Windows over passages, in a graph: the rows that `prepare squad` writes, for any texts.

N questions, W windows of all of them, S positions of the longest row.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.text.positions import SegmentPositions


class Windows(NamedTuple):
    """Packed rows and where they are from.

    Attributes:
        token_ids: int32 [W, S].
        segment_ids: int32 [W, S].
        padding_mask: int32 [W, S].
        question_index: int32 [W].
        passage_tokens: int32 [W, S], which token of its passage stands there; -1 for none.
        has_most_context: bool [W, S], whether no other window has more text around that token.
        segment_positions: `paragraph_indices`, `sentence_indices`, `token_indices`, int32 [W, S];
            empty unless asked for.
    """

    token_ids: tf.Tensor
    segment_ids: tf.Tensor
    padding_mask: tf.Tensor
    question_index: tf.Tensor
    passage_tokens: tf.Tensor
    has_most_context: tf.Tensor
    segment_positions: dict[str, tf.Tensor]

    def features(self) -> dict[str, tf.Tensor]:
        """What a model reads."""
        return {
            "token_ids": self.token_ids,
            "segment_ids": self.segment_ids,
            "padding_mask": self.padding_mask,
            **self.segment_positions,
        }


class WindowPacker:
    """Cuts passages into windows and packs each with its question.

    Args:
        start_id: id of [CLS].
        end_id: id of [SEP].
        pad_id: id of [PAD].
        sequence_length: positions of a row at most.
        stride: tokens from one window to the next.
        max_question_tokens: tokens of a question at most; fewer where the passage would have no
            room.
        question_first: `[CLS] question [SEP] passage [SEP]`.
    """

    def __init__(
        self,
        start_id: int,
        end_id: int,
        pad_id: int,
        *,
        sequence_length: int,
        stride: int,
        max_question_tokens: int = 64,
        question_first: bool = False,
    ) -> None:
        self._start_id, self._end_id, self._pad_id = start_id, end_id, pad_id
        self._sequence_length = sequence_length
        self._stride = stride
        self._max_question_tokens = min(max_question_tokens, sequence_length - 4)
        self._question_first = question_first

    def __call__(
        self,
        questions: tf.RaggedTensor,
        passages: tf.RaggedTensor,
        positions: tuple[SegmentPositions, SegmentPositions] | None = None,
    ) -> Windows:
        """Packs all windows.

        Args:
            questions: int32 [N, tokens].
            passages: int32 [N, tokens]; an empty one has one window.
            positions: SegaBERT's positions of the questions and of the passages, to be given only
                where rows have the question first.
        """
        questions = questions[:, : self._max_question_tokens]
        passage_sizes = tf.cast(passages.row_lengths(), tf.int32)  # [N]
        index, firsts, sizes = self._places(
            tf.cast(questions.row_lengths(), tf.int32), passage_sizes
        )
        shown = tf.ragged.range(firsts, firsts + sizes)  # ragged [W, tokens in the window]

        # Of a passage only what a window shows is taken: the whole of it, once a window, is memory
        # in proportion to the square of its length.
        places = shown + tf.gather(_exclusive_sum(passage_sizes), index)[:, tf.newaxis]

        def of_windows(question: tf.RaggedTensor, passage: tf.RaggedTensor) -> list:
            asked = tf.gather(question[:, : self._max_question_tokens], index)
            return [asked, shown.with_values(tf.gather(passage.flat_values, places.flat_values))]

        ids = of_windows(questions, passages)  # ragged [W, tokens] each
        no_passage = ids[0].with_flat_values(tf.fill(tf.shape(ids[0].flat_values), -1))
        tokens = [no_passage, shown]
        if not self._question_first:
            ids, tokens = ids[::-1], tokens[::-1]
        token_ids, padding_mask = _joined(ids, self._start_id, self._end_id, self._pad_id)
        passage_tokens, _ = _joined(tokens, -1, -1, -1)
        width = tf.shape(token_ids)[1]
        second = 2 + tf.cast(ids[0].row_lengths(), tf.int32)[:, tf.newaxis]  # [W, 1]
        segment_ids = tf.cast(tf.range(width)[tf.newaxis] >= second, tf.int32) * padding_mask
        segment_positions = {}
        if positions is not None:
            of_questions, of_passages = positions
            for name in SegmentPositions._fields:
                parts = of_windows(getattr(of_questions, name), getattr(of_passages, name))
                is_token = name == "token_indices"
                segment_positions[name] = _joined_positions(parts, int(is_token), width)
        return Windows(
            token_ids,
            segment_ids,
            padding_mask,
            index,
            passage_tokens,
            _has_most_context(passage_tokens, index, firsts, sizes, passage_sizes),
            segment_positions,
        )

    def _places(
        self, question_sizes: tf.Tensor, passage_sizes: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """For each window its question, its first token in the passage, and its size; [W] each."""
        lengths = self._sequence_length - 3 - question_sizes  # [N] [CLS], [SEP], [SEP]
        strides = tf.minimum(self._stride, lengths)  # no token is passed over
        too_long = tf.maximum(passage_sizes - lengths, 0)
        num_windows = 1 + (too_long + strides - 1) // strides  # [N]
        index = tf.repeat(tf.range(tf.size(num_windows)), num_windows)  # [W]
        number = tf.range(tf.size(index)) - tf.gather(_exclusive_sum(num_windows), index)
        firsts = number * tf.gather(strides, index)
        sizes = tf.minimum(tf.gather(passage_sizes, index) - firsts, tf.gather(lengths, index))
        return index, firsts, sizes


def _exclusive_sum(sizes: tf.Tensor) -> tf.Tensor:
    """Where each of some parts begins, one after the other."""
    return tf.cumsum(sizes, exclusive=True)


def _joined(
    parts: list[tf.RaggedTensor], start: int, end: int, padding: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """`[start] first [end] second [end]`, padded; and where there is no padding."""

    def column(value: int) -> tf.Tensor:
        return tf.fill([parts[0].nrows(), 1], value)

    rows = tf.concat([column(start), parts[0], column(end), parts[1], column(end)], axis=1)
    dense = rows.to_tensor(padding)  # [W, S]
    # No row at all still has the width of the shortest one, which the model reads.
    missing = tf.maximum(3 - tf.shape(dense)[1], 0)
    dense = tf.pad(dense, [[0, 0], [0, missing]], constant_values=padding)
    mask = tf.sequence_mask(rows.row_lengths(), tf.shape(dense)[1], tf.int32)
    return dense, mask


def _joined_positions(parts: list[tf.RaggedTensor], step: int, width: tf.Tensor) -> tf.Tensor:
    """Positions of rows, int32 [W, S]: 0 for [CLS]; a [SEP] is a step after the token before."""
    rows = [tf.zeros([parts[0].nrows(), 1], tf.int32)]
    for part in parts:
        last = part[:, -1:].to_tensor(-step, shape=[None, 1])
        rows += [part, last + step]
    dense = tf.concat(rows, axis=1).to_tensor(0)
    return tf.pad(dense, [[0, 0], [0, width - tf.shape(dense)[1]]])


def _has_most_context(
    passage_tokens: tf.Tensor,
    index: tf.Tensor,
    firsts: tf.Tensor,
    sizes: tf.Tensor,
    passage_sizes: tf.Tensor,
) -> tf.Tensor:
    """The rule of `data_prep.examples.passage_windows`; bool [W, S]."""
    before = passage_tokens - firsts[:, tf.newaxis]  # [W, S]
    after = (firsts + sizes - 1)[:, tf.newaxis] - passage_tokens
    # In hundredths, so that ties are exact.
    score = 100 * tf.minimum(before, after) + sizes[:, tf.newaxis]
    is_token = passage_tokens >= 0
    # A number for each token of each passage; the last one stands for all other positions.
    offsets = _exclusive_sum(passage_sizes)
    total = tf.reduce_sum(passage_sizes)
    owner = tf.where(is_token, tf.gather(offsets, index)[:, tf.newaxis] + passage_tokens, total)
    best = tf.math.unsorted_segment_max(score, owner, total + 1)
    is_best = is_token & (score == tf.gather(best, owner))
    number = tf.broadcast_to(tf.range(tf.size(index))[:, tf.newaxis], tf.shape(owner))
    last = tf.size(index)
    first = tf.math.unsorted_segment_min(tf.where(is_best, number, last), owner, total + 1)
    return is_best & (number == tf.gather(first, owner))

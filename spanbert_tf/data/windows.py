"""Cuts windows over passages, the rows of questions, for preparation, preprocessor and exports.

The places of all windows are known before one is packed. So the windows of a long passage, which
together are many times as long as the passage, can be packed a few at a time.

N questions, W windows of all of them, C some of these, S positions of the longest row.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.text.positions import SegmentPositions

_NOWHERE = -1 << 30  # less than the score of any window


class Windows(NamedTuple):
    """Packed rows, and the questions and passages that they are from.

    Attributes:
        token_ids: int32 [C, S].
        segment_ids: int32 [C, S].
        padding_mask: int32 [C, S].
        question_index: int32 [C].
        passage_tokens: int32 [C, S], number of the token in its passage; -1 for others.
        has_most_context: bool [C, S], whether no other window has more text around that token.
        segment_positions: `paragraph_indices`, `sentence_indices`, `token_indices`, int32 [C, S];
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
        """Returns what a model reads."""
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
        sequence_length: largest number of positions of a row.
        stride: number of tokens from one window to the next.
        max_question_tokens: largest number of tokens of a question; fewer if the passage would have
            no room.
        question_first: whether rows are `[CLS] question [SEP] passage [SEP]`.
    """

    def __init__(
        self,
        start_id: int,
        end_id: int,
        pad_id: int,
        *,
        sequence_length: int,
        stride: int,
        max_question_tokens: int,
        question_first: bool = False,
    ) -> None:
        self._start_id = start_id
        self._end_id = end_id
        self._pad_id = pad_id
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
        """Packs all windows; the arguments are those of `plan`."""
        planned = self.plan(questions, passages, positions)
        return planned.pack(tf.range(planned.num_windows))

    def plan(
        self,
        questions: tf.RaggedTensor,
        passages: tf.RaggedTensor,
        positions: tuple[SegmentPositions, SegmentPositions] | None = None,
    ) -> "PlannedWindows":
        """Finds the places of all windows, and packs none.

        Args:
            questions: int32 [N, tokens].
            passages: int32 [N, tokens]; an empty one has one window.
            positions: SegaBERT's positions of the questions and of the passages; only for rows that
                begin with the question.
        """
        question_sizes = tf.cast(questions.row_lengths(), tf.int32)  # [N]
        question_sizes = tf.minimum(question_sizes, self._max_question_tokens)
        parts = {"token_ids": (questions, passages)}
        if positions is not None:
            parts |= dict(zip(SegmentPositions._fields, zip(*positions, strict=True), strict=True))
        return PlannedWindows(
            parts,
            question_sizes,
            self._sequence_length - 3 - question_sizes,  # [CLS], [SEP], [SEP]
            self._stride,
            (self._start_id, self._end_id, self._pad_id),
            self._question_first,
        )


class PlannedWindows:
    """The places of windows, any of which may be packed.

    `parts` maps names to the values of questions and of passages, ragged int32 [N, tokens] each.
    `lengths`, int32 [N]: number of tokens of a passage that have room beside the question.
    """

    def __init__(
        self,
        parts: dict[str, tuple[tf.RaggedTensor, tf.RaggedTensor]],
        question_sizes: tf.Tensor,
        lengths: tf.Tensor,
        stride: int,
        special_ids: tuple[int, int, int],
        question_first: bool,
    ) -> None:
        self._question_sizes = question_sizes
        self._lengths = lengths
        self._special_ids = special_ids
        self._question_first = question_first
        questions, passages = parts["token_ids"]
        self._starts = [tf.cast(ids.row_starts(), tf.int32) for ids in (questions, passages)]
        self._values = {}  # never empty
        for name, both in parts.items():
            self._values[name] = [tf.concat([part.flat_values, [0]], axis=0) for part in both]
        self._passage_sizes = tf.cast(passages.row_lengths(), tf.int32)  # [N]
        self._strides = tf.minimum(stride, lengths)  # less where it would pass over tokens
        too_long = tf.maximum(self._passage_sizes - lengths, 0)
        numbers = 1 + (too_long + self._strides - 1) // self._strides  # [N] windows of each
        ends = tf.cumsum(numbers)  # [N]
        self.num_windows = tf.reduce_sum(numbers)
        self._owners = tf.repeat(tf.range(tf.size(numbers)), numbers)  # [W]
        self._first_windows = ends - numbers
        sizes = question_sizes + tf.minimum(self._passage_sizes, lengths)
        # No row at all still has the width of the shortest one, which the model reads.
        self._width = 3 + tf.reduce_max(tf.concat([[0], sizes], axis=0))

    @property
    def first_windows(self) -> tf.Tensor:
        """The number of each passage's first window, int32 [N]."""
        return self._first_windows

    def pack(self, numbers: tf.Tensor) -> Windows:
        """Packs the windows of some numbers, int32 [C], each less than `num_windows`."""
        owners = tf.gather(self._owners, numbers)  # [C]

        def of_owner(values: tf.Tensor) -> tf.Tensor:
            return tf.gather(values, owners)[:, tf.newaxis]  # [C, 1]

        question_sizes = of_owner(self._question_sizes)
        passage_sizes = of_owner(self._passage_sizes)
        lengths = of_owner(self._lengths)
        strides = of_owner(self._strides)
        firsts = (numbers[:, tf.newaxis] - of_owner(self._first_windows)) * strides
        sizes = tf.minimum(passage_sizes - firsts, lengths)  # [C, 1]
        columns = tf.range(self._width)[tf.newaxis] - 1  # [1, S] from the first token on
        first_size = question_sizes if self._question_first else sizes
        places = (columns, columns - first_size - 1)  # [1 or C, S] in the first part, the second
        asked, shown = places if self._question_first else places[::-1]
        in_question = (asked >= 0) & (asked < question_sizes)
        in_passage = (shown >= 0) & (shown < sizes)
        is_row = columns < question_sizes + sizes + 2
        question_starts, passage_starts = map(of_owner, self._starts)
        both = (
            (in_question, asked + question_starts),
            (in_passage, shown + firsts + passage_starts),
        )
        start_id, end_id, pad_id = self._special_ids
        special = tf.where(is_row, tf.where(columns < 0, start_id, end_id), pad_id)
        passage_tokens = tf.where(in_passage, shown + firsts, -1)
        parts = [(question_sizes, asked, both[0]), (sizes, shown, both[1])]
        return Windows(
            token_ids=_filled(special, self._values["token_ids"], both),
            segment_ids=tf.cast(is_row & (places[1] >= 0), tf.int32),
            padding_mask=tf.cast(is_row, tf.int32),
            question_index=owners,
            passage_tokens=passage_tokens,
            has_most_context=_has_most_context(
                passage_tokens, firsts, lengths, strides, passage_sizes
            ),
            segment_positions={
                name: _with_separators(values, parts, int(name == "token_indices"))
                for name, values in self._values.items()
                if name != "token_ids"
            },
        )


def _filled(rows: tf.Tensor, values: list, both: tuple) -> tf.Tensor:
    """Fills rows [C, S] with the values of both parts: where they go, and what goes there."""
    for flat, (where, taken) in zip(values, both, strict=True):
        rows = tf.where(where, tf.gather(flat, tf.where(where, taken, 0)), rows)
    return rows


def _with_separators(values: list, parts: list, step: int) -> tf.Tensor:
    """Fills positions of rows, int32 [C, S]: 0 for [CLS]; [SEP] is `step` after the token before.

    After an empty part, [SEP] has 0. Each part has its size [C, 1], the numbers of its tokens [C,
    S], and the arguments of `_filled`.
    """
    rows = tf.zeros_like(values[0][:1])
    for flat, (size, place, (where, taken)) in zip(values, parts, strict=True):
        is_separator = (place == size) & (size > 0)
        taken = tf.where(where, taken, tf.where(is_separator, taken - 1, 0))
        found = tf.gather(flat, taken) + step * tf.cast(is_separator, tf.int32)
        rows = tf.where(where | is_separator, found, rows)
    return rows


def _has_most_context(
    passage_tokens: tf.Tensor,
    firsts: tf.Tensor,
    lengths: tf.Tensor,
    strides: tf.Tensor,
    passage_sizes: tf.Tensor,
) -> tf.Tensor:
    """Whether the window of a row has the most text around a token of it, bool [C, S].

    A token is in several windows. Its prediction counts only in the window in which the smaller of
    the text before and the text after the token is largest (Devlin et al., 2019, code for SQuAD).
    Of equal windows it counts in the first, which is the longest: only the last can be shorter.

    From window to window, the score of a token rises, then falls: it is the smaller of two straight
    lines, and a shorter last window lowers its score further. So a window is the first of the best
    ones if the window before scores less and the next one does not score more.
    """

    def score(first: tf.Tensor) -> tf.Tensor:
        size = tf.minimum(passage_sizes - first, lengths)
        before = passage_tokens - first  # [C, S]
        after = size - 1 - before
        found = tf.minimum(before, after)
        return tf.where((first >= 0) & (found >= 0), found, _NOWHERE)

    here = score(firsts)
    is_best = (here > score(firsts - strides)) & (here >= score(firsts + strides))
    return (passage_tokens >= 0) & is_best

"""Rows of texts and of pairs of texts, in a graph: preparation, `fit` on strings and exports.

B rows, S positions.
"""

from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.data.rows_info import SEGMENT_POSITIONS
from spanbert_tf.text.vocabulary import SpecialTokenIds

TRUNCATIONS = ("round_robin", "waterfall")


class TextRows(NamedTuple):
    """`[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`, and padding.

    Attributes:
        token_ids: int32 [B, S].
        lengths: int32 [B], how many of them are no padding.
        second_starts: int32 [B], where the second segment begins; the row's end without one.
        is_cut: bool [B], whether tokens were left out.
    """

    token_ids: tf.Tensor
    lengths: tf.Tensor
    second_starts: tf.Tensor
    is_cut: tf.Tensor

    def features(self, *, segment_aware: bool) -> dict[str, tf.Tensor]:
        """What an encoder reads, int32 [B, S].

        Args:
            segment_aware: whether SegaBERT's positions are wanted. Each text is one paragraph of
                one sentence, whose tokens count from 0. [CLS] stands where the first text's first
                token does, each [SEP] after its text's last one.
        """
        positions = tf.range(tf.shape(self.token_ids)[1])[tf.newaxis]  # [1, S]
        is_token = positions < self.lengths[:, tf.newaxis]  # [B, S]
        in_second = positions - self.second_starts[:, tf.newaxis]
        is_second = is_token & (in_second >= 0)
        segment_ids = tf.cast(is_second, tf.int32)
        features = {
            "token_ids": self.token_ids,
            "segment_ids": segment_ids,
            "padding_mask": tf.cast(is_token, tf.int32),
        }
        if segment_aware:
            in_first = tf.where(is_token, tf.maximum(positions - 1, 0), 0)
            tokens = tf.where(is_second, in_second, in_first)
            indices = (segment_ids, tf.zeros_like(segment_ids), tokens)
            features |= zip(SEGMENT_POSITIONS, indices, strict=True)
        return features


class TextRowPacker:
    """Packs the word pieces of texts.

    Args:
        special: ids of the tokens that are added.
        sequence_length: S at most.
        truncate: how pairs are cut to fit: `"round_robin"`: the longer text is trimmed first, of
            two as long ones the second (BERT's and SpanBERT's code); `"waterfall"`: the second
            has what room the first leaves.

    Raises:
        ValueError: `truncate` is unknown, or a row has no room for the special tokens.
    """

    def __init__(
        self, special: SpecialTokenIds, sequence_length: int, truncate: str = "round_robin"
    ) -> None:
        if truncate not in TRUNCATIONS:
            raise ValueError(f"truncate must be one of {TRUNCATIONS}. Received: {truncate!r}")
        if sequence_length < 3:
            raise ValueError(f"sequence_length must be at least 3. Received: {sequence_length}")
        self._special = special
        self.sequence_length = sequence_length
        self._truncate = truncate

    def __call__(
        self,
        first: tf.RaggedTensor,
        second: tf.RaggedTensor | None = None,
        *,
        pads_to_limit: bool = False,
    ) -> TextRows:
        """The rows of texts.

        Args:
            first: ragged int32 [B, tokens].
            second: the same of the second texts, which may be empty; `None`: single texts.
            pads_to_limit: whether S is `sequence_length`, not the length of the longest row.
        """
        sizes = tf.cast(first.row_lengths(), tf.int32)  # [B]
        if second is None:
            kept = tf.minimum(sizes, self.sequence_length - 2)
            lengths, is_cut = kept + 2, kept < sizes
        else:
            second_sizes = tf.cast(second.row_lengths(), tf.int32)
            kept, second_kept = self._sizes(sizes, second_sizes)
            lengths, is_cut = kept + second_kept + 3, kept + second_kept < sizes + second_sizes
        longest = tf.maximum(tf.reduce_max(lengths), 2)  # of no rows: the special tokens alone
        width = self.sequence_length if pads_to_limit else longest
        positions = tf.range(width)[tf.newaxis]  # [1, S]
        second_starts = kept[:, tf.newaxis] + 2  # [B, 1]
        token_ids = _at(first, positions - 1)  # [B, S]
        if second is not None:
            token_ids = tf.where(
                positions < second_starts, token_ids, _at(second, positions - second_starts)
            )
        ends = lengths[:, tf.newaxis] - 1
        is_end = (positions == second_starts - 1) | (positions == ends)
        token_ids = tf.where(is_end, self._special.end, token_ids)
        token_ids = tf.where(positions == 0, self._special.start, token_ids)
        token_ids = tf.where(positions > ends, self._special.pad, token_ids)
        return TextRows(token_ids, lengths, second_starts[:, 0], is_cut)

    def _sizes(self, first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """How many tokens of each text [B] are kept."""
        room = self.sequence_length - 3
        least = (room, 0) if self._truncate == "waterfall" else ((room + 1) // 2, room // 2)
        return (
            tf.minimum(first, tf.maximum(room - second, least[0])),
            tf.minimum(second, tf.maximum(room - first, least[1])),
        )


def _at(tokens: tf.RaggedTensor, places: tf.Tensor) -> tf.Tensor:
    """The tokens at places of their texts [B or 1, S]; any id without one."""
    flat = tf.concat([tokens.flat_values, [0]], axis=0)  # never empty
    starts = tf.cast(tokens.row_starts(), tf.int32)[:, tf.newaxis]
    return tf.gather(flat, tf.clip_by_value(starts + places, 0, tf.size(flat) - 1))

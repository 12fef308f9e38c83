"""Packs rows of texts, of pairs of texts and of texts with two marked entities, in a graph.

Preparation, `fit` on strings and exports use these classes.

B or N rows, S positions, T pieces of all texts.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from spanbert_tf.data.records import SEGMENT_POSITIONS
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import (
    BOUNDARIES,
    OBJECT,
    SUBJECT,
    EntityMode,
    SpecialTokenIds,
    TextRules,
)

TRUNCATIONS = ("round_robin", "waterfall")
_CHARACTERS = "UTF8_CHAR"


class TextRows(NamedTuple):
    """`[CLS] text [SEP]`, or `[CLS] first [SEP] second [SEP]`, and padding.

    Attributes:
        token_ids: int32 [B, S].
        lengths: int32 [B], number of tokens without padding.
        second_starts: int32 [B], begin of the second segment; the end of the row without one.
        is_cut: bool [B], whether tokens were left out.
    """

    token_ids: tf.Tensor
    lengths: tf.Tensor
    second_starts: tf.Tensor
    is_cut: tf.Tensor

    def features(self, *, segment_aware: bool) -> dict[str, tf.Tensor]:
        """Returns what an encoder reads, int32 [B, S].

        Args:
            segment_aware: whether to return SegaBERT's positions. Each text is one paragraph of
                one sentence, whose tokens are numbered from 0. [CLS] has the position of the first
                token, each [SEP] the position after the last token of its text.
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
        special: ids of the special tokens.
        sequence_length: largest S.
        truncate: how pairs are truncated. `"round_robin"` trims the longer text first, and of two
            equally long texts the second (BERT's and SpanBERT's code); `"waterfall"` gives the
            second text the room that the first leaves.

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
        """Makes the rows of texts.

        Args:
            first: ragged int32 [B, tokens].
            second: ragged int32 [B, tokens] of the second texts, which may be empty; `None` for
                single texts.
            pads_to_limit: whether S is `sequence_length` instead of the length of the longest row.
        """
        sizes = tf.cast(first.row_lengths(), tf.int32)  # [B]
        if second is None:
            kept = tf.minimum(sizes, self.sequence_length - 2)
            lengths = kept + 2
            is_cut = kept < sizes
        else:
            second_sizes = tf.cast(second.row_lengths(), tf.int32)
            kept, second_kept = self._sizes(sizes, second_sizes)
            lengths = kept + second_kept + 3
            is_cut = kept + second_kept < sizes + second_sizes
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
        """Computes how many tokens of each text [B] are kept."""
        room = self.sequence_length - 3
        least = (room, 0) if self._truncate == "waterfall" else ((room + 1) // 2, room // 2)
        return (
            tf.minimum(first, tf.maximum(room - second, least[0])),
            tf.minimum(second, tf.maximum(room - first, least[1])),
        )


def _at(tokens: tf.RaggedTensor, places: tf.Tensor) -> tf.Tensor:
    """Looks up the tokens at places of their texts [B or 1, S]; any id without one."""
    flat = tf.concat([tokens.flat_values, [0]], axis=0)  # never empty
    starts = tf.cast(tokens.row_starts(), tf.int32)[:, tf.newaxis]
    return tf.gather(flat, tf.clip_by_value(starts + places, 0, tf.size(flat) - 1))


class RelationPacker(tf.Module):
    """Packs `[CLS] before SUBJ=TYPE between OBJ=TYPE after [SEP]` (SpanBERT, section 4.1).

    Each entity is replaced by one marker, or its words are kept between two markers. Text that does
    not fit is removed: first after the second entity, then before the first one, then in the middle
    between them, at last the entities' own words. The markers remain.

    Args:
        vocabulary: entries in order of their ids.
        text_rules: what is done to the text.
        markers: markers of `make_markers`.
        entities: `"masked"` (one marker) or `"text"` (words between two markers).
        sequence_length: largest number of positions of a row.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        text_rules: TextRules,
        markers: Mapping[str, str],
        *,
        entities: EntityMode,
        sequence_length: int,
    ) -> None:
        super().__init__()
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, text_rules)
        ids = {piece: number for number, piece in enumerate(vocabulary)}
        self._special = SpecialTokenIds.from_vocabulary(vocabulary)
        self._boundaries = [ids[markers[name]] for name in BOUNDARIES]
        roles = [name for name in markers if name not in BOUNDARIES]
        self._names = tf.constant(roles)
        self._ids = tf.constant([ids[markers[name]] for name in roles])
        self._is_masked = entities == "masked"
        self._room = sequence_length - 2 - (2 if self._is_masked else 4)

    def __call__(
        self,
        text: tf.Tensor,
        subject: tf.Tensor,
        object: tf.Tensor,
        subject_type: tf.Tensor,
        object_type: tf.Tensor,
    ) -> tf.RaggedTensor:
        """Returns the rows' token ids, ragged int32 [N, tokens].

        Args:
            text: string [N], UTF-8.
            subject: first character and the one after the last, int [N, 2].
            object: as `subject`; the two must not overlap.
            subject_type: string [N]; one that has no marker has the marker of its role.
            object_type: as `subject_type`.

        Raises:
            tf.errors.InvalidArgumentError: an entity is empty or not in its text, or overlaps the
                other.
        """
        subject, object = (tf.cast(places, tf.int32) for places in (subject, object))
        is_first = (subject[:, 0] < object[:, 0])[:, tf.newaxis]  # [N, 1]: the subject is
        first = tf.where(is_first, subject, object)
        second = tf.where(is_first, object, subject)
        parts = self._tokenized_parts(text, first, second)
        if self._is_masked:
            empty = parts[0][:, :0]
            parts = [parts[0], empty, parts[2], empty, parts[4]]
        before, one, between, other, after = self._cut(parts)
        if self._is_masked:
            ids = self._role_ids(SUBJECT, subject_type), self._role_ids(OBJECT, object_type)
            first_id = tf.where(is_first, *ids)  # [N, 1]
            second_id = tf.where(is_first, *ids[::-1])
            middle = [before, first_id, between, second_id, after]
        else:
            subject_ids = self._boundaries[:2]
            object_ids = self._boundaries[2:]
            ids = tf.where(is_first, [subject_ids + object_ids], [object_ids + subject_ids])
            starts_and_ends = tf.split(ids, 4, axis=1)  # [N, 1] each
            middle = [before, starts_and_ends[0], one, starts_and_ends[1], between]
            middle += [starts_and_ends[2], other, starts_and_ends[3], after]
        column = tf.ones_like(is_first, tf.int32)  # [N, 1]
        return _beside([self._special.start * column, *middle, self._special.end * column])

    def _tokenized_parts(
        self, text: tf.Tensor, first: tf.Tensor, second: tf.Tensor
    ) -> list[tf.RaggedTensor]:
        """Ids of the five parts of texts: before, first entity, between, second, after."""
        length = tf.strings.length(text, unit=_CHARACTERS)
        borders = [tf.zeros_like(length), *tf.unstack(first, axis=1), *tf.unstack(second, axis=1)]
        borders.append(length)
        steps = [end - start for start, end in itertools.pairwise(borders)]
        tf.debugging.assert_non_negative(
            tf.stack(steps), "an entity is not in its text, or overlaps the other one"
        )
        tf.debugging.assert_positive(tf.stack([steps[1], steps[3]]), "an entity is empty")
        pieces = [
            tf.strings.substr(text, start, size, unit=_CHARACTERS)
            for start, size in zip(borders, steps, strict=False)
        ]
        ids = self._tokenizer.tokenize(tf.concat(pieces, axis=0))  # [5 N, pieces]
        count = tf.size(text)
        return [ids[number * count : (number + 1) * count] for number in range(len(pieces))]

    def _cut(self, parts: Sequence[tf.RaggedTensor]) -> list[tf.RaggedTensor]:
        """Cuts parts so that they have no more than the room's pieces in all."""
        lengths = [tf.cast(part.row_lengths(), tf.int32) for part in parts]  # [N] each
        excess = tf.maximum(tf.add_n(lengths) - self._room, 0)
        kept = [tf.zeros_like(excess)] * len(parts)
        for number in (4, 0, 2, 3, 1):
            cut = tf.minimum(lengths[number], excess)
            kept[number] = lengths[number] - cut
            excess -= cut
        heads = [tf.zeros_like(excess), kept[1], (kept[2] + 1) // 2, kept[3], kept[4]]
        return [
            _head_and_tail(part, head, count - head)
            for part, head, count in zip(parts, heads, kept, strict=True)
        ]

    def _role_ids(self, role: str, types: tf.Tensor) -> tf.Tensor:
        """Ids of the markers of types [N], int32 [N, 1]."""
        names = tf.strings.join([role, "=", types])[:, tf.newaxis]
        is_name = names == self._names  # [N, roles and types]
        known = tf.reduce_any(is_name, axis=1, keepdims=True)
        number = tf.argmax(tf.where(known, is_name, self._names == role), axis=1)
        return tf.gather(self._ids, number)[:, tf.newaxis]


def _beside(parts: Sequence[tf.Tensor | tf.RaggedTensor]) -> tf.RaggedTensor:
    """Joins parts [N, …] one after the other in each row, ragged [N, tokens].

    (`tf.concat` on axis 1 compares their numbers of rows, which Grappler complains about.)
    """
    ragged = []
    for part in parts:
        ragged.append(tf.RaggedTensor.from_tensor(part) if isinstance(part, tf.Tensor) else part)
    rows = tf.concat(ragged, axis=0)
    order = tf.transpose(tf.reshape(tf.range(rows.nrows()), [len(parts), -1]))  # [N, parts]
    return tf.gather(rows, order).merge_dims(1, 2)


def _head_and_tail(part: tf.RaggedTensor, head: tf.Tensor, tail: tf.Tensor) -> tf.RaggedTensor:
    """Keeps the first `head` [N] and the last `tail` [N] pieces of each row."""
    lengths = part.row_lengths()
    rows = part.value_rowids()
    places = tf.cast(tf.ragged.range(lengths).flat_values, tf.int32)  # [T]
    from_end = tf.cast(tf.gather(lengths, rows), tf.int32) - places
    is_kept = (places < tf.gather(head, rows)) | (from_end <= tf.gather(tail, rows))
    return tf.ragged.boolean_mask(part, part.with_flat_values(is_kept))

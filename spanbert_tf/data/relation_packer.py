"""Rows of texts with two marked entities: preparation, preprocessor and exports all call it.

N texts, T pieces of all texts.
"""

import itertools
from collections.abc import Mapping, Sequence

import tensorflow as tf

from spanbert_tf.data.entity_markers import BOUNDARIES, OBJECT, SUBJECT, EntityMode
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import Casing, SpecialTokenIds

_CHARACTERS = "UTF8_CHAR"


class RelationPacker(tf.Module):
    """Packs `[CLS] before SUBJ=TYPE between OBJ=TYPE after [SEP]` (SpanBERT, section 4.1).

    Each entity is one marker, its words are gone; or they are kept between two markers. What does
    not fit is cut off: first after the second entity, then before the first one, then in the
    middle between them, at last of the entities' own words. The markers stay.

    Args:
        vocabulary: entries in order of their ids.
        casing: what is done to the text.
        markers: markers of `make_markers`.
        entities: `"masked"` or `"text"`.
        sequence_length: positions of a row at most.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        casing: Casing,
        markers: Mapping[str, str],
        *,
        entities: EntityMode,
        sequence_length: int,
    ) -> None:
        super().__init__()
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, casing)
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
        """The rows' token ids, ragged int32 [N, tokens].

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
        first, second = tf.where(is_first, subject, object), tf.where(is_first, object, subject)
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
            subject_ids, object_ids = self._boundaries[:2], self._boundaries[2:]
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
        """Parts with no more than the room's pieces in all."""
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
    """Parts [N, …] one after the other in each row, ragged [N, tokens].

    (`tf.concat` on axis 1 compares their numbers of rows, which Grappler complains about.)
    """
    rows = tf.concat(
        [tf.RaggedTensor.from_tensor(p) if isinstance(p, tf.Tensor) else p for p in parts], axis=0
    )
    order = tf.transpose(tf.reshape(tf.range(rows.nrows()), [len(parts), -1]))  # [N, parts]
    return tf.gather(rows, order).merge_dims(1, 2)


def _head_and_tail(part: tf.RaggedTensor, head: tf.Tensor, tail: tf.Tensor) -> tf.RaggedTensor:
    """The first `head` [N] and the last `tail` [N] pieces of each row."""
    lengths = part.row_lengths()
    rows = part.value_rowids()
    places = tf.cast(tf.ragged.range(lengths).flat_values, tf.int32)  # [T]
    from_end = tf.cast(tf.gather(lengths, rows), tf.int32) - places
    is_kept = (places < tf.gather(head, rows)) | (from_end <= tf.gather(tail, rows))
    return tf.ragged.boolean_mask(part, part.with_flat_values(is_kept))

"""Serialized records for pre-training as rows of tensors.

They are parsed, and packed: [CLS], and each block followed by [SEP].

B rows, or records of a chunk; S positions, N tokens of text a row at most, G blocks a row, E
entries of a list.
"""

import functools
import itertools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.data.examples import Stored
from spanbert_tf.data.manifest import (
    FIRST_TOKEN_INDEX,
    NEXT_SENTENCE_LABEL,
    PARAGRAPH_INDICES,
    PARAGRAPH_STARTS,
    RECORD_ID,
    SECOND_SEGMENT_START,
    SENTENCE_INDICES,
    SENTENCE_STARTS,
    SPAN_LISTS,
    TOKEN_IDS,
    WORD_STARTS,
    WORDS,
    PretrainingManifest,
)
from spanbert_tf.masking import AnnotatedSpans, Blocks
from spanbert_tf.text.vocabulary import SpecialTokenIds

_SCALARS = (RECORD_ID, FIRST_TOKEN_INDEX)
_PAIR_SCALARS = (SECOND_SEGMENT_START, NEXT_SENTENCE_LABEL)
_NUMBERS = {
    "int64": tf.io.FixedLenFeature([], tf.int64),
    "float32": tf.io.FixedLenFeature([], tf.float32),
}
_LIST = tf.io.FixedLenFeature([], tf.string)
_DECODED_AS = {"uint32": "int32"}  # TensorFlow decodes no uint32; ids and offsets are far below


class ParsedRecords(NamedTuple):
    """A batch of records."""

    token_ids: tf.Tensor  # unsigned [B, N] as stored, 0 beyond the end
    lengths: tf.Tensor  # int64 [B], tokens of text
    scalars: dict[str, tf.Tensor]  # name → int64 [B]
    lists: dict[str, tuple[tf.Tensor, tf.Tensor]]  # name → uint16 [B, E], how many count, int64 [B]

    @property
    def inner_bounds(self) -> list[tf.Tensor]:
        """Positions in the text where all blocks but the first begin: G - 1 of int64 [B, 1]."""
        start = self.scalars.get(SECOND_SEGMENT_START)
        return [] if start is None else [start[:, tf.newaxis]]


def scalar_names(manifest: PretrainingManifest) -> tuple[str, ...]:
    """Names of the integer features of single or pair records."""
    return _SCALARS + (_PAIR_SCALARS if manifest.num_blocks > 1 else ())


def parse_records(
    serialized: tf.Tensor,
    manifest: PretrainingManifest,
    list_names: tuple[str, ...] = (),
    num_places: int | None = None,
) -> ParsedRecords:
    """Parses a batch of pre-training records.

    Args:
        serialized: string [B], `tf.train.Example`s.
        manifest: description of the records.
        list_names: the lists to parse besides the token ids.
        num_places: N; by default that of the longest record that the description allows.
    """
    names = scalar_names(manifest)
    stored = manifest.stored()
    wanted = {name: stored[name] for name in (*names, TOKEN_IDS, *list_names)}
    parsed = parse_examples(serialized, wanted, num_places or manifest.num_places)
    token_ids, lengths = parsed.pop(TOKEN_IDS)
    return ParsedRecords(
        token_ids,
        lengths,
        {name: parsed[name] for name in names},
        {name: parsed[name] for name in list_names},
    )


def parse_examples(
    serialized: tf.Tensor, features: Mapping[str, Stored], width: int | tf.Tensor | None
) -> dict[str, Any]:
    """Numbers of B records; an error where they are not as stored.

    Ranges are checked here, since lookups beyond a table raise on some devices alone and return 0
    on others. What was read is checked only; `example_fault` says which record is wrong.

    Args:
        serialized: string [B], `tf.train.Example`s.
        features: how they are stored.
        width: places of each list, S, for a longer one is an error; `None`: those of the longest.

    Returns:
        Of a number int64 or float32 [B]; of a list its numbers, [B, S], padded with 0, and how many
        there are, int64 [B].
    """
    kinds = {name: _NUMBERS.get(one.dtype, _LIST) for name, one in features.items()}
    raw = tf.io.parse_example(serialized, kinds)
    found = {
        name: _decode_list(raw[name], name, one.dtype, width) if one.is_list else raw[name]
        for name, one in features.items()
    }
    counts = {name: found[name][1] for name, one in features.items() if one.is_list}
    checks = []
    for name, one in features.items():
        values = found[name][0] if one.is_list else found[name]
        if one.dtype == "float32":
            checks.append(tf.debugging.assert_all_finite(values, f"{name} is not finite"))
        if one.like in counts:
            checks.append(tf.debugging.assert_equal(counts[name], counts[one.like], name))
        if one.adds_up_to is not None:
            total = tf.reduce_sum(tf.cast(values, tf.int64), axis=1)
            checks.append(tf.debugging.assert_equal(total, counts[one.adds_up_to], name))
        if isinstance(one.below, str):  # the padding of an empty list is 0
            checks += _range_checks(values, name, tf.maximum(counts[one.below], 1))
        elif one.below is not None:
            checks += _range_checks(values, name, one.below)
    with tf.control_dependencies(checks):
        return tf.nest.map_structure(tf.identity, found)


def _decode_list(
    raw: tf.Tensor, name: str, dtype: str, width: int | tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    item_size = np.dtype(dtype).itemsize
    lengths = tf.strings.length(raw) // item_size  # [B]
    if width is None:
        width = tf.maximum(tf.reduce_max(lengths), 1)
    # decode_raw cuts and pads to its fixed length silently.
    message = f"{name} of a record is longer than the description of the records says"
    check = tf.debugging.assert_less_equal(lengths, width, message=message)
    with tf.control_dependencies([check]):
        values = decode_unsigned(raw, dtype, fixed_length=width * item_size)
    return values, tf.cast(lengths, tf.int64)  # [B, width], [B]


def _range_checks(values: tf.Tensor, name: str, below: int | tf.Tensor) -> list[tf.Operation]:
    """Checks that numbers, [B] or [B, S], are not negative and below one number, or [B] of them."""
    message = f"{name} of a record is out of its range"
    lists = values.shape.rank > 1
    largest = tf.cast(tf.reduce_max(values, axis=-1) if lists else values, tf.int64)
    checks = [tf.debugging.assert_less(largest, tf.cast(below, tf.int64), message=message)]
    if not values.dtype.is_unsigned:
        smallest = tf.reduce_min(values, axis=-1) if lists else values
        checks.append(tf.debugging.assert_non_negative(smallest, message=message))
    return checks


def pack_rows(
    records: ParsedRecords, special: SpecialTokenIds
) -> tuple[dict[str, tf.Tensor], Blocks]:
    """Packs [CLS], each block followed by [SEP], and padding.

    Returns:
        `segment_ids` (the number of the block), `padding_mask` (int32 [B, S]) and, of pairs,
        `next_sentence_labels` (int32 [B]); and the rows with their blocks.
    """
    tokens = tf.cast(records.token_ids, tf.int32)  # [B, N]
    lengths = records.lengths[:, tf.newaxis]
    bounds = [tf.zeros_like(lengths), *records.inner_bounds, lengths]  # [B, 1] each
    num_blocks = len(bounds) - 1
    # Block g stands g + 1 places later in the row than in the text: after [CLS] and g times [SEP].
    starts = [bound + block + 1 for block, bound in enumerate(bounds[:-1])]
    ends = [bound + block + 1 for block, bound in enumerate(bounds[1:])]  # where its [SEP] stands
    shifted = [
        tf.pad(tokens, [[0, 0], [block + 1, num_blocks - block]], constant_values=special.start)
        for block in range(num_blocks)
    ]  # [B, S] each
    token_ids = shifted[0]
    segment_ids = tf.zeros_like(token_ids)
    positions = tf.range(token_ids.shape[1], dtype=tf.int64)  # [S]
    is_token = positions <= ends[-1]  # [B, S]
    for start, later_ids in zip(starts[1:], shifted[1:], strict=True):
        is_later = positions >= start
        token_ids = tf.where(is_later, later_ids, token_ids)
        segment_ids += tf.cast(is_later & is_token, tf.int32)
    is_end = functools.reduce(operator.or_, (positions == end for end in ends))
    token_ids = tf.where(is_end, special.end, token_ids)
    token_ids = tf.where(is_token, token_ids, special.pad)
    features = {"segment_ids": segment_ids, "padding_mask": tf.cast(is_token, tf.int32)}
    if NEXT_SENTENCE_LABEL in records.scalars:
        labels = records.scalars[NEXT_SENTENCE_LABEL]
        features["next_sentence_labels"] = tf.cast(labels, tf.int32)
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    return features, Blocks(token_ids, tf.concat(starts, axis=1), tf.concat(sizes, axis=1))


def pack_spans(records: ParsedRecords, name: str) -> AnnotatedSpans:
    """The spans of a list of `SPAN_LISTS`, whose features were parsed, as positions in the rows."""
    start_name, *end_names = SPAN_LISTS[name]
    starts, counts = records.lists[start_name]
    most = tf.maximum(tf.reduce_max(counts), 1)  # lists are as wide as rows, and nearly empty
    starts = tf.cast(starts[:, :most], tf.int64)  # [B, E]
    counts = counts[:, tf.newaxis]  # [B, 1]
    if end_names:
        ends = tf.cast(records.lists[end_names[0]][0][:, :most], tf.int64)
    else:  # each ends where the next one begins, the last with the text
        is_last = tf.range(most) == counts - 1
        following = tf.pad(starts[:, 1:], [[0, 0], [0, 1]])
        ends = tf.where(is_last, records.lengths[:, tf.newaxis], following) - 1
    is_used = tf.range(tf.shape(starts, tf.int64)[1]) < counts  # [B, E]
    shift = tf.ones_like(starts)  # by [CLS], and by a [SEP] for each block before
    first = [tf.zeros_like(counts)]  # [B, 1] each, number of a block's first span
    for bound in records.inner_bounds:
        is_before = starts < bound
        shift += tf.cast(~is_before, tf.int64)
        in_blocks_before = tf.cast(is_used & is_before, tf.int64)
        first.append(tf.reduce_sum(in_blocks_before, axis=1, keepdims=True))
    per_block = [end - begin for begin, end in itertools.pairwise([*first, counts])]
    first, per_block = (tf.stack(values, axis=1) for values in (first, per_block))  # [B, G, 1]
    return AnnotatedSpans(starts + shift, ends + shift, first, per_block)


def starts_of_words(records: ParsedRecords, blocks: Blocks, begins_word: tf.Tensor) -> tf.Tensor:
    """Whether each position of the rows starts a word, or is none of a word, bool [B, S].

    Args:
        records: parsed with the features of `WORDS`, if the records have them.
        blocks: their rows, from `pack_rows`.
        begins_word: whether each entry of the vocabulary begins a word, bool [V]; tells the words
            of other records.
    """
    if WORD_STARTS not in records.lists:
        return tf.gather(begins_word, blocks.token_ids)
    starts = pack_spans(records, WORDS).starts  # [B, E]
    num_rows, width = tf.unstack(tf.shape(blocks.token_ids, tf.int64))
    positions = tf.tile(tf.range(width)[tf.newaxis], [num_rows, 1])
    is_outside = tf.reshape(~blocks.hold(positions), [-1])
    # Entries beyond the end of a list are position 1, the first one of the text.
    flat = tf.reshape(tf.range(num_rows)[:, tf.newaxis] * width + starts, [-1, 1])
    return tf.reshape(
        tf.tensor_scatter_nd_update(is_outside, flat, tf.ones_like(flat[:, 0], tf.bool)),
        tf.shape(blocks.token_ids),
    )


def segment_aware_indices(records: ParsedRecords) -> dict[str, tf.Tensor]:
    """SegaBERT's three indices of each position of single rows (SegaBERT, section 2).

    [CLS] has the paragraph and sentence of the block's first token and token index 0; [SEP] and
    padding have those of the last token and go on counting its tokens. int32 [B, S] each, of
    records that were parsed with `POSITION_LISTS`.
    """
    num_rows, width = tf.unstack(tf.shape(records.token_ids))
    # Positions in the block: -1 is [CLS], which looks up as 0.
    block_positions = tf.range(-1, width + 1, dtype=tf.int32)
    positions = tf.tile(block_positions[tf.newaxis], [num_rows, 1])  # [B, S]
    positions = tf.cast(tf.maximum(positions, 0), tf.int64)

    def at_positions(starts_name: str, values_name: str) -> tuple[tf.Tensor, tf.Tensor]:
        starts, counts = records.lists[starts_name]
        starts = tf.cast(starts, tf.int64)
        entries = tf.range(tf.shape(starts, tf.int64)[1])
        starts = tf.where(entries < counts[:, tf.newaxis], starts, tf.int64.max)
        found = tf.maximum(tf.searchsorted(starts, positions, side="right") - 1, 0)  # [B, S]
        values = tf.gather(tf.cast(records.lists[values_name][0], tf.int64), found, batch_dims=1)
        return values, positions - tf.gather(starts, found, batch_dims=1)

    paragraphs, _ = at_positions(PARAGRAPH_STARTS, PARAGRAPH_INDICES)
    sentences, tokens = at_positions(SENTENCE_STARTS, SENTENCE_INDICES)
    # The block's first sentence may have begun before the block.
    in_first_sentence = tokens == positions
    first_token = records.scalars[FIRST_TOKEN_INDEX][:, tf.newaxis]
    tokens += tf.where(in_first_sentence, first_token, 0)
    tokens = tf.where(block_positions < 0, tf.zeros_like(tokens), tokens)
    is_empty = records.lengths[:, tf.newaxis] == 0  # a filling row has no sentence
    indices = {
        "paragraph_indices": paragraphs,
        "sentence_indices": sentences,
        "token_indices": tokens,
    }
    return {
        name: tf.where(is_empty, 0, tf.cast(values, tf.int32)) for name, values in indices.items()
    }


def decode_unsigned(
    raw: tf.Tensor, dtype: str, fixed_length: int | tf.Tensor | None = None
) -> tf.Tensor:
    """The numbers in bytes.

    Args:
        raw: string [...].
        dtype: the type that they were written in: `"uint8"`, `"uint16"` or `"uint32"`.
        fixed_length: bytes of each list after cutting and padding with 0; without it, all lists
            must be equally long.

    Returns:
        A tensor [..., numbers] of that type, int32 in place of uint32.
    """
    out_type = tf.as_dtype(_DECODED_AS.get(dtype, dtype))
    return tf.io.decode_raw(raw, out_type, fixed_length=fixed_length)

"""Parses serialized records for pre-training, and packs rows: [CLS], and each block and [SEP].

Shapes: W records of a chunk, B rows of a batch, S positions, N tokens of text a row at most, G
blocks a row, E entries of a list.
"""

import functools
import itertools
import operator
from typing import NamedTuple

import tensorflow as tf

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
from spanbert_tf.data.parsing import parse_examples
from spanbert_tf.masking import AnnotatedSpans, Blocks
from spanbert_tf.text.vocabulary import SpecialTokenIds

_SCALARS = (RECORD_ID, FIRST_TOKEN_INDEX)
_PAIR_SCALARS = (SECOND_SEGMENT_START, NEXT_SENTENCE_LABEL)


class ParsedRecords(NamedTuple):
    """The records of a chunk; those of a batch are packed, with B in place of W.

    Attributes:
        token_ids: unsigned [W, N] as stored, 0 beyond the end.
        lengths: int64 [W], tokens of text.
        scalars: name → int64 [W].
        lists: name → values, uint16 [W, E], and the number of values in use, int64 [W].
    """

    token_ids: tf.Tensor
    lengths: tf.Tensor
    scalars: dict[str, tf.Tensor]
    lists: dict[str, tuple[tf.Tensor, tf.Tensor]]

    @property
    def inner_bounds(self) -> list[tf.Tensor]:
        """The positions in the text where all blocks but the first begin: G - 1 of int64 [W, 1]."""
        start = self.scalars.get(SECOND_SEGMENT_START)
        return [] if start is None else [start[:, tf.newaxis]]


def scalar_names(manifest: PretrainingManifest) -> tuple[str, ...]:
    """Returns the names of the integer features of single or pair records."""
    return _SCALARS + (_PAIR_SCALARS if manifest.num_blocks > 1 else ())


def parse_records(
    serialized: tf.Tensor,
    manifest: PretrainingManifest,
    list_names: tuple[str, ...] = (),
    num_places: int | None = None,
) -> ParsedRecords:
    """Parses a chunk of pre-training records.

    Args:
        serialized: string [W], `tf.train.Example`s.
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
    """Returns the spans of a list of `SPAN_LISTS`, which was parsed, as positions in the rows."""
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
    """Finds the first token of each word; every position that is not in a word counts as one, too.

    Args:
        records: parsed with the features of `WORDS`, if the records have them.
        blocks: their rows, from `pack_rows`.
        begins_word: whether each entry of the vocabulary begins a word, bool [V]; tells the words
            of other records.

    Returns:
        bool [B, S].
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
    """Computes SegaBERT's three indices of each position of single rows (SegaBERT, section 2).

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

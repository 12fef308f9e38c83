"""The data set of documents: all their segments, or for training a random run of them.

Dimensions: B documents, G segments of the longest, L positions of a segment, T positions of a
document, M gold mentions.
"""

import functools

import numpy as np
import tensorflow as tf

from spanbert_tf.data.batches import LengthBatches, row_batches
from spanbert_tf.data.documents import pack_documents
from spanbert_tf.data.examples import Stored, read_example
from spanbert_tf.data.parsing import parse_examples
from spanbert_tf.data.records import ROW_TOKEN_IDS, Records
from spanbert_tf.masking.random_bits import Purpose, high_fraction, random_bits, scale
from spanbert_tf.tasks.coreference.records import (
    GENRE,
    IS_SPECIAL,
    MENTION_CLUSTERS,
    MENTION_ENDS,
    MENTION_STARTS,
    NUMBER_DTYPE,
    SEGMENT_LENGTHS,
    SENTENCES,
    SPEAKERS,
    WORDS,
    CoreferenceManifest,
)
from spanbert_tf.text.vocabulary import SpecialTokenIds

MAX_BATCH_POSITIONS = 4096  # of a batch for prediction, which may have many short documents
_NO_POSITION = -1


def coreference_dataset(
    records: Records,
    *,
    batch_size: int,
    training: bool,
    last_batch: int | None = None,
    seed: int = 0,
    first_batch: int = 0,
) -> tf.data.Dataset:
    """Reads documents of similar length in batches for `SpanBertCoreferenceResolver`.

    For training, the batches are endless and have B documents. Of a document that has more segments
    than are trained at once, a run of segments is drawn at each visit, as a function of (seed,
    epoch, document), with the gold mentions in it. Otherwise each document is read once, with all
    its segments, the longest first; batches of long documents have fewer than B.

    There are few different shapes, since XLA compiles a program for each: T is one of at most 16
    widths, L is T or the length of a segment, whichever is less, and M is a multiple of T / 4, more
    mentions than most documents have. With `last_batch`, for TPUs, all batches have the same shape.

    Args:
        records: the records.
        batch_size: B.
        training: whether the data set is for training.
        last_batch: as for `row_batches`.
        seed: as for `row_batches`.
        first_batch: as for `row_batches`.

    Returns:
        A data set of `(x, y)`, for training of `(x, y, sample_weight)`. `x` has the features of
        `pack_documents` and, unless for training, `row_index`. `y` has `mention_starts`,
        `mention_ends` and `mention_clusters`, int32 [B, M]; clusters of 0 are padding.
    """
    manifest = records.manifest
    lengths = records.lengths(training=training)
    max_segments = None
    if training:
        max_segments = manifest.max_training_segments
        lengths = np.minimum(lengths, max_segments * manifest.sequence_length)
    batches = LengthBatches(lengths, batch_size=batch_size, max_length=int(max(lengths)))
    pad_id = SpecialTokenIds.from_vocabulary(records.vocabulary).pad
    parse = functools.partial(parse_documents, manifest, pad_id, max_segments)
    if last_batch is not None:
        parse = functools.partial(parse, most_mentions=_most_mentions(records))
    return row_batches(
        records.rows,
        batches,
        parse,
        training=training,
        seed=seed,
        first_batch=first_batch,
        last_batch=last_batch,
        with_keys=training,
        max_positions=MAX_BATCH_POSITIONS,
    )


def _most_mentions(records: Records) -> int:
    """Returns the largest number of mentions of a document."""
    starts = {MENTION_STARTS: Stored(NUMBER_DTYPE)}
    rows = records.rows
    examples = (read_example(row, starts) for row in rows.read(range(len(rows))))
    return max(len(example[MENTION_STARTS]) for example in examples)


def parse_documents(
    manifest: CoreferenceManifest,
    pad_id: int,
    max_segments: int | None,
    serialized: tf.Tensor,
    width: tf.Tensor,
    keys: tf.Tensor | None = None,
    most_mentions: int | None = None,
) -> tuple[dict, dict]:
    """Parses documents to the tensors of `coreference_dataset`.

    Args:
        manifest: manifest of the records.
        pad_id: id of [PAD].
        max_segments: number of segments of a run; `None` for all segments.
        serialized: string [B].
        width: int32 [], T.
        keys: keys of the random numbers that draw a run, uint64 [B].
        most_mentions: largest number of mentions of all documents, if all batches are to have the
            same shape; by default shapes are those that the batch needs.
    """
    record = parse_examples(serialized, manifest.stored(), None)
    genres = tf.cast(record.pop(GENRE), tf.int32)
    dense = {
        name: (tf.cast(values, tf.int32), tf.sequence_mask(counts, tf.shape(values)[1]))
        for name, (values, counts) in record.items()
    }
    if max_segments is not None:
        dense = _run_of_segments(dense, keys, max_segments)
    lists = {name: _ragged(values, is_kept) for name, (values, is_kept) in dense.items()}
    x = pack_documents(
        lists[SEGMENT_LENGTHS],
        lists[ROW_TOKEN_IDS],
        lists[IS_SPECIAL].with_flat_values(lists[IS_SPECIAL].flat_values > 0),
        lists[SENTENCES],
        lists[WORDS],
        lists[SPEAKERS],
        genres,
        pad_id=pad_id,
        # A document that is shorter than a segment is one segment.
        segment_length=tf.minimum(width, manifest.sequence_length),
        num_segments=None if most_mentions is None else max_segments,
        width=width,
    )
    most = lists[MENTION_STARTS].row_lengths() if most_mentions is None else most_mentions
    most = tf.maximum(tf.cast(tf.reduce_max(most), tf.int32), 1)  # at least one column
    multiple = tf.maximum(width // 4, 1)
    y = {}
    for name in (MENTION_STARTS, MENTION_ENDS, MENTION_CLUSTERS):
        default = 0 if name == MENTION_CLUSTERS else _NO_POSITION
        dense = lists[name].to_tensor(default)
        room = [[0, 0], [0, most + -most % multiple - tf.shape(dense)[1]]]
        y[name] = tf.pad(dense, room, constant_values=default)  # [B, M]
    static = serialized.shape[0]
    return tf.nest.map_structure(
        lambda values: tf.ensure_shape(values, [static, *values.shape[1:]]), (x, y)
    )


def _ragged(values: tf.Tensor, is_kept: tf.Tensor) -> tf.RaggedTensor:
    """Makes ragged lists of the values [B, places] that are kept.

    `tf.ragged.boolean_mask` does the same with 120 operations.
    """
    lengths = tf.math.count_nonzero(is_kept, axis=1)
    return tf.RaggedTensor.from_row_lengths(
        tf.boolean_mask(values, is_kept), lengths, validate=False
    )


def _run_of_segments(
    lists: dict[str, tuple[tf.Tensor, tf.Tensor]], keys: tf.Tensor, max_segments: int
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """Draws a run of segments of each document, and keeps the mentions in it.

    A list is its values, int32 [B, places], padded with 0, and which places are no padding; of the
    lists that are returned, also which are in the run.
    """
    sizes, is_segment = lists[SEGMENT_LENGTHS]  # [B, segments]
    counts = tf.math.count_nonzero(is_segment, axis=1)  # [B]
    bits = random_bits(keys, Purpose.SEGMENTS, tf.zeros([1], tf.int32))
    first = scale(high_fraction(bits), tf.maximum(counts - max_segments, 0) + 1)[:, tf.newaxis]
    segments = tf.range(tf.shape(sizes, tf.int64)[1])
    in_run = is_segment & (segments >= first) & (segments < first + max_segments)
    start = tf.reduce_sum(tf.where(segments < first, sizes, 0), axis=1, keepdims=True)  # [B, 1]
    end = start + tf.reduce_sum(tf.where(in_run, sizes, 0), axis=1, keepdims=True)
    places = tf.range(tf.shape(lists[ROW_TOKEN_IDS][0])[1])
    is_inside = (places >= start) & (places < end)
    mention_starts, is_mention = lists[MENTION_STARTS]
    in_run_whole = is_mention & (mention_starts >= start) & (lists[MENTION_ENDS][0] < end)
    kept = {}
    for name, (values, is_value) in lists.items():
        if name == SEGMENT_LENGTHS:
            kept[name] = values, in_run
        elif name == MENTION_CLUSTERS:
            kept[name] = values, in_run_whole
        elif name in (MENTION_STARTS, MENTION_ENDS):
            kept[name] = values - start, in_run_whole
        else:
            kept[name] = values, is_value & is_inside
    return kept

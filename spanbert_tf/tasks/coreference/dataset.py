"""The data set of documents: all their segments, or to train a random run of them.

B documents, G segments of the longest, L positions of a segment, T positions of a document, N gold
mentions.
"""

import functools

import numpy as np
import tensorflow as tf

from spanbert_tf.data.batches import LengthBatches, row_batches
from spanbert_tf.data.documents import pack_documents
from spanbert_tf.data.examples import Stored, read_example
from spanbert_tf.data.records import ROW_TOKEN_IDS, Records
from spanbert_tf.data.rows import parse_examples
from spanbert_tf.masking.random_bits import Stream, high_fraction, random_bits, scale
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

MAX_BATCH_POSITIONS = 4096  # of a batch to predict, so that short documents go together
_NO_POSITION = -1


def coreference_dataset(
    records: Records,
    *,
    batch_size: int,
    training: bool,
    last_batch: int | None = None,
    **options: int,
) -> tf.data.Dataset:
    """Batches of documents for `SpanBertCoreferenceResolver`, those of similar length together.

    For training, endless batches of B; of each document that has more segments than are trained at
    once a run of so many, drawn anew at each visit as a function of (seed, epoch, document), with
    the gold mentions that lie in it. Otherwise each document once, whole, the longest first, fewer
    than B of long ones.

    `x` has the features of `pack_documents`, and if not for training `row_index`. `y` has
    `mention_starts`, `mention_ends` and `mention_clusters`, int32 [B, N]; clusters of 0 are
    padding.

    Shapes are few, since XLA compiles each: T is one of at most 16 widths, L the lesser of it and
    of a segment's positions, N a multiple of T / 4, which is more than a document mostly has. With
    `last_batch`, for TPUs, all batches have one. Options are those of `row_batches`.
    """
    manifest, lengths = records.manifest, records.lengths(training=training)
    max_segments = manifest.max_training_segments if training else None
    if training:
        lengths = np.minimum(lengths, max_segments * manifest.sequence_length)
    batches = LengthBatches(lengths, batch_size=batch_size, max_length=int(max(lengths)))
    pad_id = SpecialTokenIds.from_vocabulary(records.vocabulary).pad
    parse = functools.partial(parse_documents, manifest, pad_id, max_segments)
    if last_batch is not None:
        parse = functools.partial(parse, most_mentions=_most_mentions(records))
    options |= {"training": training, "last_batch": last_batch, "with_keys": training}
    return row_batches(records.rows, batches, parse, max_positions=MAX_BATCH_POSITIONS, **options)


def _most_mentions(records: Records) -> int:
    """The mentions of the document that has the most."""
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
    """Tensors of B documents, padded to a width; with `most_mentions`, of the most in all sizes."""
    record = parse_examples(serialized, manifest.stored(), None)
    genres = tf.cast(record.pop(GENRE), tf.int32)
    lists = {
        name: tf.RaggedTensor.from_tensor(tf.cast(values, tf.int32), lengths=counts)
        for name, (values, counts) in record.items()
    }
    if max_segments is not None:
        lists = _run_of_segments(lists, keys, max_segments)
    x = pack_documents(
        lists[SEGMENT_LENGTHS],
        lists[ROW_TOKEN_IDS],
        lists[IS_SPECIAL].with_flat_values(lists[IS_SPECIAL].flat_values > 0),
        lists[SENTENCES],
        lists[WORDS],
        lists[SPEAKERS],
        genres,
        pad_id=pad_id,
        # A document no longer than a segment is one.
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
        y[name] = tf.pad(dense, room, constant_values=default)  # [B, N]
    static = serialized.shape[0]
    return tf.nest.map_structure(
        lambda values: tf.ensure_shape(values, [static, *values.shape[1:]]), (x, y)
    )


def _run_of_segments(
    lists: dict[str, tf.RaggedTensor], keys: tf.Tensor, max_segments: int
) -> dict[str, tf.RaggedTensor]:
    """A random run of segments of each document, and the mentions that lie in it."""
    sizes = lists[SEGMENT_LENGTHS]
    counts = tf.cast(sizes.row_lengths(), tf.int64)  # [B]
    bits = random_bits(keys, Stream.SEGMENTS, tf.zeros([1], tf.int32))
    first = scale(high_fraction(bits), tf.maximum(counts - max_segments, 0) + 1)  # [B]
    numbers = tf.ragged.range(sizes.row_lengths())
    after = first[:, tf.newaxis] + max_segments
    in_run = (numbers >= first[:, tf.newaxis]) & (numbers < after)
    zero = tf.zeros_like(sizes)
    start = tf.reduce_sum(tf.where(numbers < first[:, tf.newaxis], sizes, zero), axis=1)[:, None]
    end = start + tf.reduce_sum(tf.where(in_run, sizes, zero), axis=1)[:, None]  # [B, 1]
    places = tf.cast(tf.ragged.range(lists[ROW_TOKEN_IDS].row_lengths()), tf.int32)
    is_inside = (places >= start) & (places < end)
    mention_starts, mention_ends = lists[MENTION_STARTS], lists[MENTION_ENDS]
    is_gold = (mention_starts >= start) & (mention_ends < end)
    moved = {MENTION_STARTS, MENTION_ENDS}
    taken = {}
    for name, values in lists.items():
        if name == SEGMENT_LENGTHS:
            taken[name] = tf.ragged.boolean_mask(values, in_run)
        elif name in (*moved, MENTION_CLUSTERS):
            taken[name] = tf.ragged.boolean_mask(
                values - start if name in moved else values, is_gold
            )
        else:
            taken[name] = tf.ragged.boolean_mask(values, is_inside)
    return taken

"""The stream of records: each epoch is a permutation of all records, a function of (seed, epoch).

The stream is one endless sequence of records, and a global batch is a slice of it. Every worker
reads the whole stream and takes its own rows (a batch of 256 is 0.3 MB). So batches are the same
for any number of workers, and no file is cut. A resumed run skips records without decoding them.

Records are read and parsed in chunks of thousands, which costs a tenth of masking them. For single
records, unbatching and batching would already cost as much as parsing.
"""

from collections.abc import Callable, Sequence

import numpy as np
import tensorflow as tf

from spanbert_tf.data.buckets import FILLER, Buckets
from spanbert_tf.data.tfrecords import load_lengths
from spanbert_tf.masking.random_bits import Purpose, random_bits, row_keys

# Records that are permuted together, 8 MB at 512 tokens. `prepare` wrote the records in a random
# order and the order of the files is new in each epoch, so a larger chunk would not mix better.
SHUFFLE_CHUNK = 8_192
_FILES_AT_ONCE = 16
_FILE_BLOCK = 16  # records read from one file before the next has its turn
_FILE_ORDER = -1  # in place of a chunk's number, in the key of the order of the files


def training_chunks(
    files: list[str], num_records: int, seed: int, first_record: int
) -> tf.data.Dataset:
    """Returns an endless data set of all records. Each epoch has its own order.

    Args:
        files: TFRecord files, in a fixed order.
        num_records: records in all of them.
        seed: the order is a function of (seed, epoch).
        first_record: number of records of the stream to skip.

    Returns:
        A data set of chunks (string [W] serialized records, int64 [W] their epochs). It raises
        `FailedPreconditionError` if an epoch has another number of records. TensorFlow reads an
        empty file as a file without records, and would never end if all files were empty.
    """
    first_epoch, first_in_epoch = divmod(first_record, num_records)
    first_chunk, first_in_chunk = divmod(first_in_epoch, SHUFFLE_CHUNK)

    def epoch_chunks(epoch: tf.Tensor) -> tf.data.Dataset:
        is_first = epoch == first_epoch
        chunks = _chunks_in_order(tf.data.TFRecordDataset, files, num_records, seed, epoch)
        return chunks.skip(tf.where(is_first, tf.constant(first_chunk, tf.int64), 0)).map(
            lambda chunk, serialized: permute_chunk(epoch, chunk, serialized)
        )

    def permute_chunk(
        epoch: tf.Tensor, chunk: tf.Tensor, serialized: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        (serialized,) = _permute([serialized], seed, epoch, chunk)  # [W]
        is_first = (epoch == first_epoch) & (chunk == first_chunk)
        serialized = serialized[tf.where(is_first, first_in_chunk, 0) :]
        return serialized, tf.fill(tf.shape(serialized), epoch)

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_chunks)


def length_batches(
    files: list[str],
    num_rows: np.ndarray,
    buckets: Buckets,
    *,
    fill: bytes,
    seed: int,
    first_batch: int,
) -> tf.data.Dataset:
    """Returns an endless data set of batches of records of similar length.

    The records of an epoch come in the order of `training_chunks` and fill `buckets`. A resumed run
    reads those of its first epoch from the beginning, and decodes none of them.

    Args:
        files: TFRecord files, in a fixed order, with the files of their lengths beside them.
        num_rows: int64 [L + 1], the number of records of each length in tokens.
        buckets: the widths, here as the tokens of text that a row holds.
        fill: the serialized record that fills up the last batch of an epoch.
        seed: as for `training_chunks`.
        first_batch: number of batches of the stream to skip.

    Returns:
        A data set of (int64 [], the number of the bucket; string [B], serialized records; int64
        [B], their epoch), where B is the size of the bucket. Errors are those of `training_chunks`.
    """
    first_epoch, first_in_epoch = divmod(first_batch, buckets.num_batches(num_rows))
    num_records = int(np.sum(num_rows))
    nothing = (tf.constant([], tf.string), tf.constant([], tf.int32))

    def read(file: tf.Tensor) -> tf.data.Dataset:
        stored = tf.numpy_function(
            lambda path: load_lengths(path.decode()).astype("int32"), [file], tf.int32
        )
        stored.set_shape([None])
        records = tf.data.TFRecordDataset(file)
        return tf.data.Dataset.zip(records, tf.data.Dataset.from_tensor_slices(stored))

    def filled(lengths: np.ndarray, is_end: np.bool_) -> tuple[np.ndarray, ...]:
        return tuple(buckets.fill(buckets.of_lengths(lengths), is_end=bool(is_end)))

    @tf.autograph.experimental.do_not_convert
    def fill_buckets(
        waiting: tuple[tf.Tensor, tf.Tensor], new: tuple[tf.Tensor, ...]
    ) -> tuple[tuple[tf.Tensor, ...], tuple[tf.Tensor, ...]]:
        """Adds a chunk to the waiting records, and removes the batches that are full."""
        *new_lists, is_end = new
        serialized, lengths = (
            tf.concat(pair, axis=0) for pair in zip(waiting, new_lists, strict=True)
        )
        rows, chosen, rest = tf.numpy_function(filled, [lengths, is_end], (tf.int64,) * 3)
        for numbers in (rows, chosen, rest):
            numbers.set_shape([None])
        with_fill = tf.concat([serialized, [fill]], axis=0)
        taken = tf.gather(with_fill, tf.where(rows == FILLER, tf.size(serialized, tf.int64), rows))
        return (tf.gather(serialized, rest), tf.gather(lengths, rest)), (taken, chosen)

    def cut(taken: tf.Tensor, chosen: tf.Tensor) -> tf.data.Dataset:
        sizes = tf.gather(tf.constant(buckets.sizes), chosen)
        ends = tf.cumsum(sizes)
        parts = tf.data.Dataset.from_tensor_slices((chosen, ends - sizes, ends))
        return parts.map(lambda bucket, begin, end: (bucket, taken[begin:end]))

    def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
        def permute_chunk(chunk: tf.Tensor, values: tuple) -> tuple[tf.Tensor, ...]:
            return (*_permute(values, seed, epoch, chunk), tf.constant(False))

        chunks = _chunks_in_order(read, files, num_records, seed, epoch).map(permute_chunk)
        chunks = chunks.concatenate(tf.data.Dataset.from_tensors((*nothing, True)))
        filled = chunks.scan(nothing, fill_buckets)
        num_passed = tf.where(epoch == first_epoch, tf.constant(first_in_epoch, tf.int64), 0)
        batches = filled.flat_map(cut).skip(num_passed)
        return batches.map(
            lambda bucket, serialized: (bucket, serialized, tf.fill(tf.shape(serialized), epoch))
        )

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_batches)


def _chunks_in_order(
    read: Callable[[tf.Tensor], tf.data.Dataset],
    files: list[str],
    num_records: int,
    seed: int,
    epoch: tf.Tensor,
) -> tf.data.Dataset:
    """Returns the chunks of an epoch, numbered.

    The files are permuted. The records of a chunk are not permuted yet.

    Args:
        read: the data set of a file.
        files: as for `training_chunks`.
        num_records: as for `training_chunks`.
        seed: as for `training_chunks`.
        epoch: int64 [].
    """
    (names,) = _permute([tf.constant(files)], seed, epoch, tf.constant(_FILE_ORDER, tf.int64))
    records = tf.data.Dataset.from_tensor_slices(names).interleave(
        read, cycle_length=_FILES_AT_ONCE, block_length=_FILE_BLOCK
    )
    records = records.apply(tf.data.experimental.assert_cardinality(num_records))
    return records.batch(SHUFFLE_CHUNK).enumerate()


def _permute(
    values: Sequence[tf.Tensor], seed: int, epoch: tf.Tensor, chunk: tf.Tensor
) -> list[tf.Tensor]:
    """Permutes lists of equal length [W], all in the same random order."""
    keys = row_keys(seed, epoch, chunk)[tf.newaxis]  # [1]; the chunk in place of a record
    counters = tf.range(tf.size(values[0]))[tf.newaxis]
    bits = random_bits(keys, Purpose.ORDER, counters)[0]  # [W]
    # A bit less, so that the order of unsigned numbers is that of signed ones.
    halved = tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)
    order = tf.argsort(halved, stable=True)
    return [tf.gather(one, order) for one in values]


def evaluation_chunks(files: list[str], fill: tf.data.Dataset) -> tf.data.Dataset:
    """Returns all records once, in the order of the files, then those of `fill`, as epoch 0."""
    chunks = tf.data.TFRecordDataset(files).concatenate(fill).batch(SHUFFLE_CHUNK)
    return chunks.map(lambda serialized: (serialized, tf.zeros(tf.shape(serialized), tf.int64)))

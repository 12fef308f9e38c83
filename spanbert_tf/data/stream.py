"""The stream of records: every epoch a permutation of all of them, a function of (seed, epoch).

The stream is one infinite sequence of records, epoch after epoch; a global batch is a slice of it.
Every worker reads the whole stream and takes its own rows (a batch of 256 is 0.3 MB), so batches
are the same for any number of workers, and no file is cut. Resuming skips records without decoding
them.

Records travel in chunks of thousands, so that reading and parsing them costs a tenth of masking
them: one by one, unbatching and batching alone would cost as much as parsing.
"""

import tensorflow as tf

from spanbert_tf.masking.random_bits import Stream, random_bits, row_keys

# Records that are permuted together, 8 MB at 512 tokens. `prepare` wrote the records in a random
# order and the order of the files is new in each epoch, so a larger chunk would not mix better.
SHUFFLE_CHUNK = 8_192
_FILES_AT_ONCE = 16
_FILE_BLOCK = 16  # records read from one file before the next has its turn
_FILE_ORDER = -1  # in place of a chunk's number, in the key of the order of the files


def training_chunks(
    files: list[str], num_records: int, seed: int, first_record: int
) -> tf.data.Dataset:
    """All records, epoch after epoch without end, each epoch in an order of its own.

    Args:
        files: TFRecord files, in a fixed order.
        num_records: records in all of them.
        seed: the order is a function of (seed, epoch).
        first_record: how many records of the stream to pass over.

    Returns:
        A data set of chunks (string [W] serialized records, int64 [W] their epochs). It raises
        `FailedPreconditionError` if an epoch has another number of records: TensorFlow reads a
        file that was truncated to nothing as a file without records, and would never end if all
        files were truncated.
    """
    first_epoch, first_in_epoch = divmod(first_record, num_records)
    first_chunk, first_in_chunk = divmod(first_in_epoch, SHUFFLE_CHUNK)

    def epoch_chunks(epoch: tf.Tensor) -> tf.data.Dataset:
        names = _permute(tf.constant(files), seed, epoch, tf.constant(_FILE_ORDER, tf.int64))
        records = tf.data.Dataset.from_tensor_slices(names).interleave(
            tf.data.TFRecordDataset, cycle_length=_FILES_AT_ONCE, block_length=_FILE_BLOCK
        )
        is_first = epoch == first_epoch
        records = records.apply(tf.data.experimental.assert_cardinality(num_records))
        chunks = records.batch(SHUFFLE_CHUNK).enumerate()
        return chunks.skip(tf.where(is_first, tf.constant(first_chunk, tf.int64), 0)).map(
            lambda chunk, serialized: permute_chunk(epoch, chunk, serialized)
        )

    def permute_chunk(
        epoch: tf.Tensor, chunk: tf.Tensor, serialized: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        serialized = _permute(serialized, seed, epoch, chunk)  # [W]
        is_first = (epoch == first_epoch) & (chunk == first_chunk)
        serialized = serialized[tf.where(is_first, first_in_chunk, 0) :]
        return serialized, tf.fill(tf.shape(serialized), epoch)

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_chunks)


def _permute(values: tf.Tensor, seed: int, epoch: tf.Tensor, chunk: tf.Tensor) -> tf.Tensor:
    keys = row_keys(seed, epoch, chunk)[tf.newaxis]  # [1]; the chunk in place of a record
    bits = random_bits(keys, Stream.ORDER, tf.range(tf.size(values))[tf.newaxis])[0]  # [W]
    # A bit less, so that the order of unsigned numbers is that of signed ones.
    halved = tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)
    return tf.gather(values, tf.argsort(halved, stable=True))


def evaluation_chunks(files: list[str], fill: tf.data.Dataset) -> tf.data.Dataset:
    """All records once, in the order of the files, then those of `fill`; chunks of epoch 0."""
    chunks = tf.data.TFRecordDataset(files).concatenate(fill).batch(SHUFFLE_CHUNK)
    return chunks.map(lambda serialized: (serialized, tf.zeros(tf.shape(serialized), tf.int64)))

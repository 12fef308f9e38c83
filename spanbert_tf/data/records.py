"""The stream of records: every epoch a permutation of all of them, a function of (seed, epoch).

The stream is one infinite sequence of records, epoch after epoch; a global batch is a slice of it.
Every worker reads the whole stream and takes its rows of it: a batch of 256 is 0.3 MB, so batches
are the same for any number of workers without cutting the files among them. Resuming skips records
undecoded.

Records travel in windows of thousands, so that reading and parsing them costs a tenth of masking
them: one by one, unbatching and batching alone would cost as much as parsing.
"""

import os
from collections.abc import Sequence

import tensorflow as tf

from spanbert_tf.data.schema import (
    DATASET_INFO_FILE,
    RECORD_ID,
    VOCABULARY_FILE,
    DatasetInfo,
    vocabulary_hash,
)
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.masking.random_bits import Stream, random_bits, row_keys
from spanbert_tf.vocabulary import load_vocabulary

# Records that are permuted together; with files that `prepare` wrote in a global random order,
# and files in a new order in each epoch, more would not mix better. 8 MB at 512 tokens.
SHUFFLE_WINDOW = 8_192
_FILES_AT_ONCE = 16
_FILE_BLOCK = 16  # records read from one file before the next has its turn
_FILE_ORDER = -1  # in place of a window number


def load_dataset_info(directory: str | os.PathLike) -> DatasetInfo:
    """Reads and checks the description of a set of records.

    Args:
        directory: what `spanbert-tf prepare` wrote.

    Raises:
        BadInputError: the directory, its description or one of its files is missing or unusable.
        MismatchError: `vocab.txt` is not the vocabulary that the records were written with.
    """
    directory = os.fspath(directory)
    path = os.path.join(directory, DATASET_INFO_FILE)
    try:
        with tf.io.gfile.GFile(path) as file:
            info = DatasetInfo.from_json(file.read(), path)
    except (tf.errors.OpError, OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path}: cannot be read; write records with `spanbert-tf prepare pretraining`"
        ) from error
    for shard in info.shards:
        if not tf.io.gfile.exists(os.path.join(directory, shard.file)):
            raise BadInputError(
                f"{os.path.join(directory, shard.file)}: named in {DATASET_INFO_FILE}, but missing;"
                " copy it or write the records again"
            )
    vocabulary_path = os.path.join(directory, VOCABULARY_FILE)
    if vocabulary_hash(load_vocabulary(vocabulary_path)) != info.vocabulary_hash:
        raise MismatchError(
            f"{vocabulary_path}: not the vocabulary that the records were written with "
            f"({DATASET_INFO_FILE}: vocabulary_hash); write the records again"
        )
    return info


def training_windows(
    files: list[str], num_records: int, seed: int, first_record: int
) -> tf.data.Dataset:
    """All records, epoch after epoch without end, each epoch in an order of its own.

    Args:
        files: TFRecord files, in a fixed order.
        num_records: records in all of them.
        seed: the order is a function of (seed, epoch).
        first_record: how many records of the stream to pass over.

    Returns:
        A data set of windows (string [W] serialized records, int64 [W] their epochs).
    """
    first_epoch, first_in_epoch = divmod(first_record, num_records)
    first_window, first_in_window = divmod(first_in_epoch, SHUFFLE_WINDOW)

    def epoch_windows(epoch: tf.Tensor) -> tf.data.Dataset:
        names = _permute(tf.constant(files), seed, epoch, tf.constant(_FILE_ORDER, tf.int64))
        records = tf.data.Dataset.from_tensor_slices(names).interleave(
            tf.data.TFRecordDataset, cycle_length=_FILES_AT_ONCE, block_length=_FILE_BLOCK
        )
        is_first = epoch == first_epoch
        windows = records.batch(SHUFFLE_WINDOW).enumerate()
        return windows.skip(tf.where(is_first, tf.constant(first_window, tf.int64), 0)).map(
            lambda window, serialized: permute_window(epoch, window, serialized)
        )

    def permute_window(
        epoch: tf.Tensor, window: tf.Tensor, serialized: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        serialized = _permute(serialized, seed, epoch, window)  # [W]
        is_first = (epoch == first_epoch) & (window == first_window)
        serialized = serialized[tf.where(is_first, first_in_window, 0) :]
        return serialized, tf.fill(tf.shape(serialized), epoch)

    return tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(epoch_windows)


def _permute(values: tf.Tensor, seed: int, epoch: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    keys = row_keys(seed, epoch, window)[tf.newaxis]  # [1]
    bits = random_bits(keys, Stream.ORDER, tf.range(tf.size(values))[tf.newaxis])[0]  # [W]
    # A bit less, so that the order of unsigned numbers is that of signed ones.
    halved = tf.cast(tf.bitwise.right_shift(bits, tf.constant(1, tf.uint64)), tf.int64)
    return tf.gather(values, tf.argsort(halved, stable=True))


def evaluation_windows(files: list[str], fill: tf.data.Dataset) -> tf.data.Dataset:
    """All records once, in the order of the files, then those of `fill`; windows of epoch 0."""
    windows = tf.data.TFRecordDataset(files).concatenate(fill).batch(SHUFFLE_WINDOW)
    return windows.map(lambda serialized: (serialized, tf.zeros(tf.shape(serialized), tf.int64)))


def find_damage(files: list[str]) -> BadInputError | None:
    """Reads files to the end and says which record of which file is damaged, if one is."""
    for path in files:
        records_read = 0
        try:
            for serialized in tf.data.TFRecordDataset(path):
                tf.train.Example.FromString(serialized.numpy())
                records_read += 1
        except (tf.errors.OpError, ValueError) as error:
            # TensorFlow puts the name of a graph node before and of an operation behind.
            reason = str(error).splitlines()[0].split("}} ")[-1].split(" [Op:")[0]
            return BadInputError(
                f"{path}: record {records_read} (from 0) is damaged ({reason}); copy the file "
                "again or write the records again"
            )
    return None


def files_of_records(files: list[str], record_ids: Sequence[int]) -> list[str]:
    """The names of those files, without their directories, that hold one of some records."""
    wanted, found = set(record_ids), []
    for path in files:
        for serialized in tf.data.TFRecordDataset(path).as_numpy_iterator():
            example = tf.train.Example.FromString(serialized)
            if example.features.feature[RECORD_ID].int64_list.value[0] in wanted:
                found.append(os.path.basename(path))
                break
    return found

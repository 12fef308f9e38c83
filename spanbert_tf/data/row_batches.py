"""The packed rows of a task as batches of tensors: the input of all fine-tuning and prediction.

A task's rows lie in one TFRecord file, with their lengths beside it. `LengthBatches` says which of
them make up a batch; the rows are read at their places in the file, and the task's own function
makes tensors of a whole batch at once. Nothing here knows what the rows mean.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from spanbert_tf.data.length_batches import FILLER, LengthBatches
from spanbert_tf.data.tfrecords import RecordFile
from spanbert_tf.masking.random_bits import row_keys

ParseRows = Callable[..., tuple[dict, dict]]


def training_batches(
    records: RecordFile,
    batches: LengthBatches,
    parse: ParseRows,
    *,
    seed: int,
    first_batch: int = 0,
    with_keys: bool = False,
) -> tf.data.Dataset:
    """Batches of rows of similar length, epoch after epoch without end.

    Args:
        records: the rows; those beyond the ones that `batches` knows are not trained.
        batches: which rows make up each batch; B is its batch size.
        parse: turns records (string [B]) and the width to pad them to (int32 []) into `(x, y)`,
            tensors of B rows.
        seed: the order is a function of (seed, epoch).
        first_batch: how many batches to pass over, to resume; none of them is read.
        with_keys: whether `parse` is also given a key of each row and epoch (uint64 [B]), for a
            task that draws what it takes of a row anew at each visit; see `random_bits`.

    Returns:
        A data set of `(x, y, sample_weight)`. All batches have B rows; those that fill up the last
        one of an epoch are copies of its first row, and their `sample_weight` (float32 [B]) is 0.
    """
    first_epoch, first_in_epoch = divmod(first_batch, batches.num_batches)

    @tf.autograph.experimental.do_not_convert  # here as below: plain operations
    def plan_of(epoch: tf.Tensor) -> tf.data.Dataset:
        rows, widths = tf.numpy_function(
            lambda number: tuple(batches.epoch(seed, int(number))),
            [epoch],
            (tf.int64, tf.int32),
        )
        rows.set_shape([batches.num_batches, batches.batch_size])
        widths.set_shape([batches.num_batches])
        num_passed = tf.where(epoch == first_epoch, tf.constant(first_in_epoch, tf.int64), 0)
        epochs = tf.fill(tf.shape(rows), epoch)
        return tf.data.Dataset.from_tensor_slices((rows, widths, epochs)).skip(num_passed)

    @tf.autograph.experimental.do_not_convert
    def read(rows: tf.Tensor, width: tf.Tensor, epochs: tf.Tensor) -> tuple[dict, dict, tf.Tensor]:
        is_row = rows != FILLER
        rows = tf.where(is_row, rows, rows[0])
        keys = [row_keys(seed, epochs, rows)] if with_keys else []
        x, y = parse(_read(records, rows), width, *keys)
        return x, y, tf.cast(is_row, tf.float32)

    plan = tf.data.Dataset.range(first_epoch, tf.int64.max).flat_map(plan_of)
    return plan.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def prediction_batches(
    records: RecordFile,
    batches: LengthBatches,
    parse: ParseRows,
    max_positions: int | None = None,
) -> tf.data.Dataset:
    """Batches of all rows once, the longest first.

    Args:
        records: as `training_batches`.
        batches: as `training_batches`.
        parse: as `training_batches`.
        max_positions: positions of a batch at most, padding counted; see
            `LengthBatches.longest_first`.

    Returns:
        A data set of `(x, y)`; the last batch may be smaller. `x` also has `row_index`,
        the number of each row in the file (int32 [B]), ascending in a batch: with it predictions
        return to the order of the file.
    """

    @tf.autograph.experimental.do_not_convert
    def read(rows: tf.Tensor, width: tf.Tensor) -> tuple[dict, dict]:
        rows = tf.boolean_mask(rows, rows != FILLER)
        x, y = parse(_read(records, rows), width)
        return x | {"row_index": tf.cast(rows, tf.int32)}, y

    plan = tf.data.Dataset.from_tensor_slices(tuple(batches.longest_first(max_positions)))
    return plan.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


@tf.autograph.experimental.do_not_convert
def _read(records: RecordFile, rows: tf.Tensor) -> tf.Tensor:
    """The records of a batch, string [B]."""
    serialized = tf.numpy_function(
        lambda numbers: np.array(records.read(numbers), object), [rows], tf.string
    )
    serialized.set_shape(rows.shape)
    return serialized

"""Data sets that compute ahead: their order, and that no thread of TensorFlow's tunes them."""

import numpy as np
import tensorflow as tf

from spanbert_tf.data import pretraining_dataset
from spanbert_tf.data.ahead import computed_ahead
from spanbert_tf.data.batches import LengthBatches, row_batches
from spanbert_tf.data.tfrecords import RecordFile


def test_batches_come_in_the_order_of_their_parts_however_long_each_takes():
    def compute(number):
        spun = tf.while_loop(lambda i: i < 2_000 * (5 - number % 5), lambda i: [i + 1], [0])
        return number + 0 * spun[0]

    batches = computed_ahead(tf.data.Dataset.range(40, output_type="int32"), compute)
    assert list(batches.as_numpy_iterator()) == list(range(40))


def datasets(records, directory):
    """One of each kind that a command reads."""
    for split in ("train", "validation"):
        yield pretraining_dataset(records, batch_size=4, split=split)
    lengths = np.array([3, 5, 4])
    path = f"{directory}/rows.tfrecord"
    with tf.io.TFRecordWriter(path) as writer:
        for length in lengths:
            writer.write(np.zeros(length, "<i4").tobytes())
    rows = RecordFile(path), LengthBatches(lengths, batch_size=2, max_length=5)

    def parse(serialized, width):
        values = tf.io.decode_raw(serialized, tf.int32, fixed_length=4 * width)
        return {"values": values}, {"number": values[:, 0]}

    for options in ({"training": False}, {"training": True}, {"training": True, "last_batch": 3}):
        yield row_batches(*rows, parse, **options)


def test_no_thread_tunes_a_data_set(tiny_records, tmp_path):
    """Its iterator's deletion could wait for that thread for a minute."""
    found = list(datasets(tiny_records, tmp_path))
    assert len(found) == 5
    assert [dataset.options().autotune.enabled for dataset in found] == [False] * 5

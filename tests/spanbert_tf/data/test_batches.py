"""The stream of a task's rows: real records, each of whose tokens is its row number, from 1."""

import tempfile

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from graph_operations import PYTHON, operations_of_data, unknown_shapes
from hypothesis import strategies as st

from spanbert_tf.data.batches import LengthBatches, row_batches
from spanbert_tf.data.tfrecords import RecordFile

MAX_LENGTH = 60
sizes = st.tuples(st.integers(1, 40), st.integers(1, 9))  # rows, rows of a batch


def parse(serialized, width):
    values = tf.io.decode_raw(serialized, tf.int32, fixed_length=4 * width)
    return {"values": values}, {"number": values[:, 0] - 1}


class Task:
    """Rows of lengths from 1 to 60, in a file."""

    def __init__(self, directory, num_rows, batch_size, num_trained=None):
        self.lengths = np.random.default_rng(num_rows).integers(1, MAX_LENGTH + 1, num_rows)
        path = f"{directory}/rows.tfrecord"
        with tf.io.TFRecordWriter(path) as writer:
            for number, length in enumerate(self.lengths):
                writer.write(np.full(length, number + 1, "<i4").tobytes())
        self.records = RecordFile(path)
        self.batches = LengthBatches(
            self.lengths[:num_trained], batch_size=batch_size, max_length=MAX_LENGTH
        )

    def dataset(self, **options):
        return row_batches(self.records, self.batches, parse, **options)

    def training(self, count, first_batch=0, seed=5, options=None):
        dataset = self.dataset(training=True, seed=seed, first_batch=first_batch)
        if options:
            dataset = dataset.with_options(options)
        return list(dataset.take(count).as_numpy_iterator())

    def prediction(self):
        return list(self.dataset(training=False).as_numpy_iterator())


def check_equal(actual, expected):
    tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


@hypothesis.settings(max_examples=8)
@hypothesis.given(sizes, st.data())
def test_stream_of_training(shape, data):
    """Three epochs: each row once in each; and from any batch on, the same as from the start."""
    num_rows, batch_size = shape
    with tempfile.TemporaryDirectory() as directory:
        task = Task(directory, num_rows, batch_size)
        a_third = task.batches.num_batches
        stream = task.training(3 * a_third)
        for epoch in range(3):
            numbers = []
            for x, y, weights in stream[epoch * a_third : (epoch + 1) * a_third]:
                assert len(weights) == batch_size
                numbers += y["number"][weights == 1].tolist()
                for row, number in zip(x["values"], y["number"], strict=True):
                    length = task.lengths[number]
                    assert row.tolist() == [number + 1] * length + [0] * (len(row) - length)
                is_filler = weights == 0
                assert (y["number"][is_filler] == y["number"][0]).all()
            assert sorted(numbers) == list(range(num_rows))
        first_batch = data.draw(st.integers(0, 3 * a_third - 1))
        resumed = task.training(3 * a_third - first_batch, first_batch)
        check_equal(resumed, stream[first_batch:])


@hypothesis.settings(max_examples=8)
@hypothesis.given(sizes)
def test_predictions_come_back_in_the_order_of_the_file(shape):
    with tempfile.TemporaryDirectory() as directory:
        task = Task(directory, *shape)
        batches = task.prediction()
        lengths = [(x["values"] > 0).sum(axis=1).max() for x, y in batches]
        assert lengths == sorted(lengths, reverse=True)
        order = np.concatenate([x["row_index"] for x, _ in batches])
        predicted = np.concatenate([y["number"] for _, y in batches])
        restored = np.zeros(shape[0], int)
        restored[order] = predicted
        assert restored.tolist() == list(range(shape[0]))


def test_threads_do_not_change_the_batches(tmp_path):
    task = Task(tmp_path, 300, 7)
    streams = []
    for threads, autotune in ((1, False), (8, True)):
        options = tf.data.Options()
        options.threading.private_threadpool_size = threads
        options.autotune.enabled = autotune
        streams.append(task.training(100, options=options))
    check_equal(*streams)


def test_more_rows_than_any_window(tmp_path):
    """The order of 20,000 rows in the stream itself has nothing of the file's."""
    task = Task(tmp_path, 20_000, 32)
    stream = task.training(task.batches.num_batches)
    numbers = np.concatenate([y["number"] for _, y, _ in stream])
    assert sorted(numbers) == list(range(20_000))
    assert abs(np.corrcoef(numbers, np.arange(20_000))[0, 1]) < 0.05
    assert len({x["values"].shape for x, _, _ in stream}) <= 16


def test_rows_behind_those_that_are_trained(tmp_path):
    task = Task(tmp_path, 12, 3, num_trained=8)
    numbers = {number for _, y, _ in task.training(9) for number in y["number"]}
    assert numbers == set(range(8))


def test_shapes_are_known_but_for_the_width(tmp_path):
    task = Task(tmp_path, 12, 5)
    x, _, weights = task.dataset(training=True).element_spec
    assert weights.shape == [5]
    assert x["values"].shape.rank == 2


@pytest.mark.parametrize("first", [0, 2, 3, 5])
def test_batches_for_tpus_are_the_same_rows_in_one_shape_without_python(first, tmp_path):
    task, last = Task(tmp_path, 12, 5), 7  # three batches an epoch
    batches = task.dataset(training=True, seed=5, first_batch=first, last_batch=last)
    assert not unknown_shapes(batches.element_spec)
    assert not operations_of_data(batches) & PYTHON
    others = task.dataset(training=True, seed=5)
    assert operations_of_data(others) & PYTHON
    expected = task.training(last)[first:]
    found = list(batches.take(last - first + 1).as_numpy_iterator())
    check_equal(found[-1], found[0])
    for (x, *rest), (wide, *others) in zip(expected, found[:-1], strict=True):
        check_equal(others, rest)
        width = x["values"].shape[1]
        np.testing.assert_array_equal(wide["values"][:, :width], x["values"])
        assert not wide["values"][:, width:].any()


@pytest.mark.parametrize(("num_rows", "batch_size"), [(1, 1), (1, 8), (3, 8), (9, 1)])
def test_few_rows(num_rows, batch_size, tmp_path):
    task = Task(tmp_path, num_rows, batch_size)
    weights = [weights.tolist() for _, _, weights in task.training(task.batches.num_batches)]
    assert np.sum(weights) == num_rows
    assert np.shape(weights) == (-(-num_rows // batch_size), batch_size)
    assert sum(len(y["number"]) for _, y in task.prediction()) == num_rows

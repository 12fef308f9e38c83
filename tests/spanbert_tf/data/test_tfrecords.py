"""Records by number, against TensorFlow's own reading of the file."""

import pathlib
import tempfile

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from spanbert_tf.data.tfrecords import RecordFile
from spanbert_tf.errors import BadInputError


def written(path, records):
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path


@hypothesis.settings(max_examples=25)
@hypothesis.given(st.lists(st.binary(max_size=80), max_size=12), st.integers(0, 2**32))
def test_records_are_those_of_tensorflow(records, seed):
    with tempfile.TemporaryDirectory() as directory:
        path = written(pathlib.Path(directory) / "rows.tfrecord", records)
        file = RecordFile(path)
        assert len(file) == len(records)
        expected = list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())
        numbers = np.random.default_rng(seed).permutation(len(records))
        assert file.read(numbers) == [expected[number] for number in numbers]
        assert file.read([]) == []


def test_file_that_ends_inside_a_record(tmp_path):
    """At every place: whole records are no damage, anything else is, and is named."""
    content = written(tmp_path / "whole", [b"", b"abc", b"d" * 20]).read_bytes()
    whole_records = {0: 0, 16: 1, 35: 2, 71: 3}
    path = tmp_path / "cut.tfrecord"
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        if size in whole_records:
            assert len(RecordFile(path)) == whole_records[size]
            continue
        number = sum(size > end for end in whole_records) - 1
        with pytest.raises(BadInputError) as caught:
            RecordFile(path)
        assert str(caught.value).startswith(f"{path}: record {number} (from 0) is damaged (")
        assert "\n" not in str(caught.value)


def test_length_that_is_damaged(tmp_path):
    path = written(tmp_path / "rows.tfrecord", [b"abc", b"def"])
    content = bytearray(path.read_bytes())
    content[7] = 255  # the highest byte of the first length
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=r"record 0 \(from 0\) is damaged \(its length"):
        RecordFile(path)


def test_file_that_is_cut_while_it_is_read(tmp_path):
    path = written(tmp_path / "rows.tfrecord", [b"abc", b"def"])
    file = RecordFile(path)
    with open(path, "r+b") as opened:
        opened.truncate(20)
    assert file.read([0]) == [b"abc"]
    with pytest.raises(BadInputError, match=r"rows\.tfrecord: was cut off while it was read"):
        file.read([1])


def test_missing_file(tmp_path):
    with pytest.raises(BadInputError, match=r"rows\.tfrecord: cannot be read \(No such file"):
        RecordFile(tmp_path / "rows.tfrecord")

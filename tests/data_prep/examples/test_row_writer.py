"""A file of rows that cannot be written."""

import pytest

from data_prep.examples.row_writer import RowWriter


@pytest.mark.parametrize("path", ["/dev/full", "/dev/null/rows.tfrecord"])
def test_what_tensorflow_cannot_write_is_an_os_error(path):
    """`write_directory` makes a line of it that names the output."""
    with pytest.raises(OSError), RowWriter(path) as writer:
        writer.write(b"x" * 1_000_000, 1)

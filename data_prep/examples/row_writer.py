"""Writes the packed rows of a task, with their lengths beside them."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf

from spanbert_tf.data.row_lengths import save_lengths


class RowWriter:
    """A TFRecord file and the lengths of its rows; a context manager that completes both.

    Rows that are not trained come last: training reads those before them.

    Args:
        path: path of the TFRecord file.

    Raises:
        OSError: the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lengths: list[int] = []

    def __enter__(self) -> "RowWriter":
        with _as_os_error():
            self._records = tf.io.TFRecordWriter(self._path)
        return self

    def __exit__(self, *exception: object) -> None:
        with _as_os_error():
            self._records.close()
        save_lengths(self._path, self._lengths)

    def counts(self) -> dict[str, int]:
        """Rows and their tokens so far, as a description of records tells them."""
        return {"rows": len(self._lengths), "tokens": sum(self._lengths)}

    def write(self, serialized: bytes, num_tokens: int) -> None:
        """Writes a row of so many tokens."""
        with _as_os_error():
            self._records.write(serialized)
        self._lengths.append(num_tokens)


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """TensorFlow has errors of its own for full disks."""
    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error

"""The lengths of a task's rows, beside the file of the rows. Nothing here needs TensorFlow."""

import os
import tokenize
from collections.abc import Sequence

import numpy as np

from spanbert_tf.errors import BadInputError, reason

# NumPy reads a head as Python's text, and sets aside what it says the array takes.
_NO_ARRAY = (
    OSError,
    ValueError,
    EOFError,
    MemoryError,
    OverflowError,
    SyntaxError,
    TypeError,
    tokenize.TokenError,
)


def lengths_path(records_path: str) -> str:
    """Where the lengths are: in `windows.lengths.npy` beside `windows.tfrecord`."""
    return f"{os.path.splitext(records_path)[0]}.lengths.npy"


def save_lengths(records_path: str, lengths: Sequence[int]) -> None:
    """Writes the lengths of the rows of a file, in tokens."""
    np.save(lengths_path(records_path), np.array(lengths, "<i4"))


def load_lengths(records_path: str) -> np.ndarray:
    """The lengths of the rows of a file, int32 [rows].

    Raises:
        BadInputError: they cannot be read.
    """
    path = lengths_path(records_path)
    try:
        with open(path, "rb") as file:
            lengths = np.lib.format.read_array(file, allow_pickle=False)
    except _NO_ARRAY as error:
        raise BadInputError(
            f"{path}: cannot be read ({reason(error)}); write the records again"
        ) from error
    if lengths.ndim != 1 or lengths.dtype.kind != "i":
        raise BadInputError(f"{path}: is no list of lengths; write the records again")
    return lengths

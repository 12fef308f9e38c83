"""Reads NumPy's files of several arrays (`.npz`), which may come from strangers."""

import lzma
import math
import os
import tokenize
import zipfile
import zlib

import numpy as np

from spanbert_tf.files.hdf5 import FREE_BYTES, MAX_RATIO

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
# What `read_arrays` raises for a damaged or malicious file.
ARRAYS_DAMAGE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    MemoryError,
    LookupError,
    TypeError,
    SyntaxError,  # NumPy parses headers as Python literals
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """Reads the arrays of an .npz file whose sizes its bytes can hold.

    `np.load` allocates what a header of 100 bytes states before it reads the values, and a
    compressed member can unpack to a thousand times its size.

    Raises:
        ValueError: the file is damaged, or an array is larger than its bytes in the file; or
            another error of `ARRAYS_DAMAGE`.
    """
    limit = FREE_BYTES + MAX_RATIO * os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > limit:
            raise ValueError(f"unpacks to {unpacked:,} bytes")
        for member in archive.infolist():
            with archive.open(member) as file:
                version = np.lib.format.read_magic(file)
                shape, _, dtype = _HEADERS[version](file)
            num_bytes = math.prod(shape) * dtype.itemsize
            if num_bytes > member.file_size:
                raise ValueError(f"an array of {num_bytes:,} bytes in {member.file_size:,}")
    with np.load(path, allow_pickle=False) as file:
        return dict(file)

"""Finds out that a disk is full before a library that cannot bear it does."""

import os
import tempfile

_CHUNK = bytes(1 << 20)


def check_space(directory: str | os.PathLike, num_bytes: int) -> None:
    """Writes a file of a size, and removes it.

    HDF5 ends the process with a segmentation fault when it cannot write what it has buffered, and
    a file system's own count of free bytes knows nothing of quotas and limits.

    Args:
        directory: where the file is written; must exist.
        num_bytes: its size.

    Raises:
        OSError: there is no room for it.
    """
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
            return
        for start in range(0, num_bytes, len(_CHUNK)):
            file.write(_CHUNK[: num_bytes - start])

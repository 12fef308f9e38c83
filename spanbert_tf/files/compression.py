"""Unpacks files that are compressed by gzip, bzip2, xz or zstd; the first bytes tell which.

Importing this module imports neither TensorFlow nor a decompressor.
"""

import io
import lzma
import os
import re
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

from spanbert_tf.errors import BadInputError, reason

READ_SIZE = 2**20  # bytes that are read at once, and that can be looked at before they are read
# Where only a limited size is allowed, a file may unpack to `_FREE_BYTES` plus `_MAX_RATIO` times
# its size. Text shrinks to a third, tables padded with spaces and lists of similar objects to a
# tenth.
_FREE_BYTES = 16 << 20
_MAX_RATIO = 32
_BEGINNINGS = {
    "gzip": rb"\x1f\x8b",
    "bzip2": rb"BZh\d(?:1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\0",
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
}
_LONGEST_BEGINNING = 10  # bytes
_UNPACK_COMMANDS = {"gzip": "gunzip -k", "bzip2": "bunzip2 -k", "xz": "xz -dk", "zstd": "zstd -d"}
# What the decompressors raise for damaged data. `BadGzipFile` is an `OSError`.
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)


def compression_of(head: bytes) -> str | None:
    """The compression of a file that begins with `head`, or `None`."""
    for name, beginning in _BEGINNINGS.items():
        if re.match(beginning, head):
            return name
    return None


class UnpackedFile(io.BufferedReader):
    """The content of a file, unpacked if it is compressed. It is read forwards only.

    `peek(1)` returns the next `READ_SIZE` bytes, or all that are left.

    Args:
        path: path of the file, for errors.
        file: the file, open at its beginning. It may be a pipe.
        is_limited: whether the file may unpack only to a size that is usual for text, because all
            of it will be held in memory: 1 MB can unpack to 1 GB.

    Attributes:
        compression: `"gzip"`, `"bzip2"`, `"xz"`, `"zstd"`, or `None`.

    Raises:
        BadInputError: while it is read: the compressed data are damaged, the file becomes shorter,
            or it unpacks to more than the limit.
    """

    def __init__(self, path: str, file: BinaryIO, *, is_limited: bool = False) -> None:
        self._file = file
        self._stored = _FullReads(_StoredBytes(path, file))
        packed: Any = io.BufferedReader(self._stored, READ_SIZE)
        self.compression = compression_of(packed.peek(1)[:_LONGEST_BEGINNING])
        limit = None
        if is_limited and self.compression:
            limit = _FREE_BYTES + _MAX_RATIO * os.fstat(file.fileno()).st_size
        source = packed
        if self.compression:
            source = _Unpacked(path, packed, self.compression, limit, lambda: self.position)
        self._content = _FullReads(source)
        super().__init__(self._content, READ_SIZE)

    @property
    def position(self) -> int:
        """Bytes of the stored file that were read so far, some of them ahead."""
        return self._stored.num_read

    @property
    def num_unpacked(self) -> int:
        """Bytes of the content that were read so far, some of them ahead."""
        return self._content.num_read


class _FullReads(io.RawIOBase):
    """Reads that are short only at the end of a file, so that a buffer over them is filled."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self.num_read = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        size = 0
        while size < len(view):
            data = self._source.read(len(view) - size)
            if not data:
                break
            view[size : size + len(data)] = data
            size += len(data)
        self.num_read += size
        return size


class _StoredBytes:
    """The bytes of a file as they are stored."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._num_read = 0
        self._size = None
        if file.seekable():
            self._size = file.seek(0, os.SEEK_END)
            file.seek(0)

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._num_read += len(data)
        if not data and self._size is not None and self._num_read < self._size:
            raise BadInputError(
                f"{self._path}: became shorter while it was read: {self._num_read:,} of "
                f"{self._size:,} bytes were read; run the command again when it is complete"
            )
        return data


class _Unpacked:
    """The unpacked bytes of a compressed file."""

    def __init__(
        self,
        path: str,
        packed: BinaryIO,
        compression: str,
        limit: int | None,
        position: Callable[[], int],
    ) -> None:
        self._path = path
        self._position = position
        self._compression = compression
        self._limit = limit
        self._num_read = 0
        self._source = _decompressor(packed, compression)

    def read(self, size: int) -> bytes:
        try:
            data = self._source.read(size)
        except _DAMAGED as error:
            raise BadInputError(
                f"{self._path}: broken {self._compression} in the first {self._position():,} bytes "
                f"({reason(error)}); copy or compress the file again"
            ) from error
        self._num_read += len(data)
        if self._limit is not None and self._num_read > self._limit:
            raise BadInputError(
                f"{self._path}: unpacks to more than {self._limit >> 20} MiB, too much for text of "
                f"its size; if that is meant, unpack it "
                f"(`{_UNPACK_COMMANDS[self._compression]} FILE`) and name the unpacked file"
            )
        return data


def _decompressor(packed: BinaryIO, compression: str) -> Any:
    if compression == "gzip":
        import gzip

        return gzip.GzipFile(fileobj=packed)
    if compression == "bzip2":
        import bz2

        return bz2.BZ2File(packed)
    if compression == "xz":
        return lzma.LZMAFile(packed)
    import pyarrow

    # The reader of the package `zstandard` takes a file that was cut for a complete one.
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(packed, "r"), "zstd")

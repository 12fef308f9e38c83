"""Reads and writes TFRecord files: whole records, random access, and the files of lengths.

A file holds for each record 8 bytes of length (little-endian), 4 bytes of the length's checksum,
the record, and 4 bytes of its checksum. TensorFlow allocates as much as a length says before it
reads, and ends the process if there is less memory. So lengths are compared with the size of the
file before TensorFlow reads it. Only writing imports TensorFlow.
"""

import contextlib
import functools
import os
import struct
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import google_crc32c
import numpy as np

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import regular_size
from spanbert_tf.files.output import os_errors

_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_HEADER_BYTES = 12
_FOOTER_BYTES = 4
# Of all files together. Looking at each length of more would read them once more from the disk.
_MAX_BYTES = 4 << 30
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


def masked_checksum(content: bytes) -> bytes:
    """Computes TFRecord's CRC-32C: rotated by 15 bits, plus a constant, little-endian."""
    checksum = google_crc32c.value(content)
    turned = (checksum >> 15) | (checksum << 17) & 0xFFFFFFFF
    return _CHECKSUM.pack((turned + 0xA282EAD8) & 0xFFFFFFFF)


@contextlib.contextmanager
def record_writer(path: str) -> Iterator[Callable[[bytes], None]]:
    """Writes a file: yields a function of serialized records.

    Raises:
        OSError: it cannot be written.
    """
    import tensorflow as tf

    with os_errors():
        file = tf.io.TFRecordWriter(path)

    def write(record: bytes) -> None:
        with os_errors():
            file.write(record)

    try:
        yield write
    finally:
        with os_errors():  # what is left is written now
            file.close()


def serialize_features(numbers: Mapping[str, int | float], lists: Mapping[str, bytes]) -> bytes:
    """Returns the bytes of a `tf.train.Example`.

    Args:
        numbers: features of one int64, or of one float32.
        lists: features of one bytes value.
    """
    import tensorflow as tf

    # Filled in place: three times as fast as from messages made one by one.
    example = tf.train.Example()
    features = example.features.feature
    for name, value in numbers.items():
        if isinstance(value, float):
            features[name].float_list.value.append(value)
        else:
            features[name].int64_list.value.append(value)
    for name, raw in lists.items():
        features[name].bytes_list.value.append(raw)
    return example.SerializeToString(deterministic=True)


def read_records(path: str) -> Iterator[tuple[bytes, str | None]]:
    """Yields the records of a file, and what is wrong with the bytes of each, in words.

    No record after a wrong length can be found, so a record with a wrong length is the last.
    """
    with open(path, "rb", buffering=0) as file:
        descriptor = file.fileno()
        for offset, size, fault in _frames(descriptor):
            if fault:
                yield b"", fault
                continue
            record = os.pread(descriptor, size, offset)
            footer = os.pread(descriptor, _FOOTER_BYTES, offset + size)
            is_whole = footer == masked_checksum(record)
            yield record, None if is_whole else "its bytes are not those of its checksum"


def _frames(descriptor: int) -> Iterator[tuple[int, int, str | None]]:
    """Yields where each record's bytes begin, how many they are, and what is wrong with that.

    Only lengths are read. The first wrong length is the last that is yielded.
    """
    size = os.fstat(descriptor).st_size
    position = 0
    while position < size:
        header = os.pread(descriptor, _HEADER_BYTES, position)
        position += _HEADER_BYTES
        if len(header) < _HEADER_BYTES:
            yield position, 0, "it is cut off"
            return
        (length,) = _LENGTH.unpack_from(header)
        end = position + length + _FOOTER_BYTES
        if masked_checksum(header[: _LENGTH.size]) != header[_LENGTH.size :]:
            yield position, 0, "its length is not that of its checksum"
            return
        if end > size:
            yield position, 0, f"it is said to have {length:,} bytes, and the file has {size:,}"
            return
        yield position, length, None
        position = end


def check_frames(paths: Iterable[str]) -> None:
    """Compares the lengths in TFRecord files with their checksums and with the files' sizes.

    TensorFlow itself refuses damage inside of records. Files of more than 4 GiB together are not
    checked.
    """
    paths = list(paths)
    if sum(map(os.path.getsize, paths)) > _MAX_BYTES:
        return
    for path in paths:
        if fault := frame_fault(path):
            raise BadInputError(f"{path}: {fault}; copy the file again or write the records again")


def frame_fault(path: str) -> str | None:
    """Returns which record has a wrong length, in words; `None` if none has."""
    state = os.stat(path)
    return _frame_fault(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=2**14)  # a command may open its records several times
def _frame_fault(path: str, _size: int, _changed: int) -> str | None:
    with open(path, "rb", buffering=0) as file:
        for number, (_, _, fault) in enumerate(_frames(file.fileno())):
            if fault:
                return f"record {number} (from 0) is damaged ({fault})"
    return None


class RecordFile:
    """The records of a file, by number.

    The constructor reads all lengths to find where each record begins: 130,000 rows in less than
    half a second. Checksums of single records are not read, since `check_files` checks whole files.

    Args:
        path: path of a TFRecord file without compression.

    Raises:
        BadInputError: the file cannot be read, or ends inside a record.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        try:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - as long as this object
            self._offsets, self._sizes = self._walk()
        except OSError as error:
            raise BadInputError(
                f"{self.path}: cannot be read ({error.strerror}); write the records again"
            ) from error

    def __len__(self) -> int:
        return len(self._offsets)

    def read(self, numbers: Iterable[int]) -> list[bytes]:
        """Reads some records, each at its place; may be called from several threads at once.

        Args:
            numbers: numbers of the records in the file, from 0.

        Raises:
            BadInputError: the file has become shorter since it was opened.
        """
        return [self._read_one(number) for number in numbers]

    def _read_one(self, number: int) -> bytes:
        size = int(self._sizes[number])
        record = os.pread(self._file.fileno(), size, int(self._offsets[number]))
        if len(record) != size:
            raise BadInputError(
                f"{self.path}: was cut off while it was read; write the records again"
            )
        return record

    def _walk(self) -> tuple[np.ndarray, np.ndarray]:
        """Finds where each record's bytes begin, and how many they are; int64 [records] each."""
        offsets: list[int] = []
        sizes: list[int] = []
        for offset, size, fault in _frames(self._file.fileno()):
            if fault:
                raise BadInputError(
                    f"{self.path}: record {len(offsets)} (from 0) is damaged ({fault}); copy the "
                    "file again or write the records again"
                )
            offsets.append(offset)
            sizes.append(size)
        return np.array(offsets, "int64"), np.array(sizes, "int64")


def lengths_path(records_path: str) -> str:
    """Returns the path of the lengths: `windows.lengths.npy` beside `windows.tfrecord`."""
    return f"{os.path.splitext(records_path)[0]}.lengths.npy"


def save_lengths(path: str, lengths: Sequence[int]) -> None:
    """Writes the lengths of the rows of a file, in tokens, to a file of that path."""
    with open(path, "wb") as file:
        np.save(file, np.array(lengths, "<i4"))


def load_lengths(records_path: str, advice: str = "write the records again") -> np.ndarray:
    """Reads the lengths of the rows of a file, int32 [rows].

    Args:
        records_path: path of the file.
        advice: what to do if they are damaged.

    Raises:
        BadInputError: they cannot be read.
    """
    path = lengths_path(records_path)
    try:
        regular_size(path)  # of somebody else's records it may be a pipe
        with open(path, "rb") as file:
            lengths = np.lib.format.read_array(file, allow_pickle=False)
    except _NO_ARRAY as error:
        raise BadInputError(f"{path}: cannot be read ({reason(error)}); {advice}") from error
    if lengths.ndim != 1 or lengths.dtype.kind != "i":
        raise BadInputError(f"{path}: is no list of lengths; {advice}")
    return lengths

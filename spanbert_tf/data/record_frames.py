"""The frames of TFRecord files: a length and its checksum, the record, and the record's checksum.

TensorFlow allocates what a length says before it reads, and ends the process where there is less
memory; so lengths are compared with the file's size before it gets the file.
"""

import functools
import os
import struct
from collections.abc import Iterable, Iterator

import google_crc32c

from spanbert_tf.data.schema import RECORD_FOOTER_BYTES, RECORD_HEADER_BYTES, RECORD_LENGTH
from spanbert_tf.errors import BadInputError

_CHECKSUM = struct.Struct("<I")
# Of all files together. Looking at each length of more would read them once more from the disk.
_MAX_BYTES = 4 << 30


def masked_checksum(content: bytes) -> bytes:
    """CRC-32C as TFRecord files have it: turned by 15 bits, plus a constant, little-endian."""
    checksum = google_crc32c.value(content)
    turned = (checksum >> 15) | (checksum << 17) & 0xFFFFFFFF
    return _CHECKSUM.pack((turned + 0xA282EAD8) & 0xFFFFFFFF)


def whole_records(path: str) -> Iterator[bytes]:
    """The records whose checksums are right, up to the first wrong length."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        while len(header := file.read(RECORD_HEADER_BYTES)) == RECORD_HEADER_BYTES:
            (length,), checksum = RECORD_LENGTH.unpack_from(header), header[RECORD_LENGTH.size :]
            is_right = masked_checksum(header[: RECORD_LENGTH.size]) == checksum
            if not is_right or length > size - file.tell():
                return
            record = file.read(length)
            if file.read(RECORD_FOOTER_BYTES) == masked_checksum(record):
                yield record


def check_frames(paths: Iterable[str]) -> None:
    """Compares the lengths in TFRecord files with the files' sizes.

    Other damage is left to TensorFlow, which refuses it; and so are files of more than 4 GiB
    together, and those of other file systems.

    Raises:
        BadInputError: a record is said to be longer than its file.
    """
    local = [path for path in paths if "://" not in path]
    if sum(map(os.path.getsize, local)) > _MAX_BYTES:
        return
    for path in local:
        if fault := frame_fault(path):
            raise BadInputError(f"{path}: {fault}; copy the file again or write the records again")


def frame_fault(path: str) -> str | None:
    """Which record is said to be longer than its file, in words; `None` where none is."""
    state = os.stat(path)
    return _frame_fault(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=2**14)  # a command may open its records several times
def _frame_fault(path: str, size: int, _changed: int) -> str | None:
    number = position = 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while (
            len(header := os.pread(descriptor, RECORD_HEADER_BYTES, position))
            == RECORD_HEADER_BYTES
        ):
            (length,) = RECORD_LENGTH.unpack_from(header)
            position += RECORD_HEADER_BYTES + length + RECORD_FOOTER_BYTES
            if position > size:
                stated = header[: RECORD_LENGTH.size]
                if masked_checksum(stated) != header[RECORD_LENGTH.size :]:
                    return None  # TensorFlow compares that first
                return (
                    f"record {number} (from 0) is said to have {length:,} bytes, and the file has "
                    f"{size:,}"
                )
            number += 1
    finally:
        os.close(descriptor)
    return None

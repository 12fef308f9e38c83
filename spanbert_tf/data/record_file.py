"""Random access to the records of a TFRecord file. Nothing here needs TensorFlow.

A TFRecord file is a sequence of records: for each, 8 bytes of length (little-endian), 4 of the
length's checksum, the record, and 4 of its checksum. A walk from length to length finds where each
record begins: 130,000 rows in less than half a second. Checksums of single records are not read:
`checksums.check_files` sees to whole files.
"""

import mmap
import os
from collections.abc import Iterable

import numpy as np

from spanbert_tf.data.schema import RECORD_FOOTER_BYTES, RECORD_HEADER_BYTES, RECORD_LENGTH
from spanbert_tf.errors import BadInputError


class RecordFile:
    """The records of a file, by number.

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
        """Some records, each read at its place; may be called from several threads at once.

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
        """Where the bytes of each record begin, and how many they are; int64 [records] each."""
        num_bytes = os.fstat(self._file.fileno()).st_size
        offsets, sizes = [], []
        if num_bytes:  # of nothing there is no map
            with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                place = 0
                while place < num_bytes:
                    first = place + RECORD_HEADER_BYTES
                    size = RECORD_LENGTH.unpack_from(content, place)[0] if first <= num_bytes else 0
                    place = first + size + RECORD_FOOTER_BYTES
                    if place > num_bytes:
                        raise BadInputError(
                            f"{self.path}: record {len(offsets)} (from 0) is cut off or damaged; "
                            "copy the file again or write the records again"
                        )
                    offsets.append(first)
                    sizes.append(size)
        return np.array(offsets, "int64"), np.array(sizes, "int64")

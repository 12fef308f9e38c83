"""Intermediate files: records on their way from input files to shards.

Beam's local runner keeps what it groups in memory, so no record travels through it. Each input
file becomes one spill file of segments; a segment holds up to 64 MB of records ordered by shard,
and each shard is later put together from its part of every segment.
"""

import dataclasses
import json
import struct
from collections.abc import Iterator

_SEGMENT_BYTES = 64 * 2**20
_HEADER = struct.Struct("<QQII")  # order key, document hash, number of tokens, size


@dataclasses.dataclass(frozen=True)
class SpilledRecord:
    """A serialized record and what decides where it goes.

    Attributes:
        order_key: uint64; shards are filled and sorted by it.
        document_hash: uint64; decides the split.
        num_tokens: word pieces of the record.
        serialized: the `tf.train.Example`.
    """

    order_key: int
    document_hash: int
    num_tokens: int
    serialized: bytes


class SpillWriter:
    """Writes the records of one input file, ordered by shard inside each segment.

    Args:
        path: of the spill file; an index is written to `path` + `.index` when closed.
        num_shards: shards of the training split.
    """

    def __init__(self, path: str, num_shards: int) -> None:
        self._path = path
        self._file = open(path, "wb")  # noqa: SIM115 - closed by `close`
        self._shards: list[list[bytes]] = [[] for _ in range(num_shards)]
        self._pending_bytes = 0
        self._segments: list[list[int]] = []

    def add(self, record: SpilledRecord) -> None:
        """Adds a record; writes a segment when enough is waiting."""
        header = _HEADER.pack(
            record.order_key, record.document_hash, record.num_tokens, len(record.serialized)
        )
        shard = self._shards[record.order_key % len(self._shards)]
        shard += (header, record.serialized)
        self._pending_bytes += len(header) + len(record.serialized)
        if self._pending_bytes >= _SEGMENT_BYTES:
            self._write_segment()

    def close(self) -> None:
        """Writes what is waiting, and the index."""
        self._write_segment()
        self._file.close()
        with open(f"{self._path}.index", "w", encoding="utf-8") as file:
            json.dump(self._segments, file)

    def _write_segment(self) -> None:
        offsets = []
        for shard in self._shards:
            offsets.append(self._file.tell())
            self._file.write(b"".join(shard))
            shard.clear()
        self._segments.append([*offsets, self._file.tell()])
        self._pending_bytes = 0


def read_shard(spill_paths: list[str], shard: int) -> Iterator[SpilledRecord]:
    """All records of a shard, in no particular order."""
    for path in spill_paths:
        with open(f"{path}.index", encoding="utf-8") as file:
            segments = json.load(file)
        with open(path, "rb") as file:
            for offsets in segments:
                file.seek(offsets[shard])
                yield from _records(file.read(offsets[shard + 1] - offsets[shard]))


def _records(content: bytes) -> Iterator[SpilledRecord]:
    position = 0
    while position < len(content):
        order_key, document_hash, num_tokens, size = _HEADER.unpack_from(content, position)
        position += _HEADER.size
        serialized = content[position : position + size]
        yield SpilledRecord(order_key, document_hash, num_tokens, serialized)
        position += size

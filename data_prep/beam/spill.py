"""Intermediate files: blocks on their way from input files to shards.

Beam's local runner keeps what it groups in memory, so no record travels through it. Each input
file becomes one spill file; each of its segments holds up to SEGMENT_BYTES of records, ordered by
shard; a shard is later put together from its part of every segment.
"""

import pickle
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from data_prep.beam.storage import open_to_read, open_to_write
from data_prep.blocks.sequences import Block

SEGMENT_BYTES = 32 * 2**20
_RECORD_OVERHEAD = 1_000  # bytes of memory that a waiting record takes besides its tokens


class SpilledRecord(NamedTuple):
    """A record before it is written.

    Attributes:
        order_key: uint64; shards are filled and sorted by it.
        record_id: 63 bits.
        document_key: 63 bits; decides the split.
        block: the tokens, or the first segment of a pair.
        second: in pairs, the second segment, or what this record gives to another one, if anything.
        label: in pairs, 0 if `second` is its second segment, 1 if another document gives one.
    """

    order_key: int
    record_id: int
    document_key: int
    block: Block
    second: Block | None = None
    label: int = 0


class Segment(NamedTuple):
    """Where a spill file holds records of a shard: bytes from `offset` on."""

    shard: int
    offset: int
    size: int


def write_spill(path: str, records: Iterable[SpilledRecord], num_shards: int) -> list[Segment]:
    """Writes a spill file; memory is bounded by `SEGMENT_BYTES`.

    Args:
        path: path of the file, which is overwritten.
        records: in any order.
        num_shards: the remainder of the order key tells the shard.
    """
    segments: list[Segment] = []
    with open_to_write(path) as file:
        for batch in _batches(records):
            shards: dict[int, list[SpilledRecord]] = {}
            for record in batch:
                shards.setdefault(record.order_key % num_shards, []).append(record)
            for shard, shard_records in shards.items():
                content = pickle.dumps(shard_records, protocol=pickle.HIGHEST_PROTOCOL)
                offset = segments[-1].offset + segments[-1].size if segments else 0
                segments.append(Segment(shard, offset, len(content)))
                file.write(content)
    return segments


def _batches(records: Iterable[SpilledRecord]) -> Iterator[list[SpilledRecord]]:
    batch: list[SpilledRecord] = []
    num_bytes = 0
    for record in records:
        batch.append(record)
        num_bytes += len(record.block.token_ids) + _RECORD_OVERHEAD
        num_bytes += len(record.second.token_ids) if record.second else 0
        if num_bytes > SEGMENT_BYTES:
            yield batch
            batch, num_bytes = [], 0
    if batch:
        yield batch


def read_spill(path: str, segments: Iterable[Segment]) -> Iterator[SpilledRecord]:
    """Reads segments of a spill file."""
    with open_to_read(path) as file:
        for segment in segments:
            file.seek(segment.offset)
            yield from pickle.loads(file.read(segment.size))

"""Intermediate files: blocks on their way from input files to shards.

Runners of Beam may keep what they group in memory, so no record travels through them. Each input
file becomes one spill file; each of its segments holds up to SEGMENT_BYTES of records, ordered by
shard; a shard is later put together from its part of every segment. What is read back is numbers
and bytes, never a pickle: the files lie in a directory that others may be able to reach.

A record is a `_RECORD` of numbers and one block or two; a block is a `_BLOCK` of numbers, the
lengths of its lists of bytes, and the lists.
"""

import itertools
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from data_prep.beam.storage import open_to_read, open_to_write
from data_prep.blocks.sequences import Block

SEGMENT_BYTES = 32 * 2**20
_RECORD_OVERHEAD = 1_000  # bytes of memory that a waiting record takes besides its tokens
# Order key, record id, document key, label, whether there is a second block.
_RECORD = struct.Struct("<QQQB?")
# Document, tokens, index of the first token, number of lists of bytes.
_BLOCK = struct.Struct("<QIQB")
_NUM_LISTS = 5  # of a block without annotations; each has two more


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
                content = b"".join(itertools.chain.from_iterable(map(_parts, shard_records)))
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
            yield from _records(file.read(segment.size))


def _parts(record: SpilledRecord) -> Iterator[bytes]:
    """The bytes of a record, piece by piece."""
    order_key, record_id, document_key, block, second, label = record
    yield _RECORD.pack(order_key, record_id, document_key, label, second is not None)
    for document, num_tokens, *lists, first_token_index, spans in (
        (block,) if second is None else (block, second)
    ):
        lists += itertools.chain.from_iterable(spans)
        yield _BLOCK.pack(document, num_tokens, first_token_index, len(lists))
        yield struct.pack(f"<{len(lists)}I", *map(len, lists))
        yield from lists


def _records(content: bytes) -> Iterator[SpilledRecord]:
    """Reads what `_parts` gives for records in a row."""
    position = 0
    while position < len(content):
        *keys, label, has_second = _RECORD.unpack_from(content, position)
        block, position = _block(content, position + _RECORD.size)
        second = None
        if has_second:
            second, position = _block(content, position)
        yield SpilledRecord(*keys, block, second, label)


def _block(content: bytes, position: int) -> tuple[Block, int]:
    """A block, and the position after it."""
    document, num_tokens, first_token_index, num_lists = _BLOCK.unpack_from(content, position)
    position += _BLOCK.size
    lengths = struct.unpack_from(f"<{num_lists}I", content, position)
    bounds = itertools.accumulate(lengths, initial=position + 4 * num_lists)
    slices = list(itertools.starmap(slice, itertools.pairwise(bounds)))
    lists = [content[part] for part in slices]
    spans = tuple(zip(lists[_NUM_LISTS::2], lists[_NUM_LISTS + 1 :: 2], strict=True))
    block = Block(document, num_tokens, *lists[:_NUM_LISTS], first_token_index, spans)
    return block, slices[-1].stop

"""Writes and reads spill files, which keep the records of a part of the input for the shards.

Records are not sent through a runner of Beam, because it may keep them in memory to group them. A
spill file has pickled lists of records, each for one shard, and then an index of the offsets of
these lists.
"""

import os
import pickle
import struct
from collections.abc import Iterable, Iterator

from data_prep.beam.pickles import PICKLE_ERRORS, load_pickle
from data_prep.blocks.sequences import Block, Record
from spanbert_tf.errors import BadInputError

SEGMENT_BYTES = 32 * 2**20  # bytes of records that are buffered in memory
_RECORD_OVERHEAD = 1_000  # bytes of memory of a buffered record besides its tokens
_INDEX_OFFSET = struct.Struct("<Q")  # the last bytes of the file


def write_spill(path: str, records: Iterable[Record], num_shards: int) -> None:
    """Writes a spill file. Memory is bounded by `SEGMENT_BYTES`."""
    offsets: dict[int, list[int]] = {}
    with open(path, "wb") as file:
        for batch in _batches(records):
            shards: dict[int, list[Record]] = {}
            for record in batch:
                shards.setdefault(record.order_key % num_shards, []).append(record)
            for shard, shard_records in shards.items():
                offsets.setdefault(shard, []).append(file.tell())
                pickle.dump(shard_records, file)
        index_offset = file.tell()
        pickle.dump(offsets, file)
        file.write(_INDEX_OFFSET.pack(index_offset))


def read_spill(path: str, shard: int) -> Iterator[Record]:
    """Reads the records of a shard.

    Raises:
        BadInputError: the file is damaged.
    """
    try:
        with open(path, "rb") as file:
            file.seek(-_INDEX_OFFSET.size, os.SEEK_END)
            (index_offset,) = _INDEX_OFFSET.unpack(file.read())
            file.seek(index_offset)
            offsets = load_pickle(file)
            for offset in offsets.get(shard, ()):
                file.seek(offset)
                yield from load_pickle(file, (Record, Block))
    except PICKLE_ERRORS as error:
        raise BadInputError(
            f"{path}: is damaged and was removed ({type(error).__name__}: {error}); run the "
            "command again"
        ) from error


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    num_bytes = 0
    for record in records:
        batch.append(record)
        num_bytes += len(record.block.token_ids) + _RECORD_OVERHEAD
        if record.second is not None:
            num_bytes += len(record.second.token_ids)
        if num_bytes > SEGMENT_BYTES:
            yield batch
            batch = []
            num_bytes = 0
    if batch:
        yield batch

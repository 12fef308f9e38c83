"""Records on their way: from input files to spill files, from spill files to TFRecord shards.

Runners of Beam may keep what they group in memory, so no record travels through them. Each input
file becomes one spill file; each of its segments holds up to SEGMENT_BYTES of records, ordered by
shard; a shard is later put together from its part of every segment. What is read back is numbers
and bytes, never a pickle: the files lie in a directory that others may be able to reach.

A spilled record is a `_RECORD` of numbers and one block or two; a block is a `_BLOCK` of numbers,
the lengths of its lists of bytes, and the lists.
"""

import dataclasses
import hashlib
import itertools
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data_prep.blocks.held_out import HeldOut, SplitKeys
from data_prep.blocks.pairs import draw_second_segments, join_blocks
from data_prep.blocks.sequences import Block, Record
from spanbert_tf.data import manifest
from spanbert_tf.data.manifest import SPLITS, Shard, token_id_dtype
from spanbert_tf.data.tfrecords import serialize_features
from spanbert_tf.errors import BadInputError

SEGMENT_BYTES = 32 * 2**20
_RECORD_OVERHEAD = 1_000  # bytes of memory that a waiting record takes besides its tokens
# Order key, record id, document key, label, whether there is a second block.
_RECORD = struct.Struct("<QQQB?")
# Document, tokens, index of the first token, number of lists of bytes.
_BLOCK = struct.Struct("<QIQB")
_HASH_BUFFER = 2**20  # bytes


class Segment(NamedTuple):
    """Where a spill file holds records of a shard: bytes from `offset` on."""

    shard: int
    offset: int
    size: int


def write_spill(path: str, records: Iterable[Record], num_shards: int) -> list[Segment]:
    """Writes a spill file; memory is bounded by `SEGMENT_BYTES`."""
    segments: list[Segment] = []
    with open(path, "wb") as file:
        for batch in _batches(records):
            shards: dict[int, list[Record]] = {}
            for record in batch:
                shards.setdefault(record.order_key % num_shards, []).append(record)
            for shard, shard_records in shards.items():
                content = b"".join(itertools.chain.from_iterable(map(_parts, shard_records)))
                offset = segments[-1].offset + segments[-1].size if segments else 0
                segments.append(Segment(shard, offset, len(content)))
                file.write(content)
    return segments


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
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


def read_spill(path: str, segments: Iterable[Segment]) -> Iterator[Record]:
    """Reads segments of a spill file."""
    with open(path, "rb") as file:
        for segment in segments:
            file.seek(segment.offset)
            yield from _records(file.read(segment.size))


def _parts(record: Record) -> Iterator[bytes]:
    """The bytes of a record, piece by piece."""
    order_key, record_id, document_key, block, second, label = record
    yield _RECORD.pack(order_key, record_id, document_key, label, second is not None)
    for document, num_tokens, token_ids, first_token_index, others in (
        (block,) if second is None else (block, second)
    ):
        lists = (token_ids, *others)
        yield _BLOCK.pack(document, num_tokens, first_token_index, len(lists))
        yield struct.pack(f"<{len(lists)}I", *map(len, lists))
        yield from lists


def _records(content: bytes) -> Iterator[Record]:
    """Reads what `_parts` gives for records in a row."""
    position = 0
    while position < len(content):
        *keys, label, has_second = _RECORD.unpack_from(content, position)
        block, position = _block(content, position + _RECORD.size)
        second = None
        if has_second:
            second, position = _block(content, position)
        yield Record(*keys, block, second, label)


def _block(content: bytes, position: int) -> tuple[Block, int]:
    """A block, and the position after it."""
    document, num_tokens, first_token_index, num_lists = _BLOCK.unpack_from(content, position)
    position += _BLOCK.size
    lengths = struct.unpack_from(f"<{num_lists}I", content, position)
    bounds = itertools.accumulate(lengths, initial=position + 4 * num_lists)
    slices = list(itertools.starmap(slice, itertools.pairwise(bounds)))
    token_ids, *lists = (content[part] for part in slices)
    block = Block(document, num_tokens, token_ids, first_token_index, tuple(lists))
    return block, slices[-1].stop


@dataclasses.dataclass(frozen=True)
class FileSummary:
    """What became of an input file."""

    segments: tuple[Segment, ...]  # parts of the spill file, where its records are
    counts: dict[str, int]  # numbers of what was read and written
    keys: SplitKeys  # what decides which of its records are held out


@dataclasses.dataclass(frozen=True)
class ShardResult:
    """What became of a shard."""

    files: tuple[Shard, ...]  # a file of each split that has records
    unigram_counts: list[int]  # occurrences of each vocabulary entry in the training split


def shard_name(split: str, shard: int) -> str:
    """The name of a shard's file until it is known which shards have records in a split."""
    return f"{split}-{shard}"


def check_enough_documents(summaries: Iterable[FileSummary]) -> None:
    """Raises `BadInputError` if there is no other document to draw random segments from."""
    if sum(summary.keys.num_documents for summary in summaries) == 1:
        raise BadInputError(
            "--sequences pair: needs at least two documents, the input has one; give more files, "
            "or --document-separator if a file has several"
        )


class ShardWriter:
    """Writes shards; memory is bounded by the size of one."""

    def __init__(
        self,
        summaries: Mapping[str, FileSummary],  # by the paths of the spill files
        held_out: HeldOut,
        directory: str,
        *,
        num_shards: int,
        row_limit: int,
        vocabulary_size: int,
        annotations: tuple[str, ...],
    ) -> None:
        self._summaries = summaries
        self._held_out = held_out
        self._directory = directory
        self._num_shards = num_shards
        self._row_limit = row_limit
        self._vocabulary_size = vocabulary_size
        self._annotations = annotations

    def write(self, shard: int) -> ShardResult:
        """Writes a shard's file for each split, in the order of the keys: random, reproducible."""
        splits: dict[str, list[Record]] = {split: [] for split in SPLITS}
        for record in self._read(shard):
            splits[self._held_out.split(record)].append(record)
        files = []
        counts = np.zeros(self._vocabulary_size, np.int64)
        for split, records in splits.items():
            if not records:
                continue
            records.sort(key=lambda record: record.order_key)
            records = draw_second_segments(
                records, self._row_limit, lambda s=split: self._others(shard, s)
            )
            files.append(self._write_file(shard_name(split, shard), split, records))
            if split == "train":
                counts += self._count_unigrams(records)
        return ShardResult(tuple(files), counts.tolist())

    def _read(self, shard: int) -> Iterator[Record]:
        for path, summary in self._summaries.items():
            segments = [segment for segment in summary.segments if segment.shard == shard]
            if segments:
                yield from read_spill(path, segments)

    def _others(self, shard: int, split: str) -> Iterator[Record]:
        """Records of a split in the shards that follow, and round to the one before."""
        for distance in range(1, self._num_shards):
            for record in self._read((shard + distance) % self._num_shards):
                if self._held_out.split(record) == split:
                    yield record

    def _write_file(self, name: str, split: str, records: list[Record]) -> Shard:
        path = f"{self._directory}/{name}"
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                writer.write(_serialize_record(record, self._annotations))
        digest, num_bytes = hashlib.sha256(), 0
        with open(path, "rb") as file:
            while content := file.read(_HASH_BUFFER):
                digest.update(content)
                num_bytes += len(content)
        tokens = sum(block.num_tokens for record in records for block in _blocks(record))
        return Shard(name, split, len(records), tokens, digest.hexdigest(), num_bytes)

    def _count_unigrams(self, records: list[Record]) -> np.ndarray:
        raw = b"".join(block.token_ids for record in records for block in _blocks(record))
        token_ids = np.frombuffer(
            raw, np.dtype(token_id_dtype(self._vocabulary_size)).newbyteorder("<")
        )
        return np.bincount(token_ids, minlength=self._vocabulary_size)


def _blocks(record: Record) -> tuple:
    return (record.block,) if record.second is None else (record.block, record.second)


def _serialize_record(record: Record, annotations: tuple[str, ...] = ()) -> bytes:
    """The bytes of a record, with the features of `spanbert_tf.data.manifest`."""
    block, second = record.block, record.second
    numbers = {
        manifest.RECORD_ID: record.record_id,
        manifest.FIRST_TOKEN_INDEX: block.first_token_index,
    }
    if second is not None:
        numbers |= {
            manifest.SECOND_SEGMENT_START: block.num_tokens,
            manifest.NEXT_SENTENCE_LABEL: record.label,
            manifest.SECOND_FIRST_TOKEN_INDEX: second.first_token_index,
        }
        block = join_blocks(block, second)
    of_spans = itertools.chain.from_iterable(manifest.ANNOTATIONS[name] for name in annotations)
    names = (manifest.TOKEN_IDS, *manifest.POSITION_LISTS, *of_spans)
    return serialize_features(
        numbers, dict(zip(names, (block.token_ids, *block.lists), strict=True))
    )

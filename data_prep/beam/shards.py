"""From spill files to TFRecord shards: the second half of preparation."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from data_prep.beam.spill import Segment, SpilledRecord, read_spill
from data_prep.beam.storage import open_to_read
from data_prep.blocks.held_out import HeldOut, SplitKeys
from data_prep.blocks.pairs import draw_second_segments
from data_prep.blocks.serialization import serialize_record
from spanbert_tf.data.schema import SPLITS, ShardInfo, token_id_dtype
from spanbert_tf.errors import BadInputError

_HASH_BUFFER = 2**20  # bytes


@dataclasses.dataclass(frozen=True)
class FileSummary:
    """What became of an input file.

    Attributes:
        spill_path: where its records are.
        segments: parts of the spill file.
        counts: numbers of what was read and written.
        keys: what decides which of its records are held out.
    """

    spill_path: str
    segments: tuple[Segment, ...]
    counts: dict[str, int]
    keys: SplitKeys

    def to_json(self) -> dict[str, Any]:
        """All but the path, which need not be believed."""
        return {"segments": self.segments, "counts": self.counts, "keys": self.keys}

    @classmethod
    def from_json(cls, spill_path: str, values: dict[str, Any]) -> "FileSummary":
        """Reads what `to_json` gave."""
        segments = tuple(Segment(*segment) for segment in values["segments"])
        return cls(spill_path, segments, values["counts"], SplitKeys(*values["keys"]))


@dataclasses.dataclass(frozen=True)
class ShardResult:
    """What became of a shard.

    Attributes:
        files: a file of each split that has records.
        unigram_counts: int64 [V], occurrences of each vocabulary entry in the training split.
    """

    files: tuple[ShardInfo, ...]
    unigram_counts: np.ndarray

    def to_json(self) -> dict[str, Any]:
        """For JSON."""
        files = [dataclasses.asdict(file) for file in self.files]
        return {"files": files, "unigram_counts": self.unigram_counts.tolist()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ShardResult":
        """Reads what `to_json` gave."""
        files = tuple(ShardInfo(**file) for file in values["files"])
        return cls(files, np.array(values["unigram_counts"], np.int64))


def shard_name(split: str, shard: int) -> str:
    """The name of a shard's file until it is known which shards have records in a split."""
    return f"{split}-{shard}"


def check_enough_documents(summaries: Sequence[FileSummary]) -> None:
    """Raises `BadInputError` if there is no other document to draw random segments from."""
    if sum(summary.keys.num_documents for summary in summaries) == 1:
        raise BadInputError(
            "--sequences pair: needs at least two documents, the input has one; give more files, "
            "or --document-separator if a file has several"
        )


class ShardWriter:
    """Writes shards; memory is bounded by the size of one.

    Args:
        summaries: summaries of all input files.
        held_out: tells which records are held out.
        directory: where the shards go.
        num_shards: how many there are.
        row_limit: word pieces of a record.
        vocabulary_size: V.
        annotations: annotations of the records.
    """

    def __init__(
        self,
        summaries: Sequence[FileSummary],
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
        splits: dict[str, list[SpilledRecord]] = {split: [] for split in SPLITS}
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
        return ShardResult(tuple(files), counts)

    def _read(self, shard: int) -> Iterator[SpilledRecord]:
        for summary in self._summaries:
            segments = [segment for segment in summary.segments if segment.shard == shard]
            if segments:
                yield from read_spill(summary.spill_path, segments)

    def _others(self, shard: int, split: str) -> Iterator[SpilledRecord]:
        """Records of a split in the shards that follow, and round to the one before."""
        for distance in range(1, self._num_shards):
            for record in self._read((shard + distance) % self._num_shards):
                if self._held_out.split(record) == split:
                    yield record

    def _write_file(self, name: str, split: str, records: list[SpilledRecord]) -> ShardInfo:
        path = f"{self._directory}/{name}"
        with tf.io.TFRecordWriter(path) as writer:
            for record in records:
                writer.write(serialize_record(record, self._annotations))
        digest, num_bytes = hashlib.sha256(), 0
        with open_to_read(path) as file:
            while content := file.read(_HASH_BUFFER):
                digest.update(content)
                num_bytes += len(content)
        tokens = sum(block.num_tokens for record in records for block in _blocks(record))
        return ShardInfo(name, split, len(records), tokens, digest.hexdigest(), num_bytes)

    def _count_unigrams(self, records: list[SpilledRecord]) -> np.ndarray:
        raw = b"".join(block.token_ids for record in records for block in _blocks(record))
        token_ids = np.frombuffer(
            raw, np.dtype(token_id_dtype(self._vocabulary_size)).newbyteorder("<")
        )
        return np.bincount(token_ids, minlength=self._vocabulary_size)


def _blocks(record: SpilledRecord) -> tuple:
    return (record.block,) if record.second is None else (record.block, record.second)

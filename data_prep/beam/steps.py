"""The two steps of the work: an input file → a spill file, all spill files → a shard.

A process of this machine and a worker of Beam call the same two functions.
"""

import contextlib
import dataclasses
import functools
import gc
import itertools
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data_prep.beam.progress import Totals
from data_prep.beam.spill import read_spill, write_spill
from data_prep.blocks.held_out import HeldOut, SplitKeys, find_held_out
from data_prep.blocks.pairs import draw_second_segments, join_blocks
from data_prep.blocks.records import FileRecords, RecordMaker, RecordOptions
from data_prep.blocks.sequences import Block, Record
from data_prep.text.corpus import DocumentReader
from data_prep.text.storage import InputFile
from spanbert_tf.data import manifest
from spanbert_tf.data.manifest import SPLITS, Shard, token_id_dtype
from spanbert_tf.data.tfrecords import serialize_features
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.output import NEW

Show = Callable[[Totals], None]  # shows progress: what was done since the last call
SPILL = "spill"  # folder of the work directory, beside `NEW`, which becomes the output


@dataclasses.dataclass(frozen=True)
class Job:
    """What each step needs to know.

    Attributes:
        output: path of the output directory, for messages.
        directory: path of the work directory.
        options: options of the records.
        num_files: number of input files.
        num_shards: number of shards of each split.
        validation_fraction: share of the records that is held out.
    """

    output: str
    directory: str
    options: RecordOptions
    num_files: int
    num_shards: int
    validation_fraction: float

    def spill_path(self, file_number: int) -> str:
        """The path of the spill file of an input file."""
        return os.path.join(self.directory, SPILL, str(file_number))

    def shard_path(self, name: str) -> str:
        """The path of a file of a shard."""
        return os.path.join(self.directory, NEW, name)

    @contextlib.contextmanager
    def whole_file(self, path: str) -> Iterator[str]:
        """Gives a name to write to, and then renames the file.

        A runner of Beam that takes a worker for lost has another one do the same work, while others
        read what the first one has finished.
        """
        unfinished = os.path.join(self.directory, SPILL, str(uuid.uuid4()))
        yield unfinished
        os.replace(unfinished, path)


class FileSummary(NamedTuple):
    """What became of an input file.

    Attributes:
        counts: numbers of what was read and made.
        keys: what decides which of its records are held out.
    """

    counts: dict[str, int]
    keys: SplitKeys


class ShardResult(NamedTuple):
    """What became of a shard.

    Attributes:
        shard: its number.
        files: one file for each split that has records.
        unigram_counts: int64 [vocabulary], occurrences of each entry in the training split.
    """

    shard: int
    files: tuple[Shard, ...]
    unigram_counts: np.ndarray


def spill_file(job: Job, show: Show, file_number: int, file: InputFile) -> FileSummary:
    """First step: writes the records of an input file to its spill file."""
    reader = DocumentReader(file.path, job.options.document_separator)
    records = FileRecords(_record_maker(job.options), reader, file.name)
    with job.whole_file(job.spill_path(file_number)) as path:
        write_spill(path, _showing_progress(records, reader, show), job.num_shards)
    return FileSummary(dict(records.counts), records.split_keys())


@functools.lru_cache(maxsize=1)
def _record_maker(options: RecordOptions) -> RecordMaker:
    """One for each process, since it takes a quarter of a second, and with spaCy seconds."""
    # The garbage collector would go through all objects of TensorFlow again and again.
    gc.freeze()
    return RecordMaker(options)


def release_memory() -> None:
    """Gives back what `spill_file` keeps in this process."""
    _record_maker.cache_clear()
    gc.unfreeze()


def _showing_progress(records: FileRecords, reader: DocumentReader, show: Show) -> Iterator[Record]:
    shown = Totals()

    def show_more() -> None:
        nonlocal shown
        done = Totals(records.counts["documents"], reader.bytes_read, reader.position)
        if done != shown:
            show(done.minus(shown))
            shown = done

    for record in records:
        yield record
        show_more()
    show_more()


def held_out_records(job: Job, summaries: Sequence[FileSummary]) -> HeldOut:
    """Decides which records are held out, once all files are read.

    Raises:
        BadInputError: pairs need another document to draw random segments from.
    """
    is_pair = job.options.sequences == "pair"
    if is_pair and sum(summary.keys.num_documents for summary in summaries) == 1:
        raise BadInputError(
            "--sequences pair: needs at least two documents, the input has one; give more files, "
            "or --document-separator if a file has several"
        )
    keys = [summary.keys for summary in summaries]
    return find_held_out(keys, job.validation_fraction, job.options.sequences)


def write_shard(job: Job, show: Show, held_out: HeldOut, shard: int) -> ShardResult:
    """Second step: writes a file for each split. Memory is bounded by the size of a shard.

    Records are ordered by their keys: at random, but always the same way.
    """
    splits: dict[str, list[Record]] = {split: [] for split in SPLITS}
    for record in _read_shard(job, shard):
        splits[held_out.split(record)].append(record)
    vocabulary_size = len(job.options.vocabulary)
    files = []
    counts = np.zeros(vocabulary_size, np.int64)
    for split, records in splits.items():
        if not records:
            continue
        records.sort(key=lambda record: record.order_key)
        others = functools.partial(_records_of_others, job, held_out, shard, split)
        records = draw_second_segments(records, job.options.row_limit, others)
        files.append(_write_file(job, f"{split}-{shard}", split, records))
        if split == "train":
            counts += _count_unigrams(records, vocabulary_size)
    show(Totals(shards=1))
    return ShardResult(shard, tuple(files), counts)


def _read_shard(job: Job, shard: int) -> Iterator[Record]:
    for file_number in range(job.num_files):
        yield from read_spill(job.spill_path(file_number), shard)


def _records_of_others(job: Job, held_out: HeldOut, shard: int, split: str) -> Iterator[Record]:
    """Records of a split in the shards that follow, and round to the one before."""
    for distance in range(1, job.num_shards):
        for record in _read_shard(job, (shard + distance) % job.num_shards):
            if held_out.split(record) == split:
                yield record


def _write_file(job: Job, name: str, split: str, records: list[Record]) -> Shard:
    path = job.shard_path(name)
    with job.whole_file(path) as unfinished, tf.io.TFRecordWriter(unfinished) as writer:
        for record in records:
            writer.write(_serialize(record, job.options.annotations))
    num_tokens = sum(block.num_tokens for block in _blocks(records))
    return Shard(name, split, len(records), num_tokens, sha256(path), os.path.getsize(path))


def _count_unigrams(records: Iterable[Record], vocabulary_size: int) -> np.ndarray:
    token_ids = b"".join(block.token_ids for block in _blocks(records))
    dtype = np.dtype(token_id_dtype(vocabulary_size)).newbyteorder("<")
    return np.bincount(np.frombuffer(token_ids, dtype), minlength=vocabulary_size)


def _blocks(records: Iterable[Record]) -> Iterator[Block]:
    for record in records:
        yield record.block
        if record.second is not None:
            yield record.second


def _serialize(record: Record, annotations: tuple[str, ...]) -> bytes:
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
    span_names = itertools.chain.from_iterable(manifest.ANNOTATIONS[name] for name in annotations)
    names = (manifest.TOKEN_IDS, *manifest.POSITION_LISTS, *span_names)
    lists = dict(zip(names, (block.token_ids, *block.lists), strict=True))
    return serialize_features(numbers, lists)

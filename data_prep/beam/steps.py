"""The two main steps of preparation: an input file → a spill file, all spill files → a shard.

Processes of this machine and workers of Beam call the same two functions by `run_step`. Where
duplicates are left out, the steps of `duplicates` come before.
"""

import functools
import gc
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from data_prep.beam.duplicates import read_duplicates
from data_prep.beam.job import FileSummary, Job, ShardResult, Show
from data_prep.beam.progress import Totals
from data_prep.beam.spill import read_spill, write_spill
from data_prep.blocks.held_out import HeldOut, find_held_out
from data_prep.blocks.pairs import draw_second_segments, join_blocks
from data_prep.blocks.records import FileRecords, RecordMaker, RecordOptions
from data_prep.blocks.sequences import Block, Record
from data_prep.text.corpus import DocumentReader
from data_prep.text.duplicates import duplicate_count, number_documents, without_duplicates
from data_prep.text.storage import InputFile
from spanbert_tf.data import manifest
from spanbert_tf.data.manifest import SPLITS, Annotation, Shard, Split, token_id_dtype
from spanbert_tf.data.tfrecords import record_writer, serialize_features
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import sha256


def spill_file(
    job: Job, show: Show, file_number: int, file: InputFile, num_ranges: int
) -> FileSummary:
    """First step: writes the records of an input file to its spill file.

    Args:
        job: the job.
        show: called with the progress since its last call.
        file_number: index of the file among the input files.
        file: the input file.
        num_ranges: number of files of duplicates, see `find_duplicates`.

    Raises:
        BadInputError: the file cannot be read or used.
        OSError: the spill file cannot be written.
    """
    reader = DocumentReader(file.path, job.options.document_separator)
    parts = number_documents(reader)
    counts = {}
    if job.deduplicate is not None:
        duplicates = read_duplicates(job, file_number, num_ranges)
        parts = without_duplicates(reader, job.deduplicate, duplicates.tolist())
        counts[duplicate_count(job.deduplicate)] = len(duplicates)
    records = FileRecords(_record_maker(job.options), parts, file.name)
    with job.whole_file(job.spill_path(file_number)) as path:
        write_spill(path, _showing_progress(records, reader, show), job.num_shards)
    counts |= {**records.counts, "bytes": reader.bytes_read}
    return FileSummary(counts, records.split_keys())


@functools.lru_cache(maxsize=1)
def _record_maker(options: RecordOptions) -> RecordMaker:
    """Makes a `RecordMaker` once per process: it takes 0.25 s, and seconds with spaCy."""
    # Otherwise each garbage collection would visit all objects of TensorFlow.
    gc.freeze()
    return RecordMaker(options)


def release_memory() -> None:
    """Frees the objects that `spill_file` caches in this process."""
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
    """Decides which records are held out, after all files were read.

    Args:
        job: the job.
        summaries: those of all input files, in any order.

    Raises:
        BadInputError: pairs are wanted and there is only one document.
    """
    is_pair = job.options.sequences == "pair"
    if is_pair and sum(summary.keys.num_documents for summary in summaries) == 1:
        raise BadInputError(
            "--sequences pair: needs at least two documents, the input has one; give more files, "
            "or --document-separator if a file has several"
        )
    keys = [summary.keys for summary in summaries]
    return find_held_out(keys, job.validation_fraction, job.options.sequences)


def write_shard(job: Job, show: Show, shard: int, held_out: HeldOut) -> ShardResult:
    """Second step: writes the files of a shard, one for each split that has records.

    Records are sorted by their random keys, so every run writes them in the same order. Memory is
    bounded by the size of a shard.

    Args:
        job: the job.
        show: called with the progress since its last call.
        shard: index of the shard.
        held_out: decides the split of each record.

    Raises:
        OSError: a file cannot be read or written.
    """
    splits: dict[Split, list[Record]] = {split: [] for split in SPLITS}
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
    return ShardResult(shard, tuple(files), counts.tobytes())


def _read_shard(job: Job, shard: int) -> Iterator[Record]:
    for file_number in range(job.num_files):
        yield from read_spill(job.spill_path(file_number), shard)


def _records_of_others(job: Job, held_out: HeldOut, shard: int, split: Split) -> Iterator[Record]:
    """Records of a split in all other shards, from the next shard round to the previous one."""
    for distance in range(1, job.num_shards):
        for record in _read_shard(job, (shard + distance) % job.num_shards):
            if held_out.split(record) == split:
                yield record


def _write_file(job: Job, name: str, split: Split, records: list[Record]) -> Shard:
    path = job.shard_path(name)
    with job.whole_file(path) as unfinished, record_writer(unfinished) as write:
        for record in records:
            write(_serialize(record, job.options.annotations))
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


def _serialize(record: Record, annotations: tuple[Annotation, ...]) -> bytes:
    """Serializes a record with the features of `spanbert_tf.data.manifest`."""
    block = record.block
    second = record.second
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

"""The steps of preparation, which processes of this machine and workers of Beam call by `run_step`.

`spill_part` reads a part of the input and writes a spill file. `write_shard` reads all spill files
and writes a shard. Before these steps, large files are cut into parts (`scan_file`), and duplicates
are found (`duplicates`).
"""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from data_prep.beam.duplicates import read_duplicates
from data_prep.beam.job import Job, PartSummary, ShardResult, Show
from data_prep.beam.progress import Totals
from data_prep.beam.spill import read_spill, write_spill
from data_prep.blocks.held_out import HeldOut, find_held_out
from data_prep.blocks.pairs import draw_second_segments, join_blocks
from data_prep.blocks.records import CELLS_WITHOUT_TEXT, FileRecords, RecordMaker, RecordOptions
from data_prep.blocks.sequences import Block, Record
from data_prep.text.corpus import DocumentReader, TextFormat
from data_prep.text.cutting import FilePart, read_part
from data_prep.text.duplicates import duplicate_count, number_documents, without_duplicates
from data_prep.text.scanning import RangeScans, scan_range
from data_prep.text.storage import InputFile
from spanbert_tf.data import manifest
from spanbert_tf.data.manifest import SPLITS, Shard, Split, token_id_dtype
from spanbert_tf.data.tfrecords import (
    lengths_path,
    record_writer,
    save_lengths,
    serialize_features,
)
from spanbert_tf.errors import BadInputError


def scan_file(
    job: Job,
    show: Show,
    number: int,
    file: InputFile,
    text_format: TextFormat,
    start: int,
    stop: int,
) -> RangeScans:
    """Calls `scan_range` with the arguments of a step."""
    return scan_range(file, text_format, job.options.document_separator, start, stop)


def spill_part(
    job: Job, show: Show, part_number: int, part: FilePart, num_hash_ranges: int
) -> PartSummary:
    """First step: writes the records of a part of the input to its spill file.

    Args:
        job: the job.
        show: called with the progress since its last call.
        part_number: index of the part among all parts.
        part: whole documents of a file.
        num_hash_ranges: number of files of duplicates; see `find_duplicates`.

    Raises:
        BadInputError: the file cannot be read or used.
        OSError: the spill file cannot be written.
    """
    reader = read_part(part, job.options.document_separator, job.options.text_columns)
    documents = number_documents(reader)
    counts = {"files": int(part.first_document == 0)}
    if job.deduplicate is not None:
        num_duplicates, duplicates = read_duplicates(job, part_number, num_hash_ranges)
        documents = without_duplicates(reader, job.deduplicate, duplicates)
        counts[duplicate_count(job.deduplicate)] = num_duplicates
    numbered = ((part.first_document + number, text) for number, text in documents)
    records = FileRecords(_record_maker(job.options), numbered, part.file.name)
    with job.whole_file(job.spill_path(part_number)) as path:
        write_spill(path, _showing_progress(records, reader, show), job.num_shards)
    counts |= {**records.counts, "bytes": reader.bytes_read}
    if reader.num_without_text:
        counts[CELLS_WITHOUT_TEXT] = reader.num_without_text
    return PartSummary(counts, records.split_keys())


@functools.lru_cache(maxsize=1)
def _record_maker(options: RecordOptions) -> RecordMaker:
    """Makes a `RecordMaker` once per process: it takes 0.25 s, and seconds with spaCy."""
    return RecordMaker(options)


def release_memory() -> None:
    """Frees the objects that `spill_part` has cached in this process."""
    _record_maker.cache_clear()


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


def held_out_records(job: Job, summaries: Sequence[PartSummary]) -> HeldOut:
    """Decides which records are held out, after all parts of the input were read.

    Args:
        job: the job.
        summaries: the summaries of all parts, in any order.

    Raises:
        BadInputError: the records are pairs, and the input has only one document.
    """
    is_pair = job.options.sequences == "pair"
    if is_pair and sum(summary.keys.num_documents for summary in summaries) == 1:
        raise BadInputError(
            "--sequences pair: needs at least two documents, the input has one; give more files, "
            "or --document-separator if a file has several"
        )
    keys = [summary.keys for summary in summaries]
    return find_held_out(keys, job.validation_fraction, job.options.sequences)


def write_shard(job: Job, show: Show, shard: int, held_out: HeldOut, num_parts: int) -> ShardResult:
    """Second step: writes the files of a shard, one for each split that has records.

    Records are sorted by their random keys, so every run writes them in the same order. Memory is
    bounded by the size of a shard.

    Args:
        job: the job.
        show: called with the progress since its last call.
        shard: index of the shard.
        held_out: decides the split of each record.
        num_parts: number of parts of the input, each of which has a spill file.

    Raises:
        OSError: a file cannot be read or written.
    """
    splits: dict[Split, list[Record]] = {split: [] for split in SPLITS}
    for record in _read_shard(job, num_parts, shard):
        splits[held_out.split(record)].append(record)
    vocabulary_size = len(job.options.vocabulary)
    files = []
    counts = np.zeros(vocabulary_size, np.int64)
    for split, records in splits.items():
        if not records:
            continue
        records.sort(key=lambda record: record.order_key)
        others = functools.partial(_records_of_others, job, num_parts, held_out, shard, split)
        records = draw_second_segments(records, job.options.row_limit, others)
        files.append(_write_file(job, f"{split}-{shard}", split, records))
        if split == "train":
            counts += _count_unigrams(records, vocabulary_size)
    show(Totals(shards=1))
    return ShardResult(shard, tuple(files), counts.tobytes())


def _read_shard(job: Job, num_parts: int, shard: int) -> Iterator[Record]:
    for part_number in range(num_parts):
        yield from read_spill(job.spill_path(part_number), shard)


def _records_of_others(
    job: Job, num_parts: int, held_out: HeldOut, shard: int, split: Split
) -> Iterator[Record]:
    """Yields the records of a split in all other shards, beginning with the next shard."""
    for distance in range(1, job.num_shards):
        for record in _read_shard(job, num_parts, (shard + distance) % job.num_shards):
            if held_out.split(record) == split:
                yield record


def _num_tokens(record: Record) -> int:
    """Returns the number of tokens of the blocks of a record."""
    return sum(block.num_tokens for block in _blocks([record]))


def _write_file(job: Job, name: str, split: Split, records: list[Record]) -> Shard:
    path = job.shard_path(name)
    with job.whole_file(path) as unfinished, record_writer(unfinished) as write:
        for record in records:
            write(_serialize(record, job.options.span_lists))
    lengths = list(map(_num_tokens, records))
    with job.whole_file(lengths_path(path)) as unfinished:
        save_lengths(unfinished, lengths)
    return Shard.of_file(path, split, lengths)


def _count_unigrams(records: Iterable[Record], vocabulary_size: int) -> np.ndarray:
    token_ids = b"".join(block.token_ids for block in _blocks(records))
    dtype = np.dtype(token_id_dtype(vocabulary_size)).newbyteorder("<")
    return np.bincount(np.frombuffer(token_ids, dtype), minlength=vocabulary_size)


def _blocks(records: Iterable[Record]) -> Iterator[Block]:
    for record in records:
        yield record.block
        if record.second is not None:
            yield record.second


def _serialize(record: Record, span_lists: tuple[str, ...]) -> bytes:
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
    span_names = itertools.chain.from_iterable(manifest.SPAN_LISTS[name] for name in span_lists)
    names = (manifest.TOKEN_IDS, *manifest.POSITION_LISTS, *span_names)
    lists = dict(zip(names, (block.token_ids, *block.lists), strict=True))
    return serialize_features(numbers, lists)

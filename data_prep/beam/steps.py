"""The two steps of preparation: an input file → a spill file, all spill files → a shard.

Processes of this machine and workers of Beam call the same two functions by `run_step`.
"""

import contextlib
import dataclasses
import functools
import gc
import itertools
import os
import pickle
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from data_prep.beam.pickles import PICKLE_ERRORS, load_pickle
from data_prep.beam.progress import Totals
from data_prep.beam.spill import read_spill, write_spill
from data_prep.blocks.held_out import HeldOut, SplitKeys, find_held_out
from data_prep.blocks.pairs import draw_second_segments, join_blocks
from data_prep.blocks.records import FileRecords, RecordMaker, RecordOptions
from data_prep.blocks.sequences import Block, Record
from data_prep.text.corpus import DocumentReader
from data_prep.text.storage import InputFile
from spanbert_tf.data import manifest
from spanbert_tf.data.manifest import SPLITS, Annotation, Shard, Split, token_id_dtype
from spanbert_tf.data.tfrecords import record_writer, serialize_features
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import sha256
from spanbert_tf.files.output import NEW

Show = Callable[[Totals], None]  # is called with the work done since the last call
SPILL = "spill"  # folder in the work directory, beside the folder `NEW`, which becomes the output

_RESULT = re.compile(r"\w+-\d+")  # names of results in it; the name of a spill file is a number
UNFINISHED = "unfinished-"  # how the names of unfinished files in it begin

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Job:
    """The parameters that both steps share.

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

    def result_path(self, items: str, number: int) -> str:
        """The path of the result of a step for one of its items; see `run_step`."""
        return os.path.join(self.directory, SPILL, f"{items}-{number}")

    @contextlib.contextmanager
    def whole_file(self, path: str) -> Iterator[str]:
        """Yields a temporary path and renames the file to `path` when the context ends.

        A runner of Beam repeats the work of a worker that it believes to be lost, while other
        workers may already read the finished file. The rename replaces it atomically. The bytes are
        on the disk before: after a power failure, too, a file that is there is whole.
        """
        unfinished = os.path.join(self.directory, SPILL, f"{UNFINISHED}{uuid.uuid4()}")
        yield unfinished
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
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
        unigram_counts: the bytes of int64 [vocabulary], occurrences of each entry in the training
            split.
    """

    shard: int
    files: tuple[Shard, ...]
    unigram_counts: bytes


class Call(Protocol):
    """Calls a step for each of several items, in processes or on a runner of Beam."""

    def __call__(
        self, step: Callable[..., _Result], items: str, arguments: Sequence[tuple]
    ) -> list[_Result]:
        """Calls `step(job, show, *arguments)` for each tuple of arguments.

        Args:
            step: one of the functions below.
            items: what the items are, such as `"files"`.
            arguments: for each item its number and further arguments.

        Returns:
            The results in the order of the arguments.

        Raises:
            BadInputError: a step raised it, a process was killed, or the runner failed.
            OSError: a file cannot be written.
        """


def run_step(
    job: Job, show: Show, step: Callable[..., _Result], items: str, arguments: tuple
) -> _Result:
    """Calls a step for one item and keeps its result in a file; see `Call`.

    The file is written when all other files of the step are whole. If a killed command, or another
    worker of a runner, has left it, the step is not called again.
    """
    kept = read_result(job, items, arguments[0])
    if kept is not None:
        return kept
    result = step(job, show, *arguments)
    with job.whole_file(job.result_path(items, arguments[0])) as path, open(path, "wb") as file:
        pickle.dump(result, file)
    return result


def read_result(job: Job, items: str, number: int) -> Any | None:
    """Reads the result that `run_step` kept; `None` if there is none, or if it is damaged."""
    try:
        with open(job.result_path(items, number), "rb") as file:
            return load_pickle(file, (FileSummary, SplitKeys, ShardResult, Shard))
    except (FileNotFoundError, *PICKLE_ERRORS):
        return None


def prepare_to_go_on(job: Job) -> int:
    """Removes the unfinished files of a killed command, and returns how many results it left."""
    directory = os.path.join(job.directory, SPILL)
    num_results = 0
    for name in os.listdir(directory):
        if name.startswith(UNFINISHED):
            os.remove(os.path.join(directory, name))
        elif _RESULT.fullmatch(name):
            num_results += 1
    return num_results


def spill_file(job: Job, show: Show, file_number: int, file: InputFile) -> FileSummary:
    """First step: writes the records of an input file to its spill file.

    Args:
        job: the job.
        show: called with the progress since its last call.
        file_number: index of the file among the input files.
        file: the input file.

    Raises:
        BadInputError: the file cannot be read or used.
        OSError: the spill file cannot be written.
    """
    reader = DocumentReader(file.path, job.options.document_separator)
    records = FileRecords(_record_maker(job.options), reader, file.name)
    with job.whole_file(job.spill_path(file_number)) as path:
        write_spill(path, _showing_progress(records, reader, show), job.num_shards)
    return FileSummary(dict(records.counts), records.split_keys())


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


def cannot_write(output: str, error: Exception) -> str:
    """The message for an output that cannot be written, for example because the disk is full."""
    # TensorFlow's messages have the form "path; reason".
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0].split("; ")[-1]
    return f"{output}: cannot be written ({reason}); free some space or name another --output"

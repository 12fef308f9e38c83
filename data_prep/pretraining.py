"""Writes pre-training records: `spanbert-tf prepare pretraining`.

Two Apache Beam pipelines, one after the other, with files between them:

1. each input file → records in a spill file (`data_prep.records`, `data_prep.spill`);
2. each shard ← its part of every spill file, in an order that is random but always the same
   (`data_prep.shards`).

Memory does not grow with the corpus, and the output is the same for any number of processes.
"""

import collections
import dataclasses
import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from data_prep.corpus import find_files
from data_prep.progress import ProgressDisplay, ProgressWriter
from data_prep.records import RecordMaker
from data_prep.shards import ShardTask, plan_shards, read_result, write_shard
from data_prep.spill import SpillWriter
from spanbert_tf.data.schema import (
    DATASET_INFO_FILE,
    VOCABULARY_FILE,
    DatasetInfo,
    ShardInfo,
    vocabulary_hash,
)
from spanbert_tf.data.vocabulary import SPECIAL_TOKENS, load_vocabulary
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError, SpanBertError

_INPUT_BYTES_PER_SHARD = 32 * 2**20
_RECORDS_BETWEEN_PROGRESS = 256


@dataclasses.dataclass(frozen=True)
class _Job:
    """What every worker needs to know."""

    directory: str  # where everything is written until it is complete
    vocabulary: tuple[str, ...]
    lowercase: bool
    sequence_length: int
    document_separator: str | None
    num_shards: int


def write_pretraining_records(
    input_pattern: str,
    *,
    vocabulary: str,
    output: str,
    document_separator: str | None = None,
    lowercase: bool = False,
    sequence_length: int = 512,
    sequences: str = "single",
    annotate: Sequence[str] = (),
    spacy_model: str = "en_core_web_sm",
    validation_fraction: float = 0.01,
    num_shards: int | None = None,
    num_processes: int = 1,
    beam_arguments: Sequence[str] = (),
) -> DatasetInfo:
    """Writes TFRecord shards, `vocab.txt` and `dataset_info.json` to a new directory.

    Args:
        input_pattern: glob of text files; see `data_prep.corpus` for their formats.
        vocabulary: path of a WordPiece vocabulary.
        output: the directory; it appears whole or not at all.
        document_separator: in plain text, a line equal to this begins a new document.
        lowercase: lower-case the text and strip accents; must suit the vocabulary.
        sequence_length: positions of a packed row, special tokens included.
        sequences: `"single"`.
        annotate: must be empty.
        spacy_model: not used.
        validation_fraction: share of the documents that are held out; if it is not 0 and there
            are two documents, at least one is held out and at least one is not.
        num_shards: files of the training split; one for each 32 MB of input by default.
        num_processes: processes of Beam's local runner.
        beam_arguments: options for Beam, such as `--runner=DataflowRunner`.

    Returns:
        The description that was written.

    Raises:
        BadInputError: a file cannot be read, used or written, or the output exists.
        MismatchError: the vocabulary is not of the stated case.
        ConfigurationError: an option of Beam is unknown.
    """
    files = find_files(input_pattern)
    pieces = load_vocabulary(vocabulary)
    check_case(pieces, vocabulary, lowercase)
    _check_output(output)
    total_bytes = sum(os.path.getsize(path) for path in files)
    job = _Job(
        directory=f"{os.path.abspath(output)}.incomplete",
        vocabulary=tuple(pieces),
        lowercase=lowercase,
        sequence_length=sequence_length,
        document_separator=document_separator,
        num_shards=num_shards or -(-total_bytes // _INPUT_BYTES_PER_SHARD),
    )
    options = _beam_options(num_processes, beam_arguments)
    shutil.rmtree(job.directory, ignore_errors=True)  # of a run that was killed
    try:
        info = _prepare(job, files, validation_fraction, options)
        _finish(job, vocabulary, info, output)
    except OSError as error:
        raise BadInputError(
            f"{output}: cannot be written ({error.strerror or error}); free some space, or name "
            "another --output"
        ) from error
    finally:
        shutil.rmtree(job.directory, ignore_errors=True)
    print(_summary(info, output), flush=True)
    return info


def check_case(vocabulary: list[str], path: str, lowercase: bool) -> None:
    """Refuses a cased vocabulary for lower-cased text, and the other way round.

    Raises:
        MismatchError: they do not go together.
    """
    words = [piece for piece in vocabulary if piece not in SPECIAL_TOKENS]
    has_upper_case = any(
        piece != piece.lower() for piece in words if not piece.startswith("[unused")
    )
    if lowercase and has_upper_case:
        raise MismatchError(
            f"{path}: has upper-case entries, but --lowercase was given; leave it out"
        )
    if not lowercase and words and not has_upper_case:
        raise MismatchError(f"{path}: has no upper-case entry; give --lowercase with it")


def _check_output(output: str) -> None:
    if os.path.exists(output) and (not os.path.isdir(output) or os.listdir(output)):
        raise BadInputError(f"{output}: exists already; remove it or name another --output")


def _beam_options(num_processes: int, arguments: Sequence[str]) -> PipelineOptions:
    local = [f"--direct_num_workers={num_processes}"]
    if num_processes > 1:
        local.append("--direct_running_mode=multi_processing")
    known = set(PipelineOptions(list(arguments)).get_all_options(drop_default=True))
    for argument in arguments:
        name = argument.split("=")[0].removeprefix("--")
        if argument.startswith("-") and name not in known:
            raise ConfigurationError(
                f"{argument}: neither our option nor one of Beam's; see --help"
            )
    return PipelineOptions([*local, *arguments], save_main_session=False)


def _run(
    elements: list[Any], work: Callable[[Any], None], options: PipelineOptions, label: str
) -> None:
    """Calls `work` for each element on Beam's workers."""
    # By name, Beam would look for another local runner on the network first.
    runner = options.view_as(StandardOptions).runner or FnApiRunner()
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    with beam.Pipeline(runner=runner, options=options) as pipeline:
        (
            pipeline
            | f"List {label}" >> beam.Create(elements)
            | f"Spread {label}" >> beam.Reshuffle()
            | f"Write {label}" >> beam.ParDo(_Worker(work))
        )


class _Worker(beam.DoFn):
    """Runs a function for its effects; it takes a `_Job`'s element and returns nothing."""

    def __init__(self, work: Callable[[Any], None]) -> None:
        self._work = work

    def process(self, element: Any) -> None:
        self._work(element)


def _prepare(
    job: _Job, files: list[str], validation_fraction: float, options: PipelineOptions
) -> DatasetInfo:
    for name in ("spill", "progress", "results", "output"):
        os.makedirs(os.path.join(job.directory, name))
    root = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in files])
    spills = [
        (number, path, os.path.relpath(os.path.abspath(path), root))
        for number, path in enumerate(files)
    ]
    with ProgressDisplay(os.path.join(job.directory, "progress"), len(files)):
        _run(spills, _SpillFile(job), options, "records")
    spilled = [read_result(_result_path(job, f"spill-{number}")) for number, *_ in spills]
    _raise_first_error(spilled)
    held_out = _largest_held_out_hash(spilled, validation_fraction)
    tasks = plan_shards(job.num_shards, validation_fraction, held_out)
    paths = [_spill_path(job, number) for number, *_ in spills]
    _run(tasks, _WriteShard(job, tuple(paths)), options, "shards")
    written = [read_result(_result_path(job, task.file)) for task in tasks]
    _raise_first_error(written)
    return _describe(job, spilled, written, len(files))


class _SpillFile:
    """First half of the work: the records of one input file."""

    def __init__(self, job: _Job) -> None:
        self._job = job

    def __call__(self, element: tuple[int, str, str]) -> None:
        number, path, name = element
        job = self._job
        result_path = _result_path(job, f"spill-{number}")
        try:
            result = self._spill(number, path, name)
        except (SpanBertError, OSError) as error:
            result = {"error": _error_text(error)}
        _write_json(result_path, result)

    def _spill(self, number: int, path: str, name: str) -> dict:
        job = self._job
        counts: collections.Counter = collections.Counter()
        maker = _record_maker(job.vocabulary, job.lowercase, job.sequence_length)
        spill = SpillWriter(_spill_path(job, number), job.num_shards)
        progress = ProgressWriter(os.path.join(job.directory, "progress", str(number)))
        smallest, largest = 2**64, -1
        for record in maker.records(path, name, counts, job.document_separator):
            spill.add(record)
            smallest = min(smallest, record.document_hash)
            largest = max(largest, record.document_hash)
            counts["records"] += 1
            if counts["records"] % _RECORDS_BETWEEN_PROGRESS == 0:
                progress.write(counts["documents"], counts["bytes"])
        spill.close()
        progress.write(counts["documents"], counts["bytes"])
        return {"counts": counts, "smallest": smallest, "largest": largest}


_makers: dict[tuple, RecordMaker] = {}  # one a process: building it takes a quarter of a second


def _record_maker(
    vocabulary: tuple[str, ...], lowercase: bool, sequence_length: int
) -> RecordMaker:
    key = (vocabulary, lowercase, sequence_length)
    if key not in _makers:
        _makers.clear()
        _makers[key] = RecordMaker(list(vocabulary), lowercase, sequence_length)
    return _makers[key]


class _WriteShard:
    """Second half of the work: one file of the output."""

    def __init__(self, job: _Job, spill_paths: tuple[str, ...]) -> None:
        self._job = job
        self._spill_paths = spill_paths

    def __call__(self, task: ShardTask) -> None:
        directory = os.path.join(self._job.directory, "output")
        try:
            paths = list(self._spill_paths)
            result = write_shard(task, paths, directory, len(self._job.vocabulary))
        except (OSError, tf.errors.OpError) as error:
            result = {"error": _error_text(error)}
        _write_json(_result_path(self._job, task.file), result)


def _error_text(error: Exception) -> str:
    if isinstance(error, SpanBertError):
        return str(error)
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return f"the output cannot be written ({reason}); free some space, or name another --output"


def _raise_first_error(results: list[dict]) -> None:
    for result in results:
        if "error" in result:
            raise BadInputError(result["error"])


def _result_path(job: _Job, name: str) -> str:
    return os.path.join(job.directory, "results", f"{name}.json")


def _spill_path(job: _Job, number: int) -> str:
    return os.path.join(job.directory, "spill", str(number))


def _write_json(path: str, value: dict) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file)


def _largest_held_out_hash(spilled: list[dict], fraction: float) -> int:
    """Documents with a hash up to this are held out; -1 holds out none."""
    smallest = min(result["smallest"] for result in spilled)
    largest = max(result["largest"] for result in spilled)
    if not fraction or smallest >= largest:  # at most one document has records
        return -1
    return min(max(int(fraction * 2**64), smallest), largest - 1)


def _describe(job: _Job, spilled: list[dict], written: list[dict], num_files: int) -> DatasetInfo:
    counts: collections.Counter = collections.Counter(files=num_files)
    for result in spilled:
        counts.update(result["counts"])
    shards = [ShardInfo(**result["shard"]) for result in written]
    train = [result["unigram_counts"] for result in written if result["shard"]["split"] == "train"]
    if not any(shard.num_records for shard in shards):
        raise BadInputError("the input: no document has text that can be used; check its format")
    return DatasetInfo(
        vocabulary_hash=vocabulary_hash(job.vocabulary),
        vocabulary_size=len(job.vocabulary),
        lowercase=job.lowercase,
        sequence_length=job.sequence_length,
        sequences="single",
        annotations=(),
        unigram_counts=tuple(np.sum(train, axis=0).tolist()),
        counts=dict(counts),
        shards=tuple(shard for shard in shards if shard.num_records),
    )


def _finish(job: _Job, vocabulary: str, info: DatasetInfo, output: str) -> None:
    """Completes the directory and gives it its name."""
    directory = os.path.join(job.directory, "output")
    kept = {shard.file for shard in info.shards}
    for name in os.listdir(directory):
        if name not in kept:  # a split without records
            os.remove(os.path.join(directory, name))
    shutil.copyfile(vocabulary, os.path.join(directory, VOCABULARY_FILE))
    with open(os.path.join(directory, DATASET_INFO_FILE), "w", encoding="utf-8") as file:
        file.write(info.to_json())
    if os.path.isdir(output):
        os.rmdir(output)  # empty, as was checked
    os.replace(directory, output)


def _summary(info: DatasetInfo, output: str) -> str:
    counts = info.counts
    unused = counts.get("title_only_documents", 0) + counts.get("empty_documents", 0)
    return (
        f"{output}: {info.num_records('train'):,} training and "
        f"{info.num_records('validation'):,} held-out records of {info.sequence_length} positions, "
        f"{counts['tokens']:,} tokens of {counts['documents']:,} documents; "
        f"{unused:,} documents had no text"
    )


if __name__ == "__main__":
    from spanbert_tf.cli import main

    main(["prepare", "pretraining", *sys.argv[1:]])

"""The Apache Beam pipeline: what each worker does, and how it is run."""

import argparse
import contextlib
import dataclasses
import gc
import io
import logging
import os
import shlex
import sys
from collections.abc import Iterator, Sequence

from data_prep.beam.storage import WorkDirectory, remove_file  # imports Beam without its warnings

# isort: split
import apache_beam as beam
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from data_prep.beam.progress import ProgressWriter, Totals
from data_prep.beam.shards import (
    FileSummary,
    ShardWriter,
    check_enough_documents,
    shard_name,
)
from data_prep.beam.spill import SpilledRecord, write_spill
from data_prep.blocks.held_out import HeldOut, find_held_out
from data_prep.blocks.records import FileRecords, RecordMaker, RecordOptions
from data_prep.text.corpus import DocumentReader, InputFile
from spanbert_tf.data.schema import SPLITS
from spanbert_tf.errors import ConfigurationError, SpanBertError


@dataclasses.dataclass(frozen=True)
class Job:
    """What every worker needs to know.

    Attributes:
        directory: where everything is written until it is complete.
        options: options of the records.
        num_shards: files of each split.
        validation_fraction: share that is held out.
    """

    directory: WorkDirectory
    options: RecordOptions
    num_shards: int
    validation_fraction: float

    def held_out(self, summaries: Sequence[FileSummary]) -> HeldOut:
        """What is held out, once all files are read."""
        keys = [summary.keys for summary in summaries]
        return find_held_out(keys, self.validation_fraction, self.options.sequences)


def beam_options(num_processes: int, arguments: Sequence[str]) -> PipelineOptions:
    """Options for Beam: ours for its local runner, then the user's.

    Raises:
        ConfigurationError: an argument is not one of Beam's.
    """
    parsers: list[argparse.ArgumentParser] = []
    PipelineOptions([]).get_all_options(add_extra_args_fn=parsers.append)
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            _, unknown = parsers[0].parse_known_args(list(arguments))
    except SystemExit as error:  # a bad value; the last line says which
        reason = messages.getvalue().strip().splitlines()[-1].split("error: ")[-1]
        raise ConfigurationError(f"{' '.join(arguments)}: {reason}") from error
    if unknown:
        name = unknown[0].partition("=")[0]
        raise ConfigurationError(f"{name}: neither our option nor one of Beam's; see --help")
    return PipelineOptions([f"--direct_num_workers={num_processes}", *arguments])


def run_pipeline(
    job: Job, files: Sequence[InputFile], num_processes: int, options: PipelineOptions
) -> None:
    """Writes all spill files, then all shards; results lie in the job's directory."""
    runner = options.view_as(StandardOptions).runner or _local_runner(num_processes)
    logger = logging.getLogger("apache_beam")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with (
            _no_accelerator_for_others(num_processes),
            _plain_labels(),
            beam.Pipeline(runner, options) as pipeline,
        ):
            spilled = (
                pipeline
                | "List files" >> beam.Create(_deal(files, num_processes))
                | "Spread files" >> beam.Reshuffle()
                | "Write spill files" >> beam.ParDo(_WriteSpill(job))
            )
            _ = (
                pipeline
                | "List shards" >> beam.Create(range(job.num_shards))
                | "Spread shards" >> beam.Reshuffle()
                | "Write shards"
                >> beam.ParDo(_WriteShard(job), spilled=beam.pvalue.AsList(spilled))
            )
    finally:
        logger.setLevel(level)
        gc.unfreeze()


def _local_runner(num_processes: int) -> FnApiRunner:
    """Beam's local runner; by a name, Beam would look for another one on the network first."""
    if num_processes == 1:
        return FnApiRunner()
    command = f"{shlex.quote(sys.executable)} -m data_prep.beam.worker"
    return FnApiRunner(SubprocessSDKEnvironment.from_command_string(command))


def _deal(files: Sequence[InputFile], num_processes: int) -> list[tuple[int, InputFile]]:
    """Numbers files and orders them for Beam's local runner.

    It deals them in turn to its processes. Largest first, to and fro, each gets about the same.
    """
    numbered = sorted(enumerate(files), key=lambda entry: -entry[1].size)
    dealt = []
    for start in range(0, len(numbered), num_processes):
        round_of_files = numbered[start : start + num_processes]
        is_full = len(round_of_files) == num_processes
        is_back = is_full and start // num_processes % 2 == 1
        dealt += reversed(round_of_files) if is_back else round_of_files
    return dealt


@contextlib.contextmanager
def _plain_labels() -> Iterator[None]:
    """Keeps Beam from renaming steps in IPython, for which it imports what fails with pandas 3."""
    rename = beam.pipeline.alter_label_if_ipython
    beam.pipeline.alter_label_if_ipython = lambda transform, pvalueish: None
    try:
        yield
    finally:
        beam.pipeline.alter_label_if_ipython = rename


@contextlib.contextmanager
def _no_accelerator_for_others(num_processes: int) -> Iterator[None]:
    """Hides GPUs from worker processes, which would divide the memory among them for nothing."""
    name = "CUDA_VISIBLE_DEVICES"
    before = os.environ.get(name)
    if num_processes > 1:
        os.environ[name] = "-1"
    try:
        yield
    finally:
        if before is not None:
            os.environ[name] = before
        elif num_processes > 1:
            os.environ.pop(name)


class _WriteSpill(beam.DoFn):
    """First half of the work: the records of one input file."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def setup(self) -> None:
        """Called once in each worker: building a tokenizer takes a quarter of a second."""
        # Else the garbage collector goes through all that TensorFlow has loaded, again and again.
        gc.freeze()
        self._maker = RecordMaker(self._job.options)
        self._progress = ProgressWriter(self._job.directory.join("progress"))

    def process(self, element: tuple[int, InputFile]) -> Iterator[int]:
        """Leaves a `FileSummary`; yields the number of the file."""
        number, file = element
        path = self._job.directory.join("spill", str(number))
        with _reported(self._job.directory, path) as failed_before:
            if not failed_before:
                summary = self._write(path, file)
                self._job.directory.write_result(f"file-{number}", summary)
        yield number

    def _write(self, path: str, file: InputFile) -> FileSummary:
        reader = DocumentReader(file.path, self._job.options.document_separator)
        records = FileRecords(self._maker, reader, file.name)
        segments = write_spill(path, self._showing_progress(records, reader), self._job.num_shards)
        return FileSummary(path, tuple(segments), dict(records.counts), records.split_keys())

    def _showing_progress(
        self, records: FileRecords, reader: DocumentReader
    ) -> Iterator[SpilledRecord]:
        shown = Totals()

        def show() -> None:
            nonlocal shown
            done = Totals(records.counts["documents"], reader.bytes_read, reader.position)
            if done != shown:
                self._progress.add(Totals(*(a - b for a, b in zip(done, shown, strict=True))))
                shown = done

        for record in records:
            yield record
            show()
        show()


class _WriteShard(beam.DoFn):
    """Second half of the work: the files of one shard."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._writer: ShardWriter | None = None

    def setup(self) -> None:
        """Called once in each worker."""
        self._progress = ProgressWriter(self._job.directory.join("progress"))

    def process(self, shard: int, spilled: list[int]) -> None:
        """Leaves a `ShardResult`; `spilled` are the numbers of all files."""
        paths = [self._job.directory.join("output", shard_name(split, shard)) for split in SPLITS]
        with _reported(self._job.directory, *paths) as failed_before:
            if not failed_before:
                self._writer = self._writer or self._make_writer(spilled)
                self._job.directory.write_result(f"shard-{shard}", self._writer.write(shard))
                self._progress.add(Totals(shards=1))

    def _make_writer(self, spilled: list[int]) -> ShardWriter:
        job = self._job
        summaries = [job.directory.read_result(f"file-{number}") for number in sorted(spilled)]
        if job.options.sequences == "pair":
            check_enough_documents(summaries)
        return ShardWriter(
            summaries,
            job.held_out(summaries),
            job.directory.join("output"),
            num_shards=job.num_shards,
            row_limit=job.options.row_limit,
            vocabulary_size=len(job.options.vocabulary),
            annotations=job.options.annotations,
        )


@contextlib.contextmanager
def _reported(directory: WorkDirectory, *unfinished: str) -> Iterator[bool]:
    """Leaves errors that the user can mend for the parent, which stops; Beam would bury them.

    Gives whether there is such an error already, so that no more work need be done. Files that
    an error left unfinished are removed first: the disk may be too full for the message.
    """
    try:
        yield directory.read_error() is not None
    except SpanBertError as error:
        directory.write_error(str(error))
    except (OSError, tf.errors.OpError) as error:
        for path in unfinished:
            remove_file(path)
        directory.write_error(cannot_write(directory.output, error))


def cannot_write(output: str, error: Exception) -> str:
    """What to tell the user when the disk is full, or the like."""
    # TensorFlow puts the path before the reason.
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0].split("; ")[-1]
    return f"{output}: cannot be written ({reason}); free some space or name another --output"

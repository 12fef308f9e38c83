"""What a process does: input files → spill files, spill files → shards."""

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Sequence

from data_prep.beam.storage import WorkDirectory, remove_file  # imports Beam without its warnings

# isort: split
import tensorflow as tf

from data_prep.beam.progress import ProgressWriter, Totals
from data_prep.beam.shards import (
    FileSummary,
    ShardResult,
    ShardWriter,
    check_enough_documents,
    shard_name,
)
from data_prep.beam.spill import SpilledRecord, write_spill
from data_prep.blocks.held_out import HeldOut, find_held_out
from data_prep.blocks.records import FileRecords, RecordMaker, RecordOptions
from data_prep.text.corpus import DocumentReader, InputFile
from spanbert_tf.data.schema import SPLITS
from spanbert_tf.errors import SpanBertError
from spanbert_tf.files.outputs import NEW


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

    def spill_path(self, file_number: int) -> str:
        """Where the records of an input file wait."""
        return self.directory.join("spill", str(file_number))

    def file_summary(self, file_number: int) -> FileSummary:
        """What a worker left about an input file."""
        values = self.directory.read_result(f"file-{file_number}")
        return FileSummary.from_json(self.spill_path(file_number), values)

    def shard_result(self, shard: int) -> ShardResult:
        """What a worker left about a shard."""
        return ShardResult.from_json(self.directory.read_result(f"shard-{shard}"))

    def held_out(self, summaries: Sequence[FileSummary]) -> HeldOut:
        """What is held out, once all files are read."""
        keys = [summary.keys for summary in summaries]
        return find_held_out(keys, self.validation_fraction, self.options.sequences)


class Worker:
    """Does both halves of a job's work; what it leaves lies in the job's directory.

    One for each process: building a tokenizer takes a quarter of a second.

    Args:
        job: the whole work, of which it does what it is asked for.
    """

    def __init__(self, job: Job) -> None:
        # Else the garbage collector goes through all that TensorFlow has loaded, again and again.
        gc.freeze()
        self._job = job
        self._maker = RecordMaker(job.options)
        self._progress = ProgressWriter(job.directory.join("progress"))
        self._shard_writer: ShardWriter | None = None

    def write_spill(self, file_number: int, file: InputFile) -> int:
        """First half: the records of one input file. Leaves a `FileSummary`; returns the number."""
        path = self._job.spill_path(file_number)
        with _reported(self._job.directory, path) as failed_before:
            if not failed_before:
                summary = self._write_spill(path, file)
                self._job.directory.write_result(f"file-{file_number}", summary.to_json())
        return file_number

    def write_shard(self, shard: int, file_numbers: Sequence[int]) -> None:
        """Second half: the files of one shard. Leaves a `ShardResult`.

        Args:
            shard: number of the shard.
            file_numbers: numbers of all input files.
        """
        paths = [self._job.directory.join(NEW, shard_name(split, shard)) for split in SPLITS]
        with _reported(self._job.directory, *paths) as failed_before:
            if not failed_before:
                # Once a process: the summaries of all files are read.
                self._shard_writer = self._shard_writer or self._make_shard_writer(file_numbers)
                result = self._shard_writer.write(shard).to_json()
                self._job.directory.write_result(f"shard-{shard}", result)
                self._progress.add(Totals(shards=1))

    def _write_spill(self, path: str, file: InputFile) -> FileSummary:
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

    def _make_shard_writer(self, file_numbers: Sequence[int]) -> ShardWriter:
        job = self._job
        summaries = [job.file_summary(number) for number in sorted(file_numbers)]
        if job.options.sequences == "pair":
            check_enough_documents(summaries)
        return ShardWriter(
            summaries,
            job.held_out(summaries),
            job.directory.join(NEW),
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

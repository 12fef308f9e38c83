"""What a process does: input files → spill files, spill files → shards."""

import contextlib
import dataclasses
import gc
import json
import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import tensorflow as tf

from data_prep.beam.progress import ProgressWriter, Totals
from data_prep.beam.shards import (
    FileSummary,
    ShardResult,
    ShardWriter,
    check_enough_documents,
    shard_name,
    write_spill,
)
from data_prep.blocks.held_out import HeldOut, find_held_out
from data_prep.blocks.records import FileRecords, RecordMaker, RecordOptions
from data_prep.blocks.sequences import Record
from data_prep.text.corpus import DocumentReader
from data_prep.text.storage import InputFile
from spanbert_tf.data.manifest import SPLITS
from spanbert_tf.errors import BadInputError, SpanBertError
from spanbert_tf.files.output import NEW, Output, OutputKind
from spanbert_tf.files.text_files import parse_json

_Result = TypeVar("_Result", FileSummary, ShardResult)


class WorkDirectory:
    """The directory beside the output, `output.incomplete`, that workers share until then."""

    def __init__(
        self, output: str | os.PathLike, kind: OutputKind, *, overwrite: bool = False
    ) -> None:
        self._output = Output(output, kind, overwrite=overwrite)
        self.output = os.path.realpath(output)
        self.path = self._output.aside

    def check(self) -> None:
        """Raises `BadInputError` unless the output is new, or an earlier one may be replaced."""
        self._output.check()

    def create(self) -> None:
        """Makes the directory, and removes what a run that was killed has left."""
        self._output.create("spill", "progress", "results", NEW)

    def join(self, *names: str) -> str:
        """A path inside."""
        return os.path.join(self.path, *names)

    def check_shared(self) -> None:
        """Raises `BadInputError` on a host that does not see the directory."""
        if not os.path.isdir(self.path):
            raise BadInputError(
                f"{self.path}: not there on the host {socket.gethostname()}; a runner's hosts need "
                "--input and --output on a file system that all share"
            )

    def write_result(self, name: str, value: FileSummary | ShardResult) -> None:
        """Leaves a result for other workers and for the parent."""
        # Renamed, since a runner that takes a worker for lost gives its work to another as well.
        unfinished = self.join("results", f".{name}-{uuid.uuid4()}")
        with open(unfinished, "wb") as file:
            file.write(json.dumps(dataclasses.asdict(value)).encode())
        os.replace(unfinished, self.join("results", name))

    def result_names(self) -> set[str]:
        """The names of all results that workers have left."""
        return set(os.listdir(self.join("results")))

    def has_result(self, name: str) -> bool:
        """Whether a worker has left a result of this name."""
        return os.path.exists(self.join("results", name))

    def read_result(self, name: str, kind: type[_Result]) -> _Result:
        """Reads what `write_result` wrote, which may be somebody else's."""
        with open(path := self.join("results", name), "rb") as file:
            return parse_json(file.read(), kind, path)

    def write_error(self, text: str) -> None:
        """Leaves the one-line message of an error that the user can mend."""
        with open(self.join("error"), "wb") as file:
            # A name that is not UTF-8 has halves of surrogate pairs.
            file.write(text.encode(errors="surrogatepass"))

    def read_error(self) -> str | None:
        """The message that a worker left, if one did."""
        try:
            with open(self.join("error"), "rb") as file:
                return file.read().decode(errors="surrogatepass")
        except FileNotFoundError:
            return None

    def publish(self) -> None:
        """Gives the finished files their place, all at once."""
        self._output.publish()

    def remove(self) -> None:
        """Removes the directory and all that is in it."""
        self._output.discard()


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
        return self.directory.read_result(f"file-{file_number}", FileSummary)

    def shard_result(self, shard: int) -> ShardResult:
        """What a worker left about a shard."""
        return self.directory.read_result(f"shard-{shard}", ShardResult)

    def held_out(self, summaries: Iterable[FileSummary]) -> HeldOut:
        """What is held out, once all files are read."""
        keys = [summary.keys for summary in summaries]
        return find_held_out(keys, self.validation_fraction, self.options.sequences)


class Worker:
    """Does both halves of a job's work; what it leaves lies in the job's directory.

    One for each process: building a tokenizer takes a quarter of a second.
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
        name = f"file-{file_number}"
        with _reported(self._job.directory, name, path) as is_needed:
            if is_needed:
                self._job.directory.write_result(name, self._write_spill(path, file))
        return file_number

    def write_shard(self, shard: int, file_numbers: Sequence[int]) -> None:
        """Second half: the files of one shard. Leaves a `ShardResult`."""
        paths = [self._job.directory.join(NEW, shard_name(split, shard)) for split in SPLITS]
        name = f"shard-{shard}"
        with _reported(self._job.directory, name, *paths) as is_needed:
            if is_needed:
                # Once a process: the summaries of all files are read.
                self._shard_writer = self._shard_writer or self._make_shard_writer(file_numbers)
                self._job.directory.write_result(name, self._shard_writer.write(shard))
                self._progress.add(Totals(shards=1))

    def _write_spill(self, path: str, file: InputFile) -> FileSummary:
        reader = DocumentReader(file.path, self._job.options.document_separator)
        records = FileRecords(self._maker, reader, file.name)
        segments = write_spill(path, self._showing_progress(records, reader), self._job.num_shards)
        return FileSummary(tuple(segments), dict(records.counts), records.split_keys())

    def _showing_progress(self, records: FileRecords, reader: DocumentReader) -> Iterator[Record]:
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
        numbers = sorted(file_numbers)
        summaries = {job.spill_path(number): job.file_summary(number) for number in numbers}
        if job.options.sequences == "pair":
            check_enough_documents(summaries.values())
        return ShardWriter(
            summaries,
            job.held_out(summaries.values()),
            job.directory.join(NEW),
            num_shards=job.num_shards,
            row_limit=job.options.row_limit,
            vocabulary_size=len(job.options.vocabulary),
            annotations=job.options.annotations,
        )


@contextlib.contextmanager
def _reported(directory: WorkDirectory, result: str, *unfinished: str) -> Iterator[bool]:
    """Leaves errors that the user can mend for the parent, which stops; Beam would bury them.

    Gives whether there is anything to do: no such error so far, and no result. Of a worker that is
    killed a runner repeats what was finished, too; a spill file written again would be read by
    others half-written. Files that an error left unfinished are removed first: the disk may be too
    full for the message.
    """
    try:
        yield directory.read_error() is None and not directory.has_result(result)
    except SpanBertError as error:
        directory.write_error(str(error))
    except (OSError, tf.errors.OpError) as error:
        for path in unfinished:
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
        directory.write_error(cannot_write(directory.output, error))


def cannot_write(output: str, error: Exception) -> str:
    """What to tell the user when the disk is full, or the like."""
    # TensorFlow puts the path before the reason.
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0].split("; ")[-1]
    return f"{output}: cannot be written ({reason}); free some space or name another --output"

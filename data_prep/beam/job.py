"""Defines the job that all steps share. Calls a step for an item and keeps its result in a file."""

import collections
import contextlib
import dataclasses
import os
import pickle
import re
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from data_prep.beam.pickles import PICKLE_ERRORS, load_pickle
from data_prep.beam.progress import Totals
from data_prep.blocks.held_out import SplitKeys
from data_prep.blocks.records import RecordOptions
from data_prep.text.duplicates import Unit
from data_prep.text.scanning import RangeScan, RangeScans, Start
from spanbert_tf.data.manifest import Shard
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import is_file_name
from spanbert_tf.files.output import NEW

Show = Callable[[Totals], None]  # is called with the work done since the last call
SPILL = "spill"  # folder in the work directory, beside the folder `NEW`, which becomes the output

_RESULT = re.compile(r"(parts|shards)-\d+")  # names of the results that are counted
UNFINISHED = "unfinished-"  # how the names of unfinished files in it begin

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Job:
    """The parameters that all steps share.

    Attributes:
        output: path of the output directory, for messages.
        directory: path of the work directory.
        options: options of the records.
        num_shards: number of groups of records. Each gives at most one file of each split.
        validation_fraction: share of the records that is held out.
        deduplicate: whether duplicate documents or paragraphs are left out; `None` for neither.
    """

    output: str
    directory: str
    options: RecordOptions
    num_shards: int
    validation_fraction: float
    deduplicate: Unit | None = None

    def spill_path(self, part_number: int) -> str:
        """Returns the path of the spill file of a part of the input."""
        return os.path.join(self.directory, SPILL, str(part_number))

    def shard_path(self, name: str) -> str:
        """Returns the path of a file of a shard."""
        return os.path.join(self.directory, NEW, name)

    def result_path(self, items: str, number: int) -> str:
        """Returns the path of the result of a step for one of its items; see `run_step`."""
        return os.path.join(self.directory, SPILL, f"{items}-{number}")

    @contextlib.contextmanager
    def whole_file(self, path: str) -> Iterator[str]:
        """Yields a temporary path and renames the file to `path` when the context ends.

        A runner of Beam repeats the work of a worker that it takes for lost, while other workers
        may already read the finished file. The rename replaces the file atomically. The bytes are
        written to the disk before the rename, so the file is complete even after a power failure.
        """
        unfinished = os.path.join(self.directory, SPILL, f"{UNFINISHED}{uuid.uuid4()}")
        yield unfinished
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)


class PartSummary(NamedTuple):
    """The result of reading a part of the input.

    Attributes:
        counts: numbers of documents, records and more; see `write_pretraining_records`.
        keys: statistics from which the held-out records are chosen.
    """

    counts: dict[str, int]
    keys: SplitKeys


class ShardResult(NamedTuple):
    """The result of writing a shard.

    Attributes:
        shard: index of the shard.
        files: one file for each split that has records.
        unigram_counts: number of occurrences of each vocabulary entry in the training split, the
            bytes of int64 [vocabulary].
    """

    shard: int
    files: tuple[Shard, ...]
    unigram_counts: bytes


_RESULT_CLASSES = (RangeScans, RangeScan, Start, PartSummary, SplitKeys, ShardResult, Shard)


class StoppedError(BadInputError):
    """The work stopped for a cause outside of the input, so the same command can go on."""


class Call(Protocol):
    """Calls a step for each of several items, in processes or on a runner of Beam."""

    def __call__(
        self, step: Callable[..., _Result], items: str, arguments: Sequence[tuple]
    ) -> list[_Result]:
        """Calls `step(job, show, *arguments)` for each tuple of arguments.

        Args:
            step: one of the functions of `steps` and `duplicates`.
            items: name of the kind of items, such as `"shards"`.
            arguments: for each item a tuple of its number and further arguments.

        Returns:
            The results in the order of the arguments.

        Raises:
            BadInputError: a step raised it, or the runner left out items.
            StoppedError: a process was killed, or the runner failed.
            OSError: a file cannot be written.
        """


def run_step(
    job: Job, show: Show, step: Callable[..., _Result], items: str, arguments: tuple
) -> _Result:
    """Calls a step for one item and keeps its result in a file; see `Call`.

    The file is written after all other files of the step. If the file exists, from a killed command
    or from another worker of a runner, the step is not called again.
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
            result = load_pickle(file, _RESULT_CLASSES)
    except (FileNotFoundError, *PICKLE_ERRORS):
        return None
    if isinstance(result, ShardResult):
        for shard in result.files:
            if not is_file_name(shard.file):  # another file of the user would become the output's
                return None
    return result


def prepare_to_go_on(job: Job) -> tuple[int, int]:
    """Removes the unfinished files of a command that was killed, or that found the disk full.

    Returns:
        The number of parts of the input and the number of shards that are done.
    """
    directory = os.path.join(job.directory, SPILL)
    done: collections.Counter = collections.Counter()
    for name in os.listdir(directory):
        if name.startswith(UNFINISHED):
            os.remove(os.path.join(directory, name))
        elif found := _RESULT.fullmatch(name):
            done[found[1]] += 1
    return done["parts"], done["shards"]


def cannot_write(output: str, error: Exception, kept: str | None = None) -> str:
    """Returns the message for an output that cannot be written, for example on a full disk.

    Args:
        output: path of the output.
        error: the error that was raised.
        kept: see `can_go_on`; `None` if no work is kept.
    """
    advice = "free some space or name another --output"
    if kept is not None:
        advice = f"free some space and run the same command: {can_go_on(kept)}"
    # TensorFlow's messages have the form "path; reason".
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0].split("; ")[-1]
    return f"{output}: cannot be written ({reason}); {advice}"


def can_go_on(kept: str) -> str:
    """Says that a command goes on.

    Args:
        kept: path of the directory with the work that is done.
    """
    return f"it goes on with the work in {kept}"

"""Runs the two steps of preparation in processes of this machine or on a runner of Apache Beam.

Beam's own local runner is not used: with several processes it opens six unauthenticated ports to
the whole network. The processes started here communicate through pipes and open no ports.
"""

import argparse
import contextlib
import functools
import io
import logging
import os
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol, TypeVar

from data_prep.text.storage import InputFile  # must import Beam first, to silence its warnings

# isort: split
import apache_beam as beam
import loky
import tensorflow as tf
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, create_runner
from loky.backend import get_context

from data_prep.beam.steps import (
    SPILL,
    FileSummary,
    Job,
    ShardResult,
    Show,
    held_out_records,
    release_memory,
    spill_file,
    write_shard,
)
from data_prep.blocks.held_out import HeldOut
from spanbert_tf.errors import BadInputError, ConfigurationError, SpanBertError
from spanbert_tf.temporary import protected_children

_LOCAL_RUNNER = "DirectRunner"  # Beam's name for "on this machine"
_DASK_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"  # not among Beam's short names
_RUNNERS = {"direct": _LOCAL_RUNNER, "dask": _DASK_RUNNER}
# A Dask task costs a tenth of a second; a worker reads half a megabyte in that time.
_MAX_PARTITIONS = 10_000
_BYTES_PER_PARTITION = 4 * 2**20
_SECONDS_BETWEEN_CHECKS = 0.5  # whether the parent process is alive
_RESULTS = "results"  # file beside the spill files; a runner's last step writes all results there
_job_and_show: tuple[Job, Show] | None = None  # set by `_start_process` in a worker process


_Result = TypeVar("_Result")


class Outcome(NamedTuple):
    """The results of both steps.

    Attributes:
        summaries: one for each input file, in any order.
        held_out: decides which records are held out.
        shards: one for each shard, ordered by shard.
    """

    summaries: list[FileSummary]
    held_out: HeldOut
    shards: list[ShardResult]


def runner_options(arguments: Sequence[str]) -> PipelineOptions | None:
    """Parses the user's options for a runner of Beam.

    Args:
        arguments: command-line options, such as `--runner=dask`.

    Returns:
        The options, or `None` if the work is to be done on this machine.

    Raises:
        ConfigurationError: an option is unknown, has a bad value or lacks `--runner`, or the runner
            is not installed.
    """
    options = PipelineOptions(list(arguments))
    parsers: list[argparse.ArgumentParser] = []
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            standard = options.view_as(StandardOptions)
            # The import registers the runner's own options, which the next line collects.
            standard.runner = _import_runner(standard.runner)
            options.get_all_options(add_extra_args_fn=parsers.append)
            _, unknown = parsers[0].parse_known_args(list(arguments))
    except SystemExit as error:  # argparse exits on a bad value; its last line names the value
        reason = messages.getvalue().strip().splitlines()[-1].split("error: ")[-1]
        raise ConfigurationError(f"{' '.join(arguments)}: {reason}") from error
    if unknown:
        name = unknown[0].partition("=")[0]
        raise ConfigurationError(
            f"{name}: neither our option nor one of Beam's, nor of a runner that --runner names; "
            "see --help"
        )
    if arguments and not standard.runner:
        raise ConfigurationError(
            f"{arguments[0]}: an option of Beam's needs --runner beside it; on this machine there "
            "is --num-processes"
        )
    if standard.runner == _DASK_RUNNER:
        _check_scheduler(options)
    return options if standard.runner not in (None, _LOCAL_RUNNER) else None


def _import_runner(name: str | None) -> str | None:
    """Imports a runner and returns the name by which Beam knows it."""
    if name is None:
        return None
    beam_name = _RUNNERS.get(name.lower().removesuffix("runner"), name)
    try:
        create_runner(beam_name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        remedy = "pip install -e '.[dask]'" if beam_name == _DASK_RUNNER else "see --help"
        raise ConfigurationError(f"--runner {name}: {error}; {remedy}") from error
    return beam_name


def _check_scheduler(options: PipelineOptions) -> None:
    """Raises `ConfigurationError` if Dask would start its own cluster, which opens ports."""
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    if not (dask.address or dask.scheduler_file):
        raise ConfigurationError(
            "--runner dask: needs --dask_client_address tcp://HOST:8786 or --dask_scheduler_file "
            "FILE of a scheduler that runs; on this machine there is --num-processes"
        )
    # Dask would wait for a missing file forever.
    if not dask.address and not os.path.isfile(dask.scheduler_file):
        raise ConfigurationError(
            f"--dask_scheduler_file {dask.scheduler_file}: no such file; `dask scheduler "
            "--scheduler-file` writes it when it has started"
        )


def run_locally(job: Job, files: Sequence[InputFile], num_processes: int, show: Show) -> Outcome:
    """Runs both steps in processes of this machine.

    Args:
        job: the job.
        files: the input files.
        num_processes: number of processes. With 1, this process does the work.
        show: called with the progress since its last call.

    Raises:
        BadInputError: a file cannot be used, or a process was killed.
        OSError: a file cannot be written.
    """
    # Largest files first: otherwise one process could still read a large file when others are done.
    numbered = sorted(enumerate(files), key=lambda entry: -entry[1].size)
    if num_processes == 1:
        workers = _this_process(job, show)
    else:
        workers = _processes(job, num_processes, show)
    with workers as call:
        summaries = call(spill_file, numbered)
        held_out = held_out_records(job, summaries)
        shards = call(write_shard, [(held_out, shard) for shard in range(job.num_shards)])
    return Outcome(summaries, held_out, shards)


class _Call(Protocol):
    """Calls `step(job, show, *arguments)` for each tuple of arguments; returns the results."""

    def __call__(self, step: Callable[..., _Result], arguments: Iterable[tuple]) -> list[_Result]:
        """Calls the step."""


@contextlib.contextmanager
def _this_process(job: Job, show: Show) -> Iterator[_Call]:
    """Yields a function that runs a step in this process."""

    def call(step: Callable[..., _Result], arguments: Iterable[tuple]) -> list[_Result]:
        return [step(job, show, *each) for each in arguments]

    try:
        yield call
    finally:
        release_memory()


@contextlib.contextmanager
def _processes(job: Job, num_processes: int, show: Show) -> Iterator[_Call]:
    """Yields a function that runs a step in several processes."""
    # All processes write progress into one pipe. The messages are short, so writes are atomic and
    # need no lock, which a killed process would leave locked. The reader sees the end of the pipe
    # when every process has closed its writing end.
    progress, writer = get_context("loky").Pipe(duplex=False)
    watcher = threading.Thread(target=_show_progress, args=(progress, show), daemon=True)
    watcher.start()
    with protected_children():
        executor = loky.ProcessPoolExecutor(
            num_processes,
            initializer=_start_process,
            initargs=(job, writer),
            # The processes need no GPU; each would reserve a part of its memory.
            env={"CUDA_VISIBLE_DEVICES": "-1"},
        )

        def call(step: Callable[..., _Result], arguments: Iterable[tuple]) -> list[_Result]:
            futures = [executor.submit(_call_step, step, *each) for each in arguments]
            return [future.result() for future in futures]

        try:
            yield call
        except loky.BrokenProcessPool as error:
            raise BadInputError(
                f"--num-processes {num_processes}: a process was killed, perhaps for want of "
                "memory; take fewer processes, or more --num-shards"
            ) from error
        finally:
            executor.shutdown(kill_workers=True)  # they would continue after an interruption
            writer.close()
            watcher.join()


def _show_progress(progress: Connection, show: Show) -> None:
    with contextlib.suppress(EOFError), progress:
        while True:
            show(progress.recv())


def _start_process(job: Job, writer: Connection) -> None:
    """Initializes a worker process."""
    global _job_and_show
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # Beam and TensorFlow log advice when they are imported, once in each process.
    logging.disable(logging.WARNING)
    _job_and_show = (job, writer.send)


def _end_with_parent(parent: int) -> None:
    """Ends this process when its parent was killed: nobody would use or remove its files."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_CHECKS)
    os._exit(1)


def _call_step(step: Callable[..., _Result], *arguments: object) -> _Result:
    """Runs a step in a worker process."""
    if _job_and_show is None:
        raise AssertionError("`_start_process` was not called in this process")
    job, show = _job_and_show
    return step(job, show, *arguments)


def run_on_beam(job: Job, files: Sequence[InputFile], options: PipelineOptions) -> Outcome:
    """Runs both steps on a runner of Beam, which shows its progress itself.

    Args:
        job: the job.
        files: the input files.
        options: options of the runner, from `runner_options`.

    Raises:
        BadInputError: a file cannot be used or written, the runner cannot be reached, it gave up,
            or it skipped work.
    """
    runner = options.view_as(StandardOptions).runner
    if runner == _DASK_RUNNER:
        num_elements = max(len(files), job.num_shards)
        _set_partitions(options, num_elements, sum(file.size for file in files))
    try:
        with _quiet_loggers(), _plain_labels():
            _run(_make_pipeline(job, files, options))
    except SpanBertError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        name = runner.rpartition(".")[-1]
        raise BadInputError(f"--runner {name}: {reason}; nothing was written") from error
    finally:
        release_memory()
    return _read_outcome(job)


def _make_pipeline(job: Job, files: Sequence[InputFile], options: PipelineOptions) -> beam.Pipeline:
    pipeline = beam.Pipeline(options=options)
    summaries = (
        pipeline
        | "List files" >> beam.Create(list(enumerate(files)))
        | "Spread files" >> beam.Reshuffle()
        | "Write spill files" >> beam.Map(functools.partial(_spill_on_beam, job))
    )
    # Decided once, not for each shard: the decision sorts the keys of all files.
    held_out = (
        pipeline
        | "Begin the decision" >> beam.Create([0])
        | "Decide what is held out"
        >> beam.Map(functools.partial(_hold_out_on_beam, job), beam.pvalue.AsList(summaries))
    )
    shards = (
        pipeline
        | "List shards" >> beam.Create(range(job.num_shards))
        | "Spread shards" >> beam.Reshuffle()
        | "Write shards"
        >> beam.Map(functools.partial(_write_shard_on_beam, job), beam.pvalue.AsList(held_out))
    )
    _ = (
        pipeline
        | "Begin the end" >> beam.Create([0])
        | "Write results"
        >> beam.Map(
            functools.partial(_write_results, job),
            beam.pvalue.AsList(summaries),
            beam.pvalue.AsList(held_out),
            beam.pvalue.AsList(shards),
        )
    )
    return pipeline


class _Failure(NamedTuple):
    """The message of an error that the user can mend.

    Steps return it instead of raising the error: runners would retry the step and hide the message.
    """

    message: str


def _spill_on_beam(job: Job, numbered: tuple[int, InputFile]) -> FileSummary | _Failure:
    check_shared(job)
    return _result_or_failure(job, spill_file, job, _show_nothing, *numbered)


def _hold_out_on_beam(
    job: Job, element: int, summaries: list[FileSummary | _Failure]
) -> HeldOut | _Failure | None:
    if any(isinstance(summary, _Failure) for summary in summaries):
        return None
    return _result_or_failure(job, held_out_records, job, summaries)


def _write_shard_on_beam(
    job: Job, shard: int, decisions: list[HeldOut | _Failure | None]
) -> ShardResult | _Failure | None:
    check_shared(job)
    (held_out,) = decisions
    if not isinstance(held_out, HeldOut):
        return None
    return _result_or_failure(job, write_shard, job, _show_nothing, held_out, shard)


def _result_or_failure(
    job: Job, step: Callable[..., _Result], *arguments: object
) -> _Result | _Failure:
    try:
        return step(*arguments)
    except SpanBertError as error:
        return _Failure(str(error))
    except (OSError, tf.errors.OpError) as error:
        return _Failure(cannot_write(job.output, error))


def _show_nothing(more: object) -> None:
    pass


def check_shared(job: Job) -> None:
    """Raises `BadInputError` on a host that cannot see the work directory."""
    if not os.path.isdir(job.directory):
        raise BadInputError(
            f"{job.directory}: not there on the host {socket.gethostname()}; a runner's hosts need "
            "--input and --output on a file system that all share"
        )


def _write_results(job: Job, element: int, summaries: list, decisions: list, shards: list) -> None:
    path = os.path.join(job.directory, SPILL, _RESULTS)
    with job.whole_file(path) as unfinished, open(unfinished, "wb") as file:
        pickle.dump([*summaries, *decisions, *shards], file)


def _read_outcome(job: Job) -> Outcome:
    """Reads the results that `_write_results` wrote.

    Raises:
        BadInputError: a step failed, or the runner skipped it because it does not support it.
    """
    found = []
    path = os.path.join(job.directory, SPILL, _RESULTS)
    if os.path.exists(path):
        with open(path, "rb") as file:
            found = pickle.load(file)
    for result in found:
        if isinstance(result, _Failure):
            raise BadInputError(result.message)
    summaries = [result for result in found if isinstance(result, FileSummary)]
    shards = [result for result in found if isinstance(result, ShardResult)]
    _check_number(job, "files", len(summaries), job.num_files)
    _check_number(job, "shards", len(shards), job.num_shards)
    (held_out,) = [result for result in found if isinstance(result, HeldOut)]
    shards.sort(key=lambda result: result.shard)
    return Outcome(summaries, held_out, shards)


def _check_number(job: Job, what: str, number: int, expected: int) -> None:
    if number != expected:
        raise BadInputError(
            f"{job.output}: nothing came of {expected - number:,} of {expected:,} {what}; the "
            "runner left them out, or its hosts do not share the file system of --output"
        )


def cannot_write(output: str, error: Exception) -> str:
    """The message for an output that cannot be written, for example because the disk is full."""
    # TensorFlow's messages have the form "path; reason".
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0].split("; ")[-1]
    return f"{output}: cannot be written ({reason}); free some space or name another --output"


def _set_partitions(options: PipelineOptions, num_elements: int, num_bytes: int) -> None:
    """Makes Dask distribute files and shards one by one unless they are small.

    By default Dask puts 128 elements into one task, so a single worker would do everything.
    """
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    if not (dask.npartitions or dask.partition_size):
        sensible = min(max(num_bytes // _BYTES_PER_PARTITION, 16), _MAX_PARTITIONS)
        dask.npartitions = min(num_elements, sensible)


def _run(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline to its end, and cancels it on the runner after an error or interruption."""
    result = pipeline.run()
    try:
        result.wait_until_finish()
        # Dask's `wait_until_finish` returns without an error when the scheduler is lost; its
        # futures raise one.
        for future in getattr(result, "futures", ()):
            future.result()
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the cause
            result.cancel()
        raise
    finally:
        _disconnect(result)


def _disconnect(result: PipelineResult) -> None:
    """Closes the connection that Dask's runner leaves open."""
    if client := getattr(result, "client", None):
        with contextlib.suppress(Exception):  # the scheduler may be gone
            client.close()


@contextlib.contextmanager
def _quiet_loggers() -> Iterator[None]:
    """Hides the logs of runners. They repeat, with tracebacks, errors that are raised anyway."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _plain_labels() -> Iterator[None]:
    """Keeps Beam from renaming steps in IPython: its code for that fails to import on pandas 3."""
    rename = beam.pipeline.alter_label_if_ipython
    beam.pipeline.alter_label_if_ipython = lambda transform, pvalueish: None
    try:
        yield
    finally:
        beam.pipeline.alter_label_if_ipython = rename

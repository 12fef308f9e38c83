"""Who does the work: processes of this machine, or a runner of Apache Beam.

Beam's own local runner is not used: with several processes it opens six ports to the whole network,
without any authentication. Processes that are joined by pipes open none.
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
from typing import Any, NamedTuple

from data_prep.text.storage import InputFile  # imports Beam without its warnings

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
# Of Dask's tasks: each costs a tenth of a second, in which a worker reads half a megabyte.
_MAX_PARTITIONS, _BYTES_PER_PARTITION = 10_000, 4 * 2**20
_SECONDS_BETWEEN_LOOKS = 0.5  # at whether the parent lives
_RESULTS = "results"  # file beside the spill files in which a runner's workers leave them
_given: tuple[Job, Show] | None = None  # to a process that `_processes` has started


class Outcome(NamedTuple):
    """What became of all input files and of all shards.

    Attributes:
        summaries: one for each input file, in any order.
        held_out: tells the records that are held out.
        shards: one for each shard, in their order.
    """

    summaries: list[FileSummary]
    held_out: HeldOut
    shards: list[ShardResult]


def runner_options(arguments: Sequence[str]) -> PipelineOptions | None:
    """The user's options for a runner of Beam; `None`: the work is done on this machine."""
    options = PipelineOptions(list(arguments))
    parsers: list[argparse.ArgumentParser] = []
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            standard = options.view_as(StandardOptions)
            # First, since a runner's own options are known once its module is there.
            standard.runner = _import_runner(standard.runner)
            options.get_all_options(add_extra_args_fn=parsers.append)
            _, unknown = parsers[0].parse_known_args(list(arguments))
    except SystemExit as error:  # a bad value; the last line says which
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
    """Imports a runner by one of its names, and gives the one that Beam knows."""
    if name is None:
        return None
    place = _RUNNERS.get(name.lower().removesuffix("runner"), name)
    try:
        create_runner(place)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        remedy = "pip install -e '.[dask]'" if place == _DASK_RUNNER else "see --help"
        raise ConfigurationError(f"--runner {name}: {error}; {remedy}") from error
    return place


def _check_scheduler(options: PipelineOptions) -> None:
    """Raises `ConfigurationError` where Dask would start a cluster of its own, with open ports."""
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    if not (dask.address or dask.scheduler_file):
        raise ConfigurationError(
            "--runner dask: needs --dask_client_address tcp://HOST:8786 or --dask_scheduler_file "
            "FILE of a scheduler that runs; on this machine there is --num-processes"
        )
    # Dask waits for it without end.
    if not dask.address and not os.path.isfile(dask.scheduler_file):
        raise ConfigurationError(
            f"--dask_scheduler_file {dask.scheduler_file}: no such file; `dask scheduler "
            "--scheduler-file` writes it when it has started"
        )


def run_locally(job: Job, files: Sequence[InputFile], num_processes: int, show: Show) -> Outcome:
    """Does the work by processes of this machine.

    Args:
        job: the job.
        files: the input files.
        num_processes: number of processes; a single one is this process.
        show: shows progress.

    Raises:
        BadInputError: a file cannot be used, or a process was killed.
        OSError: a file cannot be written.
    """
    # The largest files first, so that no process is left alone with one at the end.
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


@contextlib.contextmanager
def _this_process(job: Job, show: Show) -> Iterator[Callable]:
    """Gives `call(step, arguments)`: the results of a step for each tuple of arguments."""

    def call(step: Callable, arguments: Iterable[tuple]) -> list:
        return [step(job, show, *each) for each in arguments]

    try:
        yield call
    finally:
        release_memory()


@contextlib.contextmanager
def _processes(job: Job, num_processes: int, show: Show) -> Iterator[Callable]:
    """The same, by several processes."""
    # Messages are short enough that a pipe takes them whole, without a lock, which a process that
    # is killed would leave locked. The pipe ends when no process has its writing end any more.
    progress, writer = get_context("loky").Pipe(duplex=False)
    watcher = threading.Thread(target=_show_progress, args=(progress, show), daemon=True)
    watcher.start()
    with protected_children():
        executor = loky.ProcessPoolExecutor(
            num_processes,
            initializer=_start_process,
            initargs=(job, writer),
            # They need no GPU, and would divide its memory among them.
            env={"CUDA_VISIBLE_DEVICES": "-1"},
        )

        def call(step: Callable, arguments: Iterable[tuple]) -> list:
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
            executor.shutdown(kill_workers=True)  # after an interruption they would go on
            writer.close()
            watcher.join()


def _show_progress(progress: Connection, show: Show) -> None:
    with contextlib.suppress(EOFError), progress:
        while True:
            show(progress.recv())


def _start_process(job: Job, writer: Connection) -> None:
    global _given
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # Beam and TensorFlow advise their importers, once in each process.
    logging.disable(logging.WARNING)
    _given = job, writer.send


def _end_with_parent(parent: int) -> None:
    """Ends this process when its parent was killed: nobody waits for the work, or removes it."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _call_step(step: Callable, *arguments: object) -> Any:
    return step(*_given, *arguments)


def run_on_beam(job: Job, files: Sequence[InputFile], options: PipelineOptions) -> Outcome:
    """Does the work on a runner of Beam, which shows its progress itself.

    Raises:
        BadInputError: a file cannot be used or written, the runner cannot be reached or has given
            up, or it has left out work.
    """
    runner = options.view_as(StandardOptions).runner
    if runner == _DASK_RUNNER:
        _divide(options, max(len(files), job.num_shards), sum(file.size for file in files))
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
    # Once for all shards: all keys of all files are sorted for it.
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
    """The message of an error that the user can mend. Runners would repeat and bury an error."""

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


def _result_or_failure(job: Job, step: Callable, *arguments: object) -> Any:
    try:
        return step(*arguments)
    except SpanBertError as error:
        return _Failure(str(error))
    except (OSError, tf.errors.OpError) as error:
        return _Failure(cannot_write(job.output, error))


def _show_nothing(more: object) -> None:
    pass


def check_shared(job: Job) -> None:
    """Raises `BadInputError` on a host that does not see the work directory."""
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
    """Reads what `_write_results` wrote.

    Raises:
        BadInputError: a step failed, or was left out: runners skip steps that they do not know.
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
    """What to tell the user when the disk is full, or the like."""
    # TensorFlow puts the path before the reason.
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0].split("; ")[-1]
    return f"{output}: cannot be written ({reason}); free some space or name another --output"


def _divide(options: PipelineOptions, num_elements: int, num_bytes: int) -> None:
    """Has Dask hand out files and shards one by one where they are not small.

    By its own default 128 of them are one task, so that a worker would do it all.
    """
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    if not (dask.npartitions or dask.partition_size):
        sensible = min(max(num_bytes // _BYTES_PER_PARTITION, 16), _MAX_PARTITIONS)
        dask.npartitions = min(num_elements, sensible)


def _run(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline to its end; an interruption ends it wherever it runs."""
    result = pipeline.run()
    try:
        result.wait_until_finish()
        # Dask's waits no longer when its scheduler is lost, but raises nothing.
        for future in getattr(result, "futures", ()):
            future.result()
    except BaseException:
        with contextlib.suppress(Exception):  # the first error says why
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
    """Hides what runners log, with tracebacks: the errors among it are raised as well."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


@contextlib.contextmanager
def _plain_labels() -> Iterator[None]:
    """Keeps Beam from renaming steps in IPython, for which it imports what fails with pandas 3."""
    rename = beam.pipeline.alter_label_if_ipython
    beam.pipeline.alter_label_if_ipython = lambda transform, pvalueish: None
    try:
        yield
    finally:
        beam.pipeline.alter_label_if_ipython = rename

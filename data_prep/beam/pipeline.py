"""Runs the steps of preparation on a runner of Apache Beam, for example on a cluster.

Each step is a pipeline of its own, because a step needs the results of the previous one. The
results are files in the work directory (`run_step`), which all hosts share.
"""

import argparse
import contextlib
import functools
import io
import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, create_runner

from data_prep.beam.job import (
    SPILL,
    Call,
    Job,
    StoppedError,
    cannot_write,
    read_result,
    run_step,
)
from data_prep.beam.steps import release_memory
from spanbert_tf.errors import BadInputError, ConfigurationError, SpanBertError

_LOCAL_RUNNER = "DirectRunner"  # Beam's name for "on this machine"
_DASK_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"  # not among Beam's short names
_RUNNERS = {"direct": _LOCAL_RUNNER, "dask": _DASK_RUNNER}
# A Dask task costs a tenth of a second; a worker reads half a megabyte in that time.
_MAX_PARTITIONS = 10_000
_BYTES_PER_PARTITION = 4 * 2**20
# Files beside the spill files, with the message of an error of this class.
_FAILURES = {"failure": BadInputError, "stopped": StoppedError}

_Result = TypeVar("_Result")


def runner_options(arguments: Sequence[str]) -> PipelineOptions | None:
    """Parses the user's options for a runner of Beam.

    Args:
        arguments: command-line options, at least one, such as `--runner=dask`.

    Returns:
        The options, or `None` if the runner is Beam's for this machine, which is not used.

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
    if not standard.runner:
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
        remedy = "pip install 'spanbert_tf[dask]'" if beam_name == _DASK_RUNNER else "see --help"
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


@contextlib.contextmanager
def on_runner(job: Job, options: PipelineOptions, input_bytes: int) -> Iterator[Call]:
    """Yields a function that calls steps on a runner of Beam. The runner shows its own progress.

    Args:
        job: the job.
        options: options of the runner, from `runner_options`.
        input_bytes: size of all input files in bytes.

    Raises:
        BadInputError: a file cannot be used, or the runner skipped work.
        StoppedError: a file cannot be written, or the runner cannot be reached or failed.
    """
    runner = options.view_as(StandardOptions).runner

    def call(step: Callable[..., _Result], items: str, arguments: Sequence[tuple]) -> list[_Result]:
        if runner == _DASK_RUNNER:
            _set_partitions(options, len(arguments), input_bytes)
        for failure in _FAILURES:
            with contextlib.suppress(FileNotFoundError):  # an earlier command may have left one
                os.remove(_failure_path(job, failure))
        try:
            with _quiet_loggers(), _plain_labels():
                _run(_make_pipeline(job, step, items, arguments, options))
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
            name = runner.rpartition(".")[-1]
            raise StoppedError(f"--runner {name}: {reason}") from error
        return _read_results(job, items, arguments)

    try:
        yield call
    finally:
        release_memory()


def _make_pipeline(
    job: Job,
    step: Callable[..., _Result],
    items: str,
    arguments: Sequence[tuple],
    options: PipelineOptions,
) -> beam.Pipeline:
    pipeline = beam.Pipeline(options=options)
    _ = (
        pipeline
        | f"List {items}" >> beam.Create(list(arguments))
        | f"Spread {items}" >> beam.Reshuffle()
        | f"Write what becomes of {items}"
        >> beam.Map(functools.partial(_step_on_beam, job, step, items))
    )
    return pipeline


def _step_on_beam(job: Job, step: Callable[..., _Result], items: str, arguments: tuple) -> None:
    """Calls a step. If an error is raised that the user can correct, writes its message to a file.

    Runners would retry a step that raises an error, and hide the message.
    """
    check_shared(job)
    try:
        run_step(job, _show_nothing, step, items, arguments)
    except SpanBertError as error:
        _write_failure(job, "failure", str(error))
    except OSError as error:
        _write_failure(job, "stopped", cannot_write(job.output, error))


def _failure_path(job: Job, failure: str) -> str:
    return os.path.join(job.directory, SPILL, failure)


def _write_failure(job: Job, failure: str, message: str) -> None:
    with job.whole_file(_failure_path(job, failure)) as unfinished, open(unfinished, "w") as file:
        file.write(message)


def _show_nothing(more: object) -> None:
    pass


def check_shared(job: Job) -> None:
    """Raises `BadInputError` on a host that cannot see the work directory."""
    if not os.path.isdir(job.directory):
        raise BadInputError(
            f"{job.directory}: not there on the host {socket.gethostname()}; a runner's hosts need "
            "--input and --output on a file system that all share"
        )


def _read_results(job: Job, items: str, arguments: Sequence[tuple]) -> list:
    """Reads the results of a step.

    Raises:
        BadInputError: the step failed, or the runner did not call it for all items.
    """
    for failure, error in _FAILURES.items():
        if os.path.exists(_failure_path(job, failure)):
            with open(_failure_path(job, failure)) as file:
                raise error(file.read())
    found = [read_result(job, items, number) for number, *_ in arguments]
    if missing := found.count(None):
        raise BadInputError(
            f"{job.output}: nothing came of {missing:,} of {len(found):,} {items}; the runner "
            "left them out, or its hosts do not share the file system of --output"
        )
    return found


def _set_partitions(options: PipelineOptions, num_elements: int, num_bytes: int) -> None:
    """Makes Dask distribute files and shards one by one, or several small ones together.

    By default Dask puts 128 elements into one task, so a single worker would do all the work.
    """
    from apache_beam.runners.dask.dask_runner import DaskOptions

    dask = options.view_as(DaskOptions)
    if not (dask.npartitions or dask.partition_size):
        sensible = min(max(num_bytes // _BYTES_PER_PARTITION, 16), _MAX_PARTITIONS)
        dask.npartitions = min(num_elements, sensible)


def _run(pipeline: beam.Pipeline) -> None:
    """Runs a pipeline to its end. After an error or an interruption, cancels it on the runner."""
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
    """Hides the logs of runners, which repeat the errors that are raised, with tracebacks."""
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

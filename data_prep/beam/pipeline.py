"""Who does the work: processes of this machine, or a runner of Apache Beam.

Beam's own local runner is not taken: with several processes it opens six ports to the whole
network, without any authentication. Processes that are joined by pipes open none.
"""

import argparse
import contextlib
import gc
import io
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence

from data_prep.text.storage import InputFile  # imports Beam without its warnings

# isort: split
import apache_beam as beam
import loky
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.runner import PipelineResult, create_runner

from data_prep.beam.worker import Job, Worker
from spanbert_tf.errors import BadInputError, ConfigurationError, SpanBertError
from spanbert_tf.temporary import protected_children

_LOCAL_RUNNER = "DirectRunner"  # Beam's name for "on this machine"
_DASK_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"  # not among Beam's short names
_RUNNERS = {"direct": _LOCAL_RUNNER, "dask": _DASK_RUNNER}
# Of Dask's tasks: each costs a tenth of a second, in which a worker reads half a megabyte.
_MAX_PARTITIONS, _BYTES_PER_PARTITION = 10_000, 4 * 2**20
_SECONDS_BETWEEN_LOOKS = 0.5  # at whether the parent lives
_this_worker: Worker | None = None  # of a process that `run_locally` has started


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


def run_locally(job: Job, files: Sequence[InputFile], num_processes: int) -> None:
    """Writes all spill files, then all shards; results lie in the job's directory."""
    # The largest first, so that no process is left alone with one at the end.
    numbered = sorted(enumerate(files), key=lambda entry: -entry[1].size)
    if num_processes == 1:
        worker = Worker(job)
        try:
            for number, file in numbered:
                worker.write_spill(number, file)
            for shard in range(job.num_shards):
                worker.write_shard(shard, range(len(files)))
        finally:
            gc.unfreeze()
        return
    with protected_children():
        _run_in_processes(job, numbered, num_processes)


def _run_in_processes(
    job: Job, numbered: Sequence[tuple[int, InputFile]], num_processes: int
) -> None:
    executor = loky.ProcessPoolExecutor(
        num_processes,
        initializer=_start_worker,
        initargs=(job,),
        # They need no GPU, and would divide its memory among them.
        env={"CUDA_VISIBLE_DEVICES": "-1"},
    )
    try:
        for spill in [executor.submit(_write_spill, *entry) for entry in numbered]:
            spill.result()
        shards, file_numbers = range(job.num_shards), range(len(numbered))
        for written in [executor.submit(_write_shard, shard, file_numbers) for shard in shards]:
            written.result()
    except loky.BrokenProcessPool as error:
        raise BadInputError(
            f"--num-processes {num_processes}: a process was killed, perhaps for want of memory; "
            "take fewer processes, or more --num-shards"
        ) from error
    finally:
        executor.shutdown(kill_workers=True)  # after an interruption they would go on


def _start_worker(job: Job) -> None:
    global _this_worker
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    # Beam's and TensorFlow's advice for its importers, which comes once a process.
    logging.disable(logging.WARNING)
    _this_worker = Worker(job)


def _end_with_parent(parent: int) -> None:
    """Ends this process when its parent was killed: nobody waits for the work, or removes it."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _write_spill(file_number: int, file: InputFile) -> int:
    return _this_worker.write_spill(file_number, file)


def _write_shard(shard: int, file_numbers: Sequence[int]) -> None:
    _this_worker.write_shard(shard, file_numbers)


def run_on_beam(job: Job, files: Sequence[InputFile], options: PipelineOptions) -> None:
    """The same on a runner of Beam.

    Raises:
        BadInputError: the runner cannot be reached, or has given up.
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
        gc.unfreeze()


def _make_pipeline(job: Job, files: Sequence[InputFile], options: PipelineOptions) -> beam.Pipeline:
    pipeline = beam.Pipeline(options=options)
    spilled = (
        pipeline
        | "List files" >> beam.Create(list(enumerate(files)))
        | "Spread files" >> beam.Reshuffle()
        | "Write spill files" >> beam.ParDo(_SpillStep(job))
    )
    _ = (
        pipeline
        | "List shards" >> beam.Create(range(job.num_shards))
        | "Spread shards" >> beam.Reshuffle()
        | "Write shards" >> beam.ParDo(_ShardStep(job), beam.pvalue.AsList(spilled))
    )
    return pipeline


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


class _Step(beam.DoFn):
    """A half of the work, by a worker that each process of the runner builds once."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def setup(self) -> None:
        """Called once in each worker."""
        self._job.directory.check_shared()
        self._worker = Worker(self._job)


class _SpillStep(_Step):
    """First half; yields the number of the file."""

    def process(self, element: tuple[int, InputFile]) -> Iterator[int]:
        """Handles an input file."""
        yield self._worker.write_spill(*element)


class _ShardStep(_Step):
    """Second half; what it is given beside the shard are the numbers of all files."""

    def process(self, shard: int, file_numbers: list[int]) -> None:
        """Handles a shard."""
        self._worker.write_shard(shard, file_numbers)

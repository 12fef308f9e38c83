"""Runs the steps of preparation in processes of this machine.

Beam's own local runner is not used: with several processes it opens six unauthenticated ports to
the whole network. The processes started here communicate through pipes and open no ports.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

import loky
from loky.backend import get_context

from data_prep.beam.job import Call, Job, Show, StoppedError, run_step
from data_prep.beam.steps import release_memory
from spanbert_tf.lazy import import_tensorflow
from spanbert_tf.temporary import protected_children

_SECONDS_BETWEEN_CHECKS = 0.5  # whether the parent process is alive
_job_and_show: tuple[Job, Show] | None = None  # set by `_start_process` in a worker process

_Result = TypeVar("_Result")


def on_this_machine(
    job: Job, num_processes: int, show: Show
) -> contextlib.AbstractContextManager[Call]:
    """Yields a function that calls steps in processes of this machine.

    Args:
        job: the job.
        num_processes: number of processes. With 1, this process does the work.
        show: called with the progress since its last call.

    Raises:
        StoppedError: a process was killed.
    """
    if num_processes == 1:
        return _this_process(job, show)
    return _several_processes(job, num_processes, show)


@contextlib.contextmanager
def _this_process(job: Job, show: Show) -> Iterator[Call]:
    def call(step: Callable[..., _Result], items: str, arguments: Sequence[tuple]) -> list[_Result]:
        return [run_step(job, show, step, items, each) for each in arguments]

    try:
        yield call
    finally:
        release_memory()


@contextlib.contextmanager
def _several_processes(job: Job, num_processes: int, show: Show) -> Iterator[Call]:
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
            initargs=(job, writer, os.getpid()),
            # The processes need no GPU; each would reserve a part of its memory.
            env={"CUDA_VISIBLE_DEVICES": "-1"},
        )

        def call(
            step: Callable[..., _Result], items: str, arguments: Sequence[tuple]
        ) -> list[_Result]:
            futures = [executor.submit(_call_step, step, items, each) for each in arguments]
            return [future.result() for future in futures]

        try:
            yield call
        except loky.BrokenProcessPool as error:
            raise StoppedError(
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


def _start_process(job: Job, writer: Connection, parent: int) -> None:
    """Initializes a worker process; its parent, a process id, may be killed already."""
    global _job_and_show
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()
    # TensorFlow logs advice when it is imported, once in each process.
    logging.disable(logging.WARNING)
    import_tensorflow()
    _job_and_show = (job, writer.send)


def _end_with_parent(parent: int) -> None:
    """Ends this process if its parent was killed, since nobody would use or remove its files."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_CHECKS)
    os._exit(1)


def _call_step(step: Callable[..., _Result], items: str, arguments: tuple) -> _Result:
    """Calls a step in a worker process."""
    if _job_and_show is None:
        raise AssertionError("`_start_process` was not called in this process")
    job, show = _job_and_show
    return run_step(job, show, step, items, arguments)

"""Runs a worker in a process of its own, since only another process can end it at times.

TensorFlow and JAX abort a worker when another one is lost. TensorFlow keeps Python's lock and
SIGTERM while it waits for the others to start.

Also a command that another one runs as one of its steps.

And what a process can know of its run before it imports TensorFlow: whether it is the one among
the workers that writes.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from spanbert_tf.files.locks import held_by, writing
from spanbert_tf.signals import hand_signals_on

_SUPERVISED = "SPANBERT_TF_SUPERVISED"  # the descriptor by which a worker tells what it does
_WAITS, _TRAINS = b"w", b"t"
_EXIT_FAILED = 1
_PATIENCE = 600.0  # seconds for the other workers to start
_LEFT_OPEN = 10.0  # seconds for a child's errors to end: what it started may hold them open
_LAST_WORDS = re.compile(rb"F\d{4} ")  # of C++ that aborts; the stack follows


def supervise(strategy: str) -> None:
    """Where a command is one of several workers, does its work in a child, and exits like it."""
    if strategy == "multi_worker" and not is_worker():
        hand_signals_on()
        sys.exit(_run_supervised(sys.argv[1:]))


@contextlib.contextmanager
def waiting_for_others() -> Iterator[None]:
    """Tells the parent, if there is one, that this worker waits while the context lasts."""
    _tell(_WAITS)
    yield
    _tell(_TRAINS)


def is_worker() -> bool:
    """Whether this process is one of several workers, which another process watches over."""
    return _SUPERVISED in os.environ


def _tell(state: bytes) -> None:
    if is_worker():
        os.write(int(os.environ[_SUPERVISED]), state)


def _run_supervised(arguments: Sequence[str]) -> int:
    """Runs `spanbert-tf` with these arguments in a child process.

    SIGTERM and SIGINT are handed on. A child that waits for other workers is ended by the first of
    them, and by time. Where the child ends by a signal, a line says what that means.
    """
    worker = _Worker(arguments)
    former = {
        number: signal.signal(number, worker.hand_on) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        status = worker.process.wait()
        worker.passing_on.join(_LEFT_OPEN)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if status >= 0:
        return status
    ended = worker.ended_because or (
        f"this worker was ended by {signal.Signals(-status).name}, as happens when another worker "
        "is lost; start all workers again to go on from the last checkpoint"
    )
    if not worker.has_said_why:
        print(f"spanbert-tf: {ended}", file=sys.stderr)
    return _EXIT_FAILED


def run_child(command: Sequence[str]) -> int:
    """Runs a command to its end; SIGTERM and SIGINT are handed on, so it never outlives this one.

    Returns:
        Its status; -n of one that signal n ended.

    Raises:
        SystemExit: it failed after such a signal, and has said so; with its status.
    """
    child, received = None, []

    def hand_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(number)

    with _handed_to(hand_on):
        child = subprocess.Popen(command)
        for number in tuple(received):  # while it was being started
            child.send_signal(number)
        status = child.wait()
    if status and received:
        sys.exit(status if status > 0 else 128 - status)
    return status


@contextlib.contextmanager
def _handed_to(hand_on: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals go to a handler, and end this process by none of the ways of `signals`.

    Those that are ignored stay so, as Ctrl-C of a shell's background. Outside of the main thread,
    the only one that Python lets handle signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    former = {n: handler for n, handler in former.items() if handler is not signal.SIG_IGN}
    wakeup = signal.set_wakeup_fd(-1)
    for number in former:
        signal.signal(number, hand_on)
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)


class _Worker:
    """The child process, and what it has told.

    Args:
        arguments: of `spanbert-tf`.

    Attributes:
        process: the child.
        passing_on: the thread that shows what the child writes of errors.
        has_said_why: whether that ended with a line of ours.
        ended_because: why it was ended from here; empty if it was not.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spanbert_tf.cli", *arguments],
            env={**os.environ, _SUPERVISED: str(writer)},
            pass_fds=[writer],
            stderr=subprocess.PIPE,
        )
        os.close(writer)
        self.ended_because, self.has_said_why = "", False
        self._shows_all = "--debug" in arguments
        self.passing_on = threading.Thread(target=self._pass_on, daemon=True)
        self.passing_on.start()
        self._is_waiting = threading.Event()
        self._is_training = threading.Event()
        threading.Thread(target=self._listen, args=(reader,), daemon=True).start()
        threading.Thread(target=self._limit_wait, daemon=True).start()

    def hand_on(self, number: int, frame: FrameType | None) -> None:
        """Handler of a signal to the parent."""
        if self._is_waiting.is_set() and not self._is_training.is_set():
            self._end("interrupted while waiting for the other workers")
        else:
            self.process.send_signal(number)

    def _listen(self, reader: int) -> None:
        with open(reader, "rb", buffering=0) as told:
            while state := told.read(1):
                (self._is_waiting if state == _WAITS else self._is_training).set()

    def _pass_on(self) -> None:
        """Shows what the child writes; if it aborts, no more than a line of ours from there on."""
        aborts = False
        for line in self.process.stderr:
            aborts |= bool(_LAST_WORDS.match(line)) and not self._shows_all
            is_ours = line.startswith(b"spanbert-tf: ")
            if is_ours or not aborts:
                self.has_said_why = is_ours
                # Where nobody reads any more (`2>&1 | tee`), the child must be read all the same.
                with contextlib.suppress(OSError):
                    sys.stderr.buffer.write(line)
                    sys.stderr.flush()

    def _limit_wait(self) -> None:
        self._is_waiting.wait()
        if not self._is_training.wait(_PATIENCE):
            self._end(f"waited {_PATIENCE:g} s for the other workers; start all of them")

    def _end(self, reason: str) -> None:
        self.ended_because = reason
        self.process.kill()


def writing_run(
    output: str, strategy: str, command: str
) -> contextlib.AbstractContextManager[None]:
    """Holds a run's directory, see `files.locks.writing`; of several workers, the chief does."""
    if strategy == "multi_worker" and not _is_chief():
        return contextlib.nullcontext()
    return writing(output, command, inside=True)


# Decorates a function with the arguments `config` and `output`: `writing_run` around it.
one_run = held_by(
    lambda given, name: writing_run(given["output"], given["config"].training.strategy, name)
)


def _is_chief() -> bool:
    """Whether TF_CONFIG or Slurm makes this process the first worker; TensorFlow finds it later."""
    if "TF_CONFIG" not in os.environ:
        return all(os.environ.get(name, "0") == "0" for name in ("SLURM_NODEID", "SLURM_LOCALID"))
    try:
        found = json.loads(os.environ["TF_CONFIG"])
        task, cluster = found.get("task", {}), found.get("cluster", {})
        comes_after = task.get("type") == "worker" and "chief" in cluster
        return int(task.get("index", 0)) == 0 and not comes_after
    except (ValueError, AttributeError, TypeError):
        return True  # TensorFlow says what is wrong with it

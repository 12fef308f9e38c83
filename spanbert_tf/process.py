"""The processes of a command: the signals that end it, and the child processes that it starts.

Python runs signal handlers between two instructions of the main thread, so never while TensorFlow
waits for data that does not come. But the interpreter immediately writes the number of each signal
to a "wake-up" file, which another thread can read.

A run with several workers does its work in a child process, because sometimes only another process
can end it cleanly: TensorFlow and JAX abort a worker when another one is lost, and TensorFlow holds
Python's global lock while it waits for the other workers to start.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import IO

from spanbert_tf.temporary import protected_children, remove_private_directory

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Signals within this time count as one: `timeout` sends SIGTERM to its child and to the group.
_ONE_REQUEST_SECONDS = 0.5
_NO_WAKEUP = -1
# This environment variable has the descriptor to which a worker writes its state.
_SUPERVISED = "SPANBERT_TF_SUPERVISED"
_WAITS = b"w"
_TRAINS = b"t"
_EXIT_FAILED = 1
_PATIENCE = 600.0  # seconds in which the other workers must start
_DRAIN_SECONDS = 10.0  # to read standard error after the child ended: its children may hold it open
_FATAL_LOG = re.compile(rb"F\d{4} ")  # C++ code logs this before it aborts; a stack trace follows
_Handler = Callable[[int, FrameType | None], None]
_cleanups: list[Callable[[], None]] = [remove_private_directory]


# Signals.


@contextlib.contextmanager
def handle_signals(
    handler: _Handler, numbers: Iterable[int] = _STOP_SIGNALS, *, wakeup: int | None = None
) -> Iterator[None]:
    """Installs a signal handler while the context lasts, and then restores the former handlers.

    A signal that the process ignores stays ignored, such as Ctrl-C in a background job of a shell.
    Outside of the main thread this does nothing, because Python forbids it there.

    Args:
        handler: called with the number of the signal and the current frame.
        numbers: the signals, by default those of Ctrl-C and of `kill`.
        wakeup: descriptor to which Python writes the number of each signal, or -1 for none. By
            default it is not changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {}
    for number in numbers:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not set by Python
            former[number] = signal.signal(number, handler)
    if wakeup is not None:
        former_wakeup = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    try:
        yield
    finally:
        for number, former_handler in former.items():
            signal.signal(number, former_handler)
        if wakeup is not None:
            signal.set_wakeup_fd(former_wakeup, warn_on_full_buffer=False)


class StopSignals:
    """Records Ctrl-C and SIGTERM while the context lasts; they have no other effect.

    Attributes:
        received: the last signal, or `None`.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._context = handle_signals(self._note)

    def __enter__(self) -> "StopSignals":
        self._context.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(None, None, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)


@contextlib.contextmanager
def second_signal_ends() -> Iterator[None]:
    """Opens a context in which the second signal n ends the process with status 128 + n.

    The first signal is left to its handler, which raises KeyboardInterrupt or writes a checkpoint.
    If SIGTERM has no handler, it ends the process at once, with the same status.
    """
    # Without a handler, SIGTERM would end the process before Python could clean up.
    is_unhandled = signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, _end)
    numbers = [signal.SIGTERM] if is_unhandled else []
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    threading.Thread(target=_end_at_second, args=(reader,), daemon=True).start()
    try:
        with handle_signals(_end, numbers, wakeup=writer):
            yield
    finally:
        os.close(writer)  # ends the thread


def _end_at_second(reader: int) -> None:
    """Reads the numbers of signals as they arrive, and ends the process at the second request."""
    first = None
    with open(reader, "rb", buffering=0) as file:
        while received := file.read(1):
            number = received[0]
            if number not in _STOP_SIGNALS:
                continue
            if signal.getsignal(number) is _end:  # the main thread may be blocked
                end_process(status=128 + number)
            now = time.monotonic()
            if first is None:
                first = now
            elif now - first >= _ONE_REQUEST_SECONDS:
                end_process("ended at once by the second signal", 128 + number)


def _end(number: int, frame: FrameType | None = None) -> None:
    end_process(status=128 + number)


def _forget_in_child() -> None:
    """Resets signal handling in a forked child.

    The child would write to its parent's wake-up file, and must end when its parent sends SIGTERM.
    """
    signal.set_wakeup_fd(_NO_WAKEUP)
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)


def end_process(line: str = "", status: int = 1) -> None:
    """Runs all registered cleanups and ends the process, whatever its main thread is doing.

    Args:
        line: is printed to standard error, if not empty.
        status: exit status.
    """
    if line:
        with contextlib.suppress(OSError):  # the reader of standard error may be gone
            os.write(2, f"\nspanbert-tf: {line}\n".encode())
    for clean_up in _cleanups:
        clean_up()
    os._exit(status)


def register_cleanup(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a function that `end_process` calls: it skips `finally` and `atexit` handlers."""
    _cleanups.insert(0, function)
    return function


# Children.


def command_line(arguments: Sequence[str]) -> list[str]:
    """Returns the words of a command that runs `spanbert-tf` in another process."""
    return [sys.executable, "-m", "spanbert_tf.cli", *arguments]


def run_child(command: Sequence[str], *, stderr: IO[bytes] | None = None) -> int:
    """Runs a command to its end. Signals are forwarded, so it does not outlive this process.

    A Python process imports nothing from the working directory; see `protected_children`.

    Args:
        command: the words of the command.
        stderr: a file for its standard error; `None`: that of this process.

    Returns:
        The status of the command; -n if signal n ended it.

    Raises:
        SystemExit: the command failed after a forwarded signal, and has printed why.
    """
    child: subprocess.Popen[bytes] | None = None
    received: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(number)

    with handle_signals(pass_on, wakeup=_NO_WAKEUP), protected_children():
        child = subprocess.Popen(command, stderr=stderr)
        for number in tuple(received):  # signals that arrived while the child was being started
            child.send_signal(number)
        status = child.wait()
    if status and received:
        sys.exit(status if status > 0 else 128 - status)
    return status


def supervise(strategy: str) -> None:
    """Runs the command in a child process if it is one of several workers, and exits with it.

    The function returns only in the process that is to do the work: the child, or this process if
    there are no other workers.

    Args:
        strategy: `training.strategy` of the configuration.
    """
    if strategy == "multi_worker" and not is_worker():
        sys.exit(_run_worker(sys.argv[1:]))


def is_worker() -> bool:
    """Whether this process is a worker that another process supervises."""
    return _SUPERVISED in os.environ


@contextlib.contextmanager
def waiting_for_others() -> Iterator[None]:
    """Tells the supervisor, if there is one, that this worker waits for other workers."""
    _report(_WAITS)
    yield
    _report(_TRAINS)


def _report(state: bytes) -> None:
    if is_worker():
        os.write(int(os.environ[_SUPERVISED]), state)


def _run_worker(arguments: Sequence[str]) -> int:
    """Runs `spanbert-tf` with these arguments in a child process and returns its status.

    Signals are forwarded. A child that waits for other workers is killed at the first signal, or
    after `_PATIENCE`. If a signal ends the child, a line is printed that explains it.
    """
    worker = _Worker(arguments)
    with handle_signals(worker.pass_on, wakeup=_NO_WAKEUP):
        status = worker.process.wait()
        worker.showing_errors.join(_DRAIN_SECONDS)
    if status >= 0:
        return status
    ended = worker.ended_because or (
        f"this worker was ended by {signal.Signals(-status).name}, as happens when another worker "
        "is lost; start all workers again to go on from the last checkpoint"
    )
    if not worker.has_said_why:
        print(f"spanbert-tf: {ended}", file=sys.stderr)
    return _EXIT_FAILED


class _Worker:
    """The child process of a worker, and the state that it has reported.

    Args:
        arguments: arguments of `spanbert-tf`.

    Attributes:
        process: the child.
        showing_errors: the thread that copies the standard error of the child.
        has_said_why: whether the last line was an error message of `spanbert-tf`.
        ended_because: why the supervisor killed the child; empty if it did not.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        reader, writer = os.pipe()
        self.process = subprocess.Popen(
            command_line(arguments),
            env={**os.environ, _SUPERVISED: str(writer)},
            pass_fds=[writer],
            stderr=subprocess.PIPE,
        )
        os.close(writer)
        self.ended_because = ""
        self.has_said_why = False
        self._shows_all = "--debug" in arguments
        self.showing_errors = threading.Thread(target=self._show_errors, daemon=True)
        self.showing_errors.start()
        self._is_waiting = threading.Event()
        self._is_training = threading.Event()
        threading.Thread(target=self._listen, args=(reader,), daemon=True).start()
        threading.Thread(target=self._limit_wait, daemon=True).start()

    def pass_on(self, number: int, frame: FrameType | None) -> None:
        """Handles a signal to the supervisor."""
        if self._is_waiting.is_set() and not self._is_training.is_set():
            self._end("interrupted while waiting for the other workers")
        else:
            self.process.send_signal(number)

    def _listen(self, reader: int) -> None:
        """Reads the states that the child reports."""
        with open(reader, "rb", buffering=0) as states:
            while state := states.read(1):
                if state == _WAITS:
                    self._is_waiting.set()
                else:
                    self._is_training.set()

    def _show_errors(self) -> None:
        """Copies the child's standard error; once it aborts, only messages of `spanbert-tf`."""
        assert self.process.stderr is not None  # it is a pipe
        aborts = False
        for line in self.process.stderr:
            if _FATAL_LOG.match(line) and not self._shows_all:
                aborts = True
            is_ours = line.startswith(b"spanbert-tf: ")
            if is_ours or not aborts:
                self.has_said_why = is_ours
                # If nobody reads our output any more (`2>&1 | tee`), continue reading the child's.
                with contextlib.suppress(OSError):
                    sys.stderr.buffer.write(line)
                    sys.stderr.flush()

    def _limit_wait(self) -> None:
        """Kills the child if it waits too long for other workers."""
        self._is_waiting.wait()
        if not self._is_training.wait(_PATIENCE):
            self._end(f"waited {_PATIENCE:g} s for the other workers; start all of them")

    def _end(self, reason: str) -> None:
        self.ended_because = reason
        self.process.kill()

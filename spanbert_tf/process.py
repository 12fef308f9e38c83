"""The processes of a command: the signals that end one, and the children that it starts.

Python runs handlers of signals between two instructions of the main thread, so never while
TensorFlow waits for data that does not come. The interpreter itself writes the number of each
signal at once to a "wake-up" file, which a thread can read.

A run of several workers does its work in a child process, since at times only another process can
end it: TensorFlow and JAX abort a worker when another one is lost, and TensorFlow keeps Python's
lock while it waits for the others to start.
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

from spanbert_tf.temporary import remove_private_directory

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# One request can come as several signals: `timeout` sends SIGTERM to its child and to the group.
_ONE_REQUEST_SECONDS = 0.5
_NO_WAKEUP = -1
# The variable with the descriptor by which a worker tells its supervisor what it does.
_SUPERVISED = "SPANBERT_TF_SUPERVISED"
_WAITS, _TRAINS = b"w", b"t"
_EXIT_FAILED = 1
_PATIENCE = 600.0  # seconds for the other workers to start
_LEFT_OPEN = 10.0  # seconds for a child's errors to end: what it started may hold them open
_LAST_WORDS = re.compile(rb"F\d{4} ")  # of C++ code that aborts; the stack follows
_Handler = Callable[[int, FrameType | None], None]
_cleanups: list[Callable[[], None]] = [remove_private_directory]


# Signals.


@contextlib.contextmanager
def handle_signals(
    handler: _Handler, numbers: Iterable[int] = _STOP_SIGNALS, *, wakeup: int | None = None
) -> Iterator[None]:
    """Has a handler called for signals while the context lasts, then puts the former ones back.

    A signal that the process ignores stays ignored, as Ctrl-C in a background job of a shell.
    Outside of the main thread, the only one that Python lets handle signals, this does nothing.

    Args:
        handler: is called with the signal's number and the current frame.
        numbers: the signals, by default those of Ctrl-C and of `kill`.
        wakeup: descriptor to which Python writes the number of each signal, -1 for none; by
            default as it was.
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
    """Notes Ctrl-C and SIGTERM while the context lasts, in place of what they would do.

    Attributes:
        received: the last signal, `None` without one.
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
    """Ends the process with status 128 + n at the second signal, while the context lasts.

    The first one is for the handlers that are set: KeyboardInterrupt, or a checkpoint. SIGTERM
    without a handler ends the process at the first, with the same status.
    """
    # Without a handler SIGTERM would end the process before Python has noted it.
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
    """Reads the numbers of signals as they come, and ends the process at the second request."""
    first = None
    with open(reader, "rb", buffering=0) as file:
        while received := file.read(1):
            number = received[0]
            if number not in _STOP_SIGNALS:
                continue
            if signal.getsignal(number) is _end:  # the main thread may never come to it
                _end(number)
            now = time.monotonic()
            if first is None:
                first = now
            elif now - first >= _ONE_REQUEST_SECONDS:
                end_process("ended at once by the second signal", 128 + number)


def _end(number: int, frame: FrameType | None = None) -> None:
    end_process(status=128 + number)


def _forget_in_child() -> None:
    """A forked process would write into its parent's file, and its parent ends it by SIGTERM."""
    signal.set_wakeup_fd(_NO_WAKEUP)
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)


def end_process(line: str = "", status: int = 1) -> None:
    """Ends the process at once, whatever its main thread does, after all registered cleanups."""
    if line:
        with contextlib.suppress(OSError):  # whoever read standard error may be gone
            os.write(2, f"\nspanbert-tf: {line}\n".encode())
    for clean_up in _cleanups:
        clean_up()
    os._exit(status)


def register_cleanup(function: Callable[[], None]) -> Callable[[], None]:
    """Has `end_process` call a function first: no `finally` and no `atexit` handler runs then."""
    _cleanups.insert(0, function)
    return function


# Children.


def run_child(command: Sequence[str]) -> int:
    """Runs a command to its end; signals are passed on, so that it never outlives this process.

    Returns:
        Its status; -n of one that signal n ended.

    Raises:
        SystemExit: it failed after such a signal, and has said so; with its status.
    """
    child = None
    received = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if child is not None:
            child.send_signal(number)

    with handle_signals(pass_on, wakeup=_NO_WAKEUP):
        child = subprocess.Popen(command)
        for number in tuple(received):  # while it was being started
            child.send_signal(number)
        status = child.wait()
    if status and received:
        sys.exit(status if status > 0 else 128 - status)
    return status


def supervise(strategy: str) -> None:
    """Where a command is one of several workers, does its work in a child, and exits like it.

    Args:
        strategy: `training.strategy` of the configuration.
    """
    if strategy == "multi_worker" and not is_worker():
        sys.exit(_run_worker(sys.argv[1:]))


def is_worker() -> bool:
    """Whether this process is one of several workers, which another process supervises."""
    return _SUPERVISED in os.environ


@contextlib.contextmanager
def waiting_for_others() -> Iterator[None]:
    """Tells the supervisor, if there is one, that this worker waits while the context lasts."""
    _tell(_WAITS)
    yield
    _tell(_TRAINS)


def _tell(state: bytes) -> None:
    if is_worker():
        os.write(int(os.environ[_SUPERVISED]), state)


def _run_worker(arguments: Sequence[str]) -> int:
    """Runs `spanbert-tf` with these arguments in a child process; returns its status.

    Signals are passed on. A child that waits for other workers is ended by the first of them, or
    after some time. Where a signal ends the child, a line says what that means.
    """
    worker = _Worker(arguments)
    with handle_signals(worker.pass_on, wakeup=_NO_WAKEUP):
        status = worker.process.wait()
        worker.showing_errors.join(_LEFT_OPEN)
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
    """A child process that is one of several workers, and what it has told.

    Args:
        arguments: of `spanbert-tf`.

    Attributes:
        process: the child.
        showing_errors: the thread that shows what the child writes to standard error.
        has_said_why: whether that ended with a line of ours.
        ended_because: why the supervisor ended it; empty if it did not.
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
        with open(reader, "rb", buffering=0) as told:
            while state := told.read(1):
                if state == _WAITS:
                    self._is_waiting.set()
                else:
                    self._is_training.set()

    def _show_errors(self) -> None:
        """Shows what the child writes; once it aborts, lines of ours alone."""
        aborts = False
        for line in self.process.stderr:
            if _LAST_WORDS.match(line) and not self._shows_all:
                aborts = True
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

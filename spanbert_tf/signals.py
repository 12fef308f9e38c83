"""Signals that end a process: noted in a run, at once at the second one.

Python runs its handlers of signals between two instructions of the main thread, so never while
TensorFlow waits for data that does not come. The interpreter itself notes each signal at once in a
"wake-up" file; a thread reads it. Nothing here needs TensorFlow.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from spanbert_tf.files.locks import remove_all
from spanbert_tf.temporary import remove_private_directory

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
# One request can come as several signals: `timeout` sends SIGTERM to its child and to the group.
_ONE_REQUEST_SECONDS = 0.5
_Handler = Callable[[int, FrameType | None], None]


@contextlib.contextmanager
def second_signal_ends() -> Iterator[None]:
    """Ends the process with status 128 + n at the second signal, while the context lasts.

    The first one is for the handlers that `signal.signal` has set, as without this function:
    KeyboardInterrupt, or a checkpoint. SIGTERM without a handler ends a process at the first, with
    the same status, and lets go of its outputs. Outside of the main thread it does nothing.
    """
    with _handled(signal.SIGTERM, _end), _read_by(_EndAtSecond()):
        yield


@contextlib.contextmanager
def _handled(number: int, handler: _Handler) -> Iterator[None]:
    """Has Python note a signal that would end the process silently."""
    is_main = threading.current_thread() is threading.main_thread()
    former = signal.getsignal(number)
    is_silent = is_main and former in (signal.SIG_DFL, _end)
    if is_silent:
        signal.signal(number, handler)
    try:
        yield
    finally:
        if is_silent:
            signal.signal(number, former)


def _end(number: int, frame: FrameType | None = None) -> None:
    _leave(128 + number)


def _forget_in_child() -> None:
    """A forked process would write into its parent's file, and its parent ends it by SIGTERM."""
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGTERM) is _end:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_in_child)


@contextlib.contextmanager
def _read_by(reaction: Callable[[int, float], None]) -> Iterator[None]:
    """Has a thread react to each ending signal: its number, and the time in seconds.

    Outside of the main thread, the only one that Python lets handle signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader, reaction), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(former)
        os.close(writer)  # ends the thread


def hand_signals_on() -> None:
    """Lets this process outlive every signal that it has a handler for.

    For a parent whose handlers hand signals on to the child that does the work.
    """
    signal.set_wakeup_fd(-1)


def _watch(reader: int, reaction: Callable[[int, float], None]) -> None:
    with open(reader, "rb", buffering=0) as file:
        while received := file.read(1):
            if received[0] in _ENDING:
                reaction(received[0], time.monotonic())


class _EndAtSecond:
    """Ends the process at the second signal that is a request of its own."""

    def __init__(self) -> None:
        self._first: float | None = None

    def __call__(self, number: int, now: float) -> None:
        if signal.getsignal(number) is _end:  # the main thread may never come to it
            _end(number)
        if self._first is None:
            self._first = now
        elif now - self._first >= _ONE_REQUEST_SECONDS:
            end_process("ended at once by the second signal", 128 + number)


def end_process(line: str = "", status: int = 1) -> None:
    """Ends the process without regard to what its main thread does."""
    if line:
        with contextlib.suppress(OSError):  # who read standard error may be gone
            os.write(2, f"\nspanbert-tf: {line}\n".encode())
    _leave(status)


def _leave(status: int) -> None:
    """Ends the process at once, and leaves nothing behind."""
    remove_all()
    remove_private_directory()
    os._exit(status)


class StopSignals:
    """Notes SIGTERM and Ctrl-C while the context lasts, and restores the former handlers.

    For a run, which saves after the step that is running. A signal that the process ignores, such
    as SIGINT of a child in the background, remains ignored.

    Attributes:
        received: the last signal; `None` before the first one.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets the main thread alone handle signals
        for number in _ENDING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's own
                self._former[number] = signal.signal(number, self._note)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)

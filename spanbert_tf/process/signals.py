"""A second SIGTERM or Ctrl-C ends the process at once. Nothing here needs TensorFlow.

Python runs its handlers of signals between two instructions of the main thread, so never while
TensorFlow waits for data that does not come. The interpreter itself notes each signal at once in a
"wake-up" file; a thread reads it.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

_ENDING = frozenset({signal.SIGINT, signal.SIGTERM})
# One request can come as several signals: `timeout` sends SIGTERM to its child and to the group.
_ONE_REQUEST_SECONDS = 0.5
# A forked process would write into its parent's file.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


@contextlib.contextmanager
def second_signal_ends() -> Iterator[None]:
    """Ends the process with status 128 + n at the second signal, while the context lasts.

    The first one is for the handlers that `signal.signal` has set, as without this function:
    KeyboardInterrupt, or a checkpoint. SIGTERM without a handler ends a process at the first.
    Outside of the main thread it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
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


def _watch(reader: int) -> None:
    first = None
    with open(reader, "rb", buffering=0) as file:
        while received := file.read(1):
            if received[0] not in _ENDING:
                continue
            now = time.monotonic()
            if first is None:
                first = now
            elif now - first >= _ONE_REQUEST_SECONDS:
                os.write(2, b"\nspanbert-tf: ended at once by the second signal\n")
                os._exit(128 + received[0])

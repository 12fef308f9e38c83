"""Runs a worker in a process of its own, since TensorFlow aborts it when another worker is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

_SUPERVISED = "SPANBERT_TF_SUPERVISED"
_EXIT_FAILED = 1


def is_supervised() -> bool:
    """Whether this process is the worker that `run_supervised` has started."""
    return _SUPERVISED in os.environ


def run_supervised(arguments: Sequence[str]) -> int:
    """Runs `spanbert-tf` with these arguments in a child process.

    SIGTERM and SIGINT are handed on. Where the child ends by a signal, as by TensorFlow's abort
    after another worker was lost, a line says so.

    Returns:
        The exit status: the child's, or 1 if a signal ended it.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "spanbert_tf.cli", *arguments],
        env={**os.environ, _SUPERVISED: "1"},
    )

    def hand_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    former = {number: signal.signal(number, hand_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        status = child.wait()
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
    if status >= 0:
        return status
    print(
        f"spanbert-tf: this worker was ended by {signal.Signals(-status).name}, as TensorFlow does "
        "when another worker is lost; start all workers again to go on from the last checkpoint",
        file=sys.stderr,
    )
    return _EXIT_FAILED

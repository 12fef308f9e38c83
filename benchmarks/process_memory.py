"""How much memory the process itself needs for a call (Linux)."""

import pathlib
from collections.abc import Callable

GIBIBYTE = 2**20  # in the kernel's unit, KiB


def peak_above(call: Callable[[], object]) -> float:
    """GiB at the peak of a call, above what the process has before it."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / GIBIBYTE


def _status(name: str) -> int:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{name}:")))

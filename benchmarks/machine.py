"""Says in words what a figure was measured on."""

import os
import platform

import psutil


def describe_machine() -> str:
    """Cores and memory of this machine, and the versions that matter."""
    import tensorflow as tf

    gigabytes = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores, {gigabytes:.0f} GiB of memory, {platform.machine()}, "
        f"Python {platform.python_version()}, TensorFlow {tf.__version__}"
    )

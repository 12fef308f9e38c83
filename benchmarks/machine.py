"""Says in words what a figure was measured on, and finds a port for servers there."""

import importlib.metadata
import os
import platform
import socket

import psutil


def describe_machine(packages: tuple[str, ...] = ("tensorflow",)) -> str:
    """Cores and memory of this machine, and the versions that matter.

    Args:
        packages: installed distributions whose versions are named.
    """
    gigabytes = psutil.virtual_memory().total / 2**30
    cores = len(os.sched_getaffinity(0))
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    return (
        f"{cores} cores, {gigabytes:.0f} GiB of memory, {platform.machine()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def free_port() -> int:
    """Returns a port of this machine on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]

"""Detects problems of the environment in which a command runs, and advises what to do.

`prepare_surroundings` is called before a command, and `describe_surroundings` after an error.
"""

import contextlib
import errno
import io
import os
import resource
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import PathFinder

from spanbert_tf.errors import ConfigurationError, reason

_JAX_DEVICES = os.path.join("jax", "_src", "xla_bridge.py")  # where JAX looks for devices
_OURS = ("spanbert_tf", "data_prep")  # a checkout in PYTHONPATH may hide the installed packages
_NO_ROOM = ("failed to map segment", "cannot allocate memory", "can't start new thread")


def prepare_surroundings(arguments: Sequence[str]) -> None:
    """Repairs standard streams, and refuses paths that TensorFlow could not open.

    Args:
        arguments: arguments of the command.

    Raises:
        ConfigurationError: an argument or the working directory is not in the encoding of file
            names.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As standard error does, escape characters that the terminal's encoding lacks.
        sys.stdout.reconfigure(errors="backslashreplace")
    _refuse_undecodable_paths(arguments)


def _open_closed_streams() -> None:
    """Drops output to a standard stream that is closed (`>&-`).

    Otherwise the next file that is opened would get the descriptor of the stream, and its output.
    """
    for name, mode, number in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
        stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _refuse_undecodable_paths(arguments: Sequence[str]) -> None:
    """Refuses names that cannot be encoded, before any work is done."""
    names = [*arguments]
    with contextlib.suppress(OSError):  # the working directory was removed
        names.append(os.getcwd())
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            encoding = sys.getfilesystemencoding()
            advice = "rename it" if encoding == "utf-8" else "set PYTHONUTF8=1, or rename it"
            raise ConfigurationError(
                f"{name}: is not the {encoding} that file names are in here; {advice}"
            ) from error


def refuse_umask() -> None:
    """Refuses a umask with which a command could not use the directories that it makes.

    Raises:
        ConfigurationError: the umask takes permissions from the user.
    """
    umask = os.umask(0o777)
    os.umask(umask)
    if umask & 0o700:
        raise ConfigurationError(
            f"umask {umask:03o}: takes rights from yourself, too, and what is written could not be "
            f"read; set `umask {umask & 0o077:03o}`"
        )


def describe_surroundings(error: Exception) -> str | None:
    """Describes the problem of the environment that caused an error.

    Args:
        error: error of a command.

    Returns:
        A line with the problem and advice, or `None` if the environment is not the cause.
    """
    checks = (_hidden_package, _jax_devices, _stripped_docstrings, _forbidden_file, _address_space)
    for check in checks:
        if line := check(error):
            return line
    return None


def _hidden_package(error: Exception) -> str | None:
    """Detects a module of the user that is imported in place of a package."""
    if not isinstance(error, ImportError | AttributeError):
        return None
    own = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    own.add(os.getcwd())
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if "." in name or name in _OURS or not isinstance(path, str):
            continue
        directory = os.path.abspath(os.path.dirname(path))
        if os.path.basename(path).startswith("__init__."):
            directory = os.path.dirname(directory)
        others = [entry for entry in sys.path if os.path.abspath(entry) != directory]
        if directory in own and PathFinder.find_spec(name, others) is not None:
            return (
                f"{path}: is imported in place of the package {name}; rename it, or leave its "
                "directory, or take it out of PYTHONPATH"
            )
    return None


def _jax_devices(error: Exception) -> str | None:
    """Detects devices that JAX cannot use."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.endswith(_JAX_DEVICES):
            return (
                f"JAX: its devices cannot be used ({reason(error)}); set JAX_PLATFORMS=cpu for the "
                "processor, or install what they need: for cards, pip install "
                "'spanbert_tf[jax_cuda]'"
            )
    return None


def _stripped_docstrings(error: Exception) -> str | None:
    """Detects `-OO`, with which TensorFlow cannot be imported."""
    if sys.flags.optimize > 1 and "tensorflow" not in sys.modules:
        return f"PYTHONOPTIMIZE or -OO: TensorFlow needs its docstrings ({error}); use 1, or -O"
    return None


def _forbidden_file(error: Exception) -> str | None:
    """Detects a file without the necessary permissions."""
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename}: cannot be used ({reason(error)}); see who may read or write it"
    return None


def _address_space(error: Exception) -> str | None:
    """Detects a limit of the address space that is too low."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_full = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    is_full = is_full or any(words in str(error).lower() for words in _NO_ROOM)
    if not is_full or limit == resource.RLIM_INFINITY:
        return None
    return (
        f"ulimit -v: {limit >> 20:,} MiB of address space are too little ("
        f"{str(error) or type(error).__name__}); allow more, or `ulimit -v unlimited`"
    )

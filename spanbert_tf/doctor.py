"""What can be wrong with the place where a command is started, and what to do about it.

`prepare_surroundings` comes before a command, `describe_surroundings` after an error.
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
_OURS = ("spanbert_tf", "data_prep")  # a checkout in PYTHONPATH may hide what is installed
_NO_ROOM = ("failed to map segment", "cannot allocate memory", "can't start new thread")


def prepare_surroundings(arguments: Sequence[str]) -> None:
    """Mends standard streams, and refuses paths that TensorFlow could not open.

    Args:
        arguments: arguments of the command.

    Raises:
        ConfigurationError: an argument, or the working directory, is not in the encoding of file
            names.
    """
    _open_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Escapes characters that the encoding of the terminal lacks, as standard error does.
        sys.stdout.reconfigure(errors="backslashreplace")
    _refuse_undecodable_paths(arguments)


def _open_closed_streams() -> None:
    """Drops what is printed to a stream that is closed (`>&-`).

    Otherwise the next file that is opened would take the place of the stream, and get the output.
    """
    for name, mode, number in (("stdin", "r", 0), ("stdout", "w", 1), ("stderr", "w", 2)):
        if getattr(sys, name) is not None:
            continue
        nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free
        if nowhere != number:
            os.dup2(nowhere, number)
            os.close(nowhere)
        stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)


def _refuse_undecodable_paths(arguments: Sequence[str]) -> None:
    """Refuses names that are not UTF-8 before any work is done."""
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
        ConfigurationError: it takes rights from the user.
    """
    umask = os.umask(0o777)
    os.umask(umask)
    if umask & 0o700:
        raise ConfigurationError(
            f"umask {umask:03o}: takes rights from yourself, too, and what is written could not be "
            f"read; set `umask {umask & 0o077:03o}`"
        )


def describe_surroundings(error: Exception) -> str | None:
    """A line that says what is wrong with the surroundings and what to do; `None`: nothing is.

    Args:
        error: error of a command.
    """
    looks = (_hidden_package, _jax_devices, _stripped_docstrings, _forbidden_file, _address_space)
    for look in looks:
        if line := look(error):
            return line
    return None


def _hidden_package(error: Exception) -> str | None:
    """A module of the user's that is imported in place of a package."""
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
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename.endswith(_JAX_DEVICES):
            return (
                f"JAX: its devices cannot be used ({reason(error)}); set JAX_PLATFORMS=cpu for the "
                "processor, or install what they need: pip install -e '.[jax_cuda]' for cards"
            )
    return None


def _stripped_docstrings(error: Exception) -> str | None:
    """Under `-OO` TensorFlow cannot be imported."""
    if sys.flags.optimize > 1 and "tensorflow" not in sys.modules:
        return f"PYTHONOPTIMIZE or -OO: TensorFlow needs its docstrings ({error}); use 1, or -O"
    return None


def _forbidden_file(error: Exception) -> str | None:
    if isinstance(error, PermissionError) and error.filename:
        return f"{error.filename}: cannot be used ({reason(error)}); see who may read or write it"
    return None


def _address_space(error: Exception) -> str | None:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_full = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    is_full = is_full or any(words in str(error).lower() for words in _NO_ROOM)
    if not is_full or limit == resource.RLIM_INFINITY:
        return None
    return (
        f"ulimit -v: {limit >> 20:,} MiB of address space are too little ("
        f"{str(error) or type(error).__name__}); allow more, or `ulimit -v unlimited`"
    )

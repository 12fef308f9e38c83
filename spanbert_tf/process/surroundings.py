"""What an error has that comes from where a command was started, and not from it or its input."""

import errno
import os
import resource
import sys
from importlib.machinery import PathFinder

_OURS = ("spanbert_tf", "data_prep")  # a checkout in PYTHONPATH hides what is installed, as meant
_NO_ROOM = ("failed to map segment", "cannot allocate memory", "can't start new thread")


def describe_surroundings(error: Exception) -> str | None:
    """What is wrong with the surroundings and what to do, in a line; `None` if nothing is.

    Args:
        error: any that ended a command.
    """
    if isinstance(error, ImportError | AttributeError) and (line := _hidden_package()):
        return line
    if sys.flags.optimize > 1 and "tensorflow" not in sys.modules:  # its import failed
        return f"PYTHONOPTIMIZE or -OO: TensorFlow needs its docstrings ({error}); use 1, or -O"
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    is_full = isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM
    is_full = is_full or any(words in str(error).lower() for words in _NO_ROOM)
    if is_full and limit != resource.RLIM_INFINITY:
        return (
            f"ulimit -v: {limit >> 20:,} MiB of address space are too little ("
            f"{str(error) or type(error).__name__}); allow more, or `ulimit -v unlimited`"
        )
    return None


def _hidden_package() -> str | None:
    """Names a module from PYTHONPATH or the working directory that a later directory has, too."""
    own = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)}
    own.add(os.getcwd())
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if "." in name or name in _OURS or not isinstance(path, str):
            continue
        place = os.path.abspath(os.path.dirname(path))
        if os.path.basename(path).startswith("__init__."):
            place = os.path.dirname(place)
        others = [one for one in sys.path if os.path.abspath(one) != place]
        if place in own and PathFinder.find_spec(name, others) is not None:
            return (
                f"{path}: is imported in place of the package {name}; rename it, or leave its "
                "directory, or take it out of PYTHONPATH"
            )
    return None

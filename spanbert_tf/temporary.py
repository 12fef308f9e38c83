"""A directory of this process alone, where libraries would take one that all users share.

TensorFlow writes the code that AutoGraph makes of a function to the temporary directory, and
imports it from there. Python looks for its bytecode in `__pycache__` beside it first, and takes
some kinds without comparing source or owner; in a shared directory anyone can make that folder.
Where Keras cannot write to the home, it takes settings and downloaded presets from `/tmp/.keras`,
which anyone can make, too.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

_PREFIX, _KERAS_HOME = "spanbert_tf-", ".keras"
_AUTOGRAPH, _BYTECODE = "__autograph_generated_file", "__pycache__"
_KERAS_SETTINGS = "keras.json"
_directory: str | None = None
_owner = 0  # the process that made it; one that is forked uses it, too


def use_private_directory() -> None:
    """Makes the directory, and has Python's `tempfile` and Keras take it until the process ends.

    AutoGraph knows no other setting than `tempfile.tempdir`, so the user's own temporary files lie
    in it, too. They stay, and the directory with them; only what TensorFlow and Keras wrote is
    removed. A program that does not want this sets `tempfile.tempdir = None` after the import.
    """
    global _directory, _owner
    if _directory is not None:
        return
    try:
        directory = tempfile.mkdtemp(prefix=_PREFIX)
    except OSError:  # no temporary directory can be written to, nor can AutoGraph use one
        _use_writable_keras_home(os.devnull)
        return
    _directory = tempfile.tempdir = directory
    _owner = os.getpid()
    atexit.register(remove_private_directory)
    with contextlib.suppress(OSError):
        # systemd removes what was not used for ten days, but no directory that is locked.
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH)
    _use_writable_keras_home(directory)


def _use_writable_keras_home(directory: str) -> None:
    """Where Keras could not write to its home, it gets one in a directory, with its settings."""
    stated = os.environ.get("KERAS_HOME")
    home = stated or os.path.expanduser(os.path.join("~", _KERAS_HOME))
    is_known = stated or os.path.isabs(home)  # else it would lie in the working directory
    if is_known and _can_be_written(home):
        return
    private = os.environ["KERAS_HOME"] = os.path.join(directory, _KERAS_HOME)
    settings = os.path.join(os.path.expanduser(home), _KERAS_SETTINGS)
    with contextlib.suppress(OSError):  # most homes have no settings
        os.mkdir(private)
        if is_known:
            shutil.copyfile(settings, os.path.join(private, _KERAS_SETTINGS))


def _can_be_written(directory: str) -> bool:
    """Whether a directory is there, or can be made, and files in it."""
    if directory.startswith("~"):  # KerasHub does not expand it
        return False
    existing = os.path.abspath(directory)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    return os.path.isdir(existing) and os.access(existing, os.W_OK)


def remove_private_directory() -> None:
    """Removes what TensorFlow and Keras wrote, and the directory if no other file is in it.

    For the end of a process; one that was forked leaves it to its parent.
    """
    if _directory is not None and os.getpid() == _owner:
        _remove(_directory)


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(directory)):
            if entry.name.startswith(_PREFIX):  # of a child that was killed
                _remove(entry.path)
            elif entry.name in (_BYTECODE, _KERAS_HOME):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name.startswith(_AUTOGRAPH):
                os.remove(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # PyTorch makes one, and leaves it empty
                    os.rmdir(entry.path)
        os.rmdir(directory)


@contextlib.contextmanager
def protected_children() -> Iterator[None]:
    """Python processes that are started while it lasts import nothing from the working directory.

    It comes first on the path of `python -m` and `python -c`, and may be a stranger's. Their
    temporary files lie in this process's directory, so that it removes what they leave.
    """
    variables = {"PYTHONSAFEPATH": "1"}
    if _directory is not None:
        variables["TMPDIR"] = _directory
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

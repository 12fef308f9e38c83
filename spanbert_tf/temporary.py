"""A private temporary directory, for libraries that would use one that all users share.

TensorFlow writes the code that AutoGraph generates to the temporary directory, and imports it from
there. Python first looks for bytecode in the `__pycache__` beside it, and accepts some kinds
without checking source or owner. In a shared directory, any user can create that folder. Likewise,
if Keras cannot write to the home directory, it reads settings and presets from `/tmp/.keras`, which
any user can create.
"""

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

_PREFIX = "spanbert_tf-"
_AUTOGRAPH = "__autograph_generated_file"
_BYTECODE = "__pycache__"
_KERAS_HOME = ".keras"
_KERAS_SETTINGS = "keras.json"
_directory: str | None = None
_owner = 0  # the process that made the directory; forked children use it too


def use_private_directory() -> None:
    """Makes the directory. Python's `tempfile` and Keras use it until the process ends.

    AutoGraph can only be redirected through `tempfile.tempdir`, so the user's own temporary files
    are also written there. At the end, only the files of TensorFlow and Keras are removed; if other
    files remain, the directory remains too. A program that does not want this sets
    `tempfile.tempdir = None` after the import.
    """
    global _directory, _owner
    if _directory is not None:
        return
    try:
        directory = tempfile.mkdtemp(prefix=_PREFIX)
    except OSError:  # no temporary directory is writable, so AutoGraph cannot use one either
        _use_writable_keras_home(os.devnull)
        return
    _directory = directory
    tempfile.tempdir = directory
    _owner = os.getpid()
    atexit.register(remove_private_directory)
    with contextlib.suppress(OSError):
        # systemd removes files that were not used for ten days, but not from a locked directory.
        fcntl.flock(os.open(directory, os.O_RDONLY), fcntl.LOCK_SH)
    _use_writable_keras_home(directory)


def _use_writable_keras_home(directory: str) -> None:
    """Gives Keras a home in a directory, with its settings, if it cannot write to its own.

    Args:
        directory: a directory; the new home lies in it.
    """
    stated = os.environ.get("KERAS_HOME")
    home = stated or os.path.expanduser(os.path.join("~", _KERAS_HOME))
    is_known = stated or os.path.isabs(home)  # without HOME, `~` stays as it is
    if is_known and _can_be_written(home):
        return
    private = os.path.join(directory, _KERAS_HOME)
    os.environ["KERAS_HOME"] = private
    settings = os.path.join(os.path.expanduser(home), _KERAS_SETTINGS)
    with contextlib.suppress(OSError):  # most homes have no settings
        os.mkdir(private)
        if is_known:
            shutil.copyfile(settings, os.path.join(private, _KERAS_SETTINGS))


def _can_be_written(directory: str) -> bool:
    """Whether files can be made in a directory, which need not exist yet."""
    if directory.startswith("~"):  # KerasHub does not expand `~`
        return False
    existing = os.path.abspath(directory)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    return os.path.isdir(existing) and os.access(existing, os.W_OK)


def remove_private_directory() -> None:
    """Removes the files of TensorFlow and Keras, and the directory if it is empty then.

    It is called at the end of a process. In a forked child it does nothing.
    """
    if _directory is not None and os.getpid() == _owner:
        _remove(_directory)


def _remove(directory: str) -> None:
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(directory)):
            if entry.name.startswith(_PREFIX):  # the directory of a child that was killed
                _remove(entry.path)
            elif entry.name in (_BYTECODE, _KERAS_HOME):
                shutil.rmtree(entry.path, ignore_errors=True)
            elif entry.name.startswith(_AUTOGRAPH):
                os.remove(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError):  # PyTorch leaves an empty directory
                    os.rmdir(entry.path)
        os.rmdir(directory)


@contextlib.contextmanager
def protected_children() -> Iterator[None]:
    """Protects Python processes that are started while the context lasts.

    They do not import from the working directory, which may belong to another user; with
    `python -m` and `python -c` it would be first on the path. Their temporary files are written to
    the directory of this process, which removes them.
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

"""Locks outputs, so that only one command writes each of them.

A lock is a small file beside an output, or inside a directory in which files change. The kernel
locks the file for a process (`filelock`) and releases it when the process ends, however it ends. A
killed process leaves an unlocked file, which the next command takes over. The text of the file
names the holder, for messages only. Commands that read need no lock: files appear whole.
"""

import contextlib
import dataclasses
import datetime
import errno
import functools
import hashlib
import inspect
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ParamSpec, TypeVar

import filelock

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.paths import (
    LOCK,
    check_mounted,
    check_no_dangling_link,
    check_not_special,
    without_slash,
)
from spanbert_tf.process import register_cleanup

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_Decorator = Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]
_TRIES = 6  # another command may be making or removing the lock or its directory
_SECONDS_BETWEEN = 0.05
_MAX_BYTES = 4096  # read from a lock's file
_MAX_SHOWN = 300  # characters of a holder's description
_MAX_NAME = 150  # bytes of an output's name in the lock's name; file names may have 255
# Errors of file systems without locks.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


@dataclasses.dataclass(frozen=True)
class _Held:
    """A lock that a thread of this process holds.

    Attributes:
        path: path of the lock's file.
        file: device and inode of that file; another file may have been put in its place.
        directories: directories that were made for the lock, innermost first.
        lock: the lock itself.
        thread: the thread that holds it.
        process: the process that holds it; its forked children do not hold it.
    """

    path: str
    file: tuple[int, int]
    directories: list[str]
    lock: filelock.BaseFileLock
    thread: int = dataclasses.field(default_factory=threading.get_ident)
    process: int = dataclasses.field(default_factory=os.getpid)

    def remove_files(self) -> None:
        """Removes the lock's file, and the directories that are still empty."""
        with contextlib.suppress(OSError):  # the file may be gone, with its directory
            if _identity(self.path) == self.file:
                os.remove(self.path)
        _remove_empty(self.directories)


_held: dict[str, _Held] = {}  # path of a lock's file → the lock that this process holds


@contextlib.contextmanager
def output_lock(output: str | os.PathLike, command: str, *, inside: bool = False) -> Iterator[None]:
    """Keeps other commands and threads from writing to an output while the context lasts.

    A thread that already holds the lock may take it again.

    Args:
        output: file or directory, which need not exist.
        command: name of the command that writes, for the messages of other commands.
        inside: whether the output is a directory in which files change, such as that of a run. The
            directory is created and the lock lies in it, because containers may mount the directory
            at different paths. Other outputs are replaced as a whole, and their lock lies beside
            them.

    Raises:
        BadInputError: another command or thread holds the lock, or the output cannot be written.
    """
    output = without_slash(output)
    _check_place(output, inside=inside)
    path = _lock_path(output, inside=inside)
    if path in _held and _held[path].thread == threading.get_ident():
        yield
        return
    directories = _missing_directories(os.path.dirname(path))
    try:
        lock = _take(output, path, command)
        held = _Held(path, _identity(path), directories, lock)
    except OSError as error:
        _remove_empty(directories)
        raise BadInputError(
            f"{output}: cannot be written ({reason(error)}); free some space or name another output"
        ) from error
    except BadInputError:
        _remove_empty(directories)
        raise
    _held[path] = held
    try:
        yield
    finally:
        if held.process == os.getpid():
            # In this order: a command that waits for the lock then sees that the file was removed.
            held.remove_files()
            lock.release()
            del _held[path]


def locks_output(*, inside: bool = False) -> _Decorator:
    """Decorates a function so that it holds the `output_lock` of its argument `output`."""
    return locks(lambda given, name: output_lock(given["output"], name, inside=inside))


def locks(
    lock: Callable[[Mapping[str, Any], str], contextlib.AbstractContextManager],
) -> _Decorator:
    """Decorates a function so that it runs in the context `lock(arguments, "name()")`."""

    def decorate(
        function: Callable[_Arguments, _Result],
    ) -> Callable[_Arguments, _Result]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def locked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            given = signature.bind(*args, **kwargs).arguments
            with lock(given, f"{function.__name__}()"):
                return function(*args, **kwargs)

        return locked

    return decorate


@register_cleanup
def _remove_all_files() -> None:
    """Removes the files of all locks when the process ends without unwinding its stack."""
    for held in list(_held.values()):
        held.remove_files()


def _check_place(output: str, *, inside: bool) -> None:
    """Refuses an output that cannot be locked, before a directory is made for it."""
    check_mounted(output)
    check_not_special(output)
    if inside:
        check_no_dangling_link(output)
        if os.path.isfile(output):
            raise BadInputError(f"{output}: is a file; name a directory")


def _lock_path(output: str, *, inside: bool) -> str:
    """Returns the path of an output's lock, the same for all spellings and links of the output."""
    path = os.path.realpath(output)
    if inside:
        return os.path.join(path, LOCK)
    parent, name = os.path.split(path)
    if len(os.fsencode(name)) > _MAX_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(parent, f".{name}{LOCK}")


def _take(output: str, path: str, command: str) -> filelock.BaseFileLock:
    """Makes the lock's directory and takes the lock.

    Raises:
        BadInputError: another command holds it; the message names that command.
        OSError: the file or its directory cannot be made.
    """
    for tries_left in reversed(range(_TRIES)):
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            return _acquire(path, _text(command))
        except FileNotFoundError:  # another command has just removed the directory
            if not tries_left:
                raise
        except filelock.Timeout as error:
            holder = _holder(path)
            if holder or not tries_left:
                holder = holder or f"another command (its lock is {path})"
                raise BadInputError(
                    f"{output}: is being written by {holder}; wait until it has ended, or name "
                    "another output"
                ) from error
        time.sleep(_SECONDS_BETWEEN)
    raise AssertionError("the last try returns or raises")


def _acquire(path: str, text: bytes) -> filelock.BaseFileLock:
    """Takes the lock of a file and writes a text to the file.

    Raises:
        filelock.Timeout: another process or thread holds the lock.
        BadInputError: the path is not a lock's file, or the file system has no locks and the file
            already exists.
        OSError: the file cannot be made.
    """
    if os.path.islink(path):
        raise BadInputError(f"{path}: is a link and no lock; remove it")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise BadInputError(f"{path}: is no file that a command made as its lock; remove it")

    def write(descriptor: int) -> None:
        # On a full disk the lock is held without its text. The command reports the full disk.
        with contextlib.suppress(OSError):
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, text, 0)

    try:
        lock = filelock.FileLock(path, mode=0o644, thread_local=False, on_acquired=write)
        lock.acquire(timeout=0)
        return lock
    except PermissionError as error:
        if not os.path.exists(path):
            raise
        raise BadInputError(f"{path}: is another user's lock, left or held; remove it") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return _acquire_by_existence(path)


def _acquire_by_existence(path: str) -> filelock.BaseFileLock:
    """Takes a lock on a file system without locks: the existence of the file is the lock."""
    lock = filelock.SoftFileLock(path, thread_local=False)
    try:
        if not os.path.getsize(path):  # made by `_acquire`; files of other commands have text
            os.remove(path)
        lock.acquire(timeout=0)
        return lock
    except filelock.Timeout:
        raise BadInputError(
            f"{path}: another command writes, or was killed, and this file system has no locks "
            "that would tell; remove this file if no command runs"
        ) from None


def _text(command: str) -> bytes:
    """Returns the text of a lock's file, which describes this process."""
    since = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    holder = {"command": command, "process": os.getpid(), "host": socket.gethostname()}
    return json.dumps({**holder, "since": since}).encode()


def _holder(path: str) -> str:
    """Describes the holder of a lock for a message; empty if the file does not name it."""
    try:
        with open(path, "rb") as file:
            holder = json.loads(file.read(_MAX_BYTES))
        text = "{command} (process {process} on {host}, since {since}".format(**holder)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    shown = "".join(_printable(character) for character in text[:_MAX_SHOWN])
    return f"{shown}; its lock is {path})"


def _printable(character: str) -> str:
    return character if character.isprintable() else "?"


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _missing_directories(directory: str) -> list[str]:
    """Lists the directories of a path that do not exist, innermost first."""
    missing = []
    while not os.path.isdir(directory):
        missing.append(directory)
        directory = os.path.dirname(directory)
    return missing


def _remove_empty(directories: list[str]) -> None:
    with contextlib.suppress(OSError):
        for directory in directories:
            os.rmdir(directory)

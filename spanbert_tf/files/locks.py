"""One writer an output: a second one is told at once who writes.

A lock is a small file beside an output, or inside of a directory in which files change. The kernel
holds it for a process (`filelock`), and frees it when the process ends, however it ends: what a
killed process leaves is a file that nothing holds. The file's text names the holder for others'
messages, and nothing else depends on it. Readers know nothing of locks: they see whole files
without.
"""

import contextlib
import datetime
import errno
import functools
import hashlib
import inspect
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import filelock

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.outputs import LOCK, check_place, without_slash

_Function = TypeVar("_Function", bound=Callable)
_TRIES, _SECONDS_BETWEEN = 5, 0.05  # for moments in which a lock or its folder comes or goes
_MOST_BYTES = 4096  # what lies there may be a stranger's
_MOST_SHOWN = 300  # characters of a holder
_LONGEST_NAME = 150  # bytes, of 255: what is added to it needs room, too
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}
_held: dict[str, "_Lock"] = {}  # path → the lock that this process holds


@contextlib.contextmanager
def writing(output: str | os.PathLike, command: str, *, inside: bool = False) -> Iterator[None]:
    """Holds an output: while the context lasts, no other command and thread writes to it.

    Args:
        output: file or directory, which need not exist.
        command: what writes, for others' messages.
        inside: the output is a directory in which files change, such as a run's: it is made, and
            the lock lies in it, since it may be a volume that containers mount at several places.
            Others appear whole, in place of what lies there, and their lock lies beside them.

    Raises:
        BadInputError: another command holds it, or nothing can be written there.
    """
    output = without_slash(output)
    check_place(output, inside=inside)
    path = _lock_path(output, inside=inside)
    held = _held.get(path)
    is_refused = inside and os.path.exists(output) and not os.path.isdir(output)  # by the command
    if is_refused or (held and held.thread == threading.get_ident()):
        yield
        return
    try:
        held = _Lock(output, path, command)
    except OSError as error:
        raise BadInputError(
            f"{output}: cannot be written ({reason(error)}); free some space or name another output"
        ) from error
    try:
        yield
    finally:
        held.release()


def one_writer(*, inside: bool = False) -> Callable[[_Function], _Function]:
    """Decorates a function with an argument `output`, which it holds by `writing`."""
    return held_by(lambda given, name: writing(given["output"], name, inside=inside))


def held_by(
    hold: Callable[[Mapping[str, Any], str], contextlib.AbstractContextManager],
) -> Callable[[_Function], _Function]:
    """Decorates a function, which runs inside of `hold` of its arguments and its name."""

    def decorate(function: _Function) -> _Function:
        parameters = inspect.signature(function)

        @functools.wraps(function)
        def holding(*args: Any, **kwargs: Any) -> Any:
            given, name = parameters.bind(*args, **kwargs).arguments, f"{function.__name__}()"
            with hold(given, name):
                return function(*args, **kwargs)

        return holding

    return decorate


def remove_all() -> None:
    """Removes the locks' files of a process that ends now, without unwinding its stack."""
    for held in list(_held.values()):
        held.remove()


class _Lock:
    """A lock that a thread of this process holds."""

    def __init__(self, output: str, path: str, command: str) -> None:
        self.thread, self._process = threading.get_ident(), os.getpid()
        self._path, self._made = path, []
        try:
            self._lock = self._taken(output, _text(command))
            self._file = _identity(path)
        except BaseException:
            self._remove_directories()
            raise
        _held[path] = self

    def _taken(self, output: str, text: bytes) -> filelock.BaseFileLock:
        """The lock, held; whoever else holds it is named in an error."""
        for is_last in (*[False] * _TRIES, True):
            self._made += _make_directories(os.path.dirname(self._path))
            try:
                return _acquired(self._path, text)
            except FileNotFoundError:  # who had made the directories has removed them
                if is_last:
                    raise
            except filelock.Timeout as error:
                holder = _holder(self._path)
                if holder or is_last:
                    raise BadInputError(
                        f"{output}: is being written by {holder or 'another command'}; wait until "
                        "it has ended, or name another output"
                    ) from error
            time.sleep(_SECONDS_BETWEEN)
        raise AssertionError("the last try returns or raises")

    def release(self) -> None:
        """Removes the lock's file, and the directories made for it in which nothing was written."""
        if self._process != os.getpid():  # a forked process is no holder of its own
            return
        # In this order: whoever has opened the file sees, once it is free, that it has no name.
        self.remove()
        self._lock.release()
        _held.pop(self._path, None)

    def remove(self) -> None:
        """Removes what is seen of the lock, which the process still holds."""
        with contextlib.suppress(OSError):  # it may be gone, with its directory
            if _identity(self._path) == self._file:
                os.remove(self._path)
        self._remove_directories()

    def _remove_directories(self) -> None:
        with contextlib.suppress(OSError):
            for directory in reversed(self._made):
                os.rmdir(directory)


def _lock_path(output: str, *, inside: bool) -> str:
    """One path for all spellings of an output; a link's is where it leads to."""
    path = os.path.realpath(output)
    if inside:
        return os.path.join(path, LOCK)
    parent, name = os.path.split(path)
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(parent, f".{name}{LOCK}")


def _acquired(path: str, text: bytes) -> filelock.BaseFileLock:
    """The lock of a file, held by this process, which the file's text says.

    Raises:
        Timeout: another process or thread holds it.
        BadInputError: what has the name is no lock, or the file system has none and it may be held.
        OSError: the file cannot be made.
    """
    _refuse_other_things(path)

    def write(descriptor: int) -> None:
        # On a full disk the lock is held without its text; the command says what it cannot write.
        with contextlib.suppress(OSError):
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, text, 0)

    try:
        lock = filelock.FileLock(path, mode=0o644, thread_local=False, on_acquired=write)
        lock.acquire(timeout=0)
    except PermissionError as error:
        if not os.path.exists(path):
            raise
        raise BadInputError(f"{path}: is another user's lock, left or held; remove it") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        lock = filelock.SoftFileLock(path, thread_local=False)
        try:
            if not os.path.getsize(path):  # what the first try has made; others' files have text
                os.remove(path)
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise BadInputError(
                f"{path}: another command writes, or was killed, and this file system has no locks "
                "that would tell; remove this file if no command runs"
            ) from error
    return lock


def _refuse_other_things(path: str) -> None:
    """Refuses a link and what is no file where a lock will be made."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise BadInputError(f"{path}: is a link and no lock; remove it")
    if not stat.S_ISREG(mode):
        raise BadInputError(f"{path}: is no file that a command made as its lock; remove it")


def _text(command: str) -> bytes:
    """What a lock says of its holder, this process."""
    since = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    holder = {"command": command, "process": os.getpid(), "host": socket.gethostname()}
    return json.dumps({**holder, "since": since}).encode()


def _holder(path: str) -> str:
    """The holder of a lock as a message names it; empty where the file does not say it."""
    try:
        with open(path, "rb") as file:
            holder = json.loads(file.read(_MOST_BYTES))
        text = "{command} (process {process} on {host}, since {since}".format(**holder)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return ""
    shown = "".join(one if one.isprintable() else "?" for one in text[:_MOST_SHOWN])
    return f"{shown}; its lock is {path})"


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _make_directories(directory: str) -> list[str]:
    """Makes a directory and those above it; returns those that were not there, outermost first."""
    if os.path.isdir(directory):
        return []
    made = _make_directories(os.path.dirname(directory))
    try:
        os.mkdir(directory)
    except FileExistsError:
        if os.path.isdir(directory):  # another command has made it in this moment
            return made
        raise
    return [*made, directory]

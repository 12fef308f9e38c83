"""One writer an output: who comes second is told at once who writes.

A lock is a small file that names its holder and whose time of change is the holder's sign of life.
It is made by `link`, which either makes a name or fails, on NFS as on a disk. Readers know nothing
of locks: they see whole files without.

On the holder's own machine its process tells whether it lives; from elsewhere (another host, or a
container that does not see its processes) its sign of life does, by the file server's clock. A lock
whose holder is gone is taken over by the one process that holds the lock's own lock, named after
what the lock says: of several that find the same holder gone, one takes its place. What a process
leaves of these when it is killed, the next holder removes.
"""

import contextlib
import dataclasses
import datetime
import errno
import functools
import glob
import hashlib
import inspect
import json
import os
import re
import secrets
import socket
import stat
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.outputs import LOCK, UNFINISHED, check_place, without_slash

_Function = TypeVar("_Function", bound=Callable)
_SECONDS_BETWEEN_SIGNS, _SECONDS_UNTIL_GONE = 10, 60
_TRIES = 20
_MOST_BYTES = 4096  # what lies there may be a stranger's
_LONGEST_NAME = 150  # bytes, of 255: what is added to it needs room, too
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES}
_NO_PROCESS, _UNKNOWN = None, ""
# Behind a lock's name: a lock's lock, and that one's, and any of them before it has its name.
_BESIDE = re.compile(rf"(\.[0-9a-f]{{16}})+({re.escape(UNFINISHED)})?")
# Of this process: path → lock, and what its locks say, those it holds and those it tries to.
_held: dict[str, "_Lock"] = {}
_own: set[str] = set()
# A signal's handler and the thread that watches over signals end the process at the same time:
# whoever comes first lets go of everything before either ends it.
_releasing = threading.RLock()


@dataclasses.dataclass(frozen=True)
class _Holder:
    """Who writes: what it runs, where, and since when; `token` is this holding's own."""

    command: str
    process: int
    started: str
    host: str
    machine: str
    since: str
    token: str


@dataclasses.dataclass(frozen=True)
class _Found:
    """A lock that lies there: `holder` is `None` where it says nothing that can be read."""

    identity: str
    changed: float
    holder: _Holder | None

    def lives(self, now: float) -> bool:
        """Whether its holder still writes; `now` by the clock that `changed` is from."""
        is_fresh = now - self.changed < _SECONDS_UNTIL_GONE
        if self.holder is None or self.holder.machine != _machine():
            return is_fresh
        if self.holder.process == os.getpid():  # its run may have been moved
            return self.identity in _own
        found, told = _started(self.holder.process), self.holder.started
        return is_fresh if _UNKNOWN in (found, told) else found == told

    def described(self, now: float) -> str:
        """The holder, as a message names it."""
        if self.holder is None:
            since = datetime.datetime.fromtimestamp(self.changed, datetime.UTC)
            return f"another command (since {since:%Y-%m-%d %H:%M:%S} UTC)"
        holder, seconds = self.holder, max(0, round(now - self.changed))
        sign = "" if holder.machine == _machine() else f", last sign of life {seconds} s ago"
        text = f"{holder.command} (process {holder.process} on {holder.host}, since {holder.since}"
        return "".join(one if one.isprintable() else "?" for one in text[:300]) + f"{sign})"


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


def release_all() -> None:
    """Gives all locks of this process free, for one that ends without unwinding its stack."""
    with _releasing:
        for held in list(_held.values()):
            held.release()


class _Lock:
    """A lock that this process holds, and the thread that shows its signs of life."""

    def __init__(self, output: str, path: str, command: str) -> None:
        self.thread, self._process = threading.get_ident(), os.getpid()
        self._output, self._path = output, path
        self._content = _content(command)
        self._made: list[str] = []
        try:
            self._take()
        except BaseException:
            _own.discard(_identity(self._content))
            self._remove_directories()
            raise
        _held[path] = self
        _remove_void(path, self._content)
        self._ended = threading.Event()
        threading.Thread(target=self._show_signs_of_life, daemon=True).start()

    def _take(self) -> None:
        for is_last in (*[False] * _TRIES, True):
            self._made += _make_directories(os.path.dirname(self._path))
            try:
                return _hold(self._path, self._output, self._content)
            except FileNotFoundError:  # who had made the directories has removed them
                if is_last:
                    raise

    def release(self) -> None:
        """Removes the lock, and the directories made for it in which nothing was written."""
        if self._process != os.getpid():  # a forked process is no holder of its own
            return
        self._ended.set()
        with _releasing:
            _let_go(self._path, self._content)
            self._remove_directories()
            _held.pop(self._path, None)

    def _remove_directories(self) -> None:
        with contextlib.suppress(OSError):
            for directory in reversed(self._made):
                os.rmdir(directory)

    def _show_signs_of_life(self) -> None:
        while not self._ended.wait(_SECONDS_BETWEEN_SIGNS):
            try:
                found = _read(self._path)
                if found is not None and found.identity == _identity(self._content):
                    os.utime(self._path, follow_symlinks=False)  # the file server's time
                elif found is not None and not self._ended.is_set():
                    self._end(found)
            except (OSError, BadInputError):
                continue  # a file server that does not answer may do so later

    def _end(self, found: _Found) -> None:
        """Ends a process that was held up for so long that another one has taken its output."""
        taker = found.described(found.changed)
        text = f"\nspanbert-tf: {self._output}: this process showed no sign of life, and {taker} "
        with contextlib.suppress(OSError):  # it ends, whether or not anyone reads that
            os.write(2, f"{text}has taken over; it ends\n".encode(errors="backslashreplace"))
        os._exit(1)


def _lock_path(output: str, *, inside: bool) -> str:
    """One path for all spellings of an output; a link's is where it leads to."""
    path = os.path.realpath(output)
    if inside:
        return os.path.join(path, LOCK)
    parent, name = os.path.split(path)
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return os.path.join(parent, f".{name}{LOCK}")


def _hold(path: str, output: str, content: bytes) -> None:
    """Makes a lock, or takes the place of a holder that is gone; one that lives is named."""
    while True:
        with _written_aside(path, content) as own:
            now = os.stat(own).st_mtime  # by the file server's clock
            if _make(path, own, content):
                return
            found = _read(path)
            if found is None:  # let go of in this moment
                continue
            if found.lives(now):
                raise BadInputError(
                    f"{output}: is being written by {found.described(now)}; wait until it has "
                    "ended, or name another output"
                )
            taking = f"{path}.{found.identity}"
            ticket = _content("a command that takes over")
            try:
                _hold(taking, output, ticket)
                again = _read(path)
                if again is not None and again.identity == found.identity:
                    os.replace(own, path)
                    return
            finally:
                _let_go(taking, ticket)


def _remove_void(path: str, content: bytes) -> None:
    """Removes what lies beside a lock that is held: locks of earlier ones, which nobody reads now.

    Whoever still has one of them finds another lock than the one that it is for, or tries again.
    """
    for one in glob.glob(f"{glob.escape(path)}.*"):
        if _BESIDE.fullmatch(one, len(path)) and f".{_identity(content)}" not in one:
            with contextlib.suppress(OSError):
                os.remove(one)


@contextlib.contextmanager
def _written_aside(path: str, content: bytes) -> Iterator[str]:
    own = f"{path}.{secrets.token_hex(8)}{UNFINISHED}"
    try:
        _write_new(own, content)
        yield own
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(own)


def _make(path: str, own: str, content: bytes) -> bool:
    """Gives a file the lock's name; returns whether there was none."""
    try:
        os.link(own, path)
    except FileExistsError:
        return os.stat(own).st_nlink == 2  # NFS may do it and say that it has not
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            _write_new(path, content)
        except FileExistsError:
            return False
    return True


def _write_new(path: str, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with open(file, "wb") as opened:
        opened.write(content)


def _let_go(path: str, content: bytes) -> None:
    """Removes a lock of this content, if it is there."""
    _own.discard(_identity(content))
    with contextlib.suppress(OSError, BadInputError):
        found = _read(path)
        if found is not None and found.identity == _identity(content):
            os.remove(path)


def _read(path: str) -> _Found | None:
    """What a lock says; `None` where there is none; refuses what else has its name."""
    try:
        # Opened before its time is asked for: NFS keeps its answers for a while otherwise.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise BadInputError(f"{path}: is a link and no lock; remove it") from error
        raise
    with open(file, "rb", buffering=0) as opened:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise BadInputError(f"{path}: is no file that a command made as its lock; remove it")
        content = opened.read(_MOST_BYTES)
    return _Found(_identity(content), found.st_mtime, _parsed(content))


def _parsed(content: bytes) -> _Holder | None:
    try:
        holder = _Holder(**json.loads(content))
    except (ValueError, TypeError, RecursionError):
        return None
    fields = dataclasses.asdict(holder)
    is_process = type(fields.pop("process")) is int and 0 < holder.process < 2**31
    return holder if is_process and all(type(one) is str for one in fields.values()) else None


def _content(command: str) -> bytes:
    """What a new lock of this process says."""
    holder = _Holder(
        command=command,
        process=os.getpid(),
        started=_started(os.getpid()) or _UNKNOWN,
        host=socket.gethostname(),
        machine=_machine(),
        since=f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M:%S} UTC",
        token=secrets.token_hex(8),
    )
    content = json.dumps(dataclasses.asdict(holder)).encode()
    _own.add(_identity(content))
    return content


def _identity(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _machine() -> str:
    """The same for two processes if they can see each other: one kernel, one table of processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{socket.gethostname()} {uuid.getnode():x}"


def _started(process: int) -> str | None:
    """When a process began, which a later one of the same number did not; `None` if it is gone."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            state, *fields = file.read().rpartition(")")[2].split()  # the name may hold anything
        return _NO_PROCESS if state in "ZX" else fields[18]  # field 22, in ticks since the boot
    except (OSError, ValueError, IndexError):
        pass  # not Linux, or other users' processes are hidden
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return _NO_PROCESS
    except OSError:
        pass
    return _UNKNOWN


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

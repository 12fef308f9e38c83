"""Files and directories that appear whole or not at all."""

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.locks import writing
from spanbert_tf.files.outputs import (
    EARLIER,
    NEW,
    OutputKind,
    check_no_link,
    check_output,
    discard_unfinished,
    is_leftover,
    make_unfinished,
    unfinished_file,
    unfinished_path,
    without_slash,
)

_CHUNK = bytes(1 << 20)
_SECONDS_UNTIL_LEFT = 3_600


def write_directory(
    directory: str | os.PathLike,
    write: Callable[[str], None],
    kind: OutputKind,
    *,
    overwrite: bool = False,
    of_run: bool = False,
) -> None:
    """Writes a directory aside and renames it to its name.

    Args:
        directory: its final name.
        write: is called with the name of an empty directory, and fills it.
        kind: what may lie there already, see `check_output`.
        overwrite: whether an earlier output of that kind may be replaced.
        of_run: whether the directory is part of a run, which replaces it; then it may not be a
            link, unlike what the user names.

    Raises:
        BadInputError: it cannot be written, or holds what may not be replaced; it stays as it was.
    """
    directory = without_slash(directory)
    # Who writes a run holds all of it already.
    with contextlib.nullcontext() if of_run else writing(directory, "a program"):
        if of_run:
            check_no_link(directory)
        check_output(directory, kind, overwrite=overwrite or of_run)
        try:
            source = os.path.join(make_unfinished(directory, NEW), NEW)
            write(source)
            if of_run:
                check_no_link(directory)
            put_in_place(source, directory, kind, overwrite=overwrite or of_run)
        except OSError as error:
            raise BadInputError(
                f"{directory}: cannot be written ({reason(error)}); free some space or name "
                "another output"
            ) from error
        finally:
            discard_unfinished(directory)


def put_in_place(source: str, directory: str, kind: OutputKind, *, overwrite: bool = False) -> None:
    """Gives a finished directory its name, in place of what may be replaced.

    Args:
        source: the finished directory, inside the unfinished one that `make_unfinished` made.
        directory: its name.
        kind: as for `write_directory`.
        overwrite: as for `write_directory`.

    Raises:
        BadInputError: the name was taken in the meantime.
        OSError: it cannot be renamed; what was there stays.
    """
    check_output(directory, kind, overwrite=overwrite)
    target = os.path.realpath(directory)
    if not os.path.isdir(target) or not os.listdir(target):
        os.rename(source, target)
        return
    earlier = os.path.join(unfinished_path(directory), EARLIER)
    os.rename(target, earlier)
    try:
        os.rename(source, target)
    except OSError:
        os.rename(earlier, target)
        raise


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """TensorFlow has errors of its own, for full disks for example; here they are `OSError`."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        raise OSError(error.message) from error


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """A new file to write, which gets its name at the end.

    It is written by its descriptor, not by a name: whatever lies at the name that it has until
    then, or is put there meanwhile, a link for example, is not written through.

    Args:
        path: path of the file; its directory must exist.

    Yields:
        The open file. After an error, or a kill, what has the path is as it was before.
    """
    path = os.fspath(path)
    _remove_leftovers(os.path.dirname(path) or ".")
    unfinished = unfinished_file(path)
    # Its mode is that of any new file, by the user's umask.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(unfinished, flags, 0o666)
    try:
        with open(descriptor, "w+b") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(unfinished)


@contextlib.contextmanager
def output_file(path: str) -> Iterator[BinaryIO]:
    """A new file for what a user named, see `whole_file`; its directory is made.

    Args:
        path: path of the file.

    Raises:
        BadInputError: it cannot be written.
    """
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with whole_file(path) as file:
            yield file
    except OSError as error:
        raise BadInputError(f"{path}: cannot be written ({reason(error)})") from error


def write_output(path: str, text: str) -> None:
    """Writes a text file that a user named, as `write_text` does; its directory is made.

    Raises:
        BadInputError: it cannot be written.
    """
    with output_file(path) as file:
        _write(file, text)


def _remove_leftovers(directory: str) -> None:
    """Removes files that killed commands of this user left: none is being written for so long."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in filter(lambda entry: is_leftover(entry.name), entries):
            found = entry.stat(follow_symlinks=False)
            is_old = time.time() - found.st_mtime > _SECONDS_UNTIL_LEFT
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and is_old:
                os.remove(entry.path)


def write_text(path: str, text: str) -> None:
    """Writes a text file so that it is there whole or, after an error or a kill, as it was before.

    Args:
        path: path of the file; its directory must exist.
        text: is written as UTF-8, with `?` for halves of surrogate pairs, which JSON may have.

    Raises:
        OSError: it cannot be written.
    """
    with whole_file(path) as file:
        _write(file, text)


def _write(file: BinaryIO, text: str) -> None:
    file.write(text.encode("utf-8", errors="replace"))
    file.flush()
    os.fsync(file.fileno())


def check_space(directory: str | os.PathLike, num_bytes: int) -> None:
    """Writes a file of a size, and removes it.

    HDF5 ends the process with a segmentation fault when it cannot write what it has buffered, and
    a file system's own count of free bytes knows nothing of quotas and limits.

    Args:
        directory: where the file is written; must exist.
        num_bytes: its size.

    Raises:
        OSError: there is no room for it.
    """
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(num_bytes, 1))
            return
        for start in range(0, num_bytes, len(_CHUNK)):
            file.write(_CHUNK[: num_bytes - start])


def sync_below(directory: str) -> None:
    """Returns when the disk has all files below a directory, and their names."""
    for parent, _, names in os.walk(directory):
        for path in (*(os.path.join(parent, name) for name in names), parent):
            number = os.open(path, os.O_RDONLY)
            os.fsync(number)
            os.close(number)

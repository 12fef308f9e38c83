"""Checks of the paths that users name for outputs."""

import fnmatch
import os
from collections.abc import Sequence

from spanbert_tf.errors import BadInputError

LOCK = ".lock"  # see `spanbert_tf.files.lock`
UNFINISHED = ".incomplete"  # see `spanbert_tf.files.output`


def without_slash(path: str | os.PathLike) -> str:
    """Removes slashes at the end of a path. The root stays as it is."""
    path = os.fspath(path)
    return path.rstrip("/") or path


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path is on another file system, such as `gs://…`."""
    return "://" in os.fspath(path)


def is_work_file(name: str) -> bool:
    """Whether a file in an output directory is a lock or an unfinished output.

    A kill leaves both: the lock of the directory, and those of outputs in it (`.NAME.lock`).
    """
    return (name.startswith(".") and name.endswith(LOCK)) or name.endswith(UNFINISHED)


def check_mounted(path: str | os.PathLike) -> None:
    """Raises `BadInputError` for a path on another file system; a local path is needed."""
    if is_remote(path):
        raise BadInputError(
            f"{path}: is on another file system; mount that (a bucket of gs:// by gcsfuse), and "
            "name the path it has here"
        )


def check_no_link(path: str) -> None:
    """Raises `BadInputError` for a link in the directory of a run.

    The user does not name the files of a run, so they are not written through links.
    """
    if os.path.islink(path):
        raise BadInputError(
            f"{path}: is a link, through which nothing of a run is written; remove it, or put in "
            "its place what it leads to"
        )


def check_no_dangling_link(path: str) -> None:
    """Raises `BadInputError` for a broken link, for example to a disk that is not mounted."""
    if os.path.islink(path) and not os.path.exists(path):
        raise BadInputError(
            f"{path}: is a link to nothing ({os.readlink(path)}); remove it or name another output"
        )


def check_not_special(path: str) -> None:
    """Raises `BadInputError` for a pipe or a device, which an output would replace."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise BadInputError(
            f"{path}: is a pipe, a device or the like, in whose place nothing is written; name "
            "another output"
        )


def check_writable(path: str) -> None:
    """Raises `BadInputError` for a new path that cannot be written. Call it before the work."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        raise BadInputError(f"{path}: cannot be written ({parent} is no directory); name another")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BadInputError(f"{path}: cannot be written ({parent} is read-only); name another")


def check_resumable(directory: str, name: str, contents: Sequence[str]) -> None:
    """Checks that a command can begin or resume its work in a directory.

    Args:
        directory: directory of the output, which need not exist.
        name: name of the output, for messages.
        contents: `fnmatch` patterns of the names that may be in the directory.

    Raises:
        BadInputError: it is a file or a broken link, or it has other contents.
    """
    check_no_dangling_link(directory)
    if not os.path.lexists(directory):
        return
    names = [os.path.basename(directory)]
    if os.path.isdir(directory):
        names = os.listdir(directory)
    for found in sorted(names):
        is_known = any(fnmatch.fnmatchcase(found, pattern) for pattern in contents)
        if not is_known and not is_work_file(found):
            raise BadInputError(
                f"{directory}: exists already and holds other things than {name} ({found}); name "
                "another output"
            )

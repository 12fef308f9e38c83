"""What a command may write to: new, empty, resumable, or an earlier output of the same kind.

While `OUT` is written, all that belongs to it lies in a directory `OUT.incomplete`, which no other
user can enter and which has a mark. One without the mark is not ours, and is left alone.
"""

import contextlib
import dataclasses
import fnmatch
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Sequence

from spanbert_tf.errors import BadInputError

UNFINISHED = ".incomplete"
LOCK = ".lock"  # see `spanbert_tf.files.locks`
_MARK = "unfinished-output-of-spanbert_tf"
# In an unfinished directory: what will be the output, and what it replaces, between two renames.
NEW, EARLIER = "output", "earlier"
_LEFTOVER = re.compile(r"\.[0-9a-f]{16}\.incomplete$")


@dataclasses.dataclass(frozen=True)
class OutputKind:
    """How an earlier output is told from a directory that holds anything else.

    Attributes:
        name: for messages: `"predictions"`.
        marker: a file that every output of the kind has.
        contents: patterns (for `fnmatch`, a part of a path each) of the files in such a
            directory, beside the marker; one that holds another file is used for something else,
            too.
    """

    name: str
    marker: str
    contents: tuple[str, ...] = ()

    def describes(self, directory: str) -> bool:
        """Whether a directory holds an output of this kind and nothing beside it."""
        names = _files_below(directory)
        patterns = (self.marker, *self.contents)
        return self.marker in names and all(
            any(_fits(name, pattern) for pattern in patterns) for name in names
        )


def _files_below(directory: str) -> list[str]:
    found = []
    for parent, directories, files in os.walk(directory):
        paths = [os.path.join(parent, name) for name in (*files, *directories)]
        found += [path for path in paths if os.path.islink(path) or not os.path.isdir(path)]
    return [os.path.relpath(path, directory) for path in found]


def _fits(name: str, pattern: str) -> bool:
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatch.fnmatchcase, parts, patterns))


def check_output(directory: str | os.PathLike, kind: OutputKind, *, overwrite: bool = False) -> str:
    """Checks that an output directory is new, empty, or one that may be replaced.

    Args:
        directory: as the user wrote it.
        kind: kind of the output.
        overwrite: whether an earlier output of that kind may be replaced.

    Returns:
        The directory without a slash at its end.

    Raises:
        BadInputError: it is a file, a link to nothing, a mount point or the working directory, or
            holds something else, or `overwrite` is not given, or it cannot be made.
    """
    directory = without_slash(directory)
    _undo_replacement(directory)
    _refuse_dangling_link(directory)
    if not os.path.lexists(directory):
        _check_writable(directory)
        return directory
    if os.path.ismount(os.path.realpath(directory)):
        raise BadInputError(
            f"{directory}: is a mount point, to which nothing can be renamed; name a directory "
            f"below it, such as {os.path.join(directory, 'output')}"
        )
    with contextlib.suppress(OSError):  # the working directory may be gone
        if os.path.samefile(directory, os.curdir):  # a renaming would take it away
            raise BadInputError(f"{directory}: is the directory you are in; name another output")
    if os.path.isdir(directory) and not os.listdir(directory):
        return directory
    _refuse_output(directory, kind, is_earlier=kind.describes(directory), overwrite=overwrite)
    return directory


def _refuse_output(path: str, kind: OutputKind, *, is_earlier: bool, overwrite: bool) -> None:
    """Refuses an output that exists, unless it may be replaced.

    Args:
        path: path of the file or directory that exists.
        kind: kind of the output.
        is_earlier: whether it is an earlier output of that kind and nothing else.
        overwrite: whether such a one may be replaced.

    Raises:
        BadInputError: it may not.
    """
    if not is_earlier:
        raise BadInputError(
            f"{path}: exists already and holds other things than {kind.name}; name another output"
        )
    if not overwrite:
        raise BadInputError(
            f"{path}: exists already and holds {kind.name}; name another output, or give "
            "--overwrite"
        )


def check_resumable(directory: str, name: str, contents: Sequence[str]) -> None:
    """Checks that a directory is new, empty, or one that a command may go on with.

    Args:
        directory: directory of the output.
        name: name of the output, for messages.
        contents: patterns (for `fnmatch`) of the names in it.

    Raises:
        BadInputError: it is a file or a link to nothing, or holds something else.
    """
    _refuse_dangling_link(directory)
    if not os.path.lexists(directory):
        return
    names = os.listdir(directory) if os.path.isdir(directory) else [os.path.basename(directory)]
    for found in sorted(names):
        is_known = any(fnmatch.fnmatchcase(found, pattern) for pattern in contents)
        if not is_known and not is_leftover(found) and not is_lock(found):
            raise BadInputError(
                f"{directory}: exists already and holds other things than {name} ({found}); name "
                "another output"
            )


def check_output_file(
    path: str | os.PathLike,
    kind: OutputKind,
    is_earlier: Callable[[str], bool],
    *,
    overwrite: bool = False,
) -> str:
    """Checks that an output file is new, or one that may be replaced.

    Args:
        path: as the user wrote it.
        kind: kind of the output; only its name is used.
        is_earlier: whether a file is an earlier output of that kind.
        overwrite: whether such a one may be replaced.

    Returns:
        The path without a slash at its end.

    Raises:
        BadInputError: it is a directory, a link to nothing or something else, or `overwrite` is
            not given, or it cannot be made.
    """
    path = without_slash(path)
    if os.path.isdir(path):
        raise BadInputError(f"{path}: is a directory; name a file")
    _refuse_special(path)
    _refuse_dangling_link(path)
    if os.path.exists(path):
        _refuse_output(path, kind, is_earlier=is_earlier(path), overwrite=overwrite)
    else:
        _check_writable(path)
    return path


def _refuse_special(path: str) -> None:
    """Refuses a pipe or a device: whoever opens a pipe waits, and an output takes its place."""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise BadInputError(
            f"{path}: is a pipe, a device or the like, in whose place nothing is written; name "
            "another output"
        )


def _refuse_dangling_link(path: str) -> None:
    if os.path.islink(path) and not os.path.exists(path):
        raise BadInputError(
            f"{path}: is a link to nothing ({os.readlink(path)}); remove it or name another output"
        )


def check_no_link(path: str) -> None:
    """Refuses a link where a command would replace what it leads to without being told so.

    Raises:
        BadInputError: it is one.
    """
    if os.path.islink(path):
        raise BadInputError(
            f"{path}: is a link, through which nothing of a run is written; remove it, or put in "
            "its place what it leads to"
        )


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path names a file system, such as `gs://…`; those of texts and presets may."""
    return "://" in os.fspath(path)


def check_mounted(path: str | os.PathLike) -> None:
    """Raises `BadInputError` for what is read and written as files of this machine, and is none."""
    if is_remote(path):
        raise BadInputError(
            f"{path}: is on another file system; mount that (a bucket of gs:// by gcsfuse), and "
            "name the path it has here"
        )


def check_place(output: str | os.PathLike, *, inside: bool) -> None:
    """Refuses a place before a command holds it, and with that makes it.

    Args:
        output: what is to be written.
        inside: whether it is a directory in which files change, which then is made.

    Raises:
        BadInputError: it is of another file system, a pipe or a device, or would be made where a
            link leads to nothing.
    """
    check_mounted(output)
    _refuse_special(os.fspath(output))
    if inside:
        _refuse_dangling_link(os.fspath(output))


def without_slash(path: str | os.PathLike) -> str:
    """A path without slashes at its end; the root stays."""
    path = os.fspath(path)
    return path.rstrip("/") or path


def _check_writable(path: str) -> None:
    """Refuses a path that could not be made, before hours of work."""
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent):
        raise BadInputError(f"{path}: cannot be written ({parent} is no directory); name another")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BadInputError(f"{path}: cannot be written ({parent} is read-only); name another")


def unfinished_file(path: str) -> str:
    """A name for a file until it is finished: beside it, and its own by 64 random bits."""
    directory, name = os.path.split(path)
    return os.path.join(directory, f"{name[:40]}.{secrets.token_hex(8)}{UNFINISHED}")


def is_leftover(name: str) -> bool:
    """Whether a file's name is one that `unfinished_file` gives."""
    return _LEFTOVER.search(name) is not None


def is_lock(name: str) -> bool:
    """Whether a file's name is that of a lock inside of a directory."""
    return name == LOCK


def unfinished_path(directory: str) -> str:
    """Where a directory lies until it is finished: beside it or, of a link, beside its target."""
    return f"{os.path.realpath(directory)}{UNFINISHED}"


def make_unfinished(directory: str, *names: str) -> str:
    """Makes the directory in which an output is written.

    Args:
        directory: final name of the output.
        names: directories to make inside. They have the modes that the user's umask asks for.

    Returns:
        Its path.

    Raises:
        BadInputError: something else has that name.
        OSError: it cannot be made.
    """
    path = unfinished_path(directory)
    discard_unfinished(directory)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        os.mkdir(path, 0o700)  # never one that somebody else has made
    except FileExistsError:
        raise BadInputError(
            f"{path}: exists already, and is no directory that a command of yours left unfinished; "
            "move it away, or name another output"
        ) from None
    for name in (_MARK, *names):
        os.mkdir(os.path.join(path, name))
    return path


def discard_unfinished(directory: str) -> None:
    """Removes what an earlier command left unfinished, if it is this user's and has the mark."""
    path = unfinished_path(directory)
    if _is_ours(path):
        _undo_replacement(directory)
        shutil.rmtree(path, ignore_errors=True)


def _is_ours(path: str) -> bool:
    try:
        found = [os.lstat(path), os.lstat(os.path.join(path, _MARK))]
    except OSError:
        return False
    return all(stat.S_ISDIR(one.st_mode) and one.st_uid == os.geteuid() for one in found)


def _undo_replacement(directory: str) -> None:
    """Puts an earlier directory back, if a kill came between the two renames."""
    target, path = os.path.realpath(directory), unfinished_path(directory)
    earlier = os.path.join(path, EARLIER)
    if not os.path.lexists(target) and _is_ours(path) and os.path.isdir(earlier):
        os.rename(earlier, target)

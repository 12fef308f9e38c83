"""Checks the files of a directory that may come from somebody else: links and checksums.

Only regular files are opened, because a pipe or a device may have no end. Nothing here needs
TensorFlow.
"""

import errno
import hashlib
import os
import pathlib
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

from annotated_types import Ge, Lt
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from spanbert_tf.errors import BadInputError

_MOST_SHOWN = 3
_READ_FOLDERS = ("assets", "assets.extra", "variables")  # folders in presets and SavedModels
_PART = 2**24  # bytes that are read at once


class Checksum(TypedDict):
    """Size and SHA-256 (hexadecimal) of a file."""

    bytes: Annotated[int, Ge(0), Lt(2**63)]
    sha256: str


Checksums = dict[str, Checksum]


def is_file_name(name: str) -> bool:
    """Whether a text can be the name of a file: not a path, and printable."""
    return name == os.path.basename(name) and name not in ("", ".", "..") and name.isprintable()


def regular_size(path: str | os.PathLike) -> int:
    """Returns the size in bytes of a regular file; links are followed.

    Raises:
        OSError: there is no such file, or it is a directory, a pipe, a device or the like.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
    return found.st_size


def check_own_files(directory: str) -> None:
    """Refuses a directory with files that cannot be opened safely: pipes, and links out of it.

    Opening a pipe waits for a writer, perhaps forever, and `/dev/zero` has no end. The target of a
    link may be private, and would become part of what is written from this directory. Links in the
    cache of the Hugging Face Hub (`snapshots/COMMIT/FILE` → `blobs/DIGEST`) are allowed.

    Args:
        directory: directory of a preset, a checkpoint or a SavedModel. Its own files and those
            below `assets`, `assets.extra` and `variables` are checked; links are followed.

    Raises:
        BadInputError: there is such a file.
    """
    place = os.path.realpath(directory)
    out: list[str] = []

    def stays(path: str) -> bool:
        refuse_special_file(path)
        target = os.path.realpath(path)
        if _lies_in(target, place) or _is_blob_of_hub(target, place):
            return True
        out.append(path)
        return False

    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if not os.path.isdir(path):
            stays(path)
        elif name in _READ_FOLDERS and stays(path):
            for file in files_below(path, stays):
                stays(file)
    copy = "copy the files themselves (`cp -rL`) if what they lead to is meant"
    refuse_links(out, directory, f"remove them, or {copy}")


def _lies_in(path: str, place: str) -> bool:
    """Whether a real path is a directory's real path or below it."""
    return os.path.commonpath([place, path]) == place


def _is_blob_of_hub(path: str, place: str) -> bool:
    """Whether a real path is a blob of the Hub's repository whose snapshot is at `place`."""
    repository, snapshots, _ = place.rpartition(f"{os.sep}snapshots{os.sep}")
    return bool(snapshots) and os.path.dirname(path) == os.path.join(repository, "blobs")


def refuse_special_file(path: str) -> None:
    """Refuses a path that exists and is neither a file nor a directory.

    Raises:
        BadInputError: it is a pipe, a device or the like.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise BadInputError(
            f"{path!a}: is no regular file but a pipe, a device or the like; remove it, or copy "
            "the files again"
        )


def refuse_device(path: str | os.PathLike) -> None:
    """Refuses a device as an input file, because it may have no end, like `/dev/zero`.

    Pipes are allowed, as in `<(zcat FILE)`.

    Raises:
        BadInputError: the path is a device.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:  # the code that reads the file reports it
        return
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise BadInputError(f"{path}: is a device, which may have no end; name a file")


def sha256(path: str | os.PathLike) -> str:
    """Computes the hexadecimal digest of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        # Parts are large because a thread must acquire the interpreter's lock between two of them.
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()


def code_digest(directories: Iterable[str | os.PathLike]) -> str:
    """Computes the hexadecimal digest of the modules and JSON files of packages.

    It tells one state of an editable install from another, which have the same version.

    Args:
        directories: the directories of the packages.
    """
    digest = hashlib.sha256()
    for directory in directories:
        for pattern in ("*.py", "*.json"):  # parameters of Punkt are JSON
            for path in sorted(pathlib.Path(directory).rglob(pattern)):
                digest.update(path.read_bytes())
    return digest.hexdigest()


def checksums(directory: str, names: Iterable[str]) -> Checksums:
    """Computes the checksums of files of a directory.

    Args:
        directory: directory of the files.
        names: names of the files.

    Raises:
        OSError: a file cannot be read.
    """
    found: Checksums = {}
    for name in names:
        path = os.path.join(directory, name)
        found[name] = {"bytes": os.path.getsize(path), "sha256": sha256(path)}
    return found


def check_files(directory: str, written: Mapping[str, Checksum]) -> None:
    """Compares files with their checksums. The records of SQuAD (430 MB) take about a second.

    Args:
        directory: directory of the files.
        written: the result of `checksums` when the files were written.

    Raises:
        BadInputError: a file is missing, cannot be read or has changed, or its name is a path.
    """
    for name, expected in written.items():
        try:
            fault = file_fault(directory, name, expected["sha256"], expected["bytes"])
        except OSError as error:
            fault = f"cannot be read ({error.strerror})"
        if fault:
            place = f"{directory}: {name!r}"
            if is_file_name(name):
                place = os.path.join(directory, name)
            raise BadInputError(f"{place}: {fault}; copy it again or write the records again")


def file_fault(directory: str, name: str, digest: str, num_bytes: int | None = None) -> str | None:
    """Compares a file with its checksum.

    Args:
        directory: directory of the file.
        name: name of the file, from a manifest.
        digest: SHA-256 of the file when it was written.
        num_bytes: its size in bytes, if known.

    Returns:
        A description of the difference, or `None` if there is none.

    Raises:
        OSError: the file exists and cannot be read.
    """
    if not is_file_name(name):
        return "is no file's name"
    path = os.path.join(directory, name)
    try:
        size = regular_size(path)
        if num_bytes is not None and size != num_bytes:
            return f"has {size:,} bytes, not the {num_bytes:,} that were written"
        if sha256(path) != digest:
            return "is damaged or changed (not the SHA-256 of what was written)"
    except FileNotFoundError:
        return "is missing"
    return None


def files_below(
    directory: str,
    is_searched: Callable[[str], bool] = lambda directory: True,
    above: frozenset[str] = frozenset(),
) -> Iterator[str]:
    """Yields the paths of all files below a directory, sorted by name in each directory.

    Unlike `os.walk`, it follows links to directories, and fails if a directory cannot be listed.

    Args:
        directory: path of the directory.
        is_searched: takes the path of a directory below it; returns whether to search there.
        above: real paths of the directories above; links back to them are not followed.

    Raises:
        OSError: a directory cannot be listed.
    """
    place = os.path.realpath(directory)
    if place in above:
        return
    for name in sorted(os.listdir(directory)):
        path = os.path.join(directory, name)
        if not os.path.isdir(path):
            yield path
        elif is_searched(path):
            yield from files_below(path, is_searched, above | {place})


def files_inside(
    folder: str,
    is_taken: Callable[[str], bool],
    is_searched: Callable[[str], bool] = lambda directory: True,
    *,
    follow_links: bool,
) -> list[str]:
    """Lists files below a folder, and by default refuses links that lead out of it.

    A folder that comes from somebody else may have links to private files of this machine.

    Args:
        folder: path of the folder, which may be a link itself.
        is_taken: takes the path of a file; returns whether to list it.
        is_searched: see `files_below`.
        follow_links: whether links may lead out of the folder.

    Raises:
        BadInputError: links lead out of the folder; the message names them.
        OSError: a directory cannot be listed.
    """
    out: list[str] = []

    def stays(path: str) -> bool:
        if follow_links or not os.path.islink(path) or is_inside(path, folder):
            return True
        out.append(path)
        return False

    paths = files_below(folder, lambda directory: is_searched(directory) and stays(directory))
    found = [path for path in paths if is_taken(path) and stays(path)]
    refuse_links(out, folder)
    return found


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is inside a folder after all links are followed."""
    return _lies_in(os.path.realpath(path), os.path.realpath(folder))


def refuse_links(
    paths: list[str],
    folder: str,
    advice: str = "remove them, or give --follow-links if what they lead to is to be read",
) -> None:
    """Raises `BadInputError` for links that lead out of a folder.

    Args:
        paths: paths of such links; if empty, nothing is raised.
        folder: path of the folder.
        advice: what the user can do.
    """
    if not paths:
        return
    shown = [f"{path} -> {os.path.realpath(path)}" for path in paths[:_MOST_SHOWN]]
    if len(paths) > _MOST_SHOWN:
        shown.append(f"{len(paths) - _MOST_SHOWN} more")
    raise BadInputError(f"{folder}: links lead out of it ({', '.join(shown)}); {advice}")


def each_once(paths: Iterable[str]) -> list[str]:
    """Removes paths that lead, through links, to the same file or directory as an earlier path."""
    places: dict[str, str] = {}  # real path → path
    for path in paths:
        places.setdefault(os.path.realpath(path), path)
    return list(places.values())

"""The files of a directory, which may be a stranger's: links that lead out of it, and checksums.

A description names files of its own directory, and only regular ones are opened, for a pipe or a
device may have no end. Nothing here needs TensorFlow.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated

from annotated_types import Ge, Lt
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.errors import BadInputError

_MOST_SHOWN = 20
_READ_FOLDERS = ("assets", "variables")  # of presets and SavedModels
_PART = 2**24  # bytes


class Checksum(TypedDict):
    """Size and SHA-256 (hexadecimal) of a file."""

    bytes: Annotated[int, Ge(0), Lt(2**63)]
    sha256: str


Checksums = dict[str, Checksum]


def is_file_name(name: str) -> bool:
    """Whether a text names a file, or could, that lies in a directory itself."""
    return name == os.path.basename(name) and name not in ("", ".", "..") and name.isprintable()


def regular_size(path: str | os.PathLike) -> int:
    """The bytes of a regular file, or of one that a link leads to.

    Raises:
        OSError: there is no such file, or it is a directory, a pipe, a device or the like.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "no regular file", os.fspath(path))
    return found.st_size


def check_own_files(directory: str) -> None:
    """Refuses a directory with files that cannot be opened safely: pipes, and links out of it.

    Whoever opens a pipe waits for a writer, perhaps for ever; `/dev/zero` has no end. What a link
    leads to may be private, and would become part of what is written from this directory. Links
    of the Hugging Face Hub's cache (`snapshots/COMMIT/FILE` → `blobs/DIGEST`) are its layout.

    Args:
        directory: of a preset or a checkpoint; its own files and those below `assets` and
            `variables` are looked at, through links.

    Raises:
        BadInputError: there is one.
    """
    place, out = os.path.realpath(directory), []

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
    """Whether a real path is a file of the repository whose snapshot lies at a real path."""
    repository, snapshots, _ = place.rpartition(f"{os.sep}snapshots{os.sep}")
    return bool(snapshots) and os.path.dirname(path) == os.path.join(repository, "blobs")


def refuse_special_file(path: str) -> None:
    """Refuses what is there and neither a file nor a directory.

    Raises:
        BadInputError: it is something else.
    """
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise BadInputError(
            f"{path!a}: is no regular file but a pipe, a device or the like; remove it, or copy "
            "the files again"
        )


def refuse_device(path: str | os.PathLike) -> None:
    """Refuses a device where a user names a file to be read whole: `/dev/zero` has no end.

    Pipes are read, as of `<(zcat FILE)`.

    Raises:
        BadInputError: it is one.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:  # whoever reads it says so
        return
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise BadInputError(f"{path}: is a device, which may have no end; name a file")


def sha256(path: str | os.PathLike) -> str:
    """The hexadecimal digest of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        # Large parts: between two of them a thread waits for the interpreter.
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()


def checksums(directory: str, names: Iterable[str]) -> Checksums:
    """Number of `bytes` and `sha256` of each of some files."""
    paths = {name: os.path.join(directory, name) for name in names}
    return {
        name: {"bytes": os.path.getsize(path), "sha256": sha256(path)}
        for name, path in paths.items()
    }


def check_files(directory: str, written: Mapping[str, Checksum]) -> None:
    """Compares files with what was written: 430 MB, SQuAD's training set, in about a second.

    Args:
        directory: directory of the files.
        written: what `checksums` returned for them.

    Raises:
        BadInputError: one is missing, has another size or other bytes, or is no file of the
            directory.
    """
    for name, expected in written.items():
        try:
            fault = file_fault(directory, name, expected["sha256"], expected["bytes"])
        except OSError as error:
            fault = f"cannot be read ({error.strerror})"
        if fault:
            place = (
                os.path.join(directory, name) if is_file_name(name) else f"{directory}: {name!r}"
            )
            raise BadInputError(f"{place}: {fault}; copy it again or write the records again")


def file_fault(directory: str, name: str, digest: str, num_bytes: int | None = None) -> str | None:
    """What is wrong with a file of a directory, in words; `None` where nothing is.

    Args:
        directory: directory of the file.
        name: its name, from a description.
        digest: the SHA-256 of what was written.
        num_bytes: its size, where that is known.

    Raises:
        OSError: it cannot be read, which says nothing of its content.
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
    """The paths of all files below a directory, each directory's sorted by name.

    `os.walk` passes over linked directories, and over those that cannot be listed.

    Args:
        directory: path of the directory.
        is_searched: whether a directory below it is searched, by its path.
        above: real paths of the directories that it was come from; a link back is not followed.

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
    """The files below a folder that are taken; a link that leads out of it only if asked for.

    A folder may come from somebody else, with a link to what is private on this machine.

    Args:
        folder: path of the folder, which may be a link itself.
        is_taken: whether a file is taken, by its path.
        is_searched: as for `files_below`.
        follow_links: whether links may lead out of the folder.

    Raises:
        BadInputError: links lead out of the folder; the message names them.
        OSError: a directory cannot be listed.
    """
    out = []

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
    """Whether a path is inside a folder, wherever links lead."""
    return _lies_in(os.path.realpath(path), os.path.realpath(folder))


def refuse_links(
    paths: list[str],
    folder: str,
    advice: str = "remove them, or give --follow-links if what they lead to is to be read",
) -> None:
    """Raises `BadInputError` if there are such paths, which lead out of the folder."""
    if paths:
        shown = [f"{path} -> {os.path.realpath(path)}" for path in paths[:_MOST_SHOWN]]
        shown += [f"{len(paths) - _MOST_SHOWN} more"] * (len(paths) > _MOST_SHOWN)
        raise BadInputError(f"{folder}: links lead out of it ({', '.join(shown)}); {advice}")


def each_once(paths: Iterable[str]) -> list[str]:
    """Of paths to one file or directory, to which links can lead by several ways, the first."""
    places: dict[str, str] = {}  # real path → path
    for path in paths:
        places.setdefault(os.path.realpath(path), path)
    return list(places.values())

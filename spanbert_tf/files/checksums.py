"""Checksums of a directory's files, as its description holds them.

A description can be a stranger's: it names files of its own directory, and only regular ones are
opened, for a pipe or a device may have no end.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from typing import Annotated

from annotated_types import Ge, Lt
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.errors import BadInputError


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
        raise OSError(errno.EINVAL, "no regular file")
    return found.st_size


def refuse_special_files(directory: str) -> None:
    """Refuses a directory in which a pipe, a device or the like stands where files are expected.

    Whoever opens a pipe waits for a writer, perhaps for ever; `/dev/zero` has no end.

    Args:
        directory: of a preset or a checkpoint; its own files and those below `assets` are looked
            at, through links.

    Raises:
        BadInputError: there is one.
    """
    assets = os.walk(os.path.join(directory, "assets"))
    for place, names in [(directory, os.listdir(directory)), *((top, n) for top, _, n in assets)]:
        for path in (os.path.join(place, name) for name in sorted(names)):
            if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
                raise BadInputError(
                    f"{path!a}: is no regular file but a pipe, a device or the like; remove it, or "
                    "copy the files again"
                )


def sha256(path: str | os.PathLike) -> str:
    """The hexadecimal digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        if fault := file_fault(directory, name, expected["sha256"], expected["bytes"]):
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
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None

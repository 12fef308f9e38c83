"""Finds and opens input files on any file system that Apache Beam supports.

Beam is imported for remote files only: that takes half a second.
"""

import dataclasses
import functools
import glob
import io
import logging
import os
import re
from collections.abc import Sequence
from typing import Any, BinaryIO

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import each_once, files_inside, refuse_device
from spanbert_tf.files.paths import is_remote
from spanbert_tf.files.tables import files_of_dataset, is_saved_dataset

_FIRST_WILDCARD = re.compile(r"[*?[]")
# A name has 255 characters at most, and so has a set of them.
_WILDCARD = re.compile(r"\*\*|[*?]|\[!?+\]?+[^\]]{0,255}+\]")


def import_beam() -> None:
    """Imports Beam without its warnings about cloud packages that are not installed."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        import apache_beam  # noqa: F401
    finally:
        logging.disable(level)


def open_to_read(path: str, start: int = 0, stop: int | None = None) -> BinaryIO:
    """Opens a file to read its bytes as they are stored. Beam would decompress some files.

    Args:
        path: path of the file.
        start: position of the first byte to read.
        stop: position of the byte after the last one to read; `None` for the end of the file.

    Raises:
        OSError: the file cannot be opened.
    """
    file = _open_whole(path)
    if start or stop is not None:
        return io.BufferedReader(_Range(file, start, stop))
    return file


class _Range(io.RawIOBase):
    """A file object that reads only a part of a file."""

    def __init__(self, file: BinaryIO, start: int, stop: int | None) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self._stop = stop
        self._file.seek(start)

    def readable(self) -> bool:
        """Returns `True`."""
        return True

    def seekable(self) -> bool:
        """Returns `True`."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves to a position relative to the beginning or the end of the part."""
        if whence == os.SEEK_SET:
            offset += self._start
        elif whence == os.SEEK_END and self._stop is not None:
            offset += self._stop
            whence = os.SEEK_SET
        return self._file.seek(offset, whence) - self._start

    def readinto(self, buffer: Any) -> int:
        """Reads bytes of the part."""
        size = len(buffer)
        if self._stop is not None:
            size = min(size, self._stop - self._file.tell())
        data = self._file.read(max(size, 0))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()
        super().close()


def _open_whole(path: str) -> BinaryIO:
    if not is_remote(path):
        return open(path, "rb")
    import_beam()
    from apache_beam.io.filesystem import CompressionTypes
    from apache_beam.io.filesystems import FileSystems

    return FileSystems.open(path, compression_type=CompressionTypes.UNCOMPRESSED)


def _match_remote_files(pattern: str) -> dict[str, int]:
    """Returns the size in bytes of each file that matches a pattern, by its path.

    Raises:
        OSError: the directory cannot be listed.
    """
    import_beam()
    from apache_beam.io.filesystem import BeamIOError
    from apache_beam.io.filesystems import FileSystems

    try:
        matches = FileSystems.match([pattern])[0].metadata_list
    except BeamIOError as error:
        raise OSError(str(error)) from error
    return {match.path: match.size_in_bytes for match in matches}


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A text file of the input.

    Attributes:
        path: path of the file.
        name: path relative to the common directory of all input files. The name and the index of a
            document in the file identify the document. Names stay the same if all files are moved
            together. They change if a file is renamed, or if a file in another directory is added.
        size: size on disk, in bytes.
    """

    path: str
    name: str
    size: int


def find_files(
    patterns: str | os.PathLike | Sequence[str | os.PathLike], *, follow_links: bool = False
) -> list[InputFile]:
    """Finds the files that match at least one pattern.

    Args:
        patterns: one or more paths with `*`, `?`, `[…]` and `**` (which also matches `/`). The path
            of an existing file is not read as a pattern. Links to local directories are followed.
            A directory that Hugging Face's `datasets` has saved stands for its files.
        follow_links: whether links may lead out of the directory before a pattern's first wildcard.

    Returns:
        The files, sorted by name. A file that has several paths because of links appears once, with
        the first path.

    Raises:
        BadInputError: a pattern matches no file, a link leads nowhere or out of the directory, a
            file is empty, or local and remote files are mixed.
    """
    patterns = [patterns] if isinstance(patterns, str | os.PathLike) else list(patterns)
    sizes: dict[str, int] = {}
    for each in patterns:
        pattern = os.fspath(each)
        if is_saved_dataset(pattern):
            for path in files_of_dataset(pattern):
                sizes[os.path.abspath(path)] = _size(path)
            continue
        if os.path.isdir(pattern):
            raise BadInputError(f"{pattern}: is a directory; write {os.path.join(pattern, '**')}")
        if os.path.isfile(pattern):
            sizes[os.path.abspath(pattern)] = os.path.getsize(pattern)
            continue
        try:
            if is_remote(pattern):
                found = _match_remote_files(pattern)
            else:
                found = _match_local_files(_absolute(pattern), follow_links=follow_links)
        except OSError as error:
            raise BadInputError(f"{pattern}: cannot be listed ({error})") from error
        if not found and any(map(os.path.isdir, glob.iglob(pattern))):
            raise BadInputError(f"{pattern}: matches directories; write {pattern}/**")
        if not found:
            raise BadInputError(f"{pattern}: no such file; check the path, quote the pattern")
        sizes |= found
    for path, size in sizes.items():
        if not size:
            refuse_device(path)
            raise BadInputError(f"{path}: is empty; remove it from the input")
    paths = each_once(sorted(sizes))
    _refuse_mixed(paths)
    root = os.path.commonpath([os.path.dirname(path) for path in paths])
    files = [InputFile(path, os.path.relpath(path, root), sizes[path]) for path in paths]
    return sorted(files, key=lambda file: file.name)


def _refuse_mixed(paths: Sequence[str]) -> None:
    """Refuses a mix of local and remote files: their names need a common directory."""
    first = {is_remote(path): path for path in reversed(paths)}
    if len(first) > 1:
        raise BadInputError(
            f"{first[True]}: is on another file system than {first[False]}; copy the files to one"
        )


def _absolute(pattern: str) -> str:
    """Makes a pattern absolute. Wildcards in the name of the working directory are escaped."""
    return os.path.normpath(os.path.join(glob.escape(os.getcwd()), pattern))


def _match_local_files(pattern: str, *, follow_links: bool = False) -> dict[str, int]:
    """Returns the size in bytes of each local file that matches a pattern, by its path."""
    expression = re.compile(glob_expression(pattern))
    found = _FIRST_WILDCARD.search(pattern)
    root = os.path.dirname(pattern[: found.start()] if found else pattern)
    paths: list[str] = []
    if os.path.isdir(root):
        is_searched = functools.partial(_may_hold, pattern=pattern)
        paths = files_inside(
            root,
            lambda path: expression.match(path) is not None,
            is_searched,
            follow_links=follow_links,
        )
    return {path: _size(path) for path in paths}


def _may_hold(directory: str, pattern: str) -> bool:
    """Whether files that match a pattern may lie below a directory."""
    depth = directory.count("/") + 1
    start = pattern.split("/")[:depth]
    is_whole = pattern.count("/") < depth
    if any("**" in part for part in start):
        return True
    return not is_whole and bool(re.match(glob_expression("/".join(start)), directory))


def glob_expression(pattern: str) -> str:
    """Translates a pattern to the regular expression with which Beam matches remote files."""
    expression = ""
    start = 0
    for found in _WILDCARD.finditer(pattern):
        expression += re.escape(pattern[start : found.start()]) + _translate(found[0])
        start = found.end()
    return f"(?ms){expression}{re.escape(pattern[start:])}\\Z"


def _translate(wildcard: str) -> str:
    if wildcard == "**":
        return ".*"
    if wildcard == "*":
        return r"[^/\\]*"
    if wildcard == "?":
        return "."
    characters = re.sub(r"[\\\[]", r"\\\g<0>", wildcard[1:-1])
    if characters.startswith("!"):
        return f"[^{characters[1:]}]"
    if characters.startswith("^"):
        return f"[\\{characters}]"
    return f"[{characters}]"


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError as error:
        if not os.path.islink(path):
            raise
        raise BadInputError(
            f"{path}: is a link to nothing ({os.readlink(path)}); mend or remove it"
        ) from error

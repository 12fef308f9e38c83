"""Opens .tar.gz archives of checkpoints, and extracts only the plain files that are needed.

An archive may come from anyone. `tarfile.extractall` is not called: before Python 3.11.13 and
3.12.11 chains of links pass its filter and lead out of the directory (CVE-2025-4517), and before
3.11.4 it has no filter. The code here is safe in every release: links are refused, no path of the
archive is used as a path, and the archive is read forwards only, up to a limit.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from typing import IO

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.kinds import download_commands

# Endings of files that users pass instead of the directory.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".index", ".ckpt", ".json")
# The files that this package reads. Such a name has no separator and no control character.
_NEEDED = re.compile(
    r"(?:bert_|tokenizer_)?config\.json|tokenizer\.json|vocab(?:ulary)?\.txt"
    r"|\w[\w .+=,@-]{0,200}\.(?:safetensors|bin|pt|index|data-\d{5}-of-\d{5}|index\.json)"
)
_OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
_BLOCK = 512  # bytes of a block of a tar archive
_CHUNK = 1 << 20  # bytes that are copied at once
# Limits in bytes, far above what checkpoints need. A header has a path (up to 4,096 bytes) and a
# few attributes; before Python 3.11.10 `tarfile` parses some in quadratic time. Each file has a
# header of at least one block.
_MAX_HEADER = 8 << 10
_MAX_HEADERS = 1 << 20
# An archive may unpack to `_FREE_BYTES + _MAX_RATIO * size`; compression hardly shrinks weights.
_FREE_BYTES = 64 << 20
_MAX_RATIO = 32
_UNPACK = "unpack it where nothing can be lost, and name the directory"


@contextlib.contextmanager
def opened_source(path: str) -> Iterator[str]:
    """Opens a directory or an archive of a checkpoint.

    Args:
        path: the directory, or the archive.

    Yields:
        The directory itself, or a temporary directory with the files of the archive that have names
        of a checkpoint's files. They lie at the top of the archive or in its only directory.

    Raises:
        BadInputError: there is no such directory or archive, or it cannot be unpacked.
    """
    if os.path.isdir(path):
        yield path
        return
    if not os.path.isfile(path):
        advice = "download the model first"
        download = download_commands(path)
        if download:
            advice = f"for a model of the Hugging Face Hub, {download}"
        raise BadInputError(f"{path}: no such directory or archive; {advice}")
    if path.endswith(_WEIGHTS):
        directory = os.path.dirname(path) or "."
        raise BadInputError(
            f"{path}: is a file of weights; name the directory that holds it with its "
            f"configuration: {directory}"
        )
    with tempfile.TemporaryDirectory() as directory:
        try:
            found = _extract(path, directory)
        except OSError as error:  # while writing; `_Stream` replaces errors of reading
            raise BadInputError(
                f"{path}: cannot be unpacked to {directory} ({reason(error)}); free some space, or "
                "set TMPDIR to a directory that has it"
            ) from error
        except BadInputError:
            raise
        except (tarfile.TarError, ValueError, OverflowError) as error:
            raise BadInputError(
                f"{path}: is no tar archive, or damaged ({reason(error)}); download it again, or "
                "unpack it and name the directory"
            ) from error
        if "" not in found and len(found) > 1:
            raise BadInputError(
                f"{path}: holds checkpoints in {len(found)} directories; {_UNPACK} of one"
            )
        yield found.get("") or next(iter(found.values()), directory)


def _extract(path: str, directory: str) -> dict[str, str]:
    """Extracts the needed files of an archive.

    Args:
        path: the archive.
        directory: directory in which a new one is created for each directory of the archive.

    Returns:
        Directory in the archive → new directory; `""` is the top of the archive.
    """
    found: dict[str, str] = {}
    for parts, file in _plain_files(path):
        *parents, name = parts
        if len(parents) > 1 or not _NEEDED.fullmatch(name):
            continue
        parent = "".join(parents)
        if parent not in found:
            found[parent] = os.path.join(directory, str(len(found)))
            os.mkdir(found[parent], 0o700)
        try:
            with open(os.path.join(found[parent], name), "xb") as output:
                shutil.copyfileobj(file, output, _CHUNK)
        except FileExistsError:
            raise BadInputError(f"{path}: holds {'/'.join(parts)!a} twice; {_UNPACK}") from None
    return found


def _plain_files(path: str) -> Iterator[tuple[list[str], IO[bytes]]]:
    """Yields the parts of the name and the content of each file. Read it before the next one."""
    with contextlib.closing(_Stream(path)) as stream:
        end = 0  # of the last file that was read
        headers = _MAX_HEADERS  # bytes of headers that may follow
        stream.allow(_MAX_HEADER)
        archive = tarfile.TarFile(fileobj=stream, encoding="utf-8")
        while (member := archive.next()) is not None:
            headers -= stream.tell() - end
            parts = _checked_parts(path, member)
            end = member.offset_data
            if member.isreg():
                end += member.size
            stream.allow(end - stream.tell())
            content = archive.extractfile(member)
            if content is not None:  # `None` for a directory
                yield parts, content
            stream.seek(end)
            stream.allow(min(_MAX_HEADER, headers))
        if not stream.ended:
            raise tarfile.ReadError("it is cut off")


def _checked_parts(path: str, member: tarfile.TarInfo) -> list[str]:
    """Returns the parts of a member's name; raises `BadInputError` for an unsafe member."""
    name = member.name
    shown = f"{path}: {name[:200]!a}"
    if member.issym() or member.islnk():
        raise BadInputError(
            f"{shown}: is a link, and links in archives are not followed; pack it again with `tar "
            f"--dereference`, or {_UNPACK}"
        )
    if member.issparse() or not (member.isreg() or member.isdir()):
        raise BadInputError(f"{shown}: is no plain file; such an archive is not opened")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise BadInputError(f"{shown}: leads outside; such an archive is not opened")
    return [part for part in parts if part not in ("", ".")] or ["."]


class _Stream:
    """The uncompressed content of a file, which `tarfile` reads forwards, up to a limit.

    Attributes:
        ended: whether the last block that was read consists of the zeros at the end of an archive.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            start = file.read(6)
        opener = next((opener for magic, opener in _OPENERS if start.startswith(magic)), open)
        self._file = opener(path, "rb")
        self._position = 0
        self._end = 0  # position up to which may be read
        self._limit = _FREE_BYTES + _MAX_RATIO * os.path.getsize(path)
        self.ended = False

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def allow(self, num_bytes: int) -> None:
        """Allows `num_bytes` to be read from here on, up to the limit of the archive."""
        self._end = self._position + num_bytes
        if self._end > self._limit:
            raise BadInputError(
                f"{self._path}: unpacks to more than {self._limit >> 20} MiB, too much for one of "
                f"its size; {_UNPACK}"
            )

    def tell(self) -> int:
        """Returns the position in the uncompressed content."""
        return self._position

    def seek(self, position: int) -> None:
        """Moves forwards to a position."""
        if position < self._position:
            raise tarfile.ReadError("a size is wrong")
        while self._position < position:
            if not self.read(min(_CHUNK, position - self._position)):
                raise tarfile.ReadError("it is cut off")

    def read(self, size: int) -> bytes:
        """Reads up to `size` bytes, all of which must be allowed."""
        if not 0 <= size <= self._end - self._position:
            raise tarfile.ReadError("the headers are too long, or too many")
        try:
            content = self._file.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise tarfile.ReadError(reason(error)) from error
        self._position += len(content)
        self.ended = len(content) == _BLOCK and not content.strip(b"\0")
        return content

    def write(self, content: bytes) -> None:
        """Raises an error: the file is read only."""
        raise io.UnsupportedOperation("not writable")

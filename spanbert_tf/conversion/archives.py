"""Opens .tar.gz archives of checkpoints: the plain files that a reader asks for, nothing else.

An archive may come from anyone. `tarfile.extractall` is not called: its filter lets chains of links
out of the directory before Python 3.11.13 and 3.12.11 (CVE-2025-4517) and is no argument at all
before 3.11.4. Nothing here depends on the release: no link is taken, no name of the archive becomes
a path, and the archive is read through a stream that goes forward only, a bounded way.
"""

import bz2
import contextlib
import gzip
import lzma
import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.kinds import download_commands

# Endings of files that people give in place of the directory.
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".index", ".ckpt", ".json")
# What the readers of this package open; such a name has no separator and no control character.
_NEEDED = re.compile(
    r"(?:bert_|tokenizer_)?config\.json|tokenizer\.json|vocab(?:ulary)?\.txt"
    r"|\w[\w .+=,@-]{0,200}\.(?:safetensors|bin|pt|index|data-\d{5}-of-\d{5}|index\.json)"
)
_OPENERS = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
_BLOCK = 512  # of a tar archive
_CHUNK = 1 << 20
# Limits that no checkpoint comes near, in bytes. Weights hardly shrink. Of a header, which holds a
# path (4,096 bytes) and a few attributes, `tarfile` makes objects, some in quadratic time (until
# 3.11.10); each file has one, of a block or more.
_MAX_HEADER, _MAX_HEADERS = 8 << 10, 1 << 20
_FREE_BYTES, _MAX_RATIO = 64 << 20, 32
_UNPACK = "unpack it where nothing can be lost, and name the directory"


@contextlib.contextmanager
def opened_source(path: str) -> Iterator[str]:
    """The directory of a checkpoint: the path itself, or, while it is open, an archive's files.

    Of an archive it holds the files with a checkpoint's names at its top or in its one directory.
    """
    if os.path.isdir(path):
        yield path
        return
    if not os.path.isfile(path):
        download = download_commands(path)
        advice = (
            f"for a model of the Hugging Face Hub, {download}"
            if download
            else ("download the model first")
        )
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
        except OSError as error:  # of writing; those of reading are `BadInputError`s
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
    """Writes the needed files of each directory (`""`: the top) to one of ours; theirs → ours."""
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


def _plain_files(path: str) -> Iterator[tuple[list[str], BinaryIO]]:
    """The parts of the name, and the content, of each file of an archive, while it is the next."""
    with _Stream(path) as stream:
        end, headers = 0, _MAX_HEADERS
        stream.allow(_MAX_HEADER)
        archive = tarfile.TarFile(fileobj=stream, encoding="utf-8")
        while (member := archive.next()) is not None:
            headers -= stream.tell() - end
            parts = _checked_parts(path, member)
            end = member.offset_data + (member.size if member.isreg() else 0)
            stream.allow(end - stream.tell())
            if member.isreg():
                yield parts, archive.extractfile(member)
            stream.seek(end)
            stream.allow(min(_MAX_HEADER, headers))
        if not stream.ended:
            raise tarfile.ReadError("it is cut off")


def _checked_parts(path: str, member: tarfile.TarInfo) -> list[str]:
    """The parts of a member's name, or a refusal."""
    name, shown = member.name, f"{path}: {member.name[:200]!a}"
    if member.issym() or member.islnk():
        raise BadInputError(
            f"{shown}: is a link, and no link is taken out of an archive; pack it again with `tar "
            f"--dereference`, or {_UNPACK}"
        )
    if member.issparse() or not (member.isreg() or member.isdir()):
        raise BadInputError(f"{shown}: is no plain file; such an archive is not opened")
    parts = name.split("/")
    if name.startswith("/") or ".." in parts:
        raise BadInputError(f"{shown}: leads outside; such an archive is not opened")
    return [part for part in parts if part not in ("", ".")] or ["."]


class _Stream:
    """What a compressed file unpacks to: `tarfile` may go forward in it, and only so far.

    Attributes:
        ended: whether the last block that was read is the zeros at the end of an archive.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        with open(path, "rb") as file:
            start = file.read(6)
        opener = next((opener for magic, opener in _OPENERS if start.startswith(magic)), open)
        self._file = opener(path, "rb")
        self._position, self._end = 0, 0
        self._limit = _FREE_BYTES + _MAX_RATIO * os.path.getsize(path)
        self.ended = False

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def allow(self, num_bytes: int) -> None:
        """Lets so many more bytes be read."""
        self._end = self._position + num_bytes
        if self._end > self._limit:
            raise BadInputError(
                f"{self._path}: unpacks to more than {self._limit >> 20} MiB, too much for one of "
                f"its size; {_UNPACK}"
            )

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        """Goes forward."""
        if position < self._position:
            raise tarfile.ReadError("a size is wrong")
        while self._position < position:
            if not self.read(min(_CHUNK, position - self._position)):
                raise tarfile.ReadError("it is cut off")

    def read(self, size: int) -> bytes:
        if not 0 <= size <= self._end - self._position:
            raise tarfile.ReadError("the headers are too long, or too many")
        try:
            content = self._file.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise tarfile.ReadError(reason(error)) from error
        self._position += len(content)
        self.ended = len(content) == _BLOCK and not content.strip(b"\0")
        return content

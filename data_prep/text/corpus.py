"""Finds text files and reads their documents in parts, whatever the format.

Formats are recognised by content: gzip by its first two bytes; then WikiExtractor's text, JSON
lines or plain text by the first line. What else is known (Parquet, tables, web pages …) is refused
by name. Paths may be of any file system that Apache Beam knows.
Memory is bounded by READ_SIZE and, in JSON lines, by the longest line.
"""

import dataclasses
import glob
import gzip
import io
import itertools
import os
import re
import zlib
from collections.abc import Iterator, Sequence

from data_prep.beam.storage import is_remote, match_files, open_to_read
from data_prep.text.foreign_formats import refuse_foreign_format
from data_prep.text.formats import (
    TextPart,
    json_lines_parts,
    plain_text_parts,
    wikipedia_parts,
)
from data_prep.text.local_files import match_local_files
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import HEAD_SIZE, refuse_known_binary
from spanbert_tf.files.text_files import GZIP_MAGIC

READ_SIZE = 2**20  # bytes
_BYTE_ORDER_MARK = "\ufeff"
_WIKIPEDIA_START = re.compile(r"\s*<doc [^\n]*>")
_JSON_LINES_START = re.compile(r'\s*\{(\s*"|\}[^\S\n]*\n\s*\{)')
_JSON_ARRAY_START = re.compile(r'\s*\[\s*(\{\s*"|"[^"\n]*"\s*,\s*")')


@dataclasses.dataclass(frozen=True)
class InputFile:
    """A file of text.

    Attributes:
        path: where it is.
        name: its path below the directory that all input files share; with the number of a
            document in the file it identifies the document, wherever the files are moved.
        size: in bytes, as it lies on disk.
    """

    path: str
    name: str
    size: int


def find_files(
    patterns: str | os.PathLike | Sequence[str | os.PathLike], *, follow_links: bool = False
) -> list[InputFile]:
    """The files that match a pattern or one of several, in order of their names.

    Args:
        patterns: paths with `*`, `?`, `[…]` and `**` (which also matches `/`); the path of a file
            that is there is no pattern. Links to local directories are followed.
        follow_links: whether links may lead out of the directory before a pattern's first wildcard.

    Raises:
        BadInputError: a pattern matches no file, or a link to nothing or out of the directory, or a
            file is empty.
    """
    patterns = [patterns] if isinstance(patterns, str | os.PathLike) else list(patterns)
    sizes: dict[str, int] = {}
    for pattern in map(os.fspath, patterns):
        if os.path.isdir(pattern):
            raise BadInputError(f"{pattern}: is a directory; write {os.path.join(pattern, '**')}")
        if os.path.isfile(pattern):
            sizes[os.path.abspath(pattern)] = os.path.getsize(pattern)
            continue
        try:
            if is_remote(pattern):
                found = match_files(pattern)
            else:
                found = match_local_files(_absolute(pattern), follow_links=follow_links)
        except OSError as error:
            raise BadInputError(f"{pattern}: cannot be listed ({error})") from error
        if not found and any(map(os.path.isdir, glob.iglob(pattern))):
            raise BadInputError(f"{pattern}: matches directories; write {pattern}/**")
        if not found:
            raise BadInputError(f"{pattern}: no such file; check the path, quote the pattern")
        sizes |= found
    for path, size in sizes.items():
        if not size:
            raise BadInputError(f"{path}: is empty; remove it from the input")
    root = os.path.commonpath([os.path.dirname(path) for path in sizes])
    files = [InputFile(path, os.path.relpath(path, root), size) for path, size in sizes.items()]
    return sorted(files, key=lambda file: file.name)


def _absolute(pattern: str) -> str:
    """The pattern from the root on; brackets of the working directory stand for themselves."""
    return os.path.normpath(os.path.join(glob.escape(os.getcwd()), pattern))


class DocumentReader:
    """Iterates over the documents of a file, a part at a time.

    Args:
        path: path of a text file.
        document_separator: in plain text, a line equal to this begins a new document.

    Attributes:
        bytes_read: bytes of text read so far, after decompression.
        position: bytes of the file read so far.
    """

    def __init__(self, path: str, document_separator: str | None = None) -> None:
        self.path = path
        self.bytes_read = 0
        self.position = 0
        self._separator = document_separator

    def __iter__(self) -> Iterator[TextPart]:
        """Yields parts of about `READ_SIZE` or less.

        Raises:
            BadInputError: the file is missing, not UTF-8, a broken gzip, of another format, not
                well-formed, or without any text.
        """
        blocks = self._blocks()
        first = next(blocks, "")
        if not first:
            raise BadInputError(f"{self.path}: is empty; remove it from the input")
        if _WIKIPEDIA_START.match(first):
            return wikipedia_parts(itertools.chain([first], blocks), self.path)
        if _JSON_LINES_START.match(first):
            return json_lines_parts(itertools.chain([first], blocks), self.path)
        if _JSON_ARRAY_START.match(first):
            raise BadInputError(
                f"{self.path}: is a JSON array; write one JSON object a line, with its text as "
                "`text`"
            )
        # The last line of a short text is a block of its own, where it has no end.
        is_whole = self.bytes_read < READ_SIZE
        start = [first, *(itertools.islice(blocks, 1) if is_whole else ())]
        refuse_foreign_format(self.path, "".join(start), is_whole=is_whole)
        blocks = itertools.chain(start, blocks)
        return plain_text_parts(blocks, self.path, self._separator, READ_SIZE)

    def _blocks(self) -> Iterator[str]:
        """Text of whole lines; a line longer than `READ_SIZE` comes in several blocks."""
        rest = b""
        for data in self._read():
            data = rest + data
            end = data.rfind(b"\n") + 1
            if not end and len(data) > READ_SIZE:
                end = data.rfind(b" ") + 1 or _character_boundary(data)
            rest = data[end:]
            if end:
                yield self._decode(data[:end], len(rest))
        if rest:
            yield self._decode(rest, 0)

    def _read(self) -> Iterator[bytes]:
        try:
            with open_to_read(self.path) as raw:
                is_compressed = raw.read(2) == GZIP_MAGIC
                raw.seek(0)
                file: io.BufferedIOBase = gzip.GzipFile(fileobj=raw) if is_compressed else raw
                while data := file.read(READ_SIZE):
                    if not self.bytes_read:
                        refuse_known_binary(self.path, data[:HEAD_SIZE], unpacked=is_compressed)
                    self.position = raw.tell()
                    self.bytes_read += len(data)
                    yield data
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BadInputError(
                f"{self.path}: broken gzip ({error}); copy or compress the file again"
            ) from error
        except OSError as error:
            raise BadInputError(f"{self.path}: cannot be read ({error})") from error

    def _decode(self, data: bytes, bytes_behind: int) -> str:
        first_byte = self.bytes_read - bytes_behind - len(data)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise BadInputError(
                f"{self.path}: not UTF-8 at byte {first_byte + error.start} of the text "
                f"({data[error.start]:#04x}); convert it, for example with iconv"
            ) from error
        if not first_byte:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


class CorpusReader:
    """Iterates over the parts of the documents of several files, in their order.

    Args:
        files: the files.
        document_separator: as of `DocumentReader`.

    Attributes:
        bytes_read: bytes of the files, as they lie on disk, read so far.
    """

    def __init__(self, files: Sequence[InputFile], document_separator: str | None = None) -> None:
        self.bytes_read = 0
        self._files = files
        self._separator = document_separator

    def __iter__(self) -> Iterator[TextPart]:
        """Yields parts.

        Raises:
            BadInputError: as `DocumentReader`.
        """
        before = 0  # bytes of the files that are read
        for file in self._files:
            reader = DocumentReader(file.path, self._separator)
            for part in reader:
                self.bytes_read = before + reader.position
                yield part
            before += file.size


def _character_boundary(data: bytes) -> int:
    """The last position where a UTF-8 character begins."""
    for length in range(1, 5):
        if data[-length] & 0xC0 != 0x80:
            return len(data) - length
    return len(data)

"""Reads the documents of text files in parts, and splits paragraphs into sentences.

Formats are recognised by content: gzip by its first two bytes; WikiExtractor's text, JSON lines and
plain text by the first line. Other known formats (Parquet, tables, web pages …) are refused by
name. Memory is bounded by `READ_SIZE` and, in JSON lines, by the longest line.
"""

import gzip
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Literal

from data_prep.text.formats import (
    TextPart,
    json_lines_parts,
    plain_text_parts,
    refuse_foreign_format,
    wikipedia_parts,
)
from data_prep.text.storage import open_to_read
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.kinds import HEAD_SIZE, refuse_known_binary
from spanbert_tf.files.text_files import GZIP_MAGIC
from spanbert_tf.text.sentences import Language, sentence_splitter

READ_SIZE = 2**20  # bytes
_BYTE_ORDER_MARK = "\ufeff"
_WIKIPEDIA_START = re.compile(r"\s*<doc [^\n]*>")
_JSON_LINES_START = re.compile(r'\s*\{(\s*"|\}[^\S\n]*\n\s*\{)')
_JSON_ARRAY_START = re.compile(r'\s*\[\s*(\{\s*"|"[^"\n]*"\s*,\s*")')


TextFormat = Literal["wikipedia", "json_lines", "compressed", "other"]


class DocumentReader:
    """Iterates over the documents of a file in parts.

    Args:
        path: path of a text file.
        document_separator: in plain text, a line equal to this begins a new document.
        start: the first byte to read, at which a document begins.
        stop: the byte after the last document to read; `None` for the end of the file.
        lines_before: lines of the file before `start`, for errors.

    Attributes:
        path: the path.
        bytes_read: bytes of text that were read so far, after decompression.
        position: bytes of the file that were read so far.
    """

    def __init__(
        self,
        path: str,
        document_separator: str | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        lines_before: int = 0,
    ) -> None:
        self.path = path
        self.bytes_read = 0
        self.position = 0
        self._separator = document_separator
        self._start = start
        self._stop = stop
        self._lines_before = lines_before

    def __iter__(self) -> Iterator[TextPart]:
        """Yields parts of about `READ_SIZE` bytes or less.

        Raises:
            BadInputError: the file cannot be read, is empty, or has another format.
        """
        blocks = self._blocks()
        first = next(blocks, "")
        if not first:
            raise BadInputError(f"{self.path}: is empty; remove it from the input")
        if _WIKIPEDIA_START.match(first):
            return wikipedia_parts(itertools.chain([first], blocks), self.path, self._lines_before)
        if _JSON_LINES_START.match(first):
            return json_lines_parts(itertools.chain([first], blocks), self.path, self._lines_before)
        if _JSON_ARRAY_START.match(first):
            raise BadInputError(
                f"{self.path}: is a JSON array; write one JSON object a line, with its text as "
                "`text`"
            )
        is_whole = self.bytes_read < READ_SIZE
        start = [first]
        if is_whole:  # a last line without a line end is a block of its own
            start += itertools.islice(blocks, 1)
        refuse_foreign_format(self.path, "".join(start), is_whole=is_whole)
        blocks = itertools.chain(start, blocks)
        return plain_text_parts(blocks, self.path, self._separator, READ_SIZE)

    def _blocks(self) -> Iterator[str]:
        """Yields text of whole lines. A line longer than `READ_SIZE` is cut into several blocks."""
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
            with open_to_read(self.path, self._start, self._stop) as raw:
                is_compressed = raw.read(2) == GZIP_MAGIC
                raw.seek(0)
                file = gzip.GzipFile(fileobj=raw) if is_compressed else raw
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
                f"{self.path}: not UTF-8 at byte {self._start + first_byte + error.start} of the "
                f"text ({data[error.start]:#04x}); convert it, for example with iconv"
            ) from error
        if not first_byte:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text


def find_format(path: str) -> TextFormat:
    """The format of a file, as far as it matters for cutting it into parts.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        with open_to_read(path) as file:
            head = file.read(HEAD_SIZE)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error})") from error
    if head.startswith(GZIP_MAGIC):
        return "compressed"
    beginning = head.decode(errors="replace").removeprefix(_BYTE_ORDER_MARK)
    if _WIKIPEDIA_START.match(beginning):
        return "wikipedia"
    if _JSON_LINES_START.match(beginning):
        return "json_lines"
    return "other"


def _character_boundary(data: bytes) -> int:
    """The last position at which a UTF-8 character begins."""
    for length in range(1, 5):
        if data[-length] & 0xC0 != 0x80:
            return len(data) - length
    return len(data)


def split_sentences(paragraphs: Sequence[str], language: Language) -> tuple[list[str], list[int]]:
    """Splits paragraphs into sentences.

    Args:
        paragraphs: texts without line ends.
        language: one of `spanbert_tf.text.sentences.LANGUAGES`.

    Returns:
        The sentences of all paragraphs, and the number of sentences of each paragraph. The
        concatenated sentences of a paragraph are the paragraph, character for character.
    """
    find_starts = sentence_splitter(language).find_starts
    sentences: list[str] = []
    counts: list[int] = []
    for paragraph in paragraphs:
        starts = find_starts(paragraph)
        borders = itertools.pairwise([*starts, len(paragraph)])
        sentences += [paragraph[start:end] for start, end in borders]
        counts.append(len(starts))
    return sentences, counts

"""Reads the documents of text files in parts, whatever the format, and splits their sentences.

Formats are recognised by content: gzip by its first two bytes; then WikiExtractor's text, JSON
lines or plain text by the first line. What else is known (Parquet, tables, web pages …) is refused
by name. Memory is bounded by READ_SIZE and, in JSON lines, by the longest line.
"""

import gzip
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

import sentencex

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

READ_SIZE = 2**20  # bytes
# An opening quotation mark without a closing one costs the splitter a look at all that follows:
# 100,000 in a row took 2 s, twice as many take four times as long. So it sees so many characters at
# once, and of these the last ones only as what follows.
_SEEN, _FOLLOWING = 30_000, 1_000
# The splitter takes text apart at bytes and fails where an initial ("J.") follows white space of
# more than one byte, so it is shown plain spaces.
_WIDE_SPACE = re.compile("[\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")
_BYTE_ORDER_MARK = "\ufeff"
_WIKIPEDIA_START = re.compile(r"\s*<doc [^\n]*>")
_JSON_LINES_START = re.compile(r'\s*\{(\s*"|\}[^\S\n]*\n\s*\{)')
_JSON_ARRAY_START = re.compile(r'\s*\[\s*(\{\s*"|"[^"\n]*"\s*,\s*")')


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
        """Yields parts of about `READ_SIZE` or less."""
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
                file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if is_compressed else raw
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


def _character_boundary(data: bytes) -> int:
    """The last position where a UTF-8 character begins."""
    for length in range(1, 5):
        if data[-length] & 0xC0 != 0x80:
            return len(data) - length
    return len(data)


def split_sentences(paragraphs: Sequence[str]) -> tuple[list[str], list[int]]:
    """Splits English paragraphs by rules (sentencex).

    Args:
        paragraphs: text without line ends.

    Returns:
        The sentences, and for each paragraph how many of them are its own. The sentences of a
        paragraph, put together, are the paragraph to the character.
    """
    sentences: list[str] = []
    counts: list[int] = []
    for paragraph in paragraphs:
        found = _split(paragraph)
        sentences += found
        counts.append(len(found))
    return sentences, counts


def _split(paragraph: str) -> list[str]:
    shown = paragraph if paragraph.isascii() else _WIDE_SPACE.sub(" ", paragraph)
    sentences = []
    start = 0
    for length in _lengths(shown):
        sentences.append(paragraph[start : start + length])
        start += length
    return sentences


def _lengths(text: str) -> Iterator[int]:
    """Characters of each sentence; one that is longer than what is seen at once is cut."""
    start = 0
    while len(text) - start > _SEEN:
        lengths = [len(found) for found in sentencex.segment("en", text[start : start + _SEEN])]
        ends = itertools.accumulate(lengths)
        num_whole = sum(end <= _SEEN - _FOLLOWING for end in ends)
        for length in lengths[: num_whole or 1]:
            yield length
            start += length
    for found in sentencex.segment("en", text[start:]):
        yield len(found)

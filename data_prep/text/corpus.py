"""Reads the documents of text files in parts, and splits paragraphs into sentences.

Formats are recognized by content: plain text, WikiExtractor's text, and tables (see
`spanbert_tf.files.tables`). Other known formats (web pages, archives …) are refused by name. Memory
is bounded by `READ_SIZE` and, in tables, by a batch of rows.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Literal

import numpy as np

from data_prep.text.formats import (
    COLUMN_ADVICE,
    RowParser,
    TextPart,
    looks_like_table,
    plain_text_parts,
    refuse_markup,
    wikipedia_parts,
    with_line_feeds,
)
from data_prep.text.storage import open_to_read
from spanbert_tf.errors import BadInputError
from spanbert_tf.files import compression
from spanbert_tf.files.compression import UnpackedFile
from spanbert_tf.files.kinds import HEAD_SIZE, refuse_known_binary
from spanbert_tf.files.tables import (
    DelimitedTable,
    Dialect,
    Table,
    find_dialect,
    is_json_lines,
    is_parquet,
    open_known_table,
)
from spanbert_tf.text.sentences import find_sentence_starts

READ_SIZE = 2**20  # bytes
_BYTE_ORDER_MARK = "\ufeff"
_WIKIPEDIA_START = re.compile(r"\s*<doc [^\n]*>")


# The format of a file of lines: WikiExtractor's text, plain text, or a table of this dialect.
LinesFormat = Literal["wikipedia", "plain"] | Dialect
TextFormat = LinesFormat | Literal["json_lines", "parquet", "compressed", "other"]


class DocumentReader:
    """Iterates over the documents of a file in parts.

    Args:
        path: path of a text file or a table.
        document_separator: in plain text, a line equal to this begins a new document.
        text_columns: names of the columns of text; see `RowParser`. If there are some, the file
            must be a table.
        start: position of the first byte to read, at which a document begins.
        stop: position of the byte after the last document to read; `None` for the end of the file.
        lines_before: number of lines in the file before `start`, for errors.
        row_range: for Parquet, the rows to read, counted from 0; `None` for all rows.
        lines_format: format of the file; `None` to recognize it by the content.
        header: the names of the columns, for a part of CSV or TSV that does not begin with them.

    Attributes:
        path: path of the file.
    """

    def __init__(
        self,
        path: str,
        document_separator: str | None = None,
        text_columns: Sequence[str] = (),
        *,
        start: int = 0,
        stop: int | None = None,
        lines_before: int = 0,
        row_range: range | None = None,
        lines_format: LinesFormat | None = None,
        header: Sequence[str] = (),
    ) -> None:
        self.path = path
        self._separator = document_separator
        self._start = start
        self._stop = stop
        self._lines_before = lines_before
        self._row_range = row_range
        self._format = lines_format
        self._header = header
        self._lines_read = lines_before
        self._text_columns = text_columns
        self._parser = RowParser(text_columns)
        self._content: UnpackedFile | None = None
        self._table: Table | None = None
        self._bytes_read = 0

    @property
    def bytes_read(self) -> int:
        """Bytes of text that were read so far, after decompression; for Parquet, bytes of cells."""
        return self._bytes_read if self._table is None else self._table.num_bytes

    @property
    def position(self) -> int:
        """Bytes of the file that were read so far."""
        if self._table is not None:
            return self._table.position
        return 0 if self._content is None else self._content.position

    @property
    def num_without_text(self) -> int:
        """Number of cells that had a null or a number in place of a text."""
        return self._parser.num_without_text

    def __iter__(self) -> Iterator[TextPart]:
        """Yields parts of about `READ_SIZE` bytes or less. Each row of a table is a part.

        Raises:
            BadInputError: the file cannot be read, is empty, or has another format.
        """
        try:
            with open_to_read(self.path, self._start, self._stop) as file:
                self._content = UnpackedFile(self.path, file)
                yield from self._parts(self._content, file)
        except OSError as error:
            raise BadInputError(f"{self.path}: cannot be read ({error})") from error

    def _parts(self, content: UnpackedFile, file: BinaryIO) -> Iterator[TextPart]:
        head = content.peek(1)
        if not head:
            raise BadInputError(f"{self.path}: is empty; remove it from the input")
        if self._format is None:
            self._table = open_known_table(
                content, self.path, file, self._lines_before, self._row_range
            )
        if self._table is None:
            lines_format = self._format or _format_of_lines(self.path, content, self._text_columns)
            if lines_format == "wikipedia":
                return wikipedia_parts(self._blocks(content), self.path, self._lines_before)
            if lines_format == "plain":
                return plain_text_parts(
                    self._blocks(content),
                    self.path,
                    self._separator,
                    READ_SIZE,
                    is_started=self._start > 0,
                )
            self._table = DelimitedTable(
                self.path, content, lines_format, self._lines_before, self._header
            )
        if not self._text_columns:
            self._table.advice = COLUMN_ADVICE
        self._table.may_lack_cells = True  # datatrove writes no empty text
        rows = self._table.rows(self._parser.columns, self._parser.optional)
        is_part = self._start > 0 or self._stop is not None or self._row_range is not None
        return self._parser.parts(rows, needs_text=not is_part)

    def _blocks(self, content: UnpackedFile) -> Iterator[str]:
        """Yields text of whole lines. A line longer than `READ_SIZE` is cut into several blocks."""
        rest = b""
        while data := content.read(READ_SIZE):
            self._bytes_read += len(data)
            data = rest + data
            end = data.rfind(b"\n") + 1
            if not end and len(data) > READ_SIZE:
                end = data.rfind(b" ") + 1 or _character_boundary(data)
            rest = data[end:]
            if end:
                yield self._decode(data[:end], len(rest))
        if rest:
            yield self._decode(rest, 0)

    def _decode(self, data: bytes, bytes_behind: int) -> str:
        first_byte = self._bytes_read - bytes_behind - len(data)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            line = self._lines_read + data.count(b"\n", 0, error.start) + 1
            raise BadInputError(
                f"{self.path}: line {line}: not UTF-8 at byte "
                f"{self._start + first_byte + error.start} of the "
                f"text ({data[error.start]:#04x}); convert it, for example with iconv"
            ) from error
        self._lines_read += data.count(b"\n")
        if not self._start + first_byte:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        return with_line_feeds(text)


def _format_of_lines(path: str, content: UnpackedFile, text_columns: Sequence[str]) -> LinesFormat:
    """Returns the format of a file that is text, or a table such as CSV or TSV.

    Args:
        path: path of the file, for errors.
        content: content of the file, of which nothing was read.
        text_columns: names of the columns of text. Without them, the file may be plain text.

    Raises:
        BadInputError: the format of the file is not supported, or a column is missing.
    """
    head = content.peek(1)
    refuse_known_binary(path, head[:HEAD_SIZE], unpacked=content.compression is not None)
    beginning = with_line_feeds(head.decode(errors="replace")).removeprefix(_BYTE_ORDER_MARK)
    if _WIKIPEDIA_START.match(beginning) and not text_columns:
        return "wikipedia"
    refuse_markup(path, beginning)
    is_whole = len(head) < compression.READ_SIZE
    if not text_columns and not looks_like_table(path, beginning, is_whole=is_whole):
        return "plain"
    return find_dialect(path, head, RowParser(text_columns).columns)


def find_format(path: str, text_columns: Sequence[str] = ()) -> TextFormat:
    """Returns the format of a file, as far as it matters for cutting the file into parts.

    Args:
        path: path of the file.
        text_columns: names of the columns of text; see `DocumentReader`.

    Raises:
        BadInputError: the file cannot be read, or its format is not supported.
    """
    try:
        with open_to_read(path) as file:
            content = UnpackedFile(path, file)
            if content.compression is not None:
                return "compressed"
            head = content.peek(1)
            if is_json_lines(head):
                return "json_lines"
            if is_parquet(head):
                return "parquet"
            if open_known_table(content, path, file) is not None:
                return "other"
            return _format_of_lines(path, content, text_columns)
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error})") from error


def find_header(path: str, dialect: Dialect) -> tuple[str, ...]:
    """Returns the names of the columns of a table such as CSV or TSV.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        with open_to_read(path) as file:
            _, header = next(DelimitedTable(path, UnpackedFile(path, file), dialect).lists())
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error})") from error
    return tuple(header)


def _character_boundary(data: bytes) -> int:
    """Returns the last position at which a UTF-8 character begins."""
    for length in range(1, 5):
        if data[-length] & 0xC0 != 0x80:
            return len(data) - length
    return len(data)


def split_sentences(paragraphs: Sequence[str], language: str) -> tuple[list[str], list[int]]:
    """Splits paragraphs into sentences.

    Args:
        paragraphs: texts without line ends.
        language: one of `spanbert_tf.text.languages.LANGUAGES`.

    Returns:
        The sentences of all paragraphs, and the number of sentences of each paragraph. The
        concatenated sentences of a paragraph are the paragraph, character for character.
    """
    text = "\n".join(paragraphs)
    starts = find_sentence_starts(text, language)
    sentences = []
    for start, end in itertools.pairwise([*starts, len(text)]):
        sentences.append(text[start:end].removesuffix("\n"))
    ends_of_paragraphs = np.cumsum([len(paragraph) + 1 for paragraph in paragraphs])
    counts = np.diff(np.searchsorted(starts, ends_of_paragraphs), prepend=0)
    return sentences, counts.tolist()

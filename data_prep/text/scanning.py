"""Finds where documents begin in ranges of bytes of large files, so that files can be cut there.

The ranges of a file are scanned independently. A range of CSV may begin inside or outside of
quotation marks. Only the ranges before it tell which, so it is scanned for both cases. The scan
relies on quotation marks as in RFC 4180: they stand around whole cells, and are doubled inside
them. Other CSV files are not cut. A scan finds the same documents as the reader of the format (see
`formats` and `spanbert_tf.files.tables`).
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from data_prep.text.corpus import READ_SIZE, TextFormat
from data_prep.text.formats import WIKIPEDIA_TAG
from data_prep.text.storage import InputFile, open_to_read
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import MOST_BYTES, Dialect

GROUP = 64  # documents
MOST_LINE_BYTES = READ_SIZE // 2  # of plain text: the reader cuts lines longer than `READ_SIZE`
_BYTE_ORDER_MARK = "\ufeff"
_LONE_RETURN = re.compile(r"\r(?!\n)")
_LONE_RETURN_BYTE = re.compile(rb"\r(?!\n)")
_JSON_OBJECT = re.compile(rb'\s*\{\s*"')
_SPACES = [character for character in map(chr, range(0x3001)) if character.isspace()]
_SPACE_IN_LINE = b"|".join(re.escape(each.encode()) for each in _SPACES if each != "\n")
_QUOTE, _LINE_FEED, _RETURN = b'"\n\r'


class Start(NamedTuple):
    """A place where a file can be cut.

    Attributes:
        byte: position of the first byte of a document.
        num_documents: number of documents that begin in the range before this byte.
        num_lines: number of line ends in the range before this byte.
    """

    byte: int
    num_documents: int
    num_lines: int


class RangeScan(NamedTuple):
    """The documents that begin in a range of bytes of a file.

    Attributes:
        num_documents: number of documents that begin in the range.
        num_lines: number of line ends of the lines that begin in the range.
        starts: the first places at which the file can be cut, at most `GROUP`.
        ends_quoted: whether the range ends inside quotation marks.
    """

    num_documents: int
    num_lines: int
    starts: tuple[Start, ...]
    ends_quoted: bool = False


class RangeScans(NamedTuple):
    """The scans of a range for both cases. If one is `None`, the file cannot be cut in that case.

    Attributes:
        unquoted: the scan if the range begins outside of quotation marks. Formats other than CSV
            have only this case.
        quoted: the scan if the range begins inside quotation marks.
    """

    unquoted: RangeScan | None
    quoted: RangeScan | None = None


def scan_range(
    file: InputFile, text_format: TextFormat, separator: str | None, start: int, stop: int
) -> RangeScans:
    """Counts the documents that begin in a range, and finds places at which to cut.

    Args:
        file: the file.
        text_format: format of the file.
        separator: in plain text, a line equal to this begins a new document.
        start: position of the first byte of the range.
        stop: position of the byte after the range.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        with open_to_read(file.path) as content:
            if isinstance(text_format, Dialect):
                return _scan_rows(content, text_format, start, stop)
            if text_format == "plain":
                return RangeScans(_scan_plain_text(content, separator or "", start, stop))
            find: _Find = _find_json_lines
            if text_format == "wikipedia":
                find = _WikipediaStarts(is_beginning=start == 0)
            return RangeScans(_scan_lines(content, find, start, stop))
    except _LongLineError:
        return RangeScans(None)
    except OSError as error:
        raise BadInputError(f"{file.path}: cannot be read ({error})") from error


class _LongLineError(Exception):
    """A line is too long to be held in memory, so the file is not cut."""


_Find = Callable[[Sequence[bytes]], Iterator[tuple[int, int, bool]]]


def _scan_lines(content: BinaryIO, find: _Find, start: int, stop: int) -> RangeScan:
    """Scans a format in which single lines show where documents begin."""
    num_documents = 0
    num_lines = 0
    starts: list[Start] = []
    for position, lines in _read_lines(content, start, stop):
        for byte, line, can_be_cut in find(lines):
            if can_be_cut and len(starts) < GROUP:
                starts.append(Start(position + byte, num_documents, num_lines + line))
            num_documents += 1
        num_lines += len(lines)
    return RangeScan(num_documents, num_lines, tuple(starts))


def _read_lines(content: BinaryIO, start: int, stop: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the lines that begin in a range, about `READ_SIZE` bytes at a time, and their place.

    Raises:
        _LongLineError: a line has more than `MOST_BYTES`.
    """
    position = start
    if start:
        content.seek(start - 1)
        position += len(_read_line(content)) - 1
    while position < stop:
        lines = []
        num_bytes = 0
        while position + num_bytes < stop and num_bytes < READ_SIZE:
            line = _read_line(content)
            if not line:  # the file has become shorter; an error is raised at the end of the job
                break
            lines.append(line)
            num_bytes += len(line)
        if not lines:
            return
        yield position, lines
        position += num_bytes


def _read_line(content: BinaryIO) -> bytes:
    line = content.readline(MOST_BYTES + 1)
    if len(line) > MOST_BYTES:
        raise _LongLineError
    return line


def _find_json_lines(lines: Sequence[bytes]) -> Iterator[tuple[int, int, bool]]:
    """Yields the first byte and the line of each document, and whether the file can be cut there.

    Each line that is not blank is a document.
    """
    byte = 0
    for number, line in enumerate(lines):
        if _is_text(line):
            yield byte, number, _JSON_OBJECT.match(line) is not None
        byte += len(line)


def _is_text(line: bytes) -> bool:
    """Whether a line has more than white space and a byte order mark."""
    if line.startswith(b"{"):
        return True
    return bool(line.decode(errors="replace").removeprefix(_BYTE_ORDER_MARK).strip())


class _WikipediaStarts:
    """Finds the documents of WikiExtractor's text.

    The parser accepts a document that begins before the previous one has ended, so a file is only
    cut where the previous tag is `</doc>`.

    Args:
        is_beginning: whether the first lines are those of the file.
    """

    def __init__(self, *, is_beginning: bool) -> None:
        self._is_beginning = is_beginning
        self._is_outside = False

    def __call__(self, lines: Sequence[bytes]) -> Iterator[tuple[int, int, bool]]:
        """As `_find_json_lines`."""
        text = b"".join(lines).decode(errors="replace")
        byte = 0
        if self._is_beginning and text.startswith(_BYTE_ORDER_MARK):
            text = text.removeprefix(_BYTE_ORDER_MARK)
            byte = len(_BYTE_ORDER_MARK.encode())
        self._is_beginning = False
        if "\r" in text:
            text = _LONE_RETURN.sub("\n", text)
        line = 0
        before = 0
        for tag in WIKIPEDIA_TAG.finditer(text):
            if tag["attributes"] is None:
                self._is_outside = True
                continue
            byte += len(text[before : tag.start()].encode())
            line += text.count("\n", before, tag.start())
            before = tag.start()
            yield byte, line, self._is_outside
            self._is_outside = False


def _scan_plain_text(content: BinaryIO, separator: str, start: int, stop: int) -> RangeScan | None:
    """Scans plain text for lines that equal the separator.

    Separators before the first text of a file end no document. If the first range has no text, the
    later ranges could not know this, so the result is `None`.
    """
    line = re.compile(rb"\n" + re.escape(separator.encode("utf-8", "surrogateescape")))
    end = re.compile(rb"(?:%b)*+(?=\n)" % _SPACE_IN_LINE)
    is_started = start > 0
    num_documents = 0
    num_lines = 0
    starts: list[Start] = []
    for position, block in _read_blocks(content, start, stop):
        before = len(_BYTE_ORDER_MARK.encode()) if _begins_with_mark(position, block) else 0
        text = b"\n" + block[before:]  # so that each line follows a line feed
        offset = before - 1
        if b"\r" in text:
            text = _LONE_RETURN_BYTE.sub(b"\n", text)
        document = 1
        for found in line.finditer(text):
            rest = end.match(text, found.end())
            if not rest:
                continue
            if not is_started:
                is_started = bool(text[document : found.start()].decode(errors="replace").strip())
                num_documents += is_started
            document = rest.end() + 1
            if not is_started:
                continue
            if len(starts) < GROUP:
                byte = offset + document
                num_before = num_lines + block.count(b"\n", 0, byte)
                starts.append(Start(position + byte, num_documents, num_before))
            num_documents += 1
        if not is_started:
            is_started = bool(text[document:].decode(errors="replace").strip())
            num_documents += is_started
        num_lines += block.count(b"\n")
    return RangeScan(num_documents, num_lines, tuple(starts)) if is_started else None


def _begins_with_mark(position: int, block: bytes) -> bool:
    return position == 0 and block.startswith(_BYTE_ORDER_MARK.encode())


def _read_blocks(content: BinaryIO, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Yields the bytes of the lines that begin in a range, many lines at a time, and their place.

    Raises:
        _LongLineError: `MOST_LINE_BYTES` bytes in a row have no line end.
    """
    position = max(start - 1, 0)  # of the first byte that was not yielded
    content.seek(position)
    is_inside = start > 0  # whether `position` is in a line that begins before the range
    waiting = b""
    while position < stop:
        data = content.read(MOST_LINE_BYTES)
        waiting += data
        if not data:
            yield position, b"" if is_inside else waiting
            return
        if b"\n" not in data and len(data) == MOST_LINE_BYTES:
            raise _LongLineError
        if is_inside:
            length = waiting.find(b"\n") + 1
            if not length:
                continue
            position += length
            waiting = waiting[length:]
            is_inside = False
        # The last line that begins in the range ends at or behind its last byte.
        length = waiting.rfind(b"\n") + 1
        if position + length > stop:
            length = waiting.find(b"\n", max(stop - position - 1, 0)) + 1
        if length and position < stop:
            yield position, waiting[:length]
            position += length
            waiting = waiting[length:]


class _RangeBytes(NamedTuple):
    """The bytes of a range, with the byte before and the byte after it.

    Attributes:
        data: uint8 [n]. At the beginning of the file (after its byte order mark) and at its end,
            where there is no such byte, it is a line feed.
        place: position of `data[0]` in the file.
        is_beginning: whether the range is the first of the file.
    """

    data: np.ndarray
    place: int
    is_beginning: bool


def _read_range(content: BinaryIO, start: int, stop: int) -> _RangeBytes:
    first = max(start - 1, 0)
    content.seek(first)
    data = content.read(stop + 1 - first)
    if first + len(data) <= stop:
        data += b"\n"
    if not start:
        if data.startswith(_BYTE_ORDER_MARK.encode()):
            first = len(_BYTE_ORDER_MARK.encode())
        data = b"\n" + data[first:]
        first -= 1
    return _RangeBytes(np.frombuffer(data, np.uint8), first, start == 0)


def _scan_rows(content: BinaryIO, dialect: Dialect, start: int, stop: int) -> RangeScans:
    """Scans CSV, TSV and similar tables. The row with the names of the columns is no document."""
    read = _read_range(content, start, stop)
    if not dialect.has_quotes:
        return RangeScans(_scan_unquoted(read))
    unquoted = _scan_quoted(read, dialect.delimiter, is_quoted=False)
    if read.is_beginning:
        return RangeScans(unquoted)
    return RangeScans(unquoted, _scan_quoted(read, dialect.delimiter, is_quoted=True))


def _scan_quoted(read: _RangeBytes, delimiter: str, *, is_quoted: bool) -> RangeScan | None:
    """Scans rows of quoted cells; returns `None` if a quotation mark stands inside a plain cell.

    Every second quotation mark opens a cell, or continues it after a doubled mark. Line ends that
    are outside of quoted cells end rows. Empty rows do not count.
    """
    data = read.data
    marks = np.flatnonzero(data[1:-1] == _QUOTE) + 1
    opening = marks[int(is_quoted) :: 2]
    closing = marks[1 - int(is_quoted) :: 2]
    may_be_beside = np.zeros(256, bool)
    may_be_beside[[_QUOTE, _LINE_FEED, _RETURN, ord(delimiter)]] = True
    if not (may_be_beside[data[opening - 1]].all() and may_be_beside[data[closing + 1]].all()):
        return None
    is_end = data[1:-1] == _LINE_FEED
    is_end |= (data[1:-1] == _RETURN) & (data[2:] != _LINE_FEED)
    line_ends = np.flatnonzero(is_end) + 1
    row_ends = line_ends[(np.searchsorted(marks, line_ends) + is_quoted) % 2 == 0]
    if read.is_beginning:
        row_ends = np.concatenate([[0], row_ends])
    rows = row_ends + 1
    rows = rows[(data[rows] != _LINE_FEED) & (data[rows] != _RETURN)]
    if read.is_beginning:
        if not len(rows):
            return None
        rows = rows[1:]
    lines_before = np.searchsorted(line_ends, rows[:GROUP])
    starts = tuple(
        Start(read.place + int(row), number, int(line))
        for number, (row, line) in enumerate(zip(rows[:GROUP], lines_before, strict=True))
    )
    ends_quoted = (len(marks) + is_quoted) % 2 == 1
    return RangeScan(len(rows), len(line_ends), starts, ends_quoted)


def _scan_unquoted(read: _RangeBytes) -> RangeScan:
    """Scans a table in which each line is a row.

    Blank lines count as rows, except at the end of the text that is read. Therefore the file is
    only cut between two lines that are not blank.
    """
    data = read.data
    line_ends = np.flatnonzero(data[1:-1] == _LINE_FEED) + 1
    rows = line_ends + 1
    starts: list[Start] = []
    text = data.tobytes()
    for index in range(1, len(rows) - 1):
        if len(starts) == GROUP:
            break
        before, row, behind = rows[index - 1 : index + 2].tolist()
        if _is_text(text[before:row]) and _is_text(text[row:behind]):
            starts.append(Start(read.place + row, index, index + 1))
    return RangeScan(len(line_ends), len(line_ends), tuple(starts))

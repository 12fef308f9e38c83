"""Cuts large files into parts at documents, so that several processes read one file.

A first pass counts the documents of equal ranges of bytes (`scan_range`), since record ids depend
on the number of a document in its file. The parts (`cut_file`) begin at documents whose numbers
are multiples of `GROUP`; up to there pairs balance their labels. So neither the ranges nor the
number of processes changes a record. Parquet says itself how many rows its row groups have
(`cut_parquet`).
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple

from data_prep.text.corpus import READ_SIZE, DocumentReader, TextFormat
from data_prep.text.formats import WIKIPEDIA_TAG
from data_prep.text.storage import InputFile, open_to_read
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import find_row_groups

RANGE_BYTES = 16 * 2**20
GROUP = 64  # documents
_BYTE_ORDER_MARK = "\ufeff"
_LONE_RETURN = re.compile(r"\r(?!\n)")
_JSON_OBJECT = re.compile(rb'\s*\{\s*"')


class FilePart(NamedTuple):
    """Whole documents of an input file, one after another.

    Attributes:
        file: the file.
        start: its first byte.
        stop: the byte after it; `None` for the end of the file.
        first_document: the number of its first document in the file.
        lines_before: line ends of the file before the part.
        row_range: of Parquet, its rows, counted from 0; `None` for all. Its bytes are about those
            of the row groups.
    """

    file: InputFile
    start: int = 0
    stop: int | None = None
    first_document: int = 0
    lines_before: int = 0
    row_range: range | None = None

    @property
    def size(self) -> int:
        """Its bytes."""
        stop = self.file.size if self.stop is None else self.stop
        return stop - self.start


def read_part(
    part: FilePart, document_separator: str | None = None, text_columns: Sequence[str] = ()
) -> DocumentReader:
    """Returns a reader of the documents of a part."""
    if part.row_range is not None:
        return DocumentReader(
            part.file.path, document_separator, text_columns, row_range=part.row_range
        )
    return DocumentReader(
        part.file.path,
        document_separator,
        text_columns,
        start=part.start,
        stop=part.stop,
        lines_before=part.lines_before,
    )


class Start(NamedTuple):
    """A place where a file can be cut.

    Attributes:
        byte: the first byte of a document.
        num_documents: documents of the range before it.
        num_lines: line ends of the range before it.
    """

    byte: int
    num_documents: int
    num_lines: int


class RangeScan(NamedTuple):
    """What was found in a range of bytes of a file.

    Attributes:
        num_documents: documents that begin in the range.
        num_lines: line ends of the lines that begin in the range.
        starts: the first places at which the file can be cut.
    """

    num_documents: int
    num_lines: int
    starts: tuple[Start, ...]


def ranges_of(file: InputFile) -> list[tuple[int, int]]:
    """First byte and end of each range of a file."""
    bounds = [*range(0, file.size, RANGE_BYTES), file.size]
    return list(itertools.pairwise(bounds))


def scan_range(file: InputFile, text_format: TextFormat, start: int, stop: int) -> RangeScan:
    """Counts the documents that begin in a range, and finds where the first of them begin.

    Args:
        file: the file.
        text_format: its format.
        start: the first byte of the range.
        stop: the byte after the range.

    Raises:
        BadInputError: the file cannot be read.
    """
    num_documents = 0
    num_lines = 0
    starts: list[Start] = []
    find: Callable[[Sequence[bytes]], Iterator[tuple[int, int, bool]]]
    if text_format == "wikipedia":
        find = _WikipediaStarts(is_beginning=start == 0)
    else:
        find = _find_json_lines
    try:
        with open_to_read(file.path) as content:
            for position, lines in _read_lines(content, start, stop):
                for byte, line, can_be_cut in find(lines):
                    if can_be_cut and len(starts) < GROUP:
                        starts.append(Start(position + byte, num_documents, num_lines + line))
                    num_documents += 1
                num_lines += len(lines)
    except OSError as error:
        raise BadInputError(f"{file.path}: cannot be read ({error})") from error
    return RangeScan(num_documents, num_lines, tuple(starts))


def _read_lines(content: BinaryIO, start: int, stop: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yields the lines that begin in a range, about `READ_SIZE` bytes at once, and their place."""
    position = start
    if start:
        content.seek(start - 1)
        position += len(content.readline()) - 1
    while position < stop:
        lines = []
        num_bytes = 0
        while position + num_bytes < stop and num_bytes < READ_SIZE:
            line = content.readline()
            if not line:  # the file has become shorter, which is noticed at the end
                break
            lines.append(line)
            num_bytes += len(line)
        if not lines:
            return
        yield position, lines
        position += num_bytes


def _find_json_lines(lines: Sequence[bytes]) -> Iterator[tuple[int, int, bool]]:
    """Yields the first byte and the line of each document, and whether to cut there.

    The documents of JSON lines are the lines that are not blank.
    """
    byte = 0
    for number, line in enumerate(lines):
        if _is_text(line):
            yield byte, number, _JSON_OBJECT.match(line) is not None
        byte += len(line)


def _is_text(line: bytes) -> bool:
    """Whether a line is more than white space and a byte order mark."""
    if line.startswith(b"{"):
        return True
    return bool(line.decode(errors="replace").removeprefix(_BYTE_ORDER_MARK).strip())


class _WikipediaStarts:
    """Finds the documents of WikiExtractor's text.

    The parser lets a document begin before the one before it has ended, so a file is only cut where
    the tag before is `</doc>`.

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


def cut_parquet(file: InputFile) -> list[FilePart]:
    """Cuts a Parquet file into parts of about `RANGE_BYTES` or more.

    A part ends in another row group than it begins in, so that few rows are decoded twice.

    Args:
        file: the file.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        with open_to_read(file.path) as content:
            row_groups = find_row_groups(file.path, content)
    except OSError as error:
        raise BadInputError(f"{file.path}: cannot be read ({error})") from error
    parts = []
    first_row = 0
    first_byte = 0
    row = 0
    byte = 0
    for num_rows, num_bytes in row_groups:
        cut = -(-row // GROUP) * GROUP
        if byte - first_byte >= RANGE_BYTES and row <= cut < row + num_rows:
            row_range = range(first_row, cut)
            parts.append(FilePart(file, first_byte, byte, first_row, row_range=row_range))
            first_row = cut
            first_byte = byte
        row += num_rows
        byte += num_bytes
    parts.append(FilePart(file, first_byte, None, first_row, row_range=range(first_row, row)))
    return parts


def cut_file(file: InputFile, scans: Sequence[RangeScan]) -> list[FilePart]:
    """Cuts a file into about as many parts as ranges were scanned.

    Args:
        file: the file.
        scans: those of all its ranges, in order.
    """
    parts = [FilePart(file)]
    num_documents = 0
    num_lines = 0
    for scan in scans:
        for start in scan.starts:
            document = num_documents + start.num_documents
            if document and document % GROUP == 0:
                parts[-1] = parts[-1]._replace(stop=start.byte)
                lines_before = num_lines + start.num_lines
                parts.append(FilePart(file, start.byte, None, document, lines_before))
                break
        num_documents += scan.num_documents
        num_lines += scan.num_lines
    return parts

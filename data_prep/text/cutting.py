"""Cuts large files into parts at documents, so that several processes can read one file.

A first pass counts the documents in ranges of equal size (`scanning`), because record ids depend on
the index of a document in its file. Each part (`cut_file`) begins at a document whose index is a
multiple of `GROUP`, because pairs balance their labels within groups of `GROUP` documents.
Therefore neither the ranges nor the number of processes changes a record. Parquet files state how
many rows their row groups have (`cut_parquet`).
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from data_prep.text.corpus import DocumentReader, LinesFormat, TextFormat, find_header
from data_prep.text.scanning import GROUP, MOST_LINE_BYTES, RangeScans
from data_prep.text.storage import InputFile, open_to_read
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import Dialect, find_row_groups

RANGE_BYTES = 16 * 2**20


class FilePart(NamedTuple):
    """A part of an input file: consecutive whole documents.

    Attributes:
        file: the file.
        start: position of the first byte of the part.
        stop: position of the byte after the part; `None` for the end of the file.
        first_document: index of the first document of the part in the file.
        lines_before: number of line ends in the file before the part.
        row_range: for Parquet, the rows of the part, counted from 0; `None` for all rows. `start`
            and `stop` are then approximate, from the sizes of the row groups.
        lines_format: format of the lines; `None` if the content of the part shows it.
        header: for CSV and TSV, the names of the columns, if the part does not begin with them.
    """

    file: InputFile
    start: int = 0
    stop: int | None = None
    first_document: int = 0
    lines_before: int = 0
    row_range: range | None = None
    lines_format: LinesFormat | None = None
    header: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Size of the part in bytes."""
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
        lines_format=part.lines_format,
        header=part.header,
    )


def ranges_of(file: InputFile) -> list[tuple[int, int]]:
    """Returns the start and the stop of each range of a file, in bytes."""
    bounds = [*range(0, file.size, RANGE_BYTES), file.size]
    return list(itertools.pairwise(bounds))


def cut_parquet(file: InputFile) -> list[FilePart]:
    """Cuts a Parquet file into parts of about `RANGE_BYTES` or more.

    A part does not end in the row group in which it begins, so that few rows are decoded twice.

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


def why_whole(text_format: TextFormat, separator: str | None) -> str | None:
    """Returns why files of a format are never cut; `None` if they may be cut.

    Args:
        text_format: the format.
        separator: in plain text, a line equal to this begins a new document.
    """
    if text_format == "compressed":
        return "it is compressed"
    if text_format == "other":
        return "JSON arrays and Arrow are not cut"
    if text_format == "plain" and separator is None:
        return "plain text is one document without --document-separator"
    if text_format == "plain" and separator and re.search(r"[\r\n]", separator):
        return "--document-separator has more than one line"
    return None


def why_not_cut(text_format: TextFormat) -> str:
    """Returns why a file was not cut although its format allows it."""
    found = f"it has few documents, since it is cut before each {GROUP}th only"
    if text_format == "parquet":
        return "its rows are in one group"
    if text_format == "plain":
        return f"{found}, or a line of more than {MOST_LINE_BYTES >> 10} KiB"
    if isinstance(text_format, Dialect):
        return f"{found}, or a cell with quotation marks that does not have them around it"
    return found


def cut_file(
    file: InputFile, text_format: TextFormat, scans: Sequence[RangeScans]
) -> list[FilePart]:
    """Cuts a file into about as many parts as it has ranges.

    Args:
        file: the file.
        text_format: format of the file.
        scans: the scans of all ranges of the file, in order.

    Returns:
        The parts. It is one part, the whole file, if a range could not be scanned: a quotation mark
        of CSV stands inside a cell that is not quoted, or a line is too long.

    Raises:
        BadInputError: the file cannot be read.
    """
    whole = FilePart(file)
    parts = [whole]
    header: tuple[str, ...] = ()
    if text_format in ("wikipedia", "plain") or isinstance(text_format, Dialect):
        parts = [whole._replace(lines_format=text_format)]
    if isinstance(text_format, Dialect):
        header = find_header(file.path, text_format)
    num_documents = 0
    num_lines = 0
    is_quoted = False
    for both in scans:
        scan = both.quoted if is_quoted else both.unquoted
        if scan is None:
            return [whole]
        for start in scan.starts:
            document = num_documents + start.num_documents
            if document and document % GROUP == 0 and start.byte < file.size:
                lines_before = num_lines + start.num_lines
                following = parts[-1]._replace(
                    start=start.byte,
                    first_document=document,
                    lines_before=lines_before,
                    header=header,
                )
                parts[-1] = parts[-1]._replace(stop=start.byte)
                parts.append(following)
                break
        num_documents += scan.num_documents
        num_lines += scan.num_lines
        is_quoted = scan.ends_quoted
    return parts if len(parts) > 1 else [whole]

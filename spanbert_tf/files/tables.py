"""Reads tables row by row: CSV, TSV, JSON lines and JSON arrays, Parquet and Arrow.

The content of a file tells its format, and not its name. Text formats may be compressed (see
`compression`). Memory is bounded by a batch of rows, and by the longest row.

Importing this module imports neither TensorFlow nor pyarrow.
"""

import abc
import contextlib
import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeVar

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.compression import READ_SIZE, UnpackedFile
from spanbert_tf.files.contents import is_file_name, refuse_device
from spanbert_tf.files.kinds import HEAD_SIZE, refuse_known_binary

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

MOST_BYTES = 2**27  # of a line, of an object in an array, and of a cell
_ROWS_AT_ONCE = 1024
_BATCH_BYTES = 2**22
_BYTE_ORDER_MARK = "\ufeff"
_MISSING = object()  # in place of the value of a column that is not there
_NO_SPACE = re.compile(r"\S")
_FEWEST_ROWS = 3
_MOST_ROWS_WITHOUT = 1000  # rows of JSON at the beginning of a file that may all lack a column
_MOST_SHOWN_NAMES = 20
_LONGEST_SHOWN_NAME = 40  # characters
_PARQUET = b"PAR1"
_ARROW_FILE = b"ARROW1\0\0"
_ARROW_STREAM = b"\xff\xff\xff\xff"
_JSON_LINES = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{(\s*"|\}[^\S\n]*\n\s*\{)')
_JSON_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?\s*\[\s*\{")
_EMPTY_ARRAY = re.compile(rb"\s*\[\s*\]\s*")
_JSON_TEXTS = re.compile(rb'(?:\xef\xbb\xbf)?\s*\[\s*"[^"\n]*"\s*,\s*"')
# Files of a folder that `datasets` has saved, of one split and of several.
_STATE_FILE = "state.json"
_SPLITS_FILE = "dataset_dict.json"


class Row(NamedTuple):
    """A row of a table.

    Attributes:
        path: path of the file.
        unit: what `number` counts: `"line"`, `"row"` or `"entry"`.
        number: number of the row, from 1; of CSV and JSON lines, that of its first line.
        values: column → value. The cells of CSV and TSV are texts.
    """

    path: str
    unit: str
    number: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        """The row's place for errors: `FILE: line 3`."""
        return f"{self.path}: {self.unit} {self.number}"


class Dialect(NamedTuple):
    """How cells are separated in CSV, TSV and the like.

    Attributes:
        delimiter: the character between two cells.
        has_quotes: whether quotation marks enclose cells as in RFC 4180, or are text.
    """

    delimiter: str
    has_quotes: bool


# In the order in which they are tried. Quotation marks are text in most files with tabs, but not in
# those with doubled ones in quoted cells, as pandas and Excel write them.
DIALECTS = (
    Dialect(",", has_quotes=True),
    Dialect("\t", has_quotes=False),
    Dialect("\t", has_quotes=True),
    Dialect(";", has_quotes=True),
    Dialect("|", has_quotes=True),
)


class Table(abc.ABC):
    """A table that is read once, row by row.

    Args:
        path: path of the file, for errors.

    Attributes:
        path: the same.
        unit: see `Row`.
        num_bytes: bytes of the content that were read so far.
        position: bytes of the stored file that were read so far.
        advice: what to do where a column is missing, for the error.
        may_lack_cells: whether objects of JSON may lack a column that another one has; its value is
            `None` then.
    """

    unit = "line"
    advice = ""
    may_lack_cells = False

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    @abc.abstractmethod
    def num_bytes(self) -> int:
        """See the class."""

    @property
    @abc.abstractmethod
    def position(self) -> int:
        """See the class."""

    @abc.abstractmethod
    def rows(self, columns: Sequence[str] | None, optional: Sequence[str] = ()) -> Iterator[Row]:
        """Yields the rows.

        Args:
            columns: names of the columns to read, the values of objects in a cell joined by dots
                (`metadata.title`); `None` for all of them.
            optional: names of further columns, which may be missing.

        Raises:
            BadInputError: a column is missing, or a row cannot be read.
        """

    def _refuse_missing(self, name: str, names: Iterable[str], place: str) -> None:
        advice = f"; {self.advice}" if self.advice else ""
        raise BadInputError(f"{place}: has no column {name!r}; it has {shown_names(names)}{advice}")


def shown_names(names: Iterable[str]) -> str:
    """Lists names of columns for an error."""
    names = list(names)
    shown = []
    for name in names[:_MOST_SHOWN_NAMES]:
        if len(name) > _LONGEST_SHOWN_NAME:
            name = f"{name[:_LONGEST_SHOWN_NAME]}…"
        shown.append(" ".join(name.split()) or "''")
    if len(names) > len(shown):
        shown.append(f"and {len(names) - len(shown)} more")
    return ", ".join(shown) or "no columns"


def open_table(
    path: str, file: BinaryIO, columns: Sequence[str] | None = None, *, is_limited: bool = False
) -> Table:
    """Opens a table of any format.

    Args:
        path: path of the file, for errors.
        file: the file, open at its beginning. It stays open while the rows are read.
        columns: columns that a file of text must have if it is neither JSON lines nor a JSON array;
            they tell what separates its cells. `None`: such a file is refused.
        is_limited: see `UnpackedFile`.

    Raises:
        BadInputError: the file is empty or damaged, or is no table.
    """
    content = UnpackedFile(path, file, is_limited=is_limited)
    return open_table_of(content, path, file, columns)


def open_table_of(
    content: UnpackedFile, path: str, file: BinaryIO, columns: Sequence[str] | None = None
) -> Table:
    """Opens a table whose content is open already; the arguments are those of `open_table`."""
    head = content.peek(1)
    if not head:
        raise BadInputError(f"{path}: is empty; remove it from the input")
    table = open_known_table(content, path, file)
    if table is not None:
        return table
    is_compressed = content.compression is not None
    refuse_known_binary(path, head[:HEAD_SIZE], unpacked=is_compressed)
    if _EMPTY_ARRAY.fullmatch(head):
        return _JsonArray(path, content)
    if columns is None:
        raise BadInputError(f"{path}: is neither JSON lines, a JSON array, Parquet nor Arrow")
    return DelimitedTable(path, content, find_dialect(path, head, columns))


def open_known_table(
    content: UnpackedFile,
    path: str,
    file: BinaryIO,
    lines_before: int = 0,
    row_range: range | None = None,
) -> Table | None:
    """Opens Parquet, Arrow, JSON lines or a JSON array; other files give `None`.

    Args:
        content: the content of the file, of which nothing was read.
        path: path of the file, for errors.
        file: the file itself, in which Parquet is searched.
        lines_before: lines of the file before the content, if this is a part of JSON lines.
        row_range: of Parquet, the rows to read, counted from 0; `None` for all.

    Raises:
        BadInputError: the file is damaged, or is Parquet and compressed as a whole.
    """
    head = content.peek(1)
    if head.startswith((_PARQUET, _ARROW_FILE)):
        if content.compression is not None or not file.seekable():
            return None  # it needs a file in which it can be searched: it is refused by its name
        if head.startswith(_PARQUET):
            return _ParquetTable(path, file, row_range)
        return _ArrowFile(path, file)
    if head.startswith(_ARROW_STREAM):
        return _ArrowStream(path, content)
    if is_json_lines(head):
        return _JsonLines(path, content, lines_before)
    if _JSON_ARRAY.match(head):
        return _JsonArray(path, content)
    if _JSON_TEXTS.match(head):
        raise BadInputError(
            f"{path}: is a JSON array of texts; write an array of objects, or one object a line, "
            "with its text as `text`"
        )
    return None


def is_parquet(head: bytes) -> bool:
    """Whether a file that begins with `head` is Parquet."""
    return head.startswith(_PARQUET)


def find_row_groups(path: str, file: BinaryIO) -> list[tuple[int, int]]:
    """The row groups of a Parquet file: the rows and the stored bytes of each.

    Raises:
        BadInputError: the file is damaged.
    """
    return _ParquetTable(path, file).row_groups()


def is_json_lines(head: bytes) -> bool:
    """Whether a file that begins with `head` is JSON lines."""
    return _JSON_LINES.match(head) is not None


def read_rows(
    path: str, columns: Sequence[str] | None = None, optional: Sequence[str] = ()
) -> Iterator[Row]:
    """Reads a table of a task, which will be held in memory.

    Args:
        path: path of the file, or of a folder that `datasets` has saved (`save_to_disk`).
        columns: see `Table.rows`.
        optional: see `Table.rows`.

    Raises:
        BadInputError: the file cannot be read, is no table, or lacks a column.
    """
    if not os.path.isdir(path):
        yield from _rows_of_file(path, columns, optional)
        return
    number = 0
    for part in files_of_dataset(path):
        for row in _rows_of_file(part, columns, optional):
            number += 1
            yield Row(path, row.unit, number, row.values)


def read_objects(path: str, kind: type[T]) -> list[T]:
    """Reads a table whose rows are objects of one type.

    Args:
        path: see `read_rows`.
        kind: type of each row, such as a `TypedDict`; see `check_json_value`.

    Raises:
        BadInputError: the table cannot be read, or a row has another type.
    """
    from spanbert_tf.files.text_files import check_json_value

    return [check_json_value(row.values, kind, row.place) for row in read_rows(path)]


def read_lists(path: str, dialect: Dialect) -> list[tuple[int, list[str]]]:
    """Reads rows of cells in a known dialect, whose first row may name the columns or not.

    Args:
        path: path of the file.
        dialect: how cells are separated.

    Returns:
        The number of the first line and the cells of each row.

    Raises:
        BadInputError: the file cannot be read, is empty, or has another format.
    """
    with open_input(path) as file:
        content = UnpackedFile(path, file, is_limited=True)
        is_compressed = content.compression is not None
        refuse_known_binary(path, content.peek(1)[:HEAD_SIZE], unpacked=is_compressed)
        rows = list(DelimitedTable(path, content, dialect).lists())
    if not rows:
        raise BadInputError(f"{path}: is empty")
    return rows


def _rows_of_file(
    path: str, columns: Sequence[str] | None, optional: Sequence[str]
) -> Iterator[Row]:
    with open_input(path) as file:
        table = open_table(path, file, columns, is_limited=True)
        yield from table.rows(columns, optional)


@contextlib.contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """Opens a file or a pipe to read its bytes.

    Raises:
        BadInputError: there is no such file, or it cannot be read.
    """
    refuse_device(path)
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise BadInputError(f"{path}: no such file") from error
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({reason(error)})") from error


def is_columnar(path: str) -> bool:
    """Whether a path is Parquet, Arrow, or a folder that `datasets` has saved."""
    if os.path.isdir(path):
        return is_saved_dataset(path)
    try:
        with open(path, "rb") as file:
            if not file.seekable():  # what is read of a pipe is gone
                return False
            head = UnpackedFile(path, file).peek(1)
    except OSError:  # the code that reads the file reports it
        return False
    return head.startswith((_PARQUET, _ARROW_FILE, _ARROW_STREAM))


def is_saved_dataset(directory: str) -> bool:
    """Whether a directory was saved by `datasets`."""
    names = (_STATE_FILE, _SPLITS_FILE)
    return any(os.path.isfile(os.path.join(directory, name)) for name in names)


def files_of_dataset(directory: str) -> list[str]:
    """The files of a folder that `Dataset.save_to_disk` has written, in their order.

    Raises:
        BadInputError: it is no such folder, or it has several splits.
    """
    if os.path.isfile(os.path.join(directory, _SPLITS_FILE)):
        folders = [entry.name for entry in os.scandir(directory) if entry.is_dir()]
        example = os.path.join(directory, min(folders, default="train"))
        raise BadInputError(
            f"{directory}: is a data set with splits ({', '.join(sorted(folders))}); name the "
            f"folder of one of them, such as {example}"
        )
    path = os.path.join(directory, _STATE_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            names = [entry["filename"] for entry in json.load(file)["_data_files"]]
            is_known = all(map(is_file_name, names))
    except FileNotFoundError as error:
        raise BadInputError(
            f"{directory}: is a directory; name a file of it, or a folder that `datasets` has "
            "saved (`save_to_disk`)"
        ) from error
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise BadInputError(f"{path}: cannot be read ({reason(error)}); save it again") from error
    if not names or not is_known:
        raise BadInputError(f"{path}: names no files of the folder; save it again")
    return [os.path.join(directory, name) for name in names]


class _TextTable(Table):
    """A table of lines or objects of text."""

    def __init__(self, path: str, content: UnpackedFile, lines_before: int = 0) -> None:
        super().__init__(path)
        self._content = content
        self._lines_before = lines_before

    @property
    def num_bytes(self) -> int:
        return self._content.num_unpacked

    @property
    def position(self) -> int:
        return self._content.position

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yields the lines and their numbers in the file. They end with their line ends."""
        number = self._lines_before
        while line := self._content.readline(MOST_BYTES + 1):
            number += 1
            if len(line) > MOST_BYTES:
                raise BadInputError(
                    f"{self.path}: line {number}: has more than {MOST_BYTES >> 20} MiB; cut it "
                    "into several"
                )
            yield number, self._decode(line, number)

    def _decode(self, line: bytes, number: int) -> str:
        place = f"{self.path}: line {number}"
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise BadInputError(
                f"{place}: cannot be read as UTF-8 text ({error.reason} at byte {error.start} of "
                f"the line, {line[error.start]:#04x}); convert the file, for example with iconv"
            ) from error
        if "\0" in text:
            raise BadInputError(f"{place}: holds a NUL; remove it")
        return text.removeprefix(_BYTE_ORDER_MARK) if number == 1 else text


class DelimitedTable(_TextTable):
    """CSV, TSV or the like, whose first row names the columns.

    Args:
        path: path of the file, for errors.
        content: its content.
        dialect: how cells are separated.
        lines_before: lines of the file before the content, if this is a part of the file.
        header: the names of the columns, if the content does not begin with them.
    """

    def __init__(
        self,
        path: str,
        content: UnpackedFile,
        dialect: Dialect,
        lines_before: int = 0,
        header: Sequence[str] = (),
    ) -> None:
        super().__init__(path, content, lines_before)
        self._dialect = dialect
        self._header = header

    def rows(self, columns: Sequence[str] | None, optional: Sequence[str] = ()) -> Iterator[Row]:
        """Yields the rows below the header; a row of another width is refused."""
        rows = self.lists()
        first_line, header = (1, self._header) if self._header else next(rows, (1, []))
        place = f"{self.path}: line {first_line}"
        if not header:
            raise BadInputError(f"{self.path}: is empty")
        names = list(header if columns is None else columns)
        names += [name for name in optional if name in header]
        indices = []
        for name in names:
            if name not in header:
                self._refuse_missing(name, header, place)
            if header.count(name) > 1:
                raise BadInputError(f"{place}: has more than one column {name!r}")
            indices.append(header.index(name))
        for number, cells in rows:
            check_width(self.path, number, cells, len(header))
            values = {name: cells[index] for name, index in zip(names, indices, strict=True)}
            yield Row(self.path, self.unit, number, values)

    def lists(self) -> Iterator[tuple[int, list[str]]]:
        """Yields the number and the cells of each row, the header's first."""
        if not self._dialect.has_quotes:
            yield from self._unquoted()
            return
        csv.field_size_limit(MOST_BYTES)
        reader = csv.reader(self._universal_lines(), delimiter=self._dialect.delimiter, strict=True)
        first_line = self._lines_before + 1
        try:
            for cells in reader:
                if cells:
                    yield first_line, cells
                first_line = self._lines_before + reader.line_num + 1
        except csv.Error as error:
            raise BadInputError(
                f"{self.path}: line {first_line}: is no CSV ({error}); quote texts that hold "
                "quotes, and double those"
            ) from error

    def _universal_lines(self) -> Iterator[str]:
        """Yields lines; a carriage return alone ends one, too."""
        for _, line in self._lines():
            if "\r" in line:
                yield from io.StringIO(line, newline="")
            else:
                yield line

    def _unquoted(self) -> Iterator[tuple[int, list[str]]]:
        blank: list[tuple[int, str]] = []  # blank lines, which are left out at the end of the file
        for number, line in self._lines():
            line = line.removesuffix("\n").removesuffix("\r")
            if not line.strip():
                blank.append((number, line))
                continue
            for number_of_blank, text in blank:
                yield number_of_blank, text.split(self._dialect.delimiter)
            blank = []
            yield number, line.split(self._dialect.delimiter)


def check_width(path: str, line: int, cells: Sequence[str], width: int) -> None:
    """Refuses a row with another number of columns.

    Args:
        path: path of the file.
        line: number of the row's first line.
        cells: the row.
        width: number of columns.
    """
    if len(cells) != width:
        raise BadInputError(
            f"{path}: line {line}: has {len(cells)} columns, {width} are expected; mend the line: "
            "its columns would be shifted"
        )


def find_dialect(path: str, head: bytes, columns: Sequence[str]) -> Dialect:
    """Finds what separates the cells of a file: its first row has all columns.

    Where several separators fit, as in a file with one column, the one counts that gives most rows
    the width of the first. If several are equal, one counts whose cells are quoted as in RFC 4180.

    Args:
        path: path of the file, for errors.
        head: the beginning of the file.
        columns: columns that it must have.

    Raises:
        BadInputError: the file lacks a column.
    """
    text = head.decode(errors="replace").removeprefix(_BYTE_ORDER_MARK)
    is_whole = len(head) < READ_SIZE
    headers = {}
    for dialect in DIALECTS:
        headers[dialect] = first_rows(text, dialect, is_whole=is_whole, most=1)
    fitting = [
        dialect for dialect, rows in headers.items() if rows and set(columns) <= set(rows[0])
    ]
    if not fitting:
        widest = max((rows[0] for rows in headers.values() if rows), key=len, default=[])
        missing = next(name for name in columns if name not in widest)
        raise BadInputError(
            f"{path}: line 1: has no column {missing!r}; it has {shown_names(widest)}"
        )
    if len(fitting) == 1:
        return fitting[0]

    def fit(dialect: Dialect) -> tuple[float, bool]:
        return _regular_share(text, dialect, is_whole), _has_quoted_cells(text, dialect, is_whole)

    return max(fitting, key=fit)


def _regular_share(text: str, dialect: Dialect, is_whole: bool) -> float:
    """The share of rows that are as wide as the first."""
    rows = first_rows(text, dialect, is_whole=is_whole)
    if not rows:
        return 0
    return sum(len(row) == len(rows[0]) for row in rows) / len(rows)


def _has_quoted_cells(text: str, dialect: Dialect, is_whole: bool) -> bool:
    """Whether quotation marks enclose cells, and some cell has doubled ones inside.

    Every cell that begins with a quotation mark must then end with one.
    """
    if not dialect.has_quotes:
        return False
    border = rf"[{dialect.delimiter}\r\n]"
    last_mark = '"' if is_whole else '"?'  # the text may end inside a cell
    begins = rf'(?:\A|(?<={border}))"'
    cells = re.compile(rf'{begins}(?P<inside>(?:[^"]|"")*+)(?:"(?={border})|{last_mark}\Z)')
    has_doubled = any('""' in cell["inside"] for cell in cells.finditer(text))
    return has_doubled and not re.search(begins, cells.sub("", text))


def first_rows(
    text: str, dialect: Dialect, *, is_whole: bool, most: int | None = None
) -> list[list[str]] | None:
    """The rows at the beginning of a table; `None` if they cannot be read in a dialect.

    Args:
        text: the beginning of the table.
        dialect: how cells are separated.
        is_whole: whether this is all of its text. Otherwise the last row may be cut, and is left
            out where there are more than a few.
        most: number of rows to read; `None` for all of them.
    """
    csv.field_size_limit(MOST_BYTES)
    reader = csv.reader(
        io.StringIO(text.strip("\n"), newline=""),
        delimiter=dialect.delimiter,
        quoting=csv.QUOTE_MINIMAL if dialect.has_quotes else csv.QUOTE_NONE,
    )
    rows = []
    try:
        for row in reader:
            rows.append(row)
            if len(rows) == most:
                return rows
    except csv.Error:
        return None
    if not is_whole and len(rows) > _FEWEST_ROWS:
        rows.pop()
    return rows


class _JsonTable(_TextTable):
    """Objects of JSON."""

    def rows(self, columns: Sequence[str] | None, optional: Sequence[str] = ()) -> Iterator[Row]:
        """Yields the objects. Each of them must have the columns; see also `may_lack_cells`."""
        # The columns that no object had so far. Those of a part of a file are those of the file.
        unseen = [] if self._lines_before else list(columns or ())
        first: Row | None = None
        for count, (number, values) in enumerate(self._objects()):
            row = Row(self.path, self.unit, number, values)
            if not isinstance(values, dict):
                raise BadInputError(f"{row.place}: is no JSON object; mend or remove it")
            first = first or row
            if columns is not None:
                unseen = [name for name in unseen if _cell(values, name) is _MISSING]
                if unseen and count >= _MOST_ROWS_WITHOUT:
                    break
                row = row._replace(values=self._selected(row, columns, optional))
            yield row
        if unseen and first is not None:
            self._refuse_missing(unseen[0], first.values, first.place)

    def _selected(self, row: Row, columns: Sequence[str], optional: Sequence[str]) -> dict:
        values = row.values
        selected = {}
        for name in columns:
            found = _cell(values, name)
            if found is _MISSING:
                if not self.may_lack_cells:
                    self._refuse_missing(name, values, row.place)
                found = None
            selected[name] = found
        for name in optional:
            found = _cell(values, name)
            if found is not _MISSING:
                selected[name] = found
        return selected

    @abc.abstractmethod
    def _objects(self) -> Iterator[tuple[int, Any]]:
        """Yields the number and the value of each row."""


def _cell(values: Mapping[str, Any], name: str) -> Any:
    """The value of a column, in objects in cells, too; `_MISSING` where there is none."""
    if name in values:
        return values[name]
    first, dot, rest = name.partition(".")
    inner = values.get(first, _MISSING)
    if not dot or inner is _MISSING:
        return _MISSING
    if inner is None:
        return None
    return _cell(inner, rest) if isinstance(inner, dict) else _MISSING


class _JsonLines(_JsonTable):
    """An object of JSON on each line; blank lines are skipped."""

    def _objects(self) -> Iterator[tuple[int, Any]]:
        for number, line in self._lines():
            if not line.isspace():
                yield number, _decode_json(line, f"{self.path}: line {number}")


def _decode_json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"{place}: not JSON ({error}); mend or remove the line") from error


class _JsonArray(_JsonTable):
    """An array of objects, which are decoded one at a time."""

    unit = "entry"

    def __init__(self, path: str, content: UnpackedFile) -> None:
        super().__init__(path, content)
        self._text = io.TextIOWrapper(content, encoding="utf-8-sig")
        self._waiting = ""  # text that was read and not decoded yet, from `_start` on
        self._start = 0
        self._number = 0  # of the current entry

    def _objects(self) -> Iterator[tuple[int, Any]]:
        self._skip("[")
        self._skip_space()
        if self._waiting.startswith("]", self._start):
            return
        separator = ","
        while separator == ",":
            self._number += 1
            yield self._number, self._next_value()
            separator = self._skip(",]")
        self._skip_space()
        if self._start < len(self._waiting):
            raise self._error("more text follows the end of the array")

    def _next_value(self) -> Any:
        decoder = json.JSONDecoder()
        size = READ_SIZE
        while True:
            self._skip_space()
            try:
                value, self._start = decoder.raw_decode(self._waiting, self._start)
                return value
            except (ValueError, RecursionError) as error:
                # The value may only be cut. As much is read as is there, so the time is linear.
                is_too_long = len(self._waiting) - self._start > MOST_BYTES
                if is_too_long or not self._read_more(size):
                    what = f"not JSON ({error})"
                    if is_too_long:
                        what = f"has more than {MOST_BYTES >> 20} MiB, or is {what}"
                    raise self._error(f"{what}; mend or remove it") from error
                size = len(self._waiting)

    def _skip(self, characters: str) -> str:
        """Skips one of some characters, and the white space around it; returns it."""
        self._skip_space()
        found = self._waiting[self._start : self._start + 1]
        if not found or found not in characters:
            raise self._error(f"is followed by {found!r}, not by a comma or the array's end")
        self._start += 1
        return found

    def _skip_space(self) -> None:
        while True:
            found = _NO_SPACE.search(self._waiting, self._start)
            self._start = found.start() if found else len(self._waiting)
            if found or not self._read_more(READ_SIZE):
                return

    def _read_more(self, size: int) -> bool:
        """Reads more text; returns whether there was any."""
        try:
            more = self._text.read(size)
        except UnicodeDecodeError as error:
            raise self._error(
                f"near it: cannot be read as UTF-8 text ({error.reason}); convert the file, for "
                "example with iconv"
            ) from error
        self._waiting = self._waiting[self._start :] + more
        self._start = 0
        return bool(more)

    def _error(self, what: str) -> BadInputError:
        return BadInputError(f"{self.path}: entry {self._number}: {what}")


class _ArrowTable(Table):
    """A table in batches of columns."""

    unit = "row"
    schema: "pyarrow.Schema"

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._num_bytes = 0
        self._rows_before = 0  # rows of the file before the first one that is read

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    @abc.abstractmethod
    def _batches(self, columns: list[str] | None) -> Iterator["pyarrow.RecordBatch"]:
        """Yields the batches, with the given columns and maybe others, and counts their bytes."""

    def rows(self, columns: Sequence[str] | None, optional: Sequence[str] = ()) -> Iterator[Row]:
        """Yields the rows. Numbers of classes become their names; -1, for no class, is `None`."""
        names = self._found(columns, optional)
        classes = _class_names(self.schema)
        number = self._rows_before
        for batch in self._batches(names):
            for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
                for values in self._as_python(batch.slice(start, _ROWS_AT_ONCE), number):
                    number += 1
                    for name in classes.keys() & values.keys():
                        values[name] = _named(values[name], classes[name])
                    if names is not None:
                        values = {name: _cell(values, name) for name in names}
                    yield Row(self.path, self.unit, number, values)

    def _found(self, columns: Sequence[str] | None, optional: Sequence[str]) -> list[str] | None:
        """The names of the columns to read."""
        if columns is None:
            return None
        there = list(_column_names(self.schema))
        for name in columns:
            if name not in there:
                self._refuse_missing(name, there, self.path)
        return [*columns, *(name for name in optional if name in there)]

    def _next(
        self, batches: Iterator["pyarrow.RecordBatch"], place: str
    ) -> "pyarrow.RecordBatch | None":
        """The next batch; `None` at the end.

        Args:
            batches: the batches.
            place: where the batch is in the file, for errors.
        """
        place = f"{self.path}: {place}"
        with _named_damage(place):
            batch = next(batches, None)
        if batch is not None and batch.nbytes > MOST_BYTES:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                _refuse_long_cells(column, name, place)
        return batch

    def _selected(
        self, batch: "pyarrow.RecordBatch", columns: list[str] | None
    ) -> "pyarrow.RecordBatch":
        """The columns of a batch that hold the given ones; counts their bytes."""
        if columns is not None:
            batch = batch.select([name for name in batch.schema.names if _holds(name, columns)])
        self._num_bytes += batch.nbytes
        return batch

    def _as_python(self, batch: "pyarrow.RecordBatch", num_before: int) -> list[dict]:
        """The rows of a batch.

        Args:
            batch: the batch.
            num_before: number of rows before it, for errors.
        """
        try:
            return batch.to_pylist()
        except UnicodeDecodeError as error:
            number = num_before + _first_undecodable(batch) + 1
            raise BadInputError(
                f"{self.path}: row {number}: cannot be read as UTF-8 text ({error.reason}); "
                "convert its texts"
            ) from error


@contextlib.contextmanager
def _named_damage(place: str) -> Iterator[None]:
    """Names the place where pyarrow finds that a file is damaged."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError) as error:
        raise BadInputError(
            f"{place}: is broken ({reason(error)}); copy or write the file again"
        ) from error


def _holds(name: str, columns: Sequence[str]) -> bool:
    """Whether a column of a schema is one of the columns, or has one as a field, such as `a.b`."""
    return any(f"{column}.".startswith(f"{name}.") for column in columns)


def _refuse_long_cells(column: "pyarrow.Array", name: str, place: str) -> None:
    """Refuses a text that would take too much memory, in objects in cells, too."""
    import pyarrow.compute
    from pyarrow import types

    kind = column.type
    if types.is_struct(kind):
        for field, inner in zip(kind, column.flatten(), strict=True):
            _refuse_long_cells(inner, f"{name}.{field.name}", place)
    elif types.is_dictionary(kind):
        _refuse_long_cells(column.dictionary, name, place)
    elif types.is_string_view(kind):
        _refuse_long_cells(column.cast(pyarrow.large_string()), name, place)
    elif types.is_string(kind) or types.is_large_string(kind):
        longest = pyarrow.compute.max(pyarrow.compute.binary_length(column)).as_py()
        if longest is not None and longest > MOST_BYTES:
            raise BadInputError(
                f"{place}: a cell of {name!r} has more than {MOST_BYTES >> 20} MiB; cut it into "
                "several rows"
            )


def _first_undecodable(batch: "pyarrow.RecordBatch") -> int:
    """The index of the first row whose text is not UTF-8."""
    for index in range(batch.num_rows):
        try:
            batch.slice(index, 1).to_pylist()
        except UnicodeDecodeError:
            return index
    return 0


def _column_names(fields: Iterable["pyarrow.Field"], before: str = "") -> Iterator[str]:
    """The names of all columns, and of the values of objects in their cells."""
    from pyarrow import types

    for field in fields:
        name = before + field.name
        yield name
        if types.is_struct(field.type):
            inner = [field.type.field(index) for index in range(field.type.num_fields)]
            yield from _column_names(inner, f"{name}.")


def _class_names(schema: "pyarrow.Schema") -> dict[str, list[str]]:
    """Column → names of its classes, as `datasets` stores them beside the numbers."""
    metadata = schema.metadata or {}
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return {
            name: names
            for name, feature in features.items()
            if (names := _names_of_feature(feature))
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _names_of_feature(feature: Any) -> list[str]:
    """The names of a feature that is a class, or a list of classes."""
    if isinstance(feature, list):
        (feature,) = feature
    feature = feature.get("feature", feature)
    if feature.get("_type") != "ClassLabel":
        return []
    return [str(name) for name in feature.get("names") or ()]


def _named(value: Any, names: Sequence[str]) -> Any:
    """The name of a class, or the names of a list of them."""
    if isinstance(value, list):
        return [_named(each, names) for each in value]
    if value == -1:
        return None
    if not isinstance(value, int) or not 0 <= value < len(names):
        return value
    return names[value]


class _ParquetTable(_ArrowTable):
    """Parquet, one row group after another.

    Args:
        path: path of the file, for errors.
        file: the file.
        row_range: the rows to read, counted from 0; `None` for all.
    """

    def __init__(self, path: str, file: BinaryIO, row_range: range | None = None) -> None:
        import pyarrow.parquet

        super().__init__(path)
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        with _named_damage(path):
            self._file = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=READ_SIZE)
            self.schema = self._file.schema_arrow
        self._rows = range(self._file.metadata.num_rows) if row_range is None else row_range
        self._rows_before = self._rows.start
        self._num_rows_read = 0

    @property
    def position(self) -> int:
        return self._size * self._num_rows_read // max(self._file.metadata.num_rows, 1)

    def row_groups(self) -> list[tuple[int, int]]:
        """The rows and the stored bytes of each row group."""
        found = []
        for group in range(self._file.metadata.num_row_groups):
            stored = self._file.metadata.row_group(group)
            columns = map(stored.column, range(stored.num_columns))
            found.append((stored.num_rows, sum(each.total_compressed_size for each in columns)))
        return found

    def _batches(self, columns: list[str] | None) -> Iterator["pyarrow.RecordBatch"]:
        first = 0
        for group in range(self._file.metadata.num_row_groups):
            stop = first + self._file.metadata.row_group(group).num_rows
            if first < self._rows.stop and self._rows.start < stop:
                yield from self._batches_of_group(group, first, stop, columns)
            first = stop

    def _batches_of_group(
        self, group: int, first: int, stop: int, columns: list[str] | None
    ) -> Iterator["pyarrow.RecordBatch"]:
        """Yields those rows of a row group, which has the rows from `first` on, that are read."""
        place = f"row group {group + 1} (rows {first + 1:,} to {stop:,})"
        size = self._batch_size(group, columns)
        batches = self._file.iter_batches(size, [group], columns, use_threads=False)
        while first < self._rows.stop and (batch := self._next(batches, place)) is not None:
            if self._rows.start <= first:  # so that a batch that two parts share is counted once
                self._num_bytes += batch.nbytes
            skipped = max(self._rows.start - first, 0)
            chosen = batch.slice(skipped, max(self._rows.stop - first - skipped, 0))
            self._num_rows_read += chosen.num_rows
            first += batch.num_rows
            yield chosen

    def _batch_size(self, group: int, columns: list[str] | None) -> int:
        """The number of rows that have about `_BATCH_BYTES`."""
        stored = self._file.metadata.row_group(group)
        num_bytes = 0
        for index in range(stored.num_columns):
            column = stored.column(index)
            path = f"{column.path_in_schema}."
            if columns is None or any(path.startswith(f"{name}.") for name in columns):
                num_bytes += column.total_uncompressed_size
        fitting = stored.num_rows * _BATCH_BYTES // max(num_bytes, 1)
        return min(max(fitting, 1), _ROWS_AT_ONCE)


class _ArrowFile(_ArrowTable):
    """Arrow's file format, as Feather has it."""

    def __init__(self, path: str, file: BinaryIO) -> None:
        import pyarrow

        super().__init__(path)
        self._size = file.seek(0, os.SEEK_END)
        file.seek(0)
        with _named_damage(path):
            self._file = pyarrow.ipc.open_file(file)
            self.schema = self._file.schema
        self._num_batches_read = 0

    @property
    def position(self) -> int:
        return self._size * self._num_batches_read // max(self._file.num_record_batches, 1)

    def _batches(self, columns: list[str] | None) -> Iterator["pyarrow.RecordBatch"]:
        batches = map(self._file.get_batch, range(self._file.num_record_batches))
        while (batch := self._next(batches, f"batch {self._num_batches_read + 1}")) is not None:
            self._num_batches_read += 1
            yield self._selected(batch, columns)


class _ArrowStream(_ArrowTable):
    """Arrow's stream format, in which `datasets` saves."""

    def __init__(self, path: str, content: UnpackedFile) -> None:
        import pyarrow

        super().__init__(path)
        self._content = content
        with _named_damage(path):
            self._stream = pyarrow.ipc.open_stream(content)
            self.schema = self._stream.schema

    @property
    def position(self) -> int:
        return self._content.position

    def _batches(self, columns: list[str] | None) -> Iterator["pyarrow.RecordBatch"]:
        number = 1
        while (batch := self._next(self._stream, f"batch {number}")) is not None:
            number += 1
            yield self._selected(batch, columns)

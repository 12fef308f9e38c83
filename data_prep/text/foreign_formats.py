"""Refuses what is text, but not a corpus: web pages, XML and tables, which would be read as prose.

They are recognised by how a file begins. A text is refused where it could not be prose: no language
writes a comma between letters, the same number of times in every line, under a line of names.
"""

import csv
import io
import os
import re
from collections.abc import Sequence

from spanbert_tf.errors import BadInputError

# Comments are atomic: a comment that may go on to the end of a later one takes exponential time.
_BEFORE_MARKUP = r"\s*+(?:<\?xml[^>]*\?>\s*+)?(?:(?><!--.*?-->)\s*+)*+"
_PAGE = re.compile(_BEFORE_MARKUP + r"<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_WIKI_DUMP = re.compile(_BEFORE_MARKUP + r"<mediawiki\b", re.DOTALL)
_XML = re.compile(r"\s*<\?xml\s")
# A piece of a page: it begins with one of these elements, and there are closing tags as well.
_ELEMENTS = "article|body|div|h[1-6]|head|main|meta|ol|p|script|section|span|style|table|title|ul"
_PIECE_START = re.compile(rf"{_BEFORE_MARKUP}<(?:{_ELEMENTS})(?:\s[^<>]*)?>", re.I | re.DOTALL)
_CLOSING_TAG = re.compile(rf"</(?:{_ELEMENTS}|a|b|em|i|li|strong|td|tr)>", re.IGNORECASE)
_FEWEST_CLOSING_TAGS = 3

_AS_JSON_LINES = (
    "write one JSON object a line, with its text as `text`, for example with "
    "`pandas.read_csv('FILE'{separator}).to_json('texts.jsonl', orient='records', lines=True)`"
)
_DELIMITERS = {",": "CSV", ";": "CSV with semicolons", "\t": "TSV", "|": "a table of columns"}
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_ .:/#()-]{0,39}")
# Names of the only column of a table, which no text has as its first line.
_TEXT_COLUMNS = {
    *("text", "texts", "sentence", "sentences", "content", "contents", "document", "documents"),
    *("review", "body", "comment", "tweet", "passage", "abstract", "article"),
}
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_FEWEST_ROWS = 3  # without a header
_FEWEST_ROWS_OF_TABS = 10  # without a header or a number
_REGULAR_SHARE = 0.95  # of rows as wide as the first; real tables have broken ones
_MAX_FIELD = 1 << 27  # characters; the module's own limit is 2 ** 17


def refuse_foreign_format(path: str, beginning: str, *, is_whole: bool) -> None:
    """Refuses a web page, XML or a table.

    Args:
        path: path of the file, for the error.
        beginning: its first lines.
        is_whole: whether these are all; the last row of a table may else be cut.

    Raises:
        BadInputError: it is one of them; the message says what to do.
    """
    for name, advice in filter(None, (_markup(beginning), _table(beginning, is_whole))):
        advice = advice.replace("FILE", os.path.basename(path))
        raise BadInputError(f"{path}: is {name}, which would be read as text; {advice}")


def _markup(text: str) -> tuple[str, str] | None:
    if _WIKI_DUMP.match(text):
        return "MediaWiki's XML", "take its text out with WikiExtractor, whose output is read"
    is_piece = _PIECE_START.match(text) and (
        len(_CLOSING_TAG.findall(text)) >= _FEWEST_CLOSING_TAGS
    )
    if is_piece or _PAGE.match(text):
        return "HTML", (
            "take its text out first, for example with `trafilatura` or BeautifulSoup's `get_text`"
        )
    if _XML.match(text):
        return "XML", "write its text as plain UTF-8, blank lines between paragraphs"
    return None


def _table(text: str, is_whole: bool) -> tuple[str, str] | None:
    lines = text.lstrip("\n").split("\n", 1)
    if len(lines) == 1:
        return None
    for delimiter, name in _DELIMITERS.items():
        if delimiter in lines[0] and _is_table(text, delimiter, is_whole):
            separator = "" if delimiter == "," else f", sep={delimiter!r}"
            return name, _AS_JSON_LINES.format(separator=separator)
    if lines[0].strip().strip('"').lower() in _TEXT_COLUMNS and _is_column(text, is_whole):
        return "CSV with one column", _AS_JSON_LINES.format(separator="")
    return None


def _rows(text: str, delimiter: str, is_whole: bool, **options: int) -> list[list[str]] | None:
    """The rows of a table; `None` where there is an empty line between two, as in prose."""
    csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader(io.StringIO(text.strip("\n"), newline=""), delimiter=delimiter, **options)
    try:
        rows = list(reader)
    except csv.Error:
        return None
    if not is_whole and len(rows) > _FEWEST_ROWS:
        rows.pop()  # it may be cut
    return rows if all(rows) else None


def _is_table(text: str, delimiter: str, is_whole: bool) -> bool:
    rows = _rows(text, delimiter, is_whole)
    if delimiter == "\t":  # quotes are text, or they are quotes
        rows = _rows(text, delimiter, is_whole, quoting=csv.QUOTE_NONE) or rows
    if rows is None or len(rows) < 2 or len(rows[0]) < 2:
        return False
    width = len(rows[0])
    regular = [row for row in rows if len(row) == width]
    if len(regular) < _REGULAR_SHARE * len(rows):
        return False
    if _is_header(rows[0], regular[1:]):
        return True
    if len(rows) < _FEWEST_ROWS:
        return False
    has_number = any(all(map(_NUMBER.fullmatch, column)) for column in zip(*regular, strict=True))
    if delimiter == "\t":
        return has_number or (
            len(rows) >= _FEWEST_ROWS_OF_TABS and all(row[0].strip() for row in regular)
        )
    # Rows of numbers alone are lists of numbers in a text; a table of texts quotes some.
    return _is_all_quoted(text, delimiter) or (has_number and f'{delimiter}"' in text)


def _is_header(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a row names columns; pandas leaves the name of its row numbers empty."""
    if not names[0]:
        names = names[1:] if all(_NUMBER.fullmatch(row[0]) for row in rows) else names
    return (
        len(set(names)) == len(names)
        and all(map(_COLUMN_NAME.fullmatch, names))
        and not any(name.endswith((" ", ".", "-", ":")) for name in names)
    )


def _is_all_quoted(text: str, delimiter: str) -> bool:
    quoted = r'"(?:[^"]|"")*"'
    row = rf"{quoted}(?:{re.escape(delimiter)}{quoted})+\s*"
    return all(re.fullmatch(row, line) for line in text.strip("\n").split("\n")[:_FEWEST_ROWS])


def _is_column(text: str, is_whole: bool) -> bool:
    """Whether commas stand in quotes alone, as where one column is written as CSV."""
    rows = _rows(text, ",", is_whole)
    has_quoted = any(line.startswith('"') and "," in line for line in text.split("\n"))
    return rows is not None and has_quoted and all(len(row) == 1 for row in rows)

"""Parses the documents and paragraphs of plain text, WikiExtractor's text and tables.

Web pages, XML and tables without a known column of text would be read as prose, so they are
refused. The parsers of text take blocks that end at line ends (only a line longer than a block is
cut) and yield documents in parts, so documents may have any size. A row of a table is a document.
"""

import html
import numbers
import re
from collections.abc import Iterable, Iterator, Sequence
from html.entities import html5
from typing import NamedTuple

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import DIALECTS, Dialect, Row, first_rows, shown_names

_BLANK_LINES = re.compile(r"\n\s*\n")
# The tag begins a line. This is checked after its first letter, which makes the search fast.
WIKIPEDIA_TAG = re.compile(
    r"<(?<![^\n]<)(?:doc (?P<attributes>[^\n]*)>|/doc>)[^\S\n]*$", re.MULTILINE
)
_ENTITY = re.compile(r"&(#(?:[0-9]{1,7}|[xX][0-9a-fA-F]{1,6});|[A-Za-z][A-Za-z0-9]*;)")
_TITLE = re.compile(r'title="(.*)"')
# Pages and tables are recognized by the beginning of a file. A text is refused only if it cannot be
# prose: no language has the same number of commas in every line, under a line of names.
# Comments are matched atomically: with backtracking into later comments, matching would take
# exponential time.
_BEFORE_MARKUP = r"\s*+(?:<\?xml[^>]*\?>\s*+)?(?:(?><!--.*?-->)\s*+)*+"
_PAGE = re.compile(_BEFORE_MARKUP + r"<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_WIKI_DUMP = re.compile(_BEFORE_MARKUP + r"<mediawiki\b", re.DOTALL)
_XML = re.compile(r"\s*<\?xml\s")
# A fragment of a page begins with one of these elements, and also has closing tags.
_ELEMENTS = "article|body|div|h[1-6]|head|main|meta|ol|p|script|section|span|style|table|title|ul"
_FRAGMENT_START = re.compile(rf"{_BEFORE_MARKUP}<(?:{_ELEMENTS})(?:\s[^<>]*)?>", re.I | re.DOTALL)
_CLOSING_TAG = re.compile(rf"</(?:{_ELEMENTS}|a|b|em|i|li|strong|td|tr)>", re.IGNORECASE)
_FEWEST_CLOSING_TAGS = 3

TEXT_COLUMN = "text"  # where the user names no other
_TITLE_COLUMN = "title"
COLUMN_ADVICE = "name the column of its text with --text-column"
_DELIMITERS = {",": "CSV", ";": "CSV with semicolons", "\t": "TSV", "|": "a table of columns"}
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_ .:/#()-]{0,39}")
# Names of the column of a one-column table. No text has one of them as its first line.
_TEXT_COLUMNS = {
    *("text", "texts", "sentence", "sentences", "content", "contents", "document", "documents"),
    *("review", "body", "comment", "tweet", "passage", "abstract", "article"),
}
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_FEWEST_ROWS = 3  # without a header
_FEWEST_ROWS_OF_TABS = 10  # without a header or a number
_REGULAR_SHARE = 0.95  # least share of rows as wide as the first; real tables have broken rows


class TextPart(NamedTuple):
    """Paragraphs of a document, either all of them or a part.

    Attributes:
        paragraphs: whole paragraphs without line ends, none of them blank.
        ends_document: whether the next part begins another document.
        has_title: whether a title was removed from the text.
    """

    paragraphs: list[str]
    ends_document: bool
    has_title: bool = False


def plain_text_parts(
    blocks: Iterator[str],
    path: str,
    separator: str | None,
    paragraph_limit: int,
    *,
    is_started: bool = False,
) -> Iterator[TextPart]:
    """Parses text with blank lines between paragraphs. Hard-wrapped lines are joined.

    Args:
        blocks: the text.
        path: path of the file, for errors.
        separator: a line equal to this begins a new document. Empty documents at the beginning and
            the end of the file are ignored.
        paragraph_limit: maximum number of characters. Longer paragraphs are cut at line ends, or at
            the end of a block if they have none.
        is_started: whether the file has text before these blocks. The blocks then begin with a new
            document.

    Raises:
        BadInputError: the file has only white space.
    """
    separator_line = None
    if separator is not None:
        # A match must not be empty at the end of a block, and must include its line end: at the
        # beginning of the next block the line end would be an empty line.
        end = r"(?:\n|(?<=[^\n])\Z)"
        separator_line = re.compile(rf"^{re.escape(separator)}[^\S\n]*{end}", re.MULTILINE)
    unfinished = ""
    has_paragraphs = False  # whether paragraphs of the current document were yielded
    for block in blocks:
        text = unfinished + block
        *finished, text = separator_line.split(text) if separator_line else [text]
        for document in finished:
            paragraphs = _join_lines(_paragraphs(document, paragraph_limit))
            is_started |= bool(paragraphs)
            if is_started:  # this document, or one before it, has text
                yield TextPart(paragraphs, ends_document=True)
            has_paragraphs = False
        pieces = _paragraphs(text, paragraph_limit)
        # Without a line end, it is only cut here. White space at its end may make it longer.
        unfinished = pieces.pop() if len(pieces[-1]) <= 2 * paragraph_limit else ""
        if paragraphs := _join_lines(pieces):
            is_started = has_paragraphs = True
            yield TextPart(paragraphs, ends_document=False)
    paragraphs = _join_lines(_paragraphs(unfinished, paragraph_limit))
    if paragraphs or has_paragraphs:
        yield TextPart(paragraphs, ends_document=True)
    elif not is_started:
        raise BadInputError(f"{path}: holds nothing but white space; remove it from the input")


def _paragraphs(text: str, limit: int) -> list[str]:
    """Splits text at blank lines, and paragraphs of more than `limit` characters at line ends.

    The text after the last split is the last paragraph. Where a long paragraph is split depends
    only on its characters, not on the blocks in which it was read.
    """
    paragraphs = []
    for paragraph in map(str.lstrip, _BLANK_LINES.split(text)):
        while len(paragraph) > limit and len(paragraph.rstrip()) > limit:
            end = paragraph.rfind("\n", 0, limit + 1) + 1
            if not end:
                break
            paragraphs.append(paragraph[:end])
            paragraph = paragraph[end:]
        paragraphs.append(paragraph)
    return paragraphs


def _join_lines(paragraphs: list[str]) -> list[str]:
    return [text.replace("\n", " ") for text in paragraphs if text and not text.isspace()]


def wikipedia_parts(blocks: Iterator[str], path: str, lines_before: int = 0) -> Iterator[TextPart]:
    """Parses WikiExtractor's `<doc id= url= title=>` … `</doc>`.

    Each line is a paragraph, both in the older layout, which has blank lines between most
    paragraphs, and in the newer one. The title line is removed, and HTML entities are replaced by
    their characters.

    Args:
        blocks: the text.
        path: path of the file, for errors.
        lines_before: number of lines in the file before the text, for errors.

    Raises:
        BadInputError: there is text outside of a document, or the file ends inside one.
    """
    title: str | None = None  # of the current document, until its first line has been read
    is_inside = False
    has_title = False
    for block in blocks:
        position = 0
        for tag in [*WIKIPEDIA_TAG.finditer(block), None]:
            end = tag.start() if tag else len(block)
            paragraphs = _nonblank_lines(unescape(block[position:end]))
            if paragraphs and not is_inside:
                text_start = end - len(block[position:end].lstrip())
                line = lines_before + block.count("\n", 0, text_start) + 1
                raise BadInputError(
                    f"{path}: line {line}: text outside of <doc …> … </doc>; remove it"
                )
            if paragraphs and title is not None:
                has_title = paragraphs[0].strip() == title
                paragraphs = paragraphs[has_title:]
                title = None
            if is_inside and (tag or paragraphs):
                yield TextPart(paragraphs, ends_document=tag is not None, has_title=has_title)
            if tag:
                position = tag.end()
                is_inside = tag["attributes"] is not None
                has_title = False
                found = _TITLE.search(tag["attributes"] or "")
                title = unescape(found[1]).strip() if found else None
        lines_before += block.count("\n")
    if is_inside:
        raise BadInputError(
            f"{path}: line {lines_before}: ends inside a document; copy the file again, or end "
            "it with </doc>"
        )


class RowParser:
    """Makes documents from the rows of a table.

    Each line of a text is a paragraph. The first paragraph is removed if it repeats the row's
    `title`, as in WikiExtractor's output. HTML entities are replaced by their characters.

    Args:
        columns: names of the columns of text. Their paragraphs form one document, in this order.
            Empty for the column `text`.

    Attributes:
        columns: the columns to read.
        optional: columns to read if they exist.
        num_without_text: number of cells with a null or a number in place of a text.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns) or (TEXT_COLUMN,)
        self.optional = () if columns else (_TITLE_COLUMN,)
        self.num_without_text = 0

    def parts(self, rows: Iterable[Row], *, needs_text: bool = True) -> Iterator[TextPart]:
        """Yields the document of each row.

        Args:
            rows: the rows.
            needs_text: whether at least one of the rows must have a text.

        Raises:
            BadInputError: a cell has a value other than a text, a number or a null; or no row has a
                text.
        """
        row = None
        has_texts = False
        for row in rows:
            texts = list(self._texts(row))
            has_texts |= any(text.strip() for text in texts)
            paragraphs = []
            for text in texts:
                paragraphs += _nonblank_lines(unescape(text))
            title = row.values.get(_TITLE_COLUMN) if self.optional else None
            if paragraphs and title and paragraphs[0].strip() == unescape(str(title)).strip():
                paragraphs = paragraphs[1:]
            yield TextPart(paragraphs, ends_document=True, has_title=bool(title))
        if row is not None and needs_text and not has_texts:
            raise BadInputError(
                f"{row.path}: no cell of {shown_names(self.columns)} has a text, all are empty or "
                f"have nulls or numbers; {COLUMN_ADVICE}"
            )

    def _texts(self, row: Row) -> Iterator[str]:
        for name in self.columns:
            value = row.values[name]
            if value is None or isinstance(value, numbers.Number):
                self.num_without_text += 1
                continue
            if not isinstance(value, str):
                raise BadInputError(
                    f"{row.place}: {name!r} is no text but a value of type {type(value).__name__}; "
                    f"{COLUMN_ADVICE}"
                )
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise BadInputError(
                    f"{row.place}: {name!r} has half of a surrogate pair, which is no character; "
                    "mend or remove the row"
                ) from error
            yield value


def unescape(text: str) -> str:
    """Replaces HTML entities that end with a semicolon by their characters.

    `html.unescape` replaces `&copy` without one, too, as browsers do. In text it is mostly a part
    of an address: `?a=1&copy=2`.
    """
    return _ENTITY.sub(_character_of, text) if "&" in text else text


def _character_of(entity: re.Match[str]) -> str:
    if entity[1].startswith("#"):
        return html.unescape(entity[0])
    return html5.get(entity[1], entity[0])


def _nonblank_lines(text: str) -> list[str]:
    lines = with_line_feeds(text).split("\n")
    return [line for line in lines if line and not line.isspace()]


def describe_cells_without_text(path: str, number: int) -> str:
    """Returns a line that says how many cells had no text.

    Args:
        path: path of the output that was written from the other cells.
        number: number of cells without a text.
    """
    return f"{path}: cells with a null or a number in place of a text: {number:,}; left out"


def with_line_feeds(text: str) -> str:
    """Replaces carriage returns, with or without a line feed, by line feeds."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text


def refuse_markup(path: str, beginning: str) -> None:
    """Refuses a file that begins like a web page or XML.

    Args:
        path: path of the file.
        beginning: text at the beginning of the file.

    Raises:
        BadInputError: the file is a web page or XML.
    """
    found = _markup(beginning)
    if found:
        name, advice = found
        raise BadInputError(f"{path}: is {name}, which would be read as text; {advice}")


def looks_like_table(path: str, beginning: str, *, is_whole: bool) -> bool:
    """Whether a file begins like CSV or TSV with a column `text`.

    Args:
        path: path of the file.
        beginning: text at the beginning of the file.
        is_whole: whether `beginning` is the whole text. Otherwise its last line may be incomplete.

    Raises:
        BadInputError: the file begins like a table without this column.
    """
    found = _table(beginning, is_whole)
    if found is None:
        return False
    name, header = found
    if TEXT_COLUMN in header:
        return True
    advice = COLUMN_ADVICE
    if not _is_header(header, []):
        advice = "write the names of its columns in its first line, and " + advice
    raise BadInputError(
        f"{path}: is {name} without a column {TEXT_COLUMN!r}; its first line has "
        f"{shown_names(header)}; {advice}"
    )


def _markup(text: str) -> tuple[str, str] | None:
    """Returns the name of the markup with which a text begins, and advice, or `None`."""
    if _WIKI_DUMP.match(text):
        return "MediaWiki's XML", "take its text out with WikiExtractor, whose output is read"
    is_fragment = _FRAGMENT_START.match(text) and (
        len(_CLOSING_TAG.findall(text)) >= _FEWEST_CLOSING_TAGS
    )
    if is_fragment or _PAGE.match(text):
        return "HTML", (
            "take its text out first, for example with `trafilatura` or BeautifulSoup's `get_text`"
        )
    if _XML.match(text):
        return "XML", "write its text as plain UTF-8, blank lines between paragraphs"
    return None


def _table(text: str, is_whole: bool) -> tuple[str, list[str]] | None:
    """Returns the kind of table with which a text begins, and its first row, or `None`."""
    lines = text.lstrip("\n").split("\n", 1)
    if len(lines) == 1:
        return None
    for delimiter, name in _DELIMITERS.items():
        if delimiter in lines[0]:
            rows = _table_rows(text, delimiter, is_whole)
            if rows is not None:
                return name, rows[0]
    column = lines[0].strip().strip('"')
    if column.lower() in _TEXT_COLUMNS and _is_column(text, is_whole):
        return "CSV of one column", [column]
    return None


def _rows(text: str, dialect: Dialect, is_whole: bool) -> list[list[str]] | None:
    """Returns the rows of a table; `None` if a line is empty, as between paragraphs of prose."""
    rows = first_rows(text, dialect, is_whole=is_whole)
    return rows if rows and all(rows) else None


def _table_rows(text: str, delimiter: str, is_whole: bool) -> list[list[str]] | None:
    """Returns the rows of a text if it is a table, else `None`."""
    for dialect in DIALECTS:
        if dialect.delimiter == delimiter:
            rows = _rows(text, dialect, is_whole)
            if rows and _is_table(text, rows, delimiter):
                return rows
    return None


def _is_table(text: str, rows: Sequence[Sequence[str]], delimiter: str) -> bool:
    if len(rows) < 2 or len(rows[0]) < 2:
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
    # Rows of numbers alone may be lists of numbers in a text. Tables of texts have quoted fields.
    return _is_all_quoted(text, delimiter) or (has_number and f'{delimiter}"' in text)


def _is_header(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a row has names of columns. pandas' column of row numbers has an empty name."""
    if not names[0] and all(_NUMBER.fullmatch(row[0]) for row in rows):
        names = names[1:]
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
    """Whether commas are always quoted, as in a CSV file with one column."""
    rows = _rows(text, Dialect(",", has_quotes=True), is_whole)
    has_quoted = any(line.startswith('"') and "," in line for line in text.split("\n"))
    return rows is not None and has_quoted and all(len(row) == 1 for row in rows)

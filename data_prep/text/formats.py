"""Documents and paragraphs of plain text, WikiExtractor's text and JSON lines.

What is text, but not a corpus (web pages, XML, tables), would be read as prose and is refused. Each
parser takes blocks of text that end at line ends (only a line longer than a block is cut) and
yields documents in parts, so that a document of any size passes through.
"""

import csv
import html
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from spanbert_tf.errors import BadInputError

_BLANK_LINES = re.compile(r"\n\s*\n")
# At the beginning of a line, which is looked at after the first letter: so the search is fast.
_WIKIPEDIA_TAG = re.compile(
    r"<(?<![^\n]<)(?:doc (?P<attributes>[^\n]*)>|/doc>)[^\S\n]*$", re.MULTILINE
)
_TITLE = re.compile(r'title="(.*)"')
# Pages and tables are recognised by how a file begins. A text is refused where it could not be
# prose: no language writes a comma between letters, the same number of times in every line, under
# a line of names.
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


class TextPart(NamedTuple):
    """Paragraphs of a document, all of them or a part."""

    paragraphs: list[str]  # text without line ends, not blank; whole paragraphs
    ends_document: bool  # whether the next part begins another document
    has_title: bool = False  # whether a title was left out of the text


def plain_text_parts(
    blocks: Iterator[str], path: str, separator: str | None, paragraph_limit: int
) -> Iterator[TextPart]:
    """Parses text with blank lines between paragraphs; hard-wrapped lines are joined.

    A line equal to `separator` begins a new document; empty documents at both ends do not count. A
    paragraph of more than `paragraph_limit` characters is cut at the end of a block.
    """
    separator_line = None
    if separator is not None:
        # Nothing at the end of a block is no empty line, and no line end may be left over for the
        # next block, where it would be one.
        end = r"(?:\n|(?<=[^\n])\Z)"
        separator_line = re.compile(rf"^{re.escape(separator)}[^\S\n]*{end}", re.MULTILINE)
    unfinished = ""
    is_started = False  # whether the current document, or one before it, has text
    has_paragraphs = False  # of the current document
    for block in blocks:
        text = unfinished + block
        *finished, text = separator_line.split(text) if separator_line else [text]
        for document in finished:
            paragraphs = _join_lines(_BLANK_LINES.split(document))
            is_started |= bool(paragraphs)
            if is_started:
                yield TextPart(paragraphs, ends_document=True)
            has_paragraphs = False
        pieces = _BLANK_LINES.split(text)
        unfinished = pieces.pop() if len(pieces[-1]) <= paragraph_limit else ""
        if paragraphs := _join_lines(pieces):
            is_started = has_paragraphs = True
            yield TextPart(paragraphs, ends_document=False)
    paragraphs = _join_lines([unfinished])
    if paragraphs or has_paragraphs:
        yield TextPart(paragraphs, ends_document=True)
    elif not is_started:
        raise BadInputError(f"{path}: holds nothing but white space; remove it from the input")


def _join_lines(paragraphs: list[str]) -> list[str]:
    return [text.replace("\n", " ") for text in paragraphs if text and not text.isspace()]


def wikipedia_parts(blocks: Iterator[str], path: str) -> Iterator[TextPart]:
    """Parses WikiExtractor's `<doc id= url= title=>` … `</doc>`.

    Each line is a paragraph, in the older layout (with blank lines between most of them) and in
    the newer one. The title line is left out, and entities that were left in are undone.
    """
    title: str | None = None  # of the current document, until its first line has been read
    is_inside = has_title = False
    lines_before = 0
    for block in blocks:
        position = 0
        for tag in [*_WIKIPEDIA_TAG.finditer(block), None]:
            end = tag.start() if tag else len(block)
            paragraphs = _nonblank_lines(html.unescape(block[position:end]))
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
                is_inside, has_title = tag["attributes"] is not None, False
                found = _TITLE.search(tag["attributes"] or "")
                title = html.unescape(found[1]).strip() if found else None
        lines_before += block.count("\n")
    if is_inside:
        raise BadInputError(
            f"{path}: line {lines_before}: ends inside a document; copy the file again, or end "
            "it with </doc>"
        )


def json_lines_parts(blocks: Iterator[str], path: str) -> Iterator[TextPart]:
    """Parses one JSON object a line, whose `text` is a document, as WikiExtractor writes them.

    Each line of `text` is a paragraph; the first is left out where it repeats `title`; entities
    that were left in are undone.
    """
    for number, line in enumerate(_lines(blocks), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            text = record["text"]
            text.encode()  # an escaped half of a surrogate pair is no character
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BadInputError(
                f"{path}: line {number}: not a JSON object with a string `text` "
                f"({type(error).__name__}: {error}); mend or remove the line"
            ) from error
        paragraphs = _nonblank_lines(html.unescape(text))
        title = record.get("title")
        if paragraphs and title and paragraphs[0].strip() == html.unescape(str(title)).strip():
            paragraphs = paragraphs[1:]
        yield TextPart(paragraphs, ends_document=True, has_title=bool(title))


def _nonblank_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line and not line.isspace()]


def _lines(blocks: Iterator[str]) -> Iterator[str]:
    unfinished: list[str] = []
    for block in blocks:
        *lines, last = block.split("\n")
        for line in lines:
            yield "".join([*unfinished, line])
            unfinished = []
        unfinished.append(last)
    yield "".join(unfinished)


def refuse_foreign_format(path: str, beginning: str, *, is_whole: bool) -> None:
    """Refuses a file that begins like a web page, XML or a table; `is_whole`: no row is cut."""
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

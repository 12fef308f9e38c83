"""Documents and paragraphs of plain text, WikiExtractor's text and JSON lines.

Each parser takes blocks of text that end at line ends (only a line longer than a block is cut) and
yields documents in parts, so that a document of any size passes through.
"""

import html
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from spanbert_tf.errors import BadInputError

_BLANK_LINES = re.compile(r"\n\s*\n")
# At the beginning of a line, which is looked at after the first letter: so the search is fast.
_WIKIPEDIA_TAG = re.compile(
    r"<(?<![^\n]<)(?:doc (?P<attributes>[^\n]*)>|/doc>)[^\S\n]*$", re.MULTILINE
)
_TITLE = re.compile(r'title="(.*)"')


class TextPart(NamedTuple):
    """Paragraphs of a document, all of them or a part.

    Attributes:
        paragraphs: text without line ends, not blank; whole paragraphs.
        ends_document: whether the next part begins another document.
        has_title: whether a title was left out of the text.
    """

    paragraphs: list[str]
    ends_document: bool
    has_title: bool = False


def plain_text_parts(
    blocks: Iterator[str], path: str, separator: str | None, paragraph_limit: int
) -> Iterator[TextPart]:
    """Parses text with blank lines between paragraphs; hard-wrapped lines are joined.

    Args:
        blocks: the text.
        path: named in errors.
        separator: a line equal to this begins a new document. Without one, the text is one
            document. Empty documents at both ends (a separator before the first document, after
            the last one) do not count.
        paragraph_limit: a paragraph that has more characters is cut at the end of a block.

    Raises:
        BadInputError: there is nothing but white space.
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

    Args:
        blocks: the text.
        path: named in errors.

    Raises:
        BadInputError: there is text outside of documents, or a document without an end.
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

    Args:
        blocks: the lines.
        path: named in errors.

    Raises:
        BadInputError: a line is not a JSON object with a string `text`.
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

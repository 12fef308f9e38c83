"""Reads documents from text files, paragraph by paragraph, so that memory does not grow with them.

Formats are recognised by content, gzip included:

- plain text: an empty line ends a paragraph, hard-wrapped lines are joined; a file is one
  document, or a separator line begins a new one;
- WikiExtractor's text: `<doc id= url= title=>`, the title, a paragraph a line, `</doc>`;
- JSON lines: objects with a `text`, whose lines are paragraphs.
"""

import collections
import dataclasses
import glob
import gzip
import html
import io
import json
import os
import re
import zlib
from collections.abc import Iterator

from spanbert_tf.errors import BadInputError

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = "\ufeff"
_DOC_START = re.compile(r"<doc\b[^>]*>")
_DOC_TITLE = re.compile(r'\btitle="(.*?)"[^"]*>')


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """A paragraph of a document.

    Attributes:
        document: number of its document in the file.
        index: number of the paragraph in its document.
        text: one line.
    """

    document: int
    index: int
    text: str


def find_files(pattern: str) -> list[str]:
    """The files that a glob pattern matches, sorted.

    Raises:
        BadInputError: there is none.
    """
    files = sorted(path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    if not files:
        raise BadInputError(f"{pattern}: no such file; quote the pattern, and check the directory")
    return files


def read_paragraphs(
    path: str, counts: collections.Counter, document_separator: str | None = None
) -> Iterator[Paragraph]:
    """Reads the paragraphs of all documents of a file.

    Args:
        path: of the file.
        counts: is increased by `bytes` (of text, uncompressed), `documents`, `paragraphs`,
            `empty_documents` and `title_only_documents`; the last two are not read.
        document_separator: in plain text, a line equal to this begins a new document.

    Yields:
        Paragraphs in order; documents without text have no number.

    Raises:
        BadInputError: the file is empty, no UTF-8, a broken gzip, or a JSON line has no text.
    """
    lines = _read_lines(path, counts)
    first = next((line for line in lines if line[1].strip()), None)
    if first is None:
        raise BadInputError(f"{path}: holds no text; remove it from the input")
    lines = _chain(first, lines)
    if _DOC_START.match(first[1]):
        documents = _wiki_documents(lines)
    elif first[1].startswith("{"):
        documents = _json_documents(path, lines)
    else:
        yield from _plain_paragraphs(lines, counts, document_separator)
        return
    yield from _numbered(documents, counts)


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _read_lines(path: str, counts: collections.Counter) -> Iterator[tuple[int, str]]:
    """(line number from 1, line without its end) of a file, unpacked and decoded."""
    number = 0
    try:
        with open(path, "rb") as raw:
            is_gzip = raw.peek(2)[:2] == _GZIP_MAGIC
            stream = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if is_gzip else raw
            for number, line in enumerate(stream, start=1):
                counts["bytes"] += len(line)
                text = line.decode("utf-8")
                if number == 1:
                    text = text.removeprefix(_BYTE_ORDER_MARK)
                yield number, text.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{path}: line {number}: not UTF-8 at byte {error.start} of the line; convert the file"
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadInputError(
            f"{path}: after line {number}: broken gzip ({error}); copy the file again"
        ) from error
    except OSError as error:
        raise BadInputError(f"{path}: cannot be read ({error.strerror})") from error


def _plain_paragraphs(
    lines: Iterator[tuple[int, str]], counts: collections.Counter, separator: str | None
) -> Iterator[Paragraph]:
    """Streams a plain text: its one document may be as large as the corpus."""
    document, index, pending = 0, 0, []

    def ended_paragraph() -> Iterator[Paragraph]:
        nonlocal index
        if pending:
            counts["documents"] += index == 0
            counts["paragraphs"] += 1
            yield Paragraph(document, index, " ".join(pending))
            pending.clear()
            index += 1

    starts_with_separator = True  # a separator before the first document separates nothing
    for _, line in lines:
        stripped = line.strip()
        if separator is not None and stripped == separator:
            yield from ended_paragraph()
            if index:
                document, index = document + 1, 0
            elif not starts_with_separator:
                counts["empty_documents"] += 1
        elif stripped:
            pending.append(stripped)
        else:
            yield from ended_paragraph()
        starts_with_separator = False
    yield from ended_paragraph()


def _wiki_documents(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, list[str]]]:
    """(title, lines) of WikiExtractor's documents, of the older and the newer layout."""
    title, texts, is_inside = "", [], False
    for _, line in lines:
        if _DOC_START.match(line):
            if is_inside:  # an end tag is missing
                yield title, texts
            found = _DOC_TITLE.search(line)
            title, texts, is_inside = (html.unescape(found[1]) if found else ""), [], True
        elif line.startswith("</doc>"):
            yield title, texts
            is_inside = False
        elif is_inside and line.strip():
            texts.append(html.unescape(line).strip())
    if is_inside:
        yield title, texts


def _json_documents(path: str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, list[str]]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise BadInputError(f"{path}: line {number}: not JSON ({error})") from error
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise BadInputError(
                f"{path}: line {number}: no `text`; each line must be an object with one"
            )
        yield (
            str(value.get("title", "")),
            [part.strip() for part in text.split("\n") if part.strip()],
        )


def _numbered(
    documents: Iterator[tuple[str, list[str]]], counts: collections.Counter
) -> Iterator[Paragraph]:
    """Drops titles, counts documents that have nothing else, and numbers the others."""
    number = 0
    for title, texts in documents:
        has_title = bool(title) and texts[:1] == [title.strip()]
        texts = texts[has_title:]
        if not texts:
            counts["title_only_documents" if has_title else "empty_documents"] += 1
            continue
        counts["documents"] += 1
        counts["paragraphs"] += len(texts)
        for index, text in enumerate(texts):
            yield Paragraph(number, index, text)
        number += 1

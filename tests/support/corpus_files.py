"""Writes small corpora in every format, for the tests of this directory."""

import gzip
import html
import json

from hypothesis import strategies as st

# Letters of one to four bytes, and characters that mean something in one of the formats.
_LETTERS = "abcdeXYZéß漢\U0001d518'\"&<>{}="

# A file that begins as WikiExtractor's or as JSON lines is no plain text.
WORDS = st.text(_LETTERS, min_size=1, max_size=9).filter(lambda word: word[0] not in "<{")
PARAGRAPHS = st.lists(WORDS, min_size=1, max_size=12).map(" ".join)
DOCUMENTS = st.lists(PARAGRAPHS, min_size=1, max_size=6)
CORPORA = st.lists(DOCUMENTS, min_size=1, max_size=6)


def plain_text(documents, separator="=====", newline="\n"):
    """Documents with a line between them, paragraphs wrapped after every third word."""
    texts = ["\n\n".join(map(_wrap, paragraphs)) for paragraphs in documents]
    return f"\n{separator}\n".join(texts).replace("\n", newline) + newline


def _wrap(paragraph):
    words = paragraph.split(" ")
    return "\n".join(" ".join(words[start : start + 3]) for start in range(0, len(words), 3))


def wikipedia_text(documents, *, gap="\n\n", escape=False):
    """WikiExtractor's text: `gap` is two line ends in the older layout, one in the newer."""
    lines = []
    for number, paragraphs in enumerate(documents):
        body = gap.join([f"Title {number}", *paragraphs])
        body = html.escape(body, quote=False) if escape else body
        lines.append(f'<doc id="{number}" url="?curid={number}" title="Title {number}">\n{body}\n')
        lines.append("</doc>\n")
    return "".join(lines)


def json_lines_text(documents):
    """WikiExtractor's JSON lines."""
    return "".join(
        json.dumps(
            {"id": number, "title": f"Title {number}", "text": "\n".join([f"Title {number}", *d])}
        )
        + "\n"
        for number, d in enumerate(documents)
    )


def write_file(path, text, *, compress=False):
    """Writes text as UTF-8, by its name nothing can be told about the format."""
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data, 1, mtime=0) if compress else data)
    return str(path)


def read_documents(reader):
    """Puts the parts of documents together: [(paragraphs, has_title)].

    White space around a paragraph does not matter.
    """
    documents, paragraphs = [], []
    for part in reader:
        paragraphs += [text.strip() for text in part.paragraphs]
        if part.ends_document:
            documents.append((paragraphs, part.has_title))
            paragraphs = []
    assert not paragraphs
    return documents

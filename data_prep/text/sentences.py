"""Splits paragraphs into sentences."""

import re
from collections.abc import Sequence

import sentencex

# The splitter takes text apart at bytes and fails where an initial ("J.") follows white space of
# more than one byte, so it is shown plain spaces.
_WIDE_SPACE = re.compile("[\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]")


def split_sentences(paragraphs: Sequence[str]) -> tuple[list[str], list[int]]:
    """Splits English paragraphs by rules (sentencex).

    Args:
        paragraphs: text without line ends.

    Returns:
        The sentences, and for each paragraph how many of them are its own. The sentences of a
        paragraph, put together, are the paragraph to the character.
    """
    sentences: list[str] = []
    counts: list[int] = []
    for paragraph in paragraphs:
        found = _split(paragraph)
        sentences += found
        counts.append(len(found))
    return sentences, counts


def _split(paragraph: str) -> list[str]:
    if paragraph.isascii() or not _WIDE_SPACE.search(paragraph):
        return list(sentencex.segment("en", paragraph))
    sentences = []
    start = 0
    for shown in sentencex.segment("en", _WIDE_SPACE.sub(" ", paragraph)):
        sentences.append(paragraph[start : start + len(shown)])
        start += len(shown)
    return sentences

"""Splits paragraphs into sentences."""

import itertools
import re
from collections.abc import Iterator, Sequence

import sentencex

# An opening quotation mark without a closing one costs the splitter a look at all that follows:
# 100,000 in a row took 2 s, twice as many take four times as long. So it sees so many characters at
# once, and of these the last ones only as what follows.
_SEEN, _FOLLOWING = 30_000, 1_000
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
    shown = paragraph if paragraph.isascii() else _WIDE_SPACE.sub(" ", paragraph)
    sentences = []
    start = 0
    for length in _lengths(shown):
        sentences.append(paragraph[start : start + length])
        start += length
    return sentences


def _lengths(text: str) -> Iterator[int]:
    """Characters of each sentence; one that is longer than what is seen at once is cut."""
    start = 0
    while len(text) - start > _SEEN:
        lengths = [len(found) for found in sentencex.segment("en", text[start : start + _SEEN])]
        ends = itertools.accumulate(lengths)
        num_whole = sum(end <= _SEEN - _FOLLOWING for end in ends)
        for length in lengths[: num_whole or 1]:
            yield length
            start += length
    for found in sentencex.segment("en", text[start:]):
        yield len(found)

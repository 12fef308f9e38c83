"""Clusters without any training, to see what a score is worth."""

import collections
from collections.abc import Iterable

from spanbert_tf.tasks.coreference.files import PRONOUNS
from spanbert_tf.tasks.coreference.records import Clusters, DocumentLine, Span

_DETERMINERS = frozenset(("the", "this", "that", "these", "those"))


def link_equal_strings(documents: Iterable[DocumentLine]) -> list[Clusters]:
    """Links what is written alike, whatever its case.

    Mentions are names, that is runs of capitalised words as long as can be (the first word of a
    sentence only where the text has it capitalised elsewhere, too); a determiner with the word
    after it; and pronouns.

    Args:
        documents: lines of the records of `prepare coreference`.

    Returns:
        The clusters of each document.
    """
    return [_link(line) for line in documents]


def _link(line: DocumentLine) -> Clusters:
    words = line["words"]
    clusters = collections.defaultdict(list)
    for start, end in _mentions(words, set(line["sentence_starts"])):
        clusters[" ".join(words[start : end + 1]).lower()].append((start, end))
    return [spans for spans in clusters.values() if len(spans) > 1]


def _mentions(words: list[str], sentence_starts: set[int]) -> list[Span]:
    inside = {word for n, word in enumerate(words) if n not in sentence_starts}

    def is_name(number: int) -> bool:
        word = words[number]
        is_capitalised = word[:1].isupper() and word.lower() not in PRONOUNS | _DETERMINERS
        return is_capitalised and (number not in sentence_starts or word in inside)

    found: list[Span] = []
    start = None
    for number, word in enumerate(words):
        begins = number in sentence_starts
        if start is not None and (begins or not is_name(number)):
            found.append((start, number - 1))
            start = None
        if is_name(number):
            start = number if start is None else start
        elif word.lower() in PRONOUNS:
            found.append((number, number))
        elif word.lower() in _DETERMINERS and number + 1 < len(words):
            found.append((number, number + 1))
    return found if start is None else [*found, (start, len(words) - 1)]

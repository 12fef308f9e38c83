"""Compares documents or paragraphs by hashes, and leaves duplicates out of a text.

Two texts are duplicates if they have the same words in the same order; white space does not count.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Literal

from data_prep.text.formats import TextPart

Unit = Literal["documents", "paragraphs"]
HASH_BYTES = 16  # of 10 billion texts, two have the same hash with a probability of 10⁻¹⁹


def duplicate_count(unit: Unit) -> str:
    """Returns the key of the manifest's number of duplicates."""
    return f"duplicate_{unit}"


def hash_units(parts: Iterable[TextPart], unit: Unit) -> Iterator[tuple[int, bytes]]:
    """Yields the index and the hash of each document or paragraph that has text.

    Args:
        parts: the documents of a file in parts.
        unit: what is compared.
    """
    if unit == "documents":
        return _hash_documents(parts)
    return _hash_paragraphs(parts)


def _hash_documents(parts: Iterable[TextPart]) -> Iterator[tuple[int, bytes]]:
    document = 0
    has_text = False
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    for part in parts:
        for paragraph in part.paragraphs:
            digest.update(_normalize(paragraph))
            has_text = True
        if part.ends_document:
            if has_text:
                yield document, digest.digest()
            document += 1
            has_text = False
            digest = hashlib.blake2b(digest_size=HASH_BYTES)


def _hash_paragraphs(parts: Iterable[TextPart]) -> Iterator[tuple[int, bytes]]:
    paragraphs = (paragraph for part in parts for paragraph in part.paragraphs)
    for index, paragraph in enumerate(paragraphs):
        digest = hashlib.blake2b(_normalize(paragraph), digest_size=HASH_BYTES)
        yield index, digest.digest()


def _normalize(paragraph: str) -> bytes:
    return " ".join([*paragraph.split(), ""]).encode()


def number_documents(parts: Iterable[TextPart]) -> Iterator[tuple[int, TextPart]]:
    """Yields each part with the index of its document among them."""
    document = 0
    for part in parts:
        yield document, part
        document += part.ends_document


def without_duplicates(
    parts: Iterable[TextPart], unit: Unit, duplicates: Iterable[int]
) -> Iterator[tuple[int, TextPart]]:
    """Yields the same as `number_documents` without duplicates. Documents keep their indices.

    If all paragraphs of a document are duplicates, it is a document without text.

    Args:
        parts: the documents of a file in parts.
        unit: what is compared.
        duplicates: the indices of the documents or paragraphs to leave out, in ascending order.
    """
    remaining = iter(duplicates)
    next_duplicate = next(remaining, None)
    num_paragraphs = 0
    for document, part in number_documents(parts):
        if unit == "documents":
            if next_duplicate is not None and next_duplicate < document:
                next_duplicate = next(remaining, None)
            if document != next_duplicate:
                yield document, part
            continue
        kept = []
        for paragraph in part.paragraphs:
            if num_paragraphs == next_duplicate:
                next_duplicate = next(remaining, None)
            else:
                kept.append(paragraph)
            num_paragraphs += 1
        yield document, part._replace(paragraphs=kept)

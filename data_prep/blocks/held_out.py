"""Which records are held out: whole documents, or single blocks where documents are few or large.

A document is held out if its key, which is random, is small. With few documents, or some large
ones, the share that is held out would be anything; then blocks are held out by their own keys.
Blocks have no text in common. Pairs have: what a record lends to another one begins the record that
follows, so pairs always go by documents.
"""

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from data_prep.blocks.sequences import Record

_KEY_RANGE = 2**63  # of the keys of documents and of records
# By documents, the share varies by one part in the root of the documents to be held out (of equal
# size); with ten, by a third.
_FEWEST_HELD_OUT = 10
MOST_KEYS = 512  # up to so many blocks are held out to the number


class SplitKeys(NamedTuple):
    """What must be known of a file's documents and records to decide."""

    documents: tuple[int, ...]  # the smallest and the largest keys of its documents, two of each
    records: tuple[int, ...]  # the `MOST_KEYS` smallest ids of its records
    num_documents: int  # documents with text
    num_records: int
    squared_records: int  # the sum of the squares of the documents' numbers of records


class HeldOut(NamedTuple):
    """Tells the records that are held out."""

    by_document: bool  # whether documents are held out as a whole
    limit: int  # keys from here on are not held out

    def split(self, record: Record) -> str:
        """`"validation"` or `"train"`."""
        key = record.document_key if self.by_document else record.record_id
        return "validation" if key < self.limit else "train"

    def describe(self) -> str:
        """In words, what is held out."""
        return "whole documents" if self.by_document else "blocks, documents are few or large"


def find_held_out(files: Sequence[SplitKeys], fraction: float, sequences: str) -> HeldOut:
    """Decides what is held out; the same for any number of processes.

    Unless `fraction` is 0 or there is too little, each split gets something: a record, and of pairs
    two documents, so that a random second segment can come from another document of the same split.
    """
    num_documents = sum(file.num_documents for file in files)
    num_records = sum(file.num_records for file in files)
    squared = sum(file.squared_records for file in files)
    # Documents of equal size whose number would make the share vary as these do.
    effective_documents = num_records**2 / squared if squared else 0
    if sequences == "pair":
        return HeldOut(True, _documents_limit(files, fraction, num_documents, fewest=2))
    if fraction * effective_documents >= _FEWEST_HELD_OUT:
        return HeldOut(True, _documents_limit(files, fraction, num_documents, fewest=1))
    if not fraction or num_records < 2:
        return HeldOut(False, 0)
    wanted = min(max(round(fraction * num_records), 1), num_records - 1)
    if wanted > MOST_KEYS:
        return HeldOut(False, int(fraction * _KEY_RANGE))
    keys = sorted(key for file in files for key in file.records)
    return HeldOut(False, keys[wanted - 1] + 1)


def _documents_limit(
    files: Sequence[SplitKeys], fraction: float, num_documents: int, *, fewest: int
) -> int:
    if not fraction or num_documents < 2 * fewest:
        return 0
    keys = sorted({key for file in files for key in file.documents})
    return min(max(int(fraction * _KEY_RANGE), keys[fewest - 1] + 1), keys[-fewest])


class SmallestKeys:
    """The `MOST_KEYS` smallest of many keys."""

    def __init__(self) -> None:
        self._negated: list[int] = []  # a heap, the largest key first

    def add(self, key: int) -> None:
        """Takes a key into account."""
        if len(self._negated) < MOST_KEYS:
            heapq.heappush(self._negated, -key)
        elif -key > self._negated[0]:
            heapq.heapreplace(self._negated, -key)

    def sorted(self) -> tuple[int, ...]:
        """The smallest keys, in order."""
        return tuple(sorted(-key for key in self._negated))

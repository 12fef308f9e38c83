"""Decides which records are held out: whole documents, or blocks if documents are few or large.

A document is held out if its random key is small. With few documents, or with some very large ones,
the held-out share would be far from the wanted one, so blocks are held out by their own keys.
Blocks share no text, but pairs do: the segment that a record gives to another record, as its second
segment, is also the beginning of the next record. Pairs are therefore always held out by document.
"""

import heapq
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from data_prep.blocks.sequences import Record
from spanbert_tf.data.manifest import Sequences, Split

_KEY_RANGE = 2**63  # keys of documents and records are below this
# With n held-out documents of equal size, the share has a relative deviation of 1/√n: a third for
# ten documents.
_FEWEST_HELD_OUT = 10
MOST_KEYS = 512  # up to this many blocks, exactly the wanted number is held out


class SplitKeys(NamedTuple):
    """The statistics of an input file, or of a part of one, on which the decision depends.

    Attributes:
        documents: the two smallest and the two largest keys of its documents.
        records: the `MOST_KEYS` smallest ids of its records.
        num_documents: number of documents with text.
        num_records: number of records.
        squared_records: sum over the documents of the squared number of records.
    """

    documents: tuple[int, ...]
    records: tuple[int, ...]
    num_documents: int
    num_records: int
    squared_records: int


class HeldOut(NamedTuple):
    """The rule that assigns records to splits.

    Attributes:
        by_document: whether whole documents are held out.
        limit: records (or documents) with keys below this number are held out.
    """

    by_document: bool
    limit: int

    def split(self, record: Record) -> Split:
        """Returns the split of a record."""
        key = record.document_key if self.by_document else record.record_id
        return "validation" if key < self.limit else "train"

    def describe(self) -> str:
        """Describes the rule, for messages."""
        return "whole documents" if self.by_document else "blocks, documents are few or large"


def find_held_out(files: Sequence[SplitKeys], fraction: float, sequences: Sequences) -> HeldOut:
    """Decides what is held out. The result does not depend on the number of processes.

    Unless `fraction` is 0 or there is too little text, each split gets at least one record. With
    pairs it gets at least two documents, so that a random second segment can come from another
    document of the same split.

    Args:
        files: statistics of all parts of the input, in any order.
        fraction: share of the records to hold out.
        sequences: `"single"` or `"pair"`.
    """
    num_documents = sum(file.num_documents for file in files)
    num_records = sum(file.num_records for file in files)
    squared = sum(file.squared_records for file in files)
    # The number of equally large documents for which the share would vary as much.
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
    keys = sorted(itertools.chain.from_iterable(file.records for file in files))
    return HeldOut(False, keys[wanted - 1] + 1)


def _documents_limit(
    files: Sequence[SplitKeys], fraction: float, num_documents: int, *, fewest: int
) -> int:
    if not fraction or num_documents < 2 * fewest:
        return 0
    keys = sorted(set(itertools.chain.from_iterable(file.documents for file in files)))
    return min(max(int(fraction * _KEY_RANGE), keys[fewest - 1] + 1), keys[-fewest])


class SmallestKeys:
    """Collects the `MOST_KEYS` smallest of many keys."""

    def __init__(self) -> None:
        self._negated: list[int] = []  # a heap whose first element is the largest key

    def add(self, key: int) -> None:
        """Adds a key."""
        if len(self._negated) < MOST_KEYS:
            heapq.heappush(self._negated, -key)
        elif -key > self._negated[0]:
            heapq.heapreplace(self._negated, -key)

    def sorted(self) -> tuple[int, ...]:
        """Returns the smallest keys in ascending order."""
        return tuple(sorted(-key for key in self._negated))

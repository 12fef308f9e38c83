"""Pairs of segments for next sentence prediction (BERT; SpanBERT, sections 2.3 and 4.3).

A row consists of whole sentences: a first segment of at most half of the row's tokens, and a second
segment that fills the rest. The second segment either follows the first one in the document (label
0) or comes from another document (label 1). With label 1, the next row begins where the first
segment ends. Apart from the random segments, all text is therefore used exactly once.

Random segments are drawn when a shard is written (`draw_second_segments`). The records of the shard
with label 1 exchange the sentences that follow their first segments, and each record takes as many
of these sentences as fit. Random second segments therefore have the same distribution as true ones,
and only their relation to the first segment reveals the label.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from data_prep.blocks.sequences import (
    LIST_TYPE,
    Block,
    Record,
    Sentences,
    begins_run,
    cut_blocks,
)
from data_prep.text.scanning import GROUP

NEXT = 0
RANDOM = 1
_INDEX_LISTS = (1, 3)  # places of indices in `Block.lists`; all other lists are positions
_LABEL_BIT = 32  # bit of the record id that decides the label; any bit would do

RecordKeys = tuple[int, int, int]  # order key, record id, document key


class _Row(NamedTuple):
    """A record as ranges of sentences.

    Attributes:
        keys: keys of the record.
        label: `NEXT` or `RANDOM`.
        first: first sentence of the first segment.
        middle: first sentence of the second segment. With label 1, the record gives this segment to
            another record; it is empty at the end of a document.
        stop: the sentence after the second segment.
    """

    keys: RecordKeys
    label: int
    first: int
    middle: int
    stop: int


class PairBuilder:
    """Groups the sentences of a file's documents into pairs.

    Each label is 0 or 1 with equal probability. If 0 is drawn and the rest of the document is less
    than half a row, the rest is cut in two. If the rest is a single sentence, the label becomes 1,
    and a later label 1 of the same `GROUP` of documents becomes 0 in exchange, so that both labels
    stay equally frequent.

    Args:
        limit: maximum number of word pieces of a row.
        token_dtype: dtype in which token ids are stored.
        keys: a function that returns the keys of the next record of a document.
    """

    def __init__(self, limit: int, token_dtype: str, keys: Callable[[int], RecordKeys]) -> None:
        self._limit = limit
        self._token_dtype = token_dtype
        self._keys = keys
        self._surplus = 0  # labels that became 1 and were not yet exchanged
        self._group = 0  # the group of documents in which they became 1

    def fill(self, sentences: Sentences, *, is_open: bool) -> tuple[list[Record], Sentences]:
        """Makes records of sentences.

        Args:
            sentences: consecutive sentences of a file.
            is_open: whether the last document continues. If so, its last two rows wait for more
                sentences.

        Returns:
            The records, and the sentences that are not used yet. `second` of a record with label 1
            is the segment that it gives to another record.
        """
        rows, waiting = self._rows(sentences, is_open)
        if not rows:
            return [], sentences
        segments = []
        for row in rows:
            segments.append((row.first, row.middle))
            if row.middle < row.stop:
                segments.append((row.middle, row.stop))
        firsts, stops = np.array(segments).T
        bounds = [0, *np.cumsum(stops - firsts).tolist()]
        blocks = iter(cut_blocks(sentences.take(firsts, stops), bounds, self._token_dtype))
        records = [
            Record(
                *row.keys,
                next(blocks),
                next(blocks) if row.middle < row.stop else None,
                row.label,
            )
            for row in rows
        ]
        return records, sentences.from_sentence(waiting)

    def _rows(self, sentences: Sentences, is_open: bool) -> tuple[list[_Row], int]:
        """Returns the rows, and the index of the first sentence that is not used yet."""
        rows: list[_Row] = []
        token_ends = np.cumsum(sentences.lengths).tolist()
        begins = np.flatnonzero(begins_run(sentences.documents)).tolist()
        first = 0
        for begin, end in zip(begins, [*begins[1:], len(token_ends)], strict=True):
            document = int(sentences.documents[begin])
            if document // GROUP != self._group:
                self._group = document // GROUP
                self._surplus = 0
            goes_on = is_open and end == len(token_ends)
            least_tokens = 2 * self._limit if goes_on else 1
            while first < end and token_ends[end - 1] - _before(token_ends, first) >= least_tokens:
                row = self._row(token_ends, first, end, document)
                rows.append(row)
                first = row.stop if row.label == NEXT else row.middle
        return rows, first

    def _row(self, token_ends: list[int], first: int, end: int, document: int) -> _Row:
        """Returns the row that begins at sentence `first` of a document that ends before `end`."""

        def fill(start: int, num_tokens: int) -> int:
            return bisect_right(token_ends, _before(token_ends, start) + num_tokens, start, end)

        keys = self._keys(document)
        middle = fill(first, self._limit // 2)
        label = self._draw(keys, can_be_next=end - first > 1)
        if label == RANDOM:
            return _Row(keys, label, first, middle, fill(middle, self._limit))
        start = _before(token_ends, first)
        if middle == end:
            center = (start + token_ends[end - 1]) / 2
            inner = range(first + 1, end)
            middle = min(inner, key=lambda index: abs(_before(token_ends, index) - center))
        room = self._limit - (_before(token_ends, middle) - start)
        return _Row(keys, label, first, middle, fill(middle, room))

    def _draw(self, keys: RecordKeys, *, can_be_next: bool) -> int:
        label = keys[1] >> _LABEL_BIT & 1
        if not can_be_next:
            self._surplus += label == NEXT
            return RANDOM
        if label == RANDOM and self._surplus:
            self._surplus -= 1
            return NEXT
        return label


def _before(token_ends: list[int], sentence: int) -> int:
    """Returns the number of tokens before a sentence."""
    return token_ends[sentence - 1] if sentence else 0


def first_sentences(block: Block, num_tokens: int) -> Block:
    """Returns the first sentences of a block, as many as fit in `num_tokens` tokens."""
    if block.num_tokens <= num_tokens:
        return block
    sentence_starts, _, paragraph_starts, _, *spans = map(_numbers, block.lists)
    num_sentences = int(np.searchsorted(sentence_starts, num_tokens, side="right")) - 1
    stop = int(sentence_starts[num_sentences])
    num_paragraphs = int(np.searchsorted(paragraph_starts, stop))
    token_size = len(block.token_ids) // block.num_tokens
    counts = (num_sentences, num_sentences, num_paragraphs, num_paragraphs)
    lists = [raw[: n * LIST_TYPE.itemsize] for raw, n in zip(block.lists, counts, strict=False)]
    for starts, ends in zip(spans[::2], spans[1::2], strict=False):
        is_inside = ends < stop
        lists.append(_raw(starts[is_inside]))
        lists.append(_raw(ends[is_inside]))
    if len(spans) % 2:  # the words, which have no ends
        lists.append(_raw(spans[-1][spans[-1] < stop]))
    return block._replace(
        num_tokens=stop, token_ids=block.token_ids[: stop * token_size], lists=tuple(lists)
    )


def join_blocks(first: Block, second: Block) -> Block:
    """Joins the two segments of a pair into one block.

    Positions in the second segment are shifted; its sentence and paragraph indices are unchanged.
    """
    lists = []
    for place, (head, tail) in enumerate(zip(first.lists, second.lists, strict=True)):
        if place not in _INDEX_LISTS:
            tail = _raw(_numbers(tail) + first.num_tokens)
        lists.append(head + tail)
    return first._replace(
        num_tokens=first.num_tokens + second.num_tokens,
        token_ids=first.token_ids + second.token_ids,
        lists=tuple(lists),
    )


def _numbers(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, LIST_TYPE).astype(np.int64)


def _raw(numbers: np.ndarray) -> bytes:
    return numbers.astype(LIST_TYPE).tobytes()


def draw_second_segments(
    records: list[Record], limit: int, others: Callable[[], Iterator[Record]]
) -> list[Record]:
    """Gives each record with label 1 a second segment from another document.

    The other records with label 1 are the donors. A donor gives the segment that follows its first
    segment or, at the end of a document, its first segment. Each record takes the segment of the
    next donor from another document, and as many of its sentences as fit.

    Args:
        records: records of one split of a shard, in random order.
        limit: maximum number of word pieces of a row.
        others: a function that returns records of the same split in other shards. It is called only
            if all records with label 1 come from one document.

    Returns:
        The records in the same order.
    """
    receivers = [place for place, record in enumerate(records) if record.label == RANDOM]
    if not receivers:
        return records
    donors = [records[place] for place in receivers]
    if len({record.document_key for record in donors}) == 1:
        document = donors[0].document_key
        candidates = itertools.chain(records, others())
        donors.append(next(record for record in candidates if record.document_key != document))
    drawn = list(records)
    for place, donor in zip(receivers, _of_other_documents(donors), strict=False):
        room = limit - records[place].block.num_tokens
        second = first_sentences(donor.second or donor.block, room)
        drawn[place] = records[place]._replace(second=second)
    return drawn


def _of_other_documents(records: list[Record]) -> list[Record]:
    """Returns for each record the next one of another document; the first follows the last."""
    num_records = len(records)
    found: list[Record] = [records[0]] * (2 * num_records)
    # Two rounds from the end: a record has the answer of its successor if both share a document.
    for place in reversed(range(2 * num_records - 1)):
        record = records[place % num_records]
        following = records[(place + 1) % num_records]
        if following.document_key != record.document_key:
            found[place] = following
        else:
            found[place] = found[place + 1]
    return found[:num_records]

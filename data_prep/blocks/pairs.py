"""Pairs of segments for next sentence prediction (BERT; SpanBERT, sections 2.3 and 4.3).

A row takes whole sentences: a first segment of at most half of its tokens, and a second one that
fills the rest. The second is what follows in the document (label 0), or begins somewhere in another
document (label 1). In the second case the row that comes next begins where the first segment ends,
so all text is used, once, besides the random segments.

The random segments are drawn when a shard is written (`draw_second_segments`): the records of a
shard whose label is 1 exchange what follows their first segments, and each takes as many of the
sentences as fit. So random second segments are distributed as true ones are, and only their
relation to the first segment tells the label.
"""

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

NEXT, RANDOM = 0, 1
_INDEX_LISTS = (1, 3)  # of a block's lists; all others are positions
_LABEL_BIT = 32  # of the record id; any bit would do

RecordKeys = tuple[int, int, int]  # order key, record id, document key


class _Row(NamedTuple):
    """A record: its segments are the sentences from `first` and from `middle`, up to `stop`.

    With label 1 the second segment is not its own, but the one that it gives to another record; at
    the end of a document it is empty.
    """

    keys: RecordKeys
    label: int
    first: int
    middle: int
    stop: int


class PairBuilder:
    """Decides which sentences of a file's documents make a record.

    Each label is 0 or 1 with even chances. Where the draw says 0 and what is left of the document
    is less than half a row, that is cut in two; a single sentence gets the label 1 instead, and the
    next draw of a 1 that can be a 0 becomes one, so that labels are even in the whole.
    """

    def __init__(self, limit: int, token_dtype: str, keys: Callable[[int], RecordKeys]) -> None:
        self._limit = limit
        self._token_dtype = token_dtype
        self._keys = keys
        self._surplus = 0  # labels 1 where 0 was drawn

    def fill(self, sentences: Sentences, *, is_open: bool) -> tuple[list[Record], Sentences]:
        """Makes records of sentences; with them it returns the sentences that wait.

        Where the last document goes on (`is_open`), its last two rows wait for more. `second` of
        records with label 1 is what they give to others.
        """
        rows, waiting = self._rows(sentences, is_open)
        if not rows:
            return [], sentences
        segments = [
            segment
            for row in rows
            for segment in ((row.first, row.middle), (row.middle, row.stop))
            if segment[0] < segment[1]
        ]
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
        """The rows, and the number of the first sentence that waits."""
        rows: list[_Row] = []
        token_ends = np.cumsum(sentences.lengths).tolist()
        begins = np.flatnonzero(begins_run(sentences.documents)).tolist()
        first = 0
        for begin, end in zip(begins, [*begins[1:], len(token_ends)], strict=True):
            document = int(sentences.documents[begin])
            least_tokens = 2 * self._limit if is_open and end == len(token_ends) else 1
            while first < end and token_ends[end - 1] - _before(token_ends, first) >= least_tokens:
                rows.append(self._row(token_ends, first, end, document))
                first = rows[-1].stop if rows[-1].label == NEXT else rows[-1].middle
        return rows, first

    def _row(self, token_ends: list[int], first: int, end: int, document: int) -> _Row:
        """The row that begins with a sentence of a document that ends before sentence `end`."""

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
            middle = min(inner, key=lambda number: abs(_before(token_ends, number) - center))
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
    """Tokens before a sentence."""
    return token_ends[sentence - 1] if sentence else 0


def first_sentences(block: Block, num_tokens: int) -> Block:
    """As many sentences from the beginning of a block as have at most so many tokens."""
    if block.num_tokens <= num_tokens:
        return block
    sentence_starts, _, paragraph_starts, _, *spans = map(_numbers, block.lists)
    num_sentences = int(np.searchsorted(sentence_starts, num_tokens, side="right")) - 1
    stop = int(sentence_starts[num_sentences])
    num_paragraphs = int(np.searchsorted(paragraph_starts, stop))
    token_size = len(block.token_ids) // block.num_tokens
    counts = (num_sentences, num_sentences, num_paragraphs, num_paragraphs)
    lists = [raw[: n * LIST_TYPE.itemsize] for raw, n in zip(block.lists, counts, strict=False)]
    for starts, ends in zip(spans[::2], spans[1::2], strict=True):
        lists += (_raw(positions[ends < stop]) for positions in (starts, ends))
    return block._replace(
        num_tokens=stop, token_ids=block.token_ids[: stop * token_size], lists=tuple(lists)
    )


def join_blocks(first: Block, second: Block) -> Block:
    """Both segments of a pair as one block; the second keeps its own indices."""
    lists = [
        a + (b if number in _INDEX_LISTS else _raw(_numbers(b) + first.num_tokens))
        for number, (a, b) in enumerate(zip(first.lists, second.lists, strict=True))
    ]
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

    The segments come from the other records with label 1: what follows their first segment, or,
    at the end of a document, that segment itself. Each record takes that of the next record, in
    the random order given, that is of another document: as many sentences as it has room for.
    `others` gives records of the same split in other shards; it is asked only if all records with
    label 1 are of one document.
    """
    receivers = [number for number, record in enumerate(records) if record.label == RANDOM]
    if not receivers:
        return records
    donors = [records[number] for number in receivers]
    if len({record.document_key for record in donors}) == 1:
        document = donors[0].document_key
        candidates = (record for part in (records, others()) for record in part)
        donors.append(next(record for record in candidates if record.document_key != document))
    drawn = list(records)
    for number, donor in zip(receivers, _of_other_documents(donors), strict=False):
        room = limit - records[number].block.num_tokens
        second = first_sentences(donor.second or donor.block, room)
        drawn[number] = records[number]._replace(second=second)
    return drawn


def _of_other_documents(records: list[Record]) -> list[Record]:
    """For each record, the next one (after the last comes the first) of another document."""
    num_records = len(records)
    found: list[Record] = [records[0]] * (2 * num_records)
    for number in reversed(range(2 * num_records - 1)):
        record, following = records[number % num_records], records[(number + 1) % num_records]
        is_other = following.document_key != record.document_key
        found[number] = following if is_other else found[number + 1]
    return found[:num_records]

"""Pairs of segments for next sentence prediction (BERT; SpanBERT, sections 2.3 and 4.3).

A document is cut into segments of whole sentences, each at most half of a row. From its start on,
a segment is followed in its record either by the next one (label 0) or by a segment of another
document (label 1). In the second case the next segment begins a record of its own, so all text
is used, once, besides the random segments.

The random segments are drawn when a shard is written (`draw_second_segments`): the records of a
shard whose label is 1 exchange the segments that follow them in their documents. So the random
second segments are distributed as the true ones are, and only what they have to do with the first
one tells the label.
"""

from collections.abc import Callable, Iterator

import numpy as np

from data_prep.sequences import Block
from data_prep.spill import SpilledRecord
from spanbert_tf.data.schema import LIST_DTYPE

NEXT, RANDOM = 0, 1
_LIST_TYPE = np.dtype(LIST_DTYPE).newbyteorder("<")
_LABEL_BIT = 32  # of the record id; any bit would do


class PairBuilder:
    """Decides which segments of a file's documents make a record.

    Each label is 0 or 1 with even chances. Where the draw says 0 and the document has ended, its
    last segment is cut in two; a single sentence gets the label 1 instead, and the next draw of a
    1 that can be a 0 becomes one, so that labels are even in the whole.
    """

    def __init__(self) -> None:
        self._first: Block | None = None
        self._surplus = 0  # labels 1 where 0 was drawn

    def add(
        self,
        block: Block,
        is_last: bool,
        keys: Callable[[Block], tuple[int, int, int]],
    ) -> Iterator[SpilledRecord]:
        """Takes the next segment of a document.

        Args:
            block: the segment.
            is_last: whether the document ends with it.
            keys: order key, record id and document key of the record that begins with a segment.

        Yields:
            Records; those with label 1 have the segment that follows in the document as `second`.
        """
        if self._first is not None:
            first, self._first = self._first, None
            first_keys = keys(first)
            if self._draw(first_keys) == NEXT:
                yield SpilledRecord(*first_keys, first, block, NEXT)
                return
            yield SpilledRecord(*first_keys, first, block, RANDOM)
        if is_last:
            yield self._last(block, keys(block))
        else:
            self._first = block

    def _draw(self, keys: tuple[int, int, int]) -> int:
        label = _drawn_label(keys)
        if label == RANDOM and self._surplus:
            self._surplus -= 1
            return NEXT
        return label

    def _last(self, block: Block, keys: tuple[int, int, int]) -> SpilledRecord:
        halves = split_block(block)
        if halves is None:
            self._surplus += _drawn_label(keys) == NEXT
        elif self._draw(keys) == NEXT:
            return SpilledRecord(*keys, *halves, NEXT)
        return SpilledRecord(*keys, block, None, RANDOM)


def _drawn_label(keys: tuple[int, int, int]) -> int:
    return keys[1] >> _LABEL_BIT & 1


def split_block(block: Block) -> tuple[Block, Block] | None:
    """Cuts a segment in two where a sentence begins, as near to the middle as may be.

    Returns:
        Both halves, or None if the segment has but one sentence.
    """
    starts = _numbers(block.sentence_starts)[1:]
    if not len(starts):
        return None
    middle = int(starts[np.argmin(np.abs(starts - block.num_tokens / 2))])
    first = _part(block, 0, middle)
    second = _part(block, middle, block.num_tokens)._replace(first_token_index=0)
    return first, second


def _part(block: Block, start: int, stop: int) -> Block:
    token_size = len(block.token_ids) // block.num_tokens
    sentence_starts = _numbers(block.sentence_starts)
    paragraph_starts = _numbers(block.paragraph_starts)
    in_part = (sentence_starts >= start) & (sentence_starts < stop)
    # The paragraph that `start` lies in may begin before it.
    first_paragraph = np.searchsorted(paragraph_starts, start, side="right") - 1
    paragraphs = slice(first_paragraph, np.searchsorted(paragraph_starts, stop))
    spans = []
    for raw_starts, raw_ends in block.spans:
        span_starts, span_ends = _numbers(raw_starts), _numbers(raw_ends)
        inside = (span_starts >= start) & (span_ends < stop)
        spans.append((_raw(span_starts[inside] - start), _raw(span_ends[inside] - start)))
    return block._replace(
        num_tokens=stop - start,
        token_ids=block.token_ids[start * token_size : stop * token_size],
        sentence_starts=_raw(sentence_starts[in_part] - start),
        sentence_indices=_raw(_numbers(block.sentence_indices)[in_part]),
        paragraph_starts=_raw(np.maximum(paragraph_starts[paragraphs] - start, 0)),
        paragraph_indices=_raw(_numbers(block.paragraph_indices)[paragraphs]),
        spans=tuple(spans),
    )


def join_blocks(first: Block, second: Block) -> Block:
    """Both segments of a pair as one block; the second keeps its own indices."""

    def shifted(raw: bytes) -> bytes:
        return _raw(_numbers(raw) + first.num_tokens)

    return first._replace(
        num_tokens=first.num_tokens + second.num_tokens,
        token_ids=first.token_ids + second.token_ids,
        sentence_starts=first.sentence_starts + shifted(second.sentence_starts),
        sentence_indices=first.sentence_indices + second.sentence_indices,
        paragraph_starts=first.paragraph_starts + shifted(second.paragraph_starts),
        paragraph_indices=first.paragraph_indices + second.paragraph_indices,
        spans=tuple(
            (a[0] + shifted(b[0]), a[1] + shifted(b[1]))
            for a, b in zip(first.spans, second.spans, strict=True)
        ),
    )


def _numbers(raw: bytes) -> np.ndarray:
    return np.frombuffer(raw, _LIST_TYPE).astype(np.int64)


def _raw(numbers: np.ndarray) -> bytes:
    return numbers.astype(_LIST_TYPE).tobytes()


def draw_second_segments(
    records: list[SpilledRecord], others: Callable[[], Iterator[SpilledRecord]]
) -> list[SpilledRecord]:
    """Gives each record with label 1 a second segment from another document.

    The segments come from the other records with label 1: what follows their first segment, or,
    at the end of a document, that segment itself. Each record takes that of the next record, in
    the order given, that is of another document.

    Args:
        records: of one split and shard, in random order.
        others: gives records of the same split in other shards; asked only if all records with
            label 1 are of one document.

    Returns:
        The same records, in order; each has a second segment.
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
        drawn[number] = records[number]._replace(second=donor.second or donor.block)
    return drawn


def _of_other_documents(records: list[SpilledRecord]) -> list[SpilledRecord]:
    """For each record, the next one (after the last comes the first) of another document."""
    num_records = len(records)
    found: list[SpilledRecord] = [records[0]] * (2 * num_records)
    for number in reversed(range(2 * num_records - 1)):
        record, following = records[number % num_records], records[(number + 1) % num_records]
        is_other = following.document_key != record.document_key
        found[number] = following if is_other else found[number + 1]
    return found[:num_records]

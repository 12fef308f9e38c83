"""Fills blocks with whole sentences. The functions process arrays of many documents at once.

The shapes below name the number of tokens T, of sentences N and of annotated spans E.
"""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spanbert_tf.data.manifest import LIST_DTYPE, LIST_MAXIMUM

LIST_TYPE = np.dtype(LIST_DTYPE).newbyteorder("<")


class Sentences(NamedTuple):
    """Consecutive sentences of the documents of a file, or parts of long sentences.

    Attributes:
        token_ids: int [T]. Ids of the word pieces of all sentences.
        lengths: int [N]. Number of word pieces of each sentence, at least 1.
        documents: int [N]. Index of each sentence's document in the file.
        paragraph_indices: int [N]. Index of each sentence's paragraph in its document.
        sentence_indices: int [N]. Index of each sentence in its paragraph.
        token_offsets: int [N]. For a part of a long sentence, the number of word pieces of the
            sentence before this part; 0 for whole sentences.
        spans: for each annotation, int [E, 2]: first and last position of each span in `token_ids`,
            in order. The words come last and have only the first position, int [E, 1].
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    documents: np.ndarray
    paragraph_indices: np.ndarray
    sentence_indices: np.ndarray
    token_offsets: np.ndarray
    spans: tuple[np.ndarray, ...] = ()

    def join(self, other: "Sentences") -> "Sentences":
        """Returns these sentences followed by the others."""
        shift = len(self.token_ids)
        spans = zip(self.spans, other.spans, strict=True)
        return Sentences(
            token_ids=np.append(self.token_ids, other.token_ids),
            lengths=np.append(self.lengths, other.lengths),
            documents=np.append(self.documents, other.documents),
            paragraph_indices=np.append(self.paragraph_indices, other.paragraph_indices),
            sentence_indices=np.append(self.sentence_indices, other.sentence_indices),
            token_offsets=np.append(self.token_offsets, other.token_offsets),
            spans=tuple(np.concatenate([mine, theirs + shift]) for mine, theirs in spans),
        )

    def from_sentence(self, first: int) -> "Sentences":
        """Returns the sentences from index `first` on."""
        begin = int(self.lengths[:first].sum())
        spans = []
        for values in self.spans:
            kept = values[np.searchsorted(values[:, 0], begin) :]
            spans.append(kept - begin)
        return self._with(lambda values: values[first:], self.token_ids[begin:], tuple(spans))

    def take(self, firsts: np.ndarray, stops: np.ndarray) -> "Sentences":
        """Returns runs of sentences, one after another. Runs may overlap.

        Args:
            firsts: int [R]. Index of the first sentence of each run.
            stops: int [R]. Index of the sentence after each run.
        """
        token_bounds = np.append(0, np.cumsum(self.lengths))
        starts = token_bounds[firsts]  # [R], in token_ids
        ends = token_bounds[stops]
        shifts = np.cumsum(ends - starts) - ends
        spans = []
        for values in self.spans:
            low, high = np.searchsorted(values[:, 0], [starts, ends])
            spans.append(values[_ranges(low, high)] + np.repeat(shifts, high - low)[:, np.newaxis])
        chosen = _ranges(firsts, stops)
        return self._with(
            lambda values: values[chosen], self.token_ids[_ranges(starts, ends)], tuple(spans)
        )

    def _with(
        self,
        select: Callable[[np.ndarray], np.ndarray],
        token_ids: np.ndarray,
        spans: tuple[np.ndarray, ...],
    ) -> "Sentences":
        """Returns new sentences. `select` is applied to each array with a value per sentence."""
        return Sentences(
            token_ids,
            lengths=select(self.lengths),
            documents=select(self.documents),
            paragraph_indices=select(self.paragraph_indices),
            sentence_indices=select(self.sentence_indices),
            token_offsets=select(self.token_offsets),
            spans=spans,
        )


class Block(NamedTuple):
    """The tokens of a record, or of a segment of a pair.

    Lists are bytes in the format of `spanbert_tf.data.manifest`.

    Attributes:
        document: index of the document in the file.
        num_tokens: number of word pieces.
        token_ids: ids of the word pieces.
        first_token_index: index of the first token in its sentence.
        lists: the lists of `POSITION_LISTS`, then the starts and the ends of each annotation, then
            the starts of words if the records have them.
    """

    document: int
    num_tokens: int
    token_ids: bytes
    first_token_index: int
    lists: tuple[bytes, ...]


class Record(NamedTuple):
    """A record before it is written.

    Attributes:
        order_key: uint64. It determines the shard, and the order of the records in the shard.
        record_id: 63 bits.
        document_key: 63 bits. It determines the split if whole documents are held out.
        block: the tokens, or the first segment of a pair.
        second: in a pair with label 0, the second segment; with label 1, the segment that this
            record gives to another record, or `None` at the end of a document.
        label: in a pair, 0 if `second` is the second segment, 1 if the second segment comes from
            another document.
    """

    order_key: int
    record_id: int
    document_key: int
    block: Block
    second: Block | None = None
    label: int = 0


def number_sentences(
    documents: np.ndarray, paragraphs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Indexes paragraphs in their documents and sentences in their paragraphs.

    Args:
        documents: int [N], index of each sentence's document.
        paragraphs: int [N], index of each sentence's paragraph, over all documents.

    Returns:
        `(paragraph_indices, sentence_indices)` of `Sentences`, int [N] each.
    """
    begins_document = begins_run(documents)
    begins_paragraph = begins_run(paragraphs) | begins_document
    paragraph = np.cumsum(begins_paragraph) - 1
    first_paragraph = paragraph[begins_document]
    paragraph_indices = paragraph - first_paragraph[np.cumsum(begins_document) - 1]
    sentence = np.arange(len(documents))
    return paragraph_indices, sentence - sentence[begins_paragraph][paragraph]


def begins_run(numbers: np.ndarray) -> np.ndarray:
    """Whether each number begins a run of equal numbers, bool [N]."""
    return np.concatenate([[True], numbers[1:] != numbers[:-1]])[: len(numbers)]


def _ranges(starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Returns the numbers from each start to its stop (exclusive), one range after another."""
    sizes = stops - starts
    ends = np.cumsum(sizes)
    return np.repeat(starts - (ends - sizes), sizes) + np.arange(ends[-1])


def split_long_sentences(sentences: Sentences, limit: int) -> Sentences:
    """Splits sentences of more than `limit` tokens into parts of `limit` tokens and a rest."""
    num_parts = -(-sentences.lengths // limit)  # [N]
    if (num_parts == 1).all():
        return sentences
    parts = sentences._replace(
        lengths=np.repeat(sentences.lengths, num_parts),
        documents=np.repeat(sentences.documents, num_parts),
        paragraph_indices=np.repeat(sentences.paragraph_indices, num_parts),
        sentence_indices=np.repeat(sentences.sentence_indices, num_parts),
        token_offsets=np.repeat(sentences.token_offsets, num_parts),
    )
    first = np.cumsum(num_parts) - num_parts
    before = (np.arange(len(parts.lengths)) - np.repeat(first, num_parts)) * limit
    return parts._replace(
        lengths=np.minimum(parts.lengths - before, limit),
        token_offsets=parts.token_offsets + before,
    )


def fill_blocks(
    sentences: Sentences, limit: int, token_dtype: str, *, is_open: bool
) -> tuple[list[Block], Sentences]:
    """Fills blocks greedily with whole sentences of one document (SpanBERT, section 4.2).

    Args:
        sentences: consecutive sentences of a file, none longer than `limit`.
        limit: word pieces of a block.
        token_dtype: dtype in which token ids are stored.
        is_open: whether the last document continues. If so, its last block waits for more
            sentences.

    Returns:
        The blocks, and the sentences that are in no block yet.
    """
    bounds = _block_bounds(sentences, limit)
    if is_open and len(bounds) > 1:
        bounds.pop()
    last = bounds[-1]
    return cut_blocks(sentences, bounds, token_dtype), sentences.from_sentence(last)


def _block_bounds(sentences: Sentences, limit: int) -> list[int]:
    """Returns the indices of the sentences that begin a block, and then N."""
    token_ends = np.cumsum(sentences.lengths).tolist()
    first_of_document = np.flatnonzero(begins_run(sentences.documents)).tolist()
    bounds = [0]
    for stop in [*first_of_document[1:], len(token_ends)]:
        while bounds[-1] < stop:
            first = bounds[-1]
            begin = token_ends[first - 1] if first else 0
            bounds.append(bisect_right(token_ends, begin + limit, first, stop))
    return bounds


def cut_blocks(sentences: Sentences, block_bounds: Sequence[int], token_dtype: str) -> list[Block]:
    """Cuts sentences into blocks.

    Whole arrays are converted to bytes, and then the bytes are cut, so each block needs few
    operations.

    Args:
        sentences: the sentences.
        block_bounds: 0, and then for each block the index of the sentence after it.
        token_dtype: dtype in which token ids are stored.
    """
    bounds = np.asarray(block_bounds)
    num_sentences = int(bounds[-1])
    if len(bounds) < 2:
        return []
    sizes = np.diff(bounds)
    first = bounds[:-1]
    token_ends = np.cumsum(sentences.lengths[:num_sentences])
    token_starts = token_ends - sentences.lengths[:num_sentences]
    token_bounds = np.append(token_starts[first], token_ends[-1])  # [blocks + 1]
    positions = token_starts - np.repeat(token_bounds[:-1], sizes)  # [N], in the block
    begins_paragraph = begins_run(sentences.paragraph_indices[:num_sentences])
    begins_paragraph[first] = True
    paragraph_bounds = np.append(0, np.cumsum(begins_paragraph))[bounds]  # [blocks + 1]
    paragraph_indices = _storable(
        sentences.paragraph_indices[:num_sentences][begins_paragraph], paragraph_bounds
    )
    lists = (
        _slices(positions, bounds),
        _slices(sentences.sentence_indices, bounds),
        _slices(positions[begins_paragraph], paragraph_bounds),
        _slices(paragraph_indices, paragraph_bounds),
        *_cut_spans(sentences.spans, token_bounds),
    )
    columns = (
        sentences.documents[first].tolist(),
        np.diff(token_bounds).tolist(),
        _slices(sentences.token_ids, token_bounds, np.dtype(token_dtype).newbyteorder("<")),
        sentences.token_offsets[first].tolist(),
        zip(*lists, strict=True),
    )
    return [Block(*values) for values in zip(*columns, strict=True)]


def _storable(indices: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Lowers the paragraph indices of each block so that its last one can be stored.

    All indices of a block are lowered by the same number, because models only use differences
    (`lowered_indices`).
    """
    first = indices[bounds[:-1]]  # [blocks]
    last = indices[bounds[1:] - 1]
    excess = np.minimum(first, np.maximum(last - LIST_MAXIMUM, 0))
    return indices - np.repeat(excess, np.diff(bounds))


def _cut_spans(spans: tuple[np.ndarray, ...], token_bounds: np.ndarray) -> Iterator[list[bytes]]:
    """Yields for each annotation the starts and then the ends of the spans inside each block.

    Spans that cross the border of a block are dropped. Words are never dropped, since they have no
    ends.
    """
    for values in spans:
        blocks = np.searchsorted(token_bounds, values.T, side="right") - 1  # [1 or 2, E]
        inside = (blocks[0] == blocks[-1]) & (blocks[0] < len(token_bounds) - 1)
        block = blocks[0][inside]
        span_bounds = np.searchsorted(block, np.arange(len(token_bounds)))
        positions = values[inside] - token_bounds[block][:, np.newaxis]
        yield from (_slices(column, span_bounds) for column in positions.T)


def _slices(values: np.ndarray, bounds: np.ndarray, dtype: np.dtype = LIST_TYPE) -> list[bytes]:
    """Returns the bytes of the values between neighbouring bounds.

    Values of lists that exceed `LIST_MAXIMUM` are stored as `LIST_MAXIMUM`.
    """
    if dtype is LIST_TYPE:
        values = np.minimum(values, LIST_MAXIMUM)
    raw = values.astype(dtype).tobytes()
    byte_bounds = (bounds * dtype.itemsize).tolist()
    return [raw[start:stop] for start, stop in itertools.pairwise(byte_bounds)]

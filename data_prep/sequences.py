"""Fills blocks with whole sentences, up to a limit and to the end of a document."""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from spanbert_tf.data.schema import LIST_MAXIMUM


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Consecutive sentences of one document.

    Attributes:
        token_ids: int [T], the word pieces of all sentences.
        lengths: int [N], word pieces of each sentence; none is 0.
        paragraphs: int [N], index of each sentence's paragraph in the document.
        indices: int [N], index of each sentence in its paragraph.
        offsets: int [N], word pieces of the sentence that came before: 0 but for a part of a
            sentence that was split.
    """

    token_ids: np.ndarray
    lengths: np.ndarray
    paragraphs: np.ndarray
    indices: np.ndarray
    offsets: np.ndarray

    def __add__(self, other: "Sentences") -> "Sentences":
        names = [field.name for field in dataclasses.fields(self)]
        return Sentences(
            *(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names)
        )

    def slice(self, start: int, stop: int) -> "Sentences":
        """The sentences from `start` to before `stop`."""
        first, last = self.lengths[:start].sum(), self.lengths[:stop].sum()
        rest = (self.lengths, self.paragraphs, self.indices, self.offsets)
        return Sentences(self.token_ids[first:last], *(values[start:stop] for values in rest))


@dataclasses.dataclass(frozen=True)
class Block:
    """The features of a single-sequence record; names as in `spanbert_tf.data.schema`."""

    token_ids: np.ndarray
    sentence_starts: np.ndarray
    sentence_indices: np.ndarray
    paragraph_starts: np.ndarray
    paragraph_indices: np.ndarray
    first_token_index: int


def split_long_sentences(sentences: Sentences, limit: int) -> Sentences:
    """Splits sentences of more than `limit` tokens into parts of at most that many."""
    num_parts = -(-sentences.lengths // limit)
    if (num_parts == 1).all():
        return sentences
    of_sentence = np.repeat(np.arange(len(num_parts)), num_parts)  # [parts]
    part = np.arange(len(of_sentence)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    remaining = sentences.lengths[of_sentence] - part * limit
    return Sentences(
        sentences.token_ids,
        np.minimum(remaining, limit),
        sentences.paragraphs[of_sentence],
        sentences.indices[of_sentence],
        sentences.offsets[of_sentence] + part * limit,
    )


def fill_blocks(
    sentences: Sentences, limit: int, *, is_document_end: bool
) -> tuple[list[Block], Sentences]:
    """Fills blocks greedily with whole sentences (SpanBERT, section 4.2).

    Args:
        sentences: of one document; none longer than `limit`.
        limit: word pieces of a block.
        is_document_end: whether the last block ends with the last sentence, full or not.

    Returns:
        The blocks, and the sentences that wait for more: none at the end of the document.
    """
    blocks, first = [], 0
    ends = np.cumsum(sentences.lengths)  # [N]
    while first < len(ends):
        begin = ends[first] - sentences.lengths[first]
        stop = int(np.searchsorted(ends, begin + limit, side="right"))
        if stop == len(ends) and not is_document_end:
            break
        blocks.append(_make_block(sentences, first, stop, begin, ends[stop - 1]))
        first = stop
    return blocks, sentences.slice(first, len(ends))


def _make_block(sentences: Sentences, first: int, stop: int, begin: int, end: int) -> Block:
    lengths = sentences.lengths[first:stop]
    paragraphs = sentences.paragraphs[first:stop]
    starts = np.cumsum(lengths) - lengths
    begins_paragraph = np.ones(stop - first, bool)
    begins_paragraph[1:] = paragraphs[1:] != paragraphs[:-1]
    return Block(
        token_ids=sentences.token_ids[begin:end],
        sentence_starts=starts,
        sentence_indices=np.minimum(sentences.indices[first:stop], LIST_MAXIMUM),
        paragraph_starts=starts[begins_paragraph],
        paragraph_indices=np.minimum(paragraphs[begins_paragraph], LIST_MAXIMUM),
        first_token_index=int(sentences.offsets[first]),
    )


def document_runs(documents: np.ndarray) -> Iterator[tuple[int, int]]:
    """(start, stop) of each run of equal numbers."""
    if not len(documents):
        return
    bounds = [0, *(np.flatnonzero(np.diff(documents)) + 1), len(documents)]
    yield from itertools.pairwise(bounds)

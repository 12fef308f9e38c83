"""Cuts a document in memory into segments, by the rule of `document_segments`.

Without a graph: that of the rule is traced for half a second, and its loop over segments takes ten
times as long as the one here. A test holds both against each other.
"""

import bisect

import numpy as np

from data_prep.documents.pieces import Pieces
from spanbert_tf.data.document_segments import NO_PIECE, SegmentedDocuments


def segment_pieces(
    pieces: Pieces, *, sequence_length: int, start_id: int, end_id: int
) -> SegmentedDocuments:
    """Cuts a document into segments and adds [CLS] and [SEP].

    Args:
        pieces: the document.
        sequence_length: positions of a segment at most.
        start_id: id of [CLS].
        end_id: id of [SEP].

    Returns:
        Arrays of one document, int32 [segments] and [positions].
    """
    ends_sentence, ends_word = _is_end(pieces.sentences), _is_end(pieces.words)
    ends = np.array(_cuts(ends_sentence, ends_word, sequence_length - 2), "int32")
    starts = np.append(np.int32(0), ends[:-1])
    lengths = ends - starts + 2
    last = np.cumsum(lengths) - 1
    first = last - lengths + 1
    is_piece = np.ones(lengths.sum(), bool)
    is_piece[first] = is_piece[last] = False

    def positions(of_pieces: np.ndarray, of_first: object, of_last: object) -> np.ndarray:
        found = np.empty(len(is_piece), "int32")
        found[is_piece], found[first], found[last] = of_pieces, of_first, of_last
        return found

    ended = np.append(0, np.cumsum(ends_sentence))  # before each piece, and at the end
    words = np.append(0, pieces.words)  # that of the piece before each
    return SegmentedDocuments(
        lengths,
        positions(pieces.token_ids, start_id, end_id),
        positions(np.arange(len(pieces.token_ids)), NO_PIECE, NO_PIECE),
        positions(ended[:-1], ended[starts], ended[ends]),
        positions(pieces.words, words[starts], words[ends]),
    )


def _is_end(values: np.ndarray) -> np.ndarray:
    """Where the next value is missing or another, bool [P]."""
    return np.append(values[1:] != values[:-1], True)[: len(values)]


def _cuts(ends_sentence: np.ndarray, ends_word: np.ndarray, max_pieces: int) -> list[int]:
    """The piece after the last of each segment; at least one segment."""
    places = [(np.flatnonzero(is_end) + 1).tolist() for is_end in (ends_sentence, ends_word)]
    start, num_pieces, cuts = 0, len(ends_word), []
    while not cuts or start < num_pieces:
        limit = min(start + max_pieces, num_pieces)
        found = (_last(ends, limit) for ends in places)
        start = next((end for end in found if end > start), limit)
        cuts.append(start)
    return cuts


def _last(ends: list[int], limit: int) -> int:
    """The last end that is not beyond a limit; 0 without one."""
    count = bisect.bisect_right(ends, limit)
    return ends[count - 1] if count else 0

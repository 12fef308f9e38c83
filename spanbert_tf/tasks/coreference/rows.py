"""Makes rows of documents: word pieces, segments and mentions. What is lost is counted.

Each distinct word is tokenized once, since the tokenizer splits at white space and a word has the
same pieces everywhere. Segments are cut in NumPy by the rule of
`data.documents.document_segments`: the graph takes half a second to trace, and its loop over
segments takes ten times as long. A test compares both.
"""

import bisect
import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spanbert_tf.data.documents import NO_PIECE, SegmentedDocuments
from spanbert_tf.data.records import ROW_TOKEN_IDS
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.conll import Document
from spanbert_tf.tasks.coreference.records import (
    DOCUMENTS_FILE,
    FLAG_DTYPE,
    GENRE,
    IS_SPECIAL,
    MENTION_CLUSTERS,
    MENTION_ENDS,
    MENTION_STARTS,
    NO_SPEAKER,
    NUMBER_DTYPE,
    SEGMENT_LENGTHS,
    SENTENCES,
    SPEAKERS,
    SPECIAL_SPEAKER,
    WORDS,
    CoreferenceInfo,
    DocumentLine,
    default_training_segments,
    genre_id,
)
from spanbert_tf.tasks.preparation import Row, RowMaker, write_task_records
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText, WordPieceTokenizer
from spanbert_tf.text.vocabulary import Casing, SpecialTokenIds

_DOCUMENTS_AT_ONCE = 64
_NUMBER_DTYPE = np.dtype(NUMBER_DTYPE).newbyteorder("<")
_SHOWN = (
    ("documents", "rows"),
    ("segments", "segments"),
    ("sentences", "sentences"),
    ("words", "words"),
    ("clusters", "clusters"),
    ("mentions", "mentions"),
)
_LOST = {
    "mentions_too_long": "mentions are longer than {width} pieces and cannot be found",
    "mentions_across_sentences": "mentions cross a sentence's end and cannot be found",
    "mentions_without_pieces": "mentions have no word piece and cannot be found",
    "words_without_pieces": "words have no word piece (control characters, for example)",
    "singletons": "clusters have one mention; OntoNotes has none, and predictions have none",
}


class Pieces(NamedTuple):
    """The word pieces of a document."""

    token_ids: np.ndarray  # int32 [P]
    words: np.ndarray  # word of each, ascending, int32 [P]
    sentences: np.ndarray  # sentence of each, ascending, int32 [P]
    sentence_starts: list[int]  # first word of each


class DocumentTokenizer:
    """Makes pieces of documents."""

    def __init__(self, vocabulary: Sequence[str], casing: Casing) -> None:
        self._vocabulary = vocabulary
        self._casing = casing
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, casing)

    def __call__(self, documents: Sequence[Document]) -> Iterator[Pieces]:
        """The pieces of each document; all have words."""
        numbers: dict[str, int] = collections.defaultdict(itertools.count().__next__)
        all_numbers = [
            np.fromiter(map(numbers.__getitem__, document.words), "int64") for document in documents
        ]
        raw = [word.encode("utf-8", "replace") for word in numbers]
        ids = self._tokenizer.tokenize(raw)
        flat, splits = ids.flat_values.numpy(), ids.row_splits.numpy()
        found = self._found_sentences(documents)
        for document, own in zip(documents, all_numbers, strict=True):
            starts = document.sentence_starts
            if starts is None:
                starts = next(found)
            firsts, sizes = splits[own], splits[own + 1] - splits[own]
            words = np.repeat(np.arange(len(sizes), dtype="int32"), sizes)
            places = np.arange(len(words)) + np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
            sentences = np.searchsorted(starts, words, side="right") - 1
            yield Pieces(flat[places], words, sentences.astype("int32"), starts)

    def _found_sentences(self, documents: Sequence[Document]) -> Iterator[list[int]]:
        """First words of the sentences of those documents that do not tell them."""
        untold = [document for document in documents if document.sentence_starts is None]
        if untold:
            texts = self._in_context([" ".join(document.words) for document in untold])
            yield from itertools.starmap(_sentence_starts, zip(untold, texts, strict=True))

    @functools.cached_property
    def _in_context(self) -> TextTokenizer:
        return TextTokenizer(self._vocabulary, self._casing, segment_aware=True)


def _sentence_starts(document: Document, text: TokenizedText) -> list[int]:
    """First words of sentences, by the punctuation in the words with a space between each two."""
    sizes = [len(word) + 1 for word in document.words]
    word_starts = np.array(list(itertools.accumulate(sizes, initial=0))[:-1])
    words = np.searchsorted(word_starts, text.starts, side="right") - 1
    # Of a word the first piece counts: none begins a sentence inside of it.
    is_first = np.append(True, words[1:] != words[:-1])
    changes = np.append(True, (text.positions[1:, :2] != text.positions[:-1, :2]).any(axis=1))
    starts = words[is_first & changes].tolist() if len(words) else [0]
    starts[0] = 0
    return starts


def segment_pieces(
    pieces: Pieces, *, sequence_length: int, start_id: int, end_id: int
) -> SegmentedDocuments:
    """Cuts a document into segments and adds [CLS] and [SEP]; int32 [segments] and [positions]."""
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


def write_documents(
    documents: Sequence[Document],
    output: str,
    *,
    sequence_length: int,
    max_span_width: int,
    max_training_segments: int | None = None,
    **options: object,
) -> CoreferenceInfo:
    """Writes the records of documents in their order; `options` as for `write_task_records`."""
    at_once = max_training_segments or default_training_segments(sequence_length)
    maker = DocumentRows(documents, max_span_width, at_once)
    return write_task_records(maker, output, sequence_length=sequence_length, **options)


class DocumentRows(RowMaker):
    """Makes the rows of documents, and counts what is lost."""

    info_class = CoreferenceInfo
    title = "coreference records"

    def __init__(
        self, documents: Sequence[Document], max_span_width: int, max_training_segments: int
    ) -> None:
        super().__init__()
        self._documents = [document for document in documents if document.words]
        self._max_span_width = max_span_width
        self._max_training_segments = max_training_segments
        names = (
            *("words", "sentences", "segments", "clusters", "mentions", "singletons"),
            *("mentions_too_long", "mentions_across_sentences", "mentions_without_pieces"),
            *("words_without_pieces", "documents_without_clusters", "documents_with_speakers"),
        )
        self.counts.update(dict.fromkeys(names, 0))

    def rows(self, pieces: Sequence[str], casing: Casing, sequence_length: int) -> Iterator[Row]:
        """Yields a row for each document.

        Raises:
            BadInputError: a word is longer than a segment.
        """
        made = self._made(pieces, casing, sequence_length)
        yield from show_progress(made, len(self._documents), "documents")

    def _made(self, pieces: Sequence[str], casing: Casing, sequence_length: int) -> Iterator[Row]:
        tokenize = DocumentTokenizer(pieces, casing)
        special = SpecialTokenIds.from_vocabulary(pieces)
        ids = {"start_id": special.start, "end_id": special.end}
        for first in range(0, len(self._documents), _DOCUMENTS_AT_ONCE):
            some = self._documents[first : first + _DOCUMENTS_AT_ONCE]
            tokenized = list(zip(some, tokenize(some), strict=True))
            for document, of_document in tokenized:
                _check_words(document, of_document, sequence_length - 2)
            for document, of_document in tokenized:
                row = segment_pieces(of_document, sequence_length=sequence_length, **ids)
                self._count(document, of_document, row)
                line = _document_line(document, of_document.sentence_starts)
                self.lines[DOCUMENTS_FILE].append(line)
                yield self._row(document, row)

    def described(self) -> dict[str, int]:
        """The number of segments that are trained at once."""
        return {"max_training_segments": self._max_training_segments}

    def summary(self, info: CoreferenceInfo, seconds: float) -> Iterator[str]:
        """The numbers of documents and mentions, and of what was lost."""
        yield ", ".join(f"{info.counts[name]:,} {title}" for title, name in _SHOWN)
        for name, meaning in _LOST.items():
            if info.counts[name]:
                yield f"  {info.counts[name]:,} {meaning.format(width=self._max_span_width)}"

    def _row(self, document: Document, row: SegmentedDocuments) -> Row:
        is_special = row.pieces == NO_PIECE
        starts, ends, clusters = self._mentions(document, row, ~is_special)
        names = [name for name in dict.fromkeys(document.speakers) if name]
        ids = {"": NO_SPEAKER}
        ids |= {name: number for number, name in enumerate(names, SPECIAL_SPEAKER + 1)}
        speakers = np.fromiter(map(ids.__getitem__, document.speakers), "int64")[row.word_indices]
        numbers = {
            SENTENCES: row.sentence_indices,
            WORDS: row.word_indices,
            SPEAKERS: np.where(is_special, SPECIAL_SPEAKER, speakers),
            SEGMENT_LENGTHS: row.segment_lengths,
            MENTION_STARTS: starts,
            MENTION_ENDS: ends,
            MENTION_CLUSTERS: clusters,
        }
        lists = {name: np.asarray(values).astype(_NUMBER_DTYPE) for name, values in numbers.items()}
        lists[IS_SPECIAL] = is_special.astype(FLAG_DTYPE)
        lists[ROW_TOKEN_IDS] = row.token_ids
        return Row({GENRE: genre_id(document.name)}, lists)

    def _mentions(
        self, document: Document, row: SegmentedDocuments, is_piece: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First and last position and cluster of the mentions that have pieces."""
        places = np.flatnonzero(is_piece)
        words = row.word_indices[places]
        mentions = itertools.chain.from_iterable(document.clusters)
        spans = np.fromiter(itertools.chain.from_iterable(mentions), "int64").reshape(-1, 2)
        clusters = np.repeat(
            np.arange(len(document.clusters)) + 1, list(map(len, document.clusters))
        )
        first = np.searchsorted(words, spans[:, 0], side="left")
        last = np.searchsorted(words, spans[:, 1], side="right") - 1
        has_pieces = first <= last
        starts, ends = places[first[has_pieces]], places[last[has_pieces]]
        across = row.sentence_indices[starts] != row.sentence_indices[ends]
        too_long = ~across & (ends - starts >= self._max_span_width)
        self.counts.update(
            mentions_without_pieces=int(np.sum(~has_pieces)),
            mentions_across_sentences=int(np.sum(across)),
            mentions_too_long=int(np.sum(too_long)),
        )
        return starts, ends, clusters[has_pieces]

    def _count(self, document: Document, pieces: Pieces, row: SegmentedDocuments) -> None:
        self.counts.update(
            words=len(document.words),
            sentences=len(pieces.sentence_starts),
            segments=len(row.segment_lengths),
            clusters=len(document.clusters),
            mentions=sum(map(len, document.clusters)),
            singletons=sum(len(spans) == 1 for spans in document.clusters),
            words_without_pieces=len(document.words) - _num_distinct(pieces.words),
            documents_without_clusters=int(not document.clusters),
            documents_with_speakers=int(any(document.speakers)),
        )


def _check_words(document: Document, pieces: Pieces, max_pieces: int) -> None:
    sizes = np.bincount(pieces.words, minlength=len(document.words))
    if sizes.max(initial=0) > max_pieces:
        word = int(sizes.argmax())
        raise BadInputError(
            f"{document.path}: document {document.key!r}: word {word} (from 0), "
            f"{document.words[word][:40]!r}, has {sizes[word]} pieces and a segment room for "
            f"{max_pieces}; give a larger --sequence-length"
        )


def _num_distinct(ascending: np.ndarray) -> int:
    return int(np.count_nonzero(np.diff(ascending, prepend=-1)))


def _document_line(document: Document, sentence_starts: list[int]) -> DocumentLine:
    return {
        "name": document.name,
        "part": document.part,
        "words": document.words,
        "sentence_starts": sentence_starts,
        "speakers": document.speakers,
        "clusters": [[list(span) for span in spans] for spans in document.clusters],
    }

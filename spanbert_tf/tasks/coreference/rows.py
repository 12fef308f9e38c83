"""Makes rows of documents: word pieces, segments and mentions. It counts what is lost.

Words are tokenized one by one, since the tokenizer splits at white space: a word has the same
pieces everywhere. The graph of `data.documents`, which exports call too, cuts segments.
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.data.documents import NO_PIECE, SegmentedDocuments, segment_documents
from spanbert_tf.data.records import ROW_TOKEN_IDS
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.coreference.conll import Document
from spanbert_tf.tasks.coreference.corefud import DISCONTINUOUS, EMPTY
from spanbert_tf.tasks.coreference.files import SINGLETONS_DROPPED
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
    CoreferenceManifest,
    DocumentLine,
    default_training_segments,
    genre_id,
)
from spanbert_tf.tasks.graphs import string_tensor
from spanbert_tf.tasks.preparation import Row, RowMaker, write_task_records
from spanbert_tf.terminal import show_progress
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText, WordPieceTokenizer
from spanbert_tf.text.vocabulary import SpecialTokenIds, TextRules

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
    DISCONTINUOUS: "mentions are discontinuous and were left out",
    EMPTY: "mentions have no word of the text and were left out",
    SINGLETONS_DROPPED: "clusters have one mention and were dropped",
    "singletons": "clusters have one mention; OntoNotes has none, and predictions have none",
}
_COUNTS = (
    "words",
    "sentences",
    "segments",
    "clusters",
    "mentions",
    "singletons",
    "mentions_too_long",
    "mentions_across_sentences",
    "mentions_without_pieces",
    "words_without_pieces",
    DISCONTINUOUS,
    EMPTY,
    SINGLETONS_DROPPED,
    "documents_without_clusters",
    "documents_with_speakers",
)


class DocumentPieces(NamedTuple):
    """The word pieces of N documents.

    Attributes:
        token_ids: ids of the vocabulary, ragged int32 [N, pieces].
        word_indices: index of the word of each piece in its document, ragged int32 [N, pieces].
        sentence_indices: index of its sentence, ragged int32 [N, pieces].
        sentence_starts: for each document, the first word of each sentence.
        word_sizes: for each document, the number of pieces of each word, int64 [words].
    """

    token_ids: tf.RaggedTensor
    word_indices: tf.RaggedTensor
    sentence_indices: tf.RaggedTensor
    sentence_starts: list[list[int]]
    word_sizes: list[np.ndarray]


class DocumentTokenizer:
    """Splits the words of documents into word pieces."""

    def __init__(self, vocabulary: Sequence[str], text_rules: TextRules) -> None:
        self._vocabulary = vocabulary
        self._text_rules = text_rules
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, text_rules)

    def __call__(self, documents: Sequence[Document]) -> DocumentPieces:
        """Splits documents into word pieces; each has at least one word."""
        words = string_tensor(
            list(itertools.chain.from_iterable(document.words for document in documents))
        )
        ids = self._tokenizer.tokenize(words)  # ragged [words of all documents, pieces]
        word_counts = [len(document.words) for document in documents]
        sentence_starts = self._sentence_starts(documents)
        word_indices = [np.arange(count) for count in word_counts]
        sentence_indices = [
            np.searchsorted(starts, indices, side="right") - 1
            for starts, indices in zip(sentence_starts, word_indices, strict=True)
        ]
        token_ids = tf.RaggedTensor.from_row_lengths(ids, word_counts).merge_dims(1, 2)
        sizes = ids.row_lengths().numpy()

        def of_pieces(of_words: Sequence[np.ndarray]) -> tf.RaggedTensor:
            repeated = np.repeat(np.concatenate(of_words), sizes)
            return token_ids.with_flat_values(tf.constant(repeated, tf.int32))

        return DocumentPieces(
            token_ids,
            of_pieces(word_indices),
            of_pieces(sentence_indices),
            sentence_starts,
            np.split(sizes, np.cumsum(word_counts)[:-1]),
        )

    def _sentence_starts(self, documents: Sequence[Document]) -> list[list[int]]:
        """Returns the first words of the sentences of each document, found where it has none."""
        found = self._found_sentences(documents)
        return [
            next(found) if document.sentence_starts is None else document.sentence_starts
            for document in documents
        ]

    def _found_sentences(self, documents: Sequence[Document]) -> Iterator[list[int]]:
        """Yields the first words of the sentences of the documents that do not tell them."""
        unsplit = [document for document in documents if document.sentence_starts is None]
        if unsplit:
            texts = self._in_context([" ".join(document.words) for document in unsplit])
            yield from itertools.starmap(_sentence_starts, zip(unsplit, texts, strict=True))

    @functools.cached_property
    def _in_context(self) -> TextTokenizer:
        return TextTokenizer(self._vocabulary, self._text_rules, segment_aware=True)


def _sentence_starts(document: Document, text: TokenizedText) -> list[int]:
    """Finds sentences by punctuation, in the words with spaces between them."""
    sizes = [len(word) + 1 for word in document.words]
    word_starts = np.array(list(itertools.accumulate(sizes, initial=0))[:-1])
    words = np.searchsorted(word_starts, text.starts, side="right") - 1
    # Of a word the first piece counts: none begins a sentence inside of it.
    is_first = np.append(True, words[1:] != words[:-1])
    changes = np.append(True, (text.positions[1:, :2] != text.positions[:-1, :2]).any(axis=1))
    starts = words[is_first & changes].tolist() if len(words) else [0]
    starts[0] = 0
    return starts


def document_rows(
    pieces: DocumentPieces, special: SpecialTokenIds, sequence_length: int
) -> list[SegmentedDocuments]:
    """Cuts documents into segments; returns arrays, int32 [segments] or [positions] of each."""
    segmented = segment_documents(
        pieces.token_ids,
        pieces.sentence_indices,
        pieces.word_indices,
        sequence_length=sequence_length,
        start_id=special.start,
        end_id=special.end,
    )
    columns = [
        np.split(values.flat_values.numpy(), values.row_splits.numpy()[1:-1])
        for values in segmented
    ]
    return [SegmentedDocuments(*row) for row in zip(*columns, strict=True)]


def write_documents(
    documents: Sequence[Document],
    output: str,
    *,
    sequence_length: int,
    max_span_width: int,
    max_training_segments: int | None = None,
    **options: Any,
) -> CoreferenceManifest:
    """Writes the records of documents in their order, completely or not at all.

    Args:
        documents: the documents.
        output: directory that is new or empty.
        sequence_length: number of positions of a segment.
        max_span_width: largest number of pieces of a mention that the model predicts; longer ones
            are counted.
        max_training_segments: number of segments of a document that are trained at once; by default
            that of the original code.
        **options: as for `write_task_records`.

    Returns:
        The manifest.

    Raises:
        BadInputError: a word is longer than a segment, or the output exists or cannot be written.
    """
    num_segments = max_training_segments or default_training_segments(sequence_length)
    maker = DocumentRows(documents, max_span_width, num_segments)
    return write_task_records(maker, output, sequence_length=sequence_length, **options)


class DocumentRows(RowMaker[CoreferenceManifest]):
    """Makes the rows of documents, and counts lost mentions and words."""

    manifest_class = CoreferenceManifest
    title = "coreference records"

    def __init__(
        self, documents: Sequence[Document], max_span_width: int, max_training_segments: int
    ) -> None:
        super().__init__()
        self._documents = [document for document in documents if document.words]
        self._max_span_width = max_span_width
        self._max_training_segments = max_training_segments
        self.counts.update(dict.fromkeys(_COUNTS, 0))

    def rows(
        self, pieces: Sequence[str], text_rules: TextRules, sequence_length: int
    ) -> Iterator[Row]:
        """Yields a row for each document.

        Raises:
            BadInputError: a word is longer than a segment.
        """
        made = self._made(pieces, text_rules, sequence_length)
        yield from show_progress(made, len(self._documents), "documents")

    def _made(
        self, pieces: Sequence[str], text_rules: TextRules, sequence_length: int
    ) -> Iterator[Row]:
        """Yields the rows, without a progress bar."""
        lines: list[DocumentLine] = []
        self.lines[DOCUMENTS_FILE] = lines
        tokenize = DocumentTokenizer(pieces, text_rules)
        special = SpecialTokenIds.from_vocabulary(pieces)
        for first in range(0, len(self._documents), _DOCUMENTS_AT_ONCE):
            documents = self._documents[first : first + _DOCUMENTS_AT_ONCE]
            tokenized = tokenize(documents)
            for document, sizes in zip(documents, tokenized.word_sizes, strict=True):
                _check_words(document, sizes, sequence_length - 2)
            rows = document_rows(tokenized, special, sequence_length)
            for document, row, sentence_starts, sizes in zip(
                documents, rows, tokenized.sentence_starts, tokenized.word_sizes, strict=True
            ):
                self._count(document, len(sentence_starts), sizes, row)
                lines.append(_document_line(document, sentence_starts))
                yield self._row(document, row)

    def described(self) -> dict[str, int]:
        """Returns the number of segments that are trained at once."""
        return {"max_training_segments": self._max_training_segments}

    def summary(self, manifest: CoreferenceManifest, seconds: float) -> Iterator[str]:
        """Yields the numbers of documents and mentions, and of lost mentions and words."""
        yield ", ".join(f"{manifest.counts[name]:,} {title}" for title, name in _SHOWN)
        for name, meaning in _LOST.items():
            if manifest.counts[name]:
                yield f"  {manifest.counts[name]:,} {meaning.format(width=self._max_span_width)}"

    def _row(self, document: Document, row: SegmentedDocuments) -> Row:
        """Returns the row of a document."""
        is_special = row.pieces == NO_PIECE
        starts, ends, clusters = self._mentions(document, row, ~is_special)
        names = [name for name in dict.fromkeys(document.speakers) if name]
        ids = {"": NO_SPEAKER}
        ids |= {name: number for number, name in enumerate(names, SPECIAL_SPEAKER + 1)}
        word_speakers = np.array([ids[name] for name in document.speakers], "int64")
        speakers = word_speakers[row.word_indices]
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
        """Returns first and last position and cluster of the mentions that have pieces."""
        places = np.flatnonzero(is_piece)
        words = row.word_indices[places]
        mentions = itertools.chain.from_iterable(document.clusters)
        spans = np.fromiter(itertools.chain.from_iterable(mentions), "int64").reshape(-1, 2)
        sizes = [len(spans) for spans in document.clusters]
        clusters = np.repeat(np.arange(len(sizes)) + 1, sizes)
        first = np.searchsorted(words, spans[:, 0], side="left")
        last = np.searchsorted(words, spans[:, 1], side="right") - 1
        has_pieces = first <= last
        starts = places[first[has_pieces]]
        ends = places[last[has_pieces]]
        across = row.sentence_indices[starts] != row.sentence_indices[ends]
        too_long = ~across & (ends - starts >= self._max_span_width)
        self.counts.update(
            mentions_without_pieces=int(np.sum(~has_pieces)),
            mentions_across_sentences=int(np.sum(across)),
            mentions_too_long=int(np.sum(too_long)),
        )
        return starts, ends, clusters[has_pieces]

    def _count(
        self,
        document: Document,
        num_sentences: int,
        word_sizes: np.ndarray,
        row: SegmentedDocuments,
    ) -> None:
        """Adds the counts of a document."""
        self.counts.update(document.left_out)
        self.counts.update(
            words=len(document.words),
            sentences=num_sentences,
            segments=len(row.segment_lengths),
            clusters=len(document.clusters),
            mentions=sum(map(len, document.clusters)),
            singletons=sum(len(spans) == 1 for spans in document.clusters),
            words_without_pieces=int(np.sum(word_sizes == 0)),
            documents_without_clusters=int(not document.clusters),
            documents_with_speakers=int(any(document.speakers)),
        )


def _check_words(document: Document, sizes: np.ndarray, max_pieces: int) -> None:
    """Raises `BadInputError` if a word has more pieces than a segment has room for."""
    word = int(sizes.argmax())
    if sizes[word] > max_pieces:
        raise BadInputError(
            f"{document.path}: document {document.key!r}: word {word} (from 0), "
            f"{document.words[word][:40]!r}, has {sizes[word]} pieces and a segment room for "
            f"{max_pieces}; give a larger --sequence-length"
        )


def _document_line(document: Document, sentence_starts: list[int]) -> DocumentLine:
    """Returns the JSON line of a document."""
    line: DocumentLine = {
        "name": document.name,
        "part": document.part,
        "words": document.words,
        "sentence_starts": sentence_starts,
        "speakers": document.speakers,
        "clusters": [list(map(list, spans)) for spans in document.clusters],
    }
    if document.conllu:
        line["conllu"] = document.conllu
    return line

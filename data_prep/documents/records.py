"""From documents to records: word pieces, segments and mentions, with all that is lost counted."""

import collections
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from data_prep.documents.document import Document
from data_prep.documents.pieces import DocumentTokenizer, Pieces
from data_prep.documents.segments import segment_pieces
from data_prep.examples.features import serialize_features
from data_prep.examples.row_writer import RowWriter
from data_prep.examples.task_records import write_task_records
from spanbert_tf.data.document_segments import NO_PIECE, SegmentedDocuments
from spanbert_tf.data.row_lengths import lengths_path
from spanbert_tf.data.rows_info import ROW_TOKEN_IDS
from spanbert_tf.data.schema import VOCABULARY_FILE, token_id_dtype
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.json_lines import write_json_lines
from spanbert_tf.files.outputs import OutputKind
from spanbert_tf.process.progress import show_progress
from spanbert_tf.tasks.coreference import schema
from spanbert_tf.text.vocabulary import END_TOKEN, START_TOKEN, Casing, check_case, load_vocabulary

RECORDS = OutputKind(
    "coreference records",
    schema.CoreferenceInfo.file_name(),
    (
        schema.CoreferenceInfo.rows_file,
        os.path.basename(lengths_path(schema.CoreferenceInfo.rows_file)),
        schema.DOCUMENTS_FILE,
        VOCABULARY_FILE,
    ),
)
_DOCUMENTS_AT_ONCE = 64


def write_documents(
    documents: Sequence[Document],
    output: str,
    *,
    vocabulary: str,
    casing: Casing,
    sequence_length: int,
    max_span_width: int,
    max_training_segments: int | None = None,
    overwrite: bool = False,
) -> schema.CoreferenceInfo:
    """Writes records of documents, in their order.

    Args:
        documents: checked already.
        output: directory that appears whole or not at all.
        vocabulary: path of the vocabulary.
        casing: what is done to the text.
        sequence_length: positions of a segment at most.
        max_span_width: pieces of a mention that the model can represent, for the counts.
        max_training_segments: segments of a document that are trained at once; by default the
            original's number for that length.
        overwrite: whether earlier records may be replaced.

    Returns:
        The description that was written.

    Raises:
        BadInputError: a file cannot be used, or a word is longer than a segment.
        MismatchError: vocabulary and casing do not go together.
    """
    pieces = load_vocabulary(vocabulary)
    check_case(pieces, vocabulary, casing)
    documents = [document for document in documents if document.words]
    make = RecordMaker(pieces, casing, sequence_length, max_span_width)

    def write(directory: str) -> Mapping[str, int]:
        lines = []
        with RowWriter(os.path.join(directory, schema.CoreferenceInfo.rows_file)) as writer:
            for document, sentence_starts, serialized, num_tokens in show_progress(
                make(documents), len(documents), "documents"
            ):
                writer.write(serialized, num_tokens)
                lines.append(_document_line(document, sentence_starts))
        write_json_lines(os.path.join(directory, schema.DOCUMENTS_FILE), lines)
        return {**writer.counts(), **make.counts}

    describe = functools.partial(
        schema.CoreferenceInfo,
        **casing._asdict(),
        sequence_length=sequence_length,
        max_training_segments=max_training_segments
        or schema.default_training_segments(sequence_length),
    )
    return write_task_records(output, RECORDS, pieces, write, describe, overwrite=overwrite)


class RecordMaker:
    """Makes records of documents; what was met on the way is in `counts`.

    Args:
        vocabulary: entries in order of their ids.
        casing: what is done to the text.
        sequence_length: positions of a segment at most.
        max_span_width: pieces of a mention that the model can represent.
    """

    def __init__(
        self, vocabulary: Sequence[str], casing: Casing, sequence_length: int, max_span_width: int
    ) -> None:
        self._tokenize = DocumentTokenizer(vocabulary, casing)
        self._max_pieces = sequence_length - 2
        self._max_span_width = max_span_width
        self._id_dtype = f"<{np.dtype(token_id_dtype(len(vocabulary))).str[1:]}"
        self._segment = functools.partial(
            segment_pieces,
            sequence_length=sequence_length,
            start_id=vocabulary.index(START_TOKEN),
            end_id=vocabulary.index(END_TOKEN),
        )
        names = (
            *("words", "sentences", "segments", "clusters", "mentions", "singletons"),
            *("mentions_too_long", "mentions_across_sentences", "mentions_without_pieces"),
            *("words_without_pieces", "documents_without_clusters", "documents_with_speakers"),
        )
        self.counts = collections.Counter(dict.fromkeys(names, 0))

    def __call__(
        self, documents: Sequence[Document]
    ) -> Iterator[tuple[Document, list[int], bytes, int]]:
        """Each document, the first words of its sentences, its record and its positions.

        Raises:
            BadInputError: a word is longer than a segment.
        """
        for first in range(0, len(documents), _DOCUMENTS_AT_ONCE):
            some = documents[first : first + _DOCUMENTS_AT_ONCE]
            all_pieces = list(self._tokenize(some))
            for document, pieces in zip(some, all_pieces, strict=True):
                self._check_words(document, pieces)
            for document, pieces in zip(some, all_pieces, strict=True):
                row = self._segment(pieces)
                serialized = self._serialize(document, row)
                yield document, pieces.sentence_starts, serialized, len(row.token_ids)
                self._count(document, pieces, row)

    def _check_words(self, document: Document, pieces: Pieces) -> None:
        sizes = np.bincount(pieces.words, minlength=len(document.words))
        if sizes.max(initial=0) > self._max_pieces:
            word = int(sizes.argmax())
            raise BadInputError(
                f"{document.path}: document {document.key!r}: word {word} (from 0), "
                f"{document.words[word][:40]!r}, has {sizes[word]} pieces and a segment room for "
                f"{self._max_pieces}; give a larger --sequence-length"
            )

    def _serialize(self, document: Document, row: SegmentedDocuments) -> bytes:
        is_special = row.pieces == NO_PIECE
        starts, ends, clusters = self._mentions(document, row)
        names = [name for name in dict.fromkeys(document.speakers) if name]
        ids = {"": schema.NO_SPEAKER}
        ids |= {name: number for number, name in enumerate(names, schema.SPECIAL_SPEAKER + 1)}
        speakers = np.fromiter(map(ids.__getitem__, document.speakers), "int64")[row.word_indices]
        numbers = {
            schema.SENTENCES: row.sentence_indices,
            schema.WORDS: row.word_indices,
            schema.SPEAKERS: np.where(is_special, schema.SPECIAL_SPEAKER, speakers),
            schema.SEGMENT_LENGTHS: row.segment_lengths,
            schema.MENTION_STARTS: starts,
            schema.MENTION_ENDS: ends,
            schema.MENTION_CLUSTERS: clusters,
        }
        lists = {
            name: np.asarray(values).astype(f"<{schema.NUMBER_DTYPE[0]}4").tobytes()
            for name, values in numbers.items()
        }
        lists[schema.IS_SPECIAL] = is_special.astype(schema.FLAG_DTYPE).tobytes()
        lists[ROW_TOKEN_IDS] = row.token_ids.astype(self._id_dtype).tobytes()
        return serialize_features({schema.GENRE: schema.genre_id(document.name)}, lists)

    def _mentions(
        self, document: Document, row: SegmentedDocuments
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First and last position and cluster of the mentions that have pieces."""
        places = np.flatnonzero(row.pieces != NO_PIECE)
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


def _num_distinct(ascending: np.ndarray) -> int:
    return int(np.count_nonzero(np.diff(ascending, prepend=-1)))


def _document_line(document: Document, sentence_starts: list[int]) -> schema.DocumentLine:
    return {
        "name": document.name,
        "part": document.part,
        "words": document.words,
        "sentence_starts": sentence_starts,
        "speakers": document.speakers,
        "clusters": [[list(span) for span in spans] for spans in document.clusters],
    }

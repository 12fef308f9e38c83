"""Makes the records of a file from its documents."""

import collections
import dataclasses
import hashlib
import struct
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

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
from data_prep.text.corpus import split_sentences
from data_prep.text.formats import TextPart
from spanbert_tf.data.manifest import (
    NUM_BLOCKS,
    WORDS,
    Annotation,
    Sequences,
    token_id_dtype,
)
from spanbert_tf.text.languages import DEFAULT_SPACY_MODEL
from spanbert_tf.text.vocabulary import TextRules, begin_words
from spanbert_tf.text.word_segmentation import (
    WordSegmentation,
    WordSegmenter,
    pieces_that_begin_words,
)

if TYPE_CHECKING:
    import tensorflow as tf

CELLS_WITHOUT_TEXT = "cells_without_text"  # key of the number of these cells, if there are any
CHUNK_CHARACTERS = 2**20  # characters that one call tokenizes
CHUNK_DOCUMENTS = 2**16  # documents, most of them without text, that are counted at once


@dataclasses.dataclass(frozen=True)
class RecordOptions:
    """The options of records.

    Attributes:
        vocabulary: entries in order of their ids.
        text_rules: whether text is lower-cased, whether accents are stripped, and the language.
        sequence_length: positions of a packed row, special tokens included.
        sequences: `"single"` or `"pair"`.
        document_separator: in plain text, a line equal to this begins a new document.
        text_columns: names of the columns of text in tables; empty for `text`.
        annotations: annotations that spaCy finds.
        spacy_model: name or path of the spaCy model that finds annotations and words.
        word_segmentation: how words are found.
    """

    vocabulary: tuple[str, ...]
    text_rules: TextRules
    sequence_length: int
    sequences: Sequences
    document_separator: str | None = None
    text_columns: tuple[str, ...] = ()
    annotations: tuple[Annotation, ...] = ()
    spacy_model: str = DEFAULT_SPACY_MODEL
    word_segmentation: WordSegmentation = "none"

    @property
    def span_lists(self) -> tuple[str, ...]:
        """Names of the `SPAN_LISTS` that the records have besides sentences; words come last."""
        return self.annotations + (() if self.word_segmentation == "none" else (WORDS,))

    @property
    def row_limit(self) -> int:
        """Maximum number of word pieces of a record."""
        return self.sequence_length - NUM_BLOCKS[self.sequences] - 1

    @property
    def block_limit(self) -> int:
        """Maximum number of word pieces of a sequence, or of the first segment of a pair."""
        if self.sequences == "pair":
            return self.row_limit // 2
        return self.row_limit


class RecordMaker:
    """Splits text into sentences and word pieces, and finds annotations.

    Args:
        options: options of the records.

    Attributes:
        options: options of the records.
        token_dtype: dtype in which token ids are stored.
    """

    def __init__(self, options: RecordOptions) -> None:
        # It imports TensorFlow, which a process that only starts others does not need.
        from spanbert_tf.text.tokenization import WordPieceTokenizer

        self.options = options
        self.token_dtype = token_id_dtype(len(options.vocabulary))
        self._tokenizer = WordPieceTokenizer.shared(options.vocabulary, options.text_rules)
        self._finder = None
        self._segmenter = None
        if options.annotations:
            self._finder = SpanFinder(options.annotations, options.spacy_model)
        if options.word_segmentation != "none":
            self._segmenter = WordSegmenter(
                options.word_segmentation, options.text_rules.language, options.spacy_model
            )
        self._begins_word = begin_words(options.vocabulary)

    def read_sentences(
        self, paragraphs: list[str], documents: list[int], counts: collections.Counter
    ) -> Sentences:
        """Splits paragraphs into sentences, and sentences into word pieces.

        Sentences without word pieces, which have only control characters, are dropped.

        Args:
            paragraphs: text of a file.
            documents: index of the document of each paragraph.
            counts: counter to which the numbers of paragraphs, sentences, tokens and spans are
                added.
        """
        texts, num_sentences = split_sentences(paragraphs, self.options.text_rules.language)
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
        for name, found in zip(self.options.span_lists, spans, strict=True):
            counts[name] += len(found)
        return split_long_sentences(sentences, limit)

    def _find_pieces(
        self, texts: list[str], paragraphs: list[str]
    ) -> tuple["tf.RaggedTensor", tuple[np.ndarray, ...]]:
        """Returns the word pieces of each sentence, and the spans of pieces of each span list.

        Words have no last piece, because each word ends where the next one begins.
        """
        import tensorflow as tf

        strings = tf.constant(texts, tf.string)
        if not self.options.span_lists:
            return self._tokenizer.tokenize(strings), ()
        pieces, starts, ends = self._tokenizer.tokenize_with_offsets(strings)
        sizes = tf.strings.length(strings).numpy()
        # The tokenizer's offsets are relative to each sentence, and annotations to all paragraphs.
        # The concatenated sentences are byte for byte the concatenated paragraphs.
        shift = np.repeat(np.cumsum(sizes) - sizes, pieces.row_lengths().numpy())
        piece_starts = shift + starts.flat_values.numpy()
        piece_ends = shift + ends.flat_values.numpy()
        begins_word = self._begins_word[pieces.flat_values.numpy()]
        if self._segmenter is not None:
            borders = self._segmenter.borders(paragraphs)
            begins_word = pieces_that_begin_words(borders, piece_starts, piece_ends)
            begins_word[pieces.row_starts().numpy()[pieces.row_lengths() > 0]] = True
        found = []
        if self._finder is not None:
            for spans in self._finder.find(paragraphs):
                found.append(spans_to_pieces(spans, piece_starts, piece_ends, begins_word))
        if self._segmenter is not None:
            found.append(np.flatnonzero(begins_word)[:, np.newaxis])
        return pieces, tuple(found)


class FileRecords:
    """Iterates over the records of a file, or of a part of it, in bounded memory.

    Args:
        maker: splits text into sentences and word pieces.
        parts: the documents of the file in parts, each with the index of its document.
        name: name of the file; see `InputFile`. Record ids depend on it.

    Attributes:
        counts: numbers of documents, records and more so far; see `write_pretraining_records`.
    """

    def __init__(
        self, maker: RecordMaker, parts: Iterable[tuple[int, TextPart]], name: str
    ) -> None:
        self.counts: collections.Counter = collections.Counter()
        self._document_keys: list[int] = []
        self._record_keys = SmallestKeys()
        self._squared_records = 0
        self._maker = maker
        self._parts = parts
        self._name = name
        self._waiting: Sentences | None = None  # sentences that are in no record yet
        self._open_paragraphs = (-1, 0)  # the unfinished document, and its paragraphs so far
        self._ended: list[tuple[int, bool]] = []  # documents, and whether they have a title
        self._pairs = None
        if maker.options.sequences == "pair":
            self._pairs = PairBuilder(maker.options.row_limit, maker.token_dtype, self._keys)
        # The current document, the index of its next record, and the key of the document.
        self._next_record = (-1, 0, 0)

    def __iter__(self) -> Iterator[Record]:
        paragraphs: list[str] = []
        documents: list[int] = []
        num_characters = 0
        chunk_characters = CHUNK_CHARACTERS
        if self._maker.options.annotations:
            # spaCy takes seconds even for this much, and progress is shown between chunks.
            chunk_characters //= 8
        for document, part in self._parts:
            paragraphs += part.paragraphs
            documents += [document] * len(part.paragraphs)
            num_characters += sum(map(len, part.paragraphs))
            if part.ends_document:
                self._ended.append((document, part.has_title))
            if num_characters >= chunk_characters or len(self._ended) >= CHUNK_DOCUMENTS:
                yield from self._records(paragraphs, documents, is_open=not part.ends_document)
                paragraphs = []
                documents = []
                num_characters = 0
        yield from self._records(paragraphs, documents, is_open=False)

    def split_keys(self) -> SplitKeys:
        """Returns the statistics of the records so far, which `find_held_out` needs."""
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
        """Makes records of paragraphs. With `is_open`, the last document continues."""
        sentences = self._maker.read_sentences(paragraphs, documents, self.counts)
        sentences = self._go_on_counting(sentences)
        if self._waiting is not None:
            sentences = self._waiting.join(sentences)
        self._count_ended(sentences.documents)
        if self._pairs is None:
            limit = self._maker.options.block_limit
            dtype = self._maker.token_dtype
            blocks, self._waiting = fill_blocks(sentences, limit, dtype, is_open=is_open)
            for block in blocks:
                yield Record(*self._keys(block.document), block)
        else:
            records, self._waiting = self._pairs.fill(sentences, is_open=is_open)
            yield from records

    def _go_on_counting(self, sentences: Sentences) -> Sentences:
        """Continues the paragraph indices of a document that began in an earlier chunk."""
        document, num_before = self._open_paragraphs
        indices = sentences.paragraph_indices + num_before * (sentences.documents == document)
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
                kind = "title_only_documents" if has_title else "empty_documents"
                self.counts[kind] += 1
        self._ended.clear()
        ordered = sorted(keys)
        self._document_keys = sorted({*ordered[:2], *ordered[-2:]})

    def _keys(self, document: int) -> tuple[int, int, int]:
        """Returns order key, record id and document key of the next record of a document."""
        last_document, index, key = self._next_record
        if document != last_document:
            index = 0
            key = document_key(self._name, document)
        self._next_record = (document, index + 1, key)
        self.counts["records"] += 1
        self._squared_records += 2 * index + 1  # the sum over n records is n²
        order_key, hashed_id = _hash(self._name, document, index, 2)
        record_id = hashed_id >> 1
        self._record_keys.add(record_id)
        return order_key, record_id, key


def document_key(name: str, document: int) -> int:
    """Returns the key of a document, 63 pseudorandom bits.

    Args:
        name: name of the file.
        document: index of the document in the file.
    """
    return _hash(name, document, "document", 1)[0] >> 1


def _hash(name: str, document: int, what: int | str, num_values: int) -> tuple[int, ...]:
    """Returns pseudorandom uint64 values, the same in every process and on every machine."""
    text = f"{name}\0{document}\0{what}".encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(text, digest_size=8 * num_values).digest()
    return struct.unpack(f"<{num_values}Q", digest)

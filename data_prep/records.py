"""From the paragraphs of a file to its records."""

import collections
import hashlib
from collections.abc import Iterator

import numpy as np
import sentencex
import tensorflow as tf

from data_prep.corpus import Paragraph, read_paragraphs
from data_prep.sequences import (
    Block,
    Sentences,
    document_runs,
    fill_blocks,
    split_long_sentences,
)
from data_prep.spill import SpilledRecord
from spanbert_tf.data import schema
from spanbert_tf.data.tokenization import word_piece_tokenizer

_BATCH_CHARACTERS = 2**20  # text that is tokenized by one call
_LANGUAGE = "en"


class RecordMaker:
    """Makes single-sequence records; holds one file's state at a time.

    Args:
        vocabulary: entries in order of their ids.
        lowercase: whether to lower-case the text and strip accents.
        sequence_length: positions of a packed row.
    """

    def __init__(self, vocabulary: list[str], lowercase: bool, sequence_length: int) -> None:
        self._tokenizer = word_piece_tokenizer(vocabulary, lowercase=lowercase)
        self._dtype = np.dtype(schema.token_id_dtype(len(vocabulary))).newbyteorder("<")
        self._limit = sequence_length - schema.SEQUENCE_KINDS["single"]

    def records(
        self,
        path: str,
        name: str,
        counts: collections.Counter,
        document_separator: str | None,
    ) -> Iterator[SpilledRecord]:
        """The records of a file.

        Args:
            path: of the file.
            name: of the file, the same on every machine; record ids depend on it.
            counts: is increased by what was read (see `read_paragraphs`) and made: `sentences`,
                `split_sentences`, `sentences_without_tokens`, `tokens`.
            document_separator: see `read_paragraphs`.
        """
        document, num_blocks = -1, 0
        waiting: Sentences | None = None  # the end of the document, which may go on
        for paragraphs in _batches(read_paragraphs(path, counts, document_separator)):
            documents, sentences = self._tokenize(paragraphs, counts)
            for start, stop in document_runs(documents):
                part = sentences.slice(start, stop)
                if documents[start] == document:
                    part = waiting + part
                else:
                    yield from self._last_records(waiting, name, document, num_blocks)
                    document, num_blocks = int(documents[start]), 0
                blocks, waiting = fill_blocks(part, self._limit, is_document_end=False)
                for block in blocks:
                    yield self._record(block, name, document, num_blocks)
                    num_blocks += 1
        yield from self._last_records(waiting, name, document, num_blocks)

    def _last_records(
        self, waiting: Sentences | None, name: str, document: int, num_blocks: int
    ) -> Iterator[SpilledRecord]:
        """The record of a document's end: no block goes on in another document."""
        if waiting is not None:
            blocks, _ = fill_blocks(waiting, self._limit, is_document_end=True)
            for number, block in enumerate(blocks, start=num_blocks):
                yield self._record(block, name, document, number)

    def _tokenize(
        self, paragraphs: list[Paragraph], counts: collections.Counter
    ) -> tuple[np.ndarray, Sentences]:
        """Document of each sentence, int [N], and the sentences."""
        texts: list[str] = []
        num_sentences = []
        for paragraph in paragraphs:
            found = sentencex.segment(_LANGUAGE, paragraph.text)
            texts += found
            num_sentences.append(len(found))
        pieces = self._tokenizer.tokenize(tf.constant(texts))  # ragged [N, pieces]
        lengths = pieces.row_lengths().numpy()
        of_paragraph = np.repeat(np.arange(len(paragraphs)), num_sentences)  # [N]
        indices = np.concatenate([np.arange(number) for number in num_sentences])
        documents = np.array([paragraph.document for paragraph in paragraphs])[of_paragraph]
        paragraph_indices = np.array([paragraph.index for paragraph in paragraphs])[of_paragraph]
        used = lengths > 0
        whole = Sentences(
            pieces.flat_values.numpy(),
            lengths[used],
            paragraph_indices[used],
            indices[used],
            np.zeros(used.sum(), np.int64),
        )
        split = split_long_sentences(whole, self._limit)
        num_parts = -(-whole.lengths // self._limit)
        counts["sentences"] += len(texts)
        counts["sentences_without_tokens"] += int((~used).sum())
        counts["split_sentences"] += int((num_parts > 1).sum())
        counts["tokens"] += len(whole.token_ids)
        return np.repeat(documents[used], num_parts), split

    def _record(self, block: Block, name: str, document: int, number: int) -> SpilledRecord:
        document_hash = _hash(name, document)
        record_id = _hash(name, document, number) >> 1  # 63 bits: an int64
        features = {
            schema.TOKEN_IDS: _bytes(block.token_ids.astype(self._dtype)),
            schema.RECORD_ID: _integer(record_id),
            schema.FIRST_TOKEN_INDEX: _integer(block.first_token_index),
            schema.SENTENCE_STARTS: _list(block.sentence_starts),
            schema.SENTENCE_INDICES: _list(block.sentence_indices),
            schema.PARAGRAPH_STARTS: _list(block.paragraph_starts),
            schema.PARAGRAPH_INDICES: _list(block.paragraph_indices),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        return SpilledRecord(
            # Another hash than the id, whose bits choose the masks.
            _hash("order", record_id),
            document_hash,
            len(block.token_ids),
            example.SerializeToString(deterministic=True),
        )


def _batches(paragraphs: Iterator[Paragraph]) -> Iterator[list[Paragraph]]:
    """Paragraphs in batches of about a megabyte."""
    batch: list[Paragraph] = []
    size = 0
    for paragraph in paragraphs:
        batch.append(paragraph)
        size += len(paragraph.text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _hash(*parts: str | int) -> int:
    """64 bits that are the same in every process and on every machine."""
    text = "\x00".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _bytes(values: np.ndarray) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[values.tobytes()]))


def _list(values: np.ndarray) -> tf.train.Feature:
    return _bytes(values.astype(np.dtype(schema.LIST_DTYPE).newbyteorder("<")))


def _integer(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

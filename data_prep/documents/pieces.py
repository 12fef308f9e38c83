"""Word pieces of documents: each distinct word is tokenized once.

The tokenizer looks at nothing beyond white space, so that a word has the same pieces everywhere.
"""

import collections
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from data_prep.documents.document import Document
from spanbert_tf.text.tokenization import TextTokenizer, TokenizedText, WordPieceTokenizer
from spanbert_tf.text.vocabulary import Casing


class Pieces(NamedTuple):
    """The word pieces of a document.

    Attributes:
        token_ids: int32 [P].
        words: word of each, ascending, int32 [P].
        sentences: sentence of each, ascending, int32 [P].
        sentence_starts: first word of each sentence.
    """

    token_ids: np.ndarray
    words: np.ndarray
    sentences: np.ndarray
    sentence_starts: list[int]


class DocumentTokenizer:
    """Makes pieces of documents.

    Args:
        vocabulary: entries in order of their ids.
        casing: what is done to the text.
    """

    def __init__(self, vocabulary: Sequence[str], casing: Casing) -> None:
        self._vocabulary = vocabulary
        self._casing = casing
        self._tokenizer = WordPieceTokenizer.shared(vocabulary, casing)

    def __call__(self, documents: Sequence[Document]) -> Iterator[Pieces]:
        """The pieces of each document.

        Args:
            documents: with words.
        """
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

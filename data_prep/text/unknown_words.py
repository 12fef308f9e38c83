"""Finds the words of a text that a vocabulary makes `[UNK]`, and says why."""

import collections
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from data_prep.text.corpus import DocumentReader
from data_prep.text.storage import InputFile
from spanbert_tf.text.languages import LETTER_WITHOUT_SPACES, WITHOUT_SPACES
from spanbert_tf.text.vocabulary import UNKNOWN_TOKEN, TextRules

SAMPLE_CHARACTERS = 2**20  # as many as one call tokenizes in the preparation of records
SOME_UNKNOWN = 0.005  # share of the pieces
_MANY_UNKNOWN = 0.05
_MOST_FILES = 16
_LANGUAGE_OF_PHRASES = "th"

Reason = Literal["phrase", "long", "composed", "decomposed", "letters"]


class _Advice(NamedTuple):
    """What is said of a reason if it holds for more than a share of the pieces."""

    least_share: float
    text: str


_ADVICE: Mapping[Reason, _Advice] = {
    "phrase": _Advice(
        SOME_UNKNOWN,
        "they are phrases without spaces, longer than a word may be; state the language where "
        f"records or encoders are made: --language ({', '.join(sorted(WITHOUT_SPACES))})",
    ),
    "decomposed": _Advice(
        SOME_UNKNOWN,
        "their letters are decomposed (a letter and a combining mark), and those of the vocabulary "
        "are composed; compose the text: unicodedata.normalize('NFC', text)",
    ),
    "composed": _Advice(
        SOME_UNKNOWN,
        "their letters are composed, and those of the vocabulary are decomposed (a letter and a "
        "combining mark); decompose the text: unicodedata.normalize('NFD', text)",
    ),
    "long": _Advice(
        _MANY_UNKNOWN,
        "they are longer than a word may be, as addresses are; take out what is no text",
    ),
    "letters": _Advice(
        _MANY_UNKNOWN,
        "the vocabulary lacks letters of this text; take a vocabulary, or an encoder, for its "
        "language",
    ),
}


class UnknownWords(NamedTuple):
    """How many words of a text are `[UNK]`, each of them one piece.

    Attributes:
        num_pieces: number of word pieces of the text.
        reasons: number of unknown words by the reason why they are unknown.
    """

    num_pieces: int
    reasons: "collections.Counter[Reason]"

    @property
    def share(self) -> float:
        """The share of the pieces that are `[UNK]`."""
        return self.reasons.total() / max(self.num_pieces, 1)

    def advice(self, share: float | None = None) -> list[str]:
        """Returns a line for each reason for which many pieces are `[UNK]`.

        Args:
            share: share of the pieces of a larger text that are `[UNK]`; `None`: that of this text.
        """
        share = self.share if share is None else share
        lines = []
        for reason, (least_share, advice) in _ADVICE.items():
            share_of_reason = share * self.reasons[reason] / max(self.reasons.total(), 1)
            if share_of_reason > least_share:
                lines.append(f"{share_of_reason:.1%} of the pieces are {UNKNOWN_TOKEN}: {advice}")
        return lines


def read_sample(
    files: Sequence[InputFile], document_separator: str | None, text_columns: Sequence[str]
) -> list[str]:
    """Reads the first paragraphs of some files, which stand at equal distances.

    Args:
        files: files of text or tables, which were read before.
        document_separator: see `DocumentReader`.
        text_columns: see `DocumentReader`.
    """
    chosen = files[:: -(-len(files) // _MOST_FILES)]
    texts: list[str] = []
    for file in chosen:
        num_characters = 0
        for part in DocumentReader(file.path, document_separator, text_columns):
            texts += part.paragraphs
            num_characters += sum(map(len, part.paragraphs))
            if num_characters * len(chosen) > SAMPLE_CHARACTERS:
                break
    return texts


def find_unknown_words(
    texts: Sequence[str], vocabulary: Sequence[str], text_rules: TextRules
) -> UnknownWords:
    """Counts the unknown words of texts by the reason why they are unknown.

    A word has a reason if it is known without it: as a phrase, or in another normal form.

    Args:
        texts: texts of a few megabytes in all.
        vocabulary: entries in order of their ids.
        text_rules: what is done to the texts.
    """
    import tensorflow as tf  # here, so that commands without it start at once

    from spanbert_tf.text.tokenization import (
        WordPieceTokenizer,
        longest_word,
        text_normalizer,
    )

    unknown_id = vocabulary.index(UNKNOWN_TOKEN)
    normalized = [text.encode() for text in text_normalizer(text_rules)(texts)]
    tokenizer = WordPieceTokenizer.shared(vocabulary, text_rules)
    ids, starts, ends = tokenizer.tokenize_with_offsets(tf.constant(normalized, tf.string))
    is_unknown = (ids == unknown_id).flat_values.numpy()
    rows, firsts, stops = (
        values.numpy()[is_unknown].tolist()
        for values in (ids.value_rowids(), starts.flat_values, ends.flat_values)
    )
    counts = collections.Counter(
        normalized[row][first:stop].decode()
        for row, first, stop in zip(rows, firsts, stops, strict=True)
    )

    if not counts:
        return UnknownWords(len(is_unknown), collections.Counter())

    def known(words: Iterable[str], text_rules: TextRules) -> list[bool]:
        strings = tf.constant(list(words), tf.string)
        pieces = WordPieceTokenizer.shared(vocabulary, text_rules).tokenize(strings)
        return (~tf.reduce_any(pieces == unknown_id, axis=1)).numpy().tolist()

    longest = longest_word(text_rules)
    reasons: collections.Counter[Reason] = collections.Counter()
    for word, is_known_phrase, is_known_composed, is_known_decomposed in zip(
        counts,
        known(counts, text_rules._replace(language=_LANGUAGE_OF_PHRASES)),
        known((unicodedata.normalize("NFC", word) for word in counts), text_rules),
        known((unicodedata.normalize("NFD", word) for word in counts), text_rules),
        strict=True,
    ):
        reason: Reason = "letters"
        if is_known_phrase and LETTER_WITHOUT_SPACES.search(word):
            reason = "phrase"
        elif is_known_composed:
            reason = "decomposed"
        elif is_known_decomposed:
            reason = "composed"
        elif len(word.encode()) > longest:
            reason = "long"
        reasons[reason] += counts[word]
    return UnknownWords(len(is_unknown), reasons)

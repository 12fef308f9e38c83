"""Trains a WordPiece vocabulary: `spanbert-tf prepare vocabulary`."""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_prep.text.corpus import DocumentReader
from data_prep.text.formats import describe_cells_without_text
from data_prep.text.storage import InputFile, find_files
from data_prep.text.unknown_words import SAMPLE_CHARACTERS, find_unknown_words
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import FileKind, Output, write_output
from spanbert_tf.terminal import print_line, show_progress
from spanbert_tf.text.casing import advice_on_text
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    LETTER_COVERAGE,
    SPECIAL_TOKENS,
    UNKNOWN_TOKEN,
    TextRules,
    load_vocabulary,
)

_LEAST_FREQUENCY = 2
# Letters beyond the coverage are added as long as letters fill at most this share of the entries,
# or this number: they cost little then, and in a small text each letter matters.
_SHARE_OF_LETTERS = 1 / 10
_FEWEST_ENTRIES_OF_LETTERS = 200
_MISSING_SHOWN = 20
_CHARACTERS_AT_ONCE = 2**18


class Alphabet(NamedTuple):
    """The letters of a text, which are all its characters except white space.

    Attributes:
        letters: letters that have an entry in the vocabulary, sorted by code point.
        continuing: letters among them that can continue a word and therefore have a second entry,
            `##` and the letter. Ideographs and punctuation are words by themselves.
        missing: letters without an entry, the most frequent first. Words with them are [UNK].
        missing_share: share of the missing letters in the text.
        characters: number of occurrences of each character in the text before normalization.
    """

    letters: list[str]
    continuing: list[str]
    missing: list[str]
    missing_share: float
    characters: collections.Counter[str]


def write_vocabulary(
    input_pattern: str | Sequence[str],
    output: str,
    *,
    vocabulary_size: int,
    letter_coverage: float = LETTER_COVERAGE,
    lowercase: bool = False,
    strip_accents: bool | None = None,
    document_separator: str | None = None,
    text_columns: Sequence[str] = (),
    follow_links: bool = False,
    overwrite: bool = False,
) -> int:
    """Trains a vocabulary with HuggingFace `tokenizers` and writes it, one word piece a line.

    The text is normalized by the tokenizer of records and models, and split as in BERT.

    Args:
        input_pattern: one or more glob patterns of text files (formats: `data_prep.text.corpus`).
        output: path of the vocabulary, conventionally `vocab.txt`.
        vocabulary_size: number of entries, special tokens included. A small text gives fewer.
        letter_coverage: see `find_alphabet`.
        lowercase: whether to lower-case the text.
        strip_accents: whether to strip accents; `None`: if the text is lower-cased.
        document_separator: in plain text, a line equal to this begins a new document.
        text_columns: columns of text in tables; see `data_prep.text.formats.RowParser`.
        follow_links: see `find_files`.
        overwrite: whether an earlier vocabulary at `output` may be replaced.

    Returns:
        The number of entries.

    Raises:
        BadInputError: a file cannot be used, or the vocabulary exists or cannot be written.
    """
    kind = FileKind("a vocabulary", _is_vocabulary)
    output = Output(output, kind, overwrite=overwrite).check()
    files = find_files(input_pattern, follow_links=follow_links)

    paragraphs = Paragraphs(files, document_separator, text_columns)
    text_rules = TextRules.of(lowercase, strip_accents)
    alphabet = find_alphabet(
        paragraphs.read("counting letters"), text_rules, vocabulary_size, letter_coverage
    )
    sample = Sample(SAMPLE_CHARACTERS)
    vocabulary = train_vocabulary(
        sample.of(paragraphs.read("counting words")), text_rules, vocabulary_size, alphabet
    )
    write_output(output, "\n".join(vocabulary) + "\n")
    print_line(f"{output}: {len(vocabulary):,} entries from {len(files):,} files")
    if paragraphs.num_without_text:
        print_line(describe_cells_without_text(output, paragraphs.num_without_text))
    if advice := advice_on_text(alphabet.characters, text_rules):
        print_line(f"{output}: {advice}")
    if alphabet.missing:
        print_line(f"{output}: {_describe_missing_letters(alphabet, letter_coverage)}")
    unknown = find_unknown_words(sample.texts, vocabulary, text_rules)
    print_line(f"{output}: {unknown.share:.2%} of the pieces of {sample.name} are {UNKNOWN_TOKEN}")
    for advice in unknown.advice():
        print_line(f"{output}: {advice}")
    if len(vocabulary) < vocabulary_size:
        print_line(f"{output}: {_describe_few_entries(vocabulary, vocabulary_size, alphabet)}")
    return len(vocabulary)


def _describe_few_entries(vocabulary: Sequence[str], asked: int, alphabet: Alphabet) -> str:
    """Says why a vocabulary has fewer entries than were asked for."""
    num_alone = len(alphabet.letters) - len(alphabet.continuing)
    num_letters = len(alphabet.letters) + len(alphabet.continuing)
    num_longer = len(vocabulary) - len(SPECIAL_TOKENS) - num_letters
    advice = "more text"
    if alphabet.missing:
        advice += ", and a larger --letter-coverage,"
    return (
        f"these are fewer than the {asked:,} that were asked for: {num_letters:,} for letters "
        f"({num_alone:,} of them words by themselves, as ideographs are) and {num_longer:,} for "
        "more letters; each word of these letters that occurs twice has an entry already; "
        f"{advice} gives more"
    )


def _describe_missing_letters(alphabet: Alphabet, coverage: float) -> str:
    """Says which letters have no entry, so that words with them become [UNK]."""
    shown = " ".join(alphabet.missing[:_MISSING_SHOWN])
    if len(alphabet.missing) > _MISSING_SHOWN:
        shown = f"{shown} …"
    is_full = 1 - alphabet.missing_share < coverage
    return (
        f"{len(alphabet.missing):,} rare letters, {alphabet.missing_share:.3%} of the text, have "
        f"no entry, and words with them become [UNK]: {shown} (a larger "
        f"{'--vocabulary-size' if is_full else '--letter-coverage'} adds letters)"
    )


class Paragraphs:
    """The paragraphs of files, which can be read several times.

    Args:
        files: files of text or tables.
        document_separator: see `DocumentReader`.
        text_columns: see `DocumentReader`.

    Attributes:
        num_without_text: number of cells of tables without a text, in the last reading.
    """

    def __init__(
        self,
        files: Sequence[InputFile],
        document_separator: str | None = None,
        text_columns: Sequence[str] = (),
    ) -> None:
        self._files = files
        self._separator = document_separator
        self._text_columns = text_columns
        self.num_without_text = 0

    def read(self, doing: str) -> Iterator[str]:
        """Yields the paragraphs and shows the progress.

        Args:
            doing: a word or two that describe the work.

        Raises:
            BadInputError: a file cannot be used.
        """
        readers = [
            DocumentReader(file.path, self._separator, self._text_columns) for file in self._files
        ]
        parts = show_progress(
            itertools.chain.from_iterable(readers),
            sum(file.size for file in self._files) / 1e6,
            "MB",
            doing=doing,
            done=lambda: sum(reader.position for reader in readers) / 1e6,
        )
        for part in parts:
            yield from part.paragraphs
        self.num_without_text = sum(reader.num_without_text for reader in readers)


class Sample:
    """Texts from all over a text, of a bounded length in all.

    Args:
        most_characters: number of characters of the longest sample.

    Attributes:
        texts: the sample.
    """

    def __init__(self, most_characters: int) -> None:
        self.texts: list[str] = []
        self._most_characters = most_characters
        self._step = 1

    def of(self, texts: Iterable[str]) -> Iterator[str]:
        """Yields texts and keeps every n-th, where n doubles when they are too long."""
        num_characters = 0
        for number, text in enumerate(texts):
            yield text
            if number % self._step:
                continue
            self.texts.append(text)
            num_characters += len(text)
            while num_characters > self._most_characters and len(self.texts) > 1:
                self._step *= 2
                self.texts = self.texts[::2]
                num_characters = sum(map(len, self.texts))

    @property
    def name(self) -> str:
        """What the sample is, in words."""
        return "the text" if self._step == 1 else f"1 in {self._step:,} paragraphs"


def find_alphabet(
    texts: Iterable[str], text_rules: TextRules, vocabulary_size: int, coverage: float
) -> Alphabet:
    """Chooses the letters that get entries in a vocabulary.

    Args:
        texts: the text.
        text_rules: what is done to the text.
        vocabulary_size: maximum number of entries for letters and special tokens.
        coverage: from 0 to 1. Letters are added, the most frequent first, until they cover this
            share of the characters of the text, and further ones while letters fill less than a
            tenth of the vocabulary. The letters that remain are mostly those of other alphabets,
            which large texts contain.
    """
    characters: collections.Counter[str] = collections.Counter()
    for text in texts:
        characters.update(text)
    counts = _count_letters(characters, text_rules)
    by_frequency = sorted(counts, key=lambda letter: (-counts[letter], letter))
    total = sum(counts.values())
    most_entries = vocabulary_size - len(SPECIAL_TOKENS)
    cheap_entries = max(vocabulary_size * _SHARE_OF_LETTERS, _FEWEST_ENTRIES_OF_LETTERS)
    splitter = _word_splitter()
    letters: list[str] = []
    continuing: list[str] = []
    num_covered = 0
    for letter in by_frequency:
        continues = _continues_words(letter, splitter)
        num_entries = len(letters) + len(continuing) + (2 if continues else 1)
        is_covered = num_covered >= coverage * total
        if num_entries > most_entries or (is_covered and num_entries > cheap_entries):
            break
        letters.append(letter)
        if continues:
            continuing.append(letter)
        num_covered += counts[letter]
    return Alphabet(
        sorted(letters),
        sorted(continuing),
        by_frequency[len(letters) :],
        (total - num_covered) / max(total, 1),
        characters,
    )


def train_vocabulary(
    texts: Iterable[str], text_rules: TextRules, vocabulary_size: int, alphabet: Alphabet
) -> list[str]:
    """Trains a vocabulary. The same text always gives the same vocabulary.

    The trainer numbers the letters inside of words in an order that differs from run to run, and
    breaks ties by these numbers. Therefore letters are passed as special tokens, in a fixed order.
    This also ensures that every word of these letters can be split into pieces.

    Args:
        texts: the text.
        text_rules: what is done to the text.
        vocabulary_size: number of entries, special tokens included.
        alphabet: the letters of the text.

    Returns:
        The entries, ordered by id.
    """
    inside = [CONTINUATION_PREFIX + letter for letter in alphabet.continuing]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=_LEAST_FREQUENCY,
        limit_alphabet=len(alphabet.letters),
        initial_alphabet=alphabet.letters,
        special_tokens=[*SPECIAL_TOKENS, *alphabet.letters, *inside],
        continuing_subword_prefix=CONTINUATION_PREFIX,
        show_progress=False,  # its bars would overwrite the reader's bar
    )
    tokenizer = _word_splitter()
    tokenizer.train_from_iterator(_normalized(texts, text_rules), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def split_words(texts: Iterable[str], text_rules: TextRules) -> Iterator[list[str]]:
    """Yields the words of each text, normalized and split as in records."""
    splitter = _word_splitter()
    for text in itertools.chain.from_iterable(_normalized(texts, text_rules)):
        spaced = splitter.normalizer.normalize_str(text)
        yield [word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(spaced)]


def _normalized(texts: Iterable[str], text_rules: TextRules) -> Iterator[list[str]]:
    """Yields lists of texts, normalized by the tokenizer of records."""
    from spanbert_tf.text.tokenization import text_normalizer  # it imports TensorFlow

    normalize = text_normalizer(text_rules)
    waiting: list[str] = []
    num_characters = 0
    for text in texts:
        waiting.append(text)
        num_characters += len(text)
        if num_characters >= _CHARACTERS_AT_ONCE:
            yield normalize(waiting)
            waiting = []
            num_characters = 0
    yield normalize(waiting)


def _word_splitter() -> Tokenizer:
    """Makes a tokenizer without entries that splits normalized text into words as BERT does."""
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN_TOKEN))
    # It only puts spaces around ideographs; the text is normalized already.
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=False, strip_accents=False, lowercase=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _count_letters(
    characters: collections.Counter[str], text_rules: TextRules
) -> collections.Counter[str]:
    """Counts the characters of a text after normalization, except white space."""
    letters: collections.Counter[str] = collections.Counter()
    normalized = itertools.chain.from_iterable(_normalized(characters, text_rules))
    for count, text in zip(characters.values(), normalized, strict=True):
        for letter in text:
            if not letter.isspace():
                letters[letter] += count
    return letters


def _continues_words(letter: str, splitter: Tokenizer) -> bool:
    """Whether a letter can continue a word; punctuation and Chinese characters cannot."""
    text = splitter.normalizer.normalize_str(f"a{letter}a")
    return len(splitter.pre_tokenizer.pre_tokenize_str(text)) == 1


def _is_vocabulary(path: str) -> bool:
    try:
        return bool(load_vocabulary(path))
    except BadInputError:
        return False

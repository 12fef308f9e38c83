"""Trains a WordPiece vocabulary: `spanbert-tf prepare vocabulary`."""

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_prep.text.corpus import DocumentReader
from data_prep.text.formats import describe_cells_without_text
from data_prep.text.storage import InputFile, find_files
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import FileKind, Output, write_output
from spanbert_tf.terminal import print_line, show_progress
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    SPECIAL_TOKENS,
    UNKNOWN_TOKEN,
    TextRules,
    load_vocabulary,
)

_LEAST_FREQUENCY = 2
# Each letter takes two entries, together at most a tenth of the vocabulary within these limits.
# Words with rarer letters become [UNK]. 400 letters cover all but 1 in 30,000 of Wikipedia's.
_FEWEST_LETTERS = 100
_MOST_LETTERS = 1_000


def write_vocabulary(
    input_pattern: str | Sequence[str],
    output: str,
    *,
    vocabulary_size: int,
    lowercase: bool = False,
    strip_accents: bool | None = None,
    document_separator: str | None = None,
    text_columns: Sequence[str] = (),
    follow_links: bool = False,
    overwrite: bool = False,
) -> int:
    """Trains a vocabulary with HuggingFace `tokenizers` and writes it, one word piece a line.

    The text is normalised and split as in BERT, so the pieces fit the tokenizer of records and
    models.

    Args:
        input_pattern: one or more glob patterns of text files (formats: `data_prep.text.corpus`).
        output: path of the vocabulary, conventionally `vocab.txt`.
        vocabulary_size: number of entries, special tokens included. A small text gives fewer.
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

    rounds = iter(("counting letters", "counting words"))
    paragraphs = Paragraphs(files, document_separator, text_columns)
    text_rules = TextRules.of(lowercase, strip_accents)
    vocabulary = train_vocabulary(
        lambda: paragraphs.read(next(rounds)), vocabulary_size, text_rules
    )
    write_output(output, "\n".join(vocabulary) + "\n")
    print_line(f"{output}: {len(vocabulary):,} entries from {len(files):,} files")
    if paragraphs.num_without_text:
        print_line(describe_cells_without_text(output, paragraphs.num_without_text))
    if len(vocabulary) < vocabulary_size:
        print_line(
            f"{output}: these are fewer than the {vocabulary_size:,} that were asked for: the text "
            "has no more pieces that occur twice; give more text",
        )
    return len(vocabulary)


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


def bert_normalizer(text_rules: TextRules) -> normalizers.Normalizer:
    """Normalizes text as BERT does."""
    return normalizers.BertNormalizer(
        lowercase=text_rules.lowercase, strip_accents=text_rules.strip_accents
    )


def train_vocabulary(
    texts: Callable[[], Iterable[str]], vocabulary_size: int, text_rules: TextRules
) -> list[str]:
    """Trains a vocabulary. The same text always gives the same vocabulary.

    The trainer numbers the letters inside of words in an order that differs from run to run, and
    breaks ties by these numbers. Therefore letters are counted first and passed as special tokens,
    in a fixed order. This also ensures that every word of these letters can be split into pieces.

    Args:
        texts: returns an iterator over the text; called twice.
        vocabulary_size: number of entries, special tokens included.
        text_rules: normalisation of the text.

    Returns:
        The entries, ordered by id.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN_TOKEN))
    tokenizer.normalizer = bert_normalizer(text_rules)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    share = min(max(vocabulary_size // 20, _FEWEST_LETTERS), _MOST_LETTERS)
    most_that_fit = (vocabulary_size - len(SPECIAL_TOKENS)) // 2
    letters = _find_letters(texts(), tokenizer, min(share, most_that_fit))
    inside = [
        CONTINUATION_PREFIX + letter for letter in letters if _continues_words(letter, tokenizer)
    ]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=_LEAST_FREQUENCY,
        limit_alphabet=len(letters),
        initial_alphabet=letters,
        special_tokens=[*SPECIAL_TOKENS, *letters, *inside],
        continuing_subword_prefix=CONTINUATION_PREFIX,
        show_progress=False,  # its bars would overwrite the reader's bar
    )
    tokenizer.train_from_iterator(texts(), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _find_letters(texts: Iterable[str], tokenizer: Tokenizer, limit: int) -> list[str]:
    """The most frequent characters of the normalised text, sorted by code point."""
    characters: collections.Counter = collections.Counter()
    for text in texts:
        characters.update(text)
    letters: collections.Counter = collections.Counter()
    for character, count in characters.items():
        for letter in tokenizer.normalizer.normalize_str(character):
            if not letter.isspace():
                letters[letter] += count
    by_frequency = sorted(letters, key=lambda letter: (-letters[letter], letter))
    return sorted(by_frequency[:limit])


def _continues_words(letter: str, tokenizer: Tokenizer) -> bool:
    """Whether a letter can continue a word; punctuation and Chinese characters cannot."""
    text = tokenizer.normalizer.normalize_str(f"a{letter}a")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def _is_vocabulary(path: str) -> bool:
    try:
        return bool(load_vocabulary(path))
    except BadInputError:
        return False

"""Trains a WordPiece vocabulary: `spanbert-tf prepare vocabulary`."""

import collections
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from data_prep.corpus import DocumentReader, find_files
from spanbert_tf.errors import BadInputError
from spanbert_tf.vocabulary import CONTINUATION_PREFIX, SPECIAL_TOKENS, UNKNOWN_TOKEN

_LEAST_FREQUENCY = 2
# Letters, each with two entries; words with rarer ones become [UNK]. A tenth of the vocabulary,
# within these limits: 400 letters are all but 1 in 30,000 of Wikipedia's.
_FEWEST_LETTERS, _MOST_LETTERS = 100, 1_000


def write_vocabulary(
    input_pattern: str | Sequence[str],
    output: str,
    *,
    vocabulary_size: int,
    lowercase: bool = False,
    document_separator: str | None = None,
) -> int:
    """Trains a vocabulary with HuggingFace `tokenizers` and writes it, one word piece a line.

    The text is normalised and split as BERT does, so that the pieces are those that the
    tokenizer of records and models looks up.

    Args:
        input_pattern: glob of text files, or several; see `data_prep.corpus` for their formats.
        output: path of the vocabulary, conventionally `vocab.txt`.
        vocabulary_size: entries, special tokens included; fewer if the text has not so many.
        lowercase: lower-case the text and strip accents.
        document_separator: in plain text, a line equal to this begins a new document.

    Returns:
        The number of entries.

    Raises:
        BadInputError: a file cannot be used, or the vocabulary cannot be written.
    """
    files = find_files(input_pattern)

    def texts() -> Iterator[str]:
        for file in files:
            for part in DocumentReader(file.path, document_separator):
                yield from part.paragraphs

    vocabulary = train_vocabulary(texts, vocabulary_size, lowercase)
    _write_lines(vocabulary, output)
    print(f"{output}: {len(vocabulary):,} entries from {len(files):,} files", flush=True)
    return len(vocabulary)


def train_vocabulary(
    texts: Callable[[], Iterable[str]], vocabulary_size: int, lowercase: bool
) -> list[str]:
    """Trains a vocabulary; the same text always gives the same one.

    The trainer numbers letters inside words as it meets them, in an order that changes from run
    to run, and breaks ties by these numbers. So letters are counted first, and given to it as if
    they were special tokens, in order: thus each word of these letters has pieces, too.

    Args:
        texts: gives the text from its beginning; called twice.
        vocabulary_size: largest number of entries.
        lowercase: lower-case the text and strip accents.

    Returns:
        The entries: special tokens, letters, and pieces in order of their making.
    """
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN_TOKEN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    room = (vocabulary_size - len(SPECIAL_TOKENS)) // 2
    most = min(room, max(_FEWEST_LETTERS, min(vocabulary_size // 20, _MOST_LETTERS)))
    letters = _find_letters(texts(), tokenizer, most)
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
        show_progress=sys.stderr.isatty(),
    )
    tokenizer.train_from_iterator(texts(), trainer)
    ids = tokenizer.get_vocab()
    return sorted(ids, key=ids.__getitem__)


def _find_letters(texts: Iterable[str], tokenizer: Tokenizer, limit: int) -> list[str]:
    """The most frequent characters of normalised text, in order."""
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
    """Whether words have the letter inside; punctuation and Chinese characters stand alone."""
    text = tokenizer.normalizer.normalize_str(f"a{letter}a")
    return len(tokenizer.pre_tokenizer.pre_tokenize_str(text)) == 1


def _write_lines(vocabulary: list[str], output: str) -> None:
    unfinished = f"{output}.incomplete"
    try:
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        with open(unfinished, "w", encoding="utf-8", newline="\n") as file:
            file.write("\n".join(vocabulary) + "\n")
        os.replace(unfinished, output)
    except OSError as error:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise BadInputError(f"{output}: cannot be written ({error.strerror})") from error


if __name__ == "__main__":
    from spanbert_tf.cli import main

    main(["prepare", "vocabulary", *sys.argv[1:]])

"""Trains a WordPiece vocabulary: `spanbert-tf prepare vocabulary`."""

import os
import sys
from collections.abc import Iterator, Sequence

from data_prep.corpus import DocumentReader, find_files
from spanbert_tf.data.vocabulary import CONTINUATION_PREFIX, SPECIAL_TOKENS, UNKNOWN_TOKEN
from spanbert_tf.errors import BadInputError

_LEAST_FREQUENCY = 2
_LARGEST_ALPHABET = 1_000  # single characters; rarer ones become [UNK]


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
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    files = find_files(input_pattern)
    tokenizer = Tokenizer(models.WordPiece(unk_token=UNKNOWN_TOKEN))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocabulary_size,
        min_frequency=_LEAST_FREQUENCY,
        limit_alphabet=_LARGEST_ALPHABET,
        special_tokens=list(SPECIAL_TOKENS),
        continuing_subword_prefix=CONTINUATION_PREFIX,
        show_progress=sys.stderr.isatty(),
    )

    def texts() -> Iterator[str]:
        for file in files:
            for part in DocumentReader(file.path, document_separator):
                yield from part.paragraphs

    tokenizer.train_from_iterator(texts(), trainer)
    ids = tokenizer.get_vocab()
    vocabulary = sorted(ids, key=ids.__getitem__)
    _write_lines(vocabulary, output)
    print(f"{output}: {len(vocabulary):,} entries from {len(files):,} files", flush=True)
    return len(vocabulary)


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

"""The vocabulary and the casing of a checkpoint: read where they are stated, never guessed."""

import json
import os

from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.vocabulary import check_vocabulary, load_vocabulary

VOCABULARY_NAMES = ("vocab.txt", "vocabulary.txt")
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


def read_json(path: str) -> dict:
    """A JSON object.

    Raises:
        BadInputError: the file cannot be read, or holds something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError) as error:
        raise BadInputError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise BadInputError(f"{path}: holds no JSON object")
    return content


def find_vocabulary(directory: str, path: str, given: str | None) -> list[str]:
    """The vocabulary of a checkpoint.

    Args:
        directory: of the checkpoint.
        path: the user's name of it, for messages.
        given: `--vocabulary`, which goes before the checkpoint's own.

    Raises:
        BadInputError: there is none, or it cannot be used.
    """
    if given:
        return load_vocabulary(given)
    for name in VOCABULARY_NAMES:
        found = os.path.join(directory, name)
        if os.path.isfile(found):
            return load_vocabulary(found)
    tokenizer = os.path.join(directory, _TOKENIZER)
    if os.path.isfile(tokenizer):
        pieces = read_json(tokenizer).get("model", {}).get("vocab")
        if isinstance(pieces, dict):
            vocabulary = sorted(pieces, key=pieces.get)
            check_vocabulary(vocabulary, tokenizer)
            return vocabulary
    raise BadInputError(f"{path}: holds no vocabulary; give it with --vocabulary vocab.txt")


def write_vocabulary(directory: str, vocabulary: list[str]) -> None:
    """Writes `vocab.txt`, one entry a line."""
    with open(os.path.join(directory, VOCABULARY_NAMES[0]), "w", encoding="utf-8") as file:
        file.writelines(f"{piece}\n" for piece in vocabulary)


def find_casing(directory: str, path: str, given: bool | None) -> bool:
    """Whether text is lower-cased.

    Args:
        directory: of the checkpoint.
        path: the user's name of it, for messages.
        given: `--lowercase` or `--cased`, if the user gave one.

    Raises:
        ConfigurationError: neither the checkpoint nor the user says.
        MismatchError: they say different things.
    """
    stated = None
    if os.path.isfile(config := os.path.join(directory, _TOKENIZER_CONFIG)):
        stated = read_json(config).get("do_lower_case")
    if stated is None and os.path.isfile(tokenizer := os.path.join(directory, _TOKENIZER)):
        stated = (read_json(tokenizer).get("normalizer") or {}).get("lowercase")
    if stated is None and given is None:
        raise ConfigurationError(
            f"{path}: does not state whether it is cased; give --cased or --lowercase"
        )
    if stated is not None and given is not None and stated != given:
        words = {True: "--lowercase", False: "--cased"}
        raise MismatchError(f"{path}: states {words[stated]}, not {words[given]}")
    return bool(stated if given is None else given)

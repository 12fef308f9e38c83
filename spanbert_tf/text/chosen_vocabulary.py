"""The vocabulary and the text rules of new records: those of a preset, or those of options."""

import os
from typing import NotRequired

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.command_line import check_vocabulary_options
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.files.kinds import convert_keras_command
from spanbert_tf.files.preset import TOKENIZER_CONFIG, TOKENIZER_VOCABULARY, PresetFiles
from spanbert_tf.files.text_files import check_json_value
from spanbert_tf.terminal import print_line
from spanbert_tf.text.casing import advice_on_language
from spanbert_tf.text.languages import DEFAULT_LANGUAGE, WordSegmentation, check_language
from spanbert_tf.text.vocabulary import TextRules, check_case, load_vocabulary

_TOKENIZER = "SpanBertTokenizer"
_ADVICE = "copy the preset again"


class _TokenizerConfig(TypedDict):
    lowercase: bool
    strip_accents: NotRequired[bool | None]
    language: NotRequired[str]
    word_segmentation: NotRequired[WordSegmentation | None]
    spacy_model: NotRequired[str | None]


class _SavedTokenizer(TypedDict):
    """The content of `tokenizer.json` that is read."""

    class_name: str
    config: _TokenizerConfig


def chosen_vocabulary(
    *,
    preset: str | None,
    vocabulary: str | os.PathLike | None,
    lowercase: bool | None,
    strip_accents: bool | None,
    language: str | None = None,
) -> tuple[list[str], TextRules]:
    """Returns the vocabulary of records, and what is done to their text.

    Args:
        preset: the preset to train, which tells both; or `None`.
        vocabulary: path of a WordPiece vocabulary, in place of a preset.
        lowercase: whether to lower-case the text, which must suit the vocabulary; `None`: it stays
            as it is.
        strip_accents: whether to strip accents as well; `None`: where the text is lower-cased.
        language: code of the language whose sentences the text has; `None`: that of the preset, or
            English.

    Raises:
        BadInputError: the preset or the vocabulary cannot be used.
        ConfigurationError: neither a preset nor a vocabulary is given, or both are, or a casing
            beside a preset; or the language is unknown.
        MismatchError: the vocabulary is not of the stated case, or the preset states another
            language.
    """
    path = os.fspath(vocabulary) if vocabulary is not None else None
    check_vocabulary_options(preset, path, lowercase, strip_accents)
    if preset is not None:
        if language is not None:
            check_language_of_preset(preset, language)
        return load_vocabulary_of_preset(preset)  # the model learned the two together
    assert path is not None  # one of both is given, as was checked
    pieces = load_vocabulary(path)
    try:
        text_rules = TextRules.of(bool(lowercase), strip_accents, known_language(language))
    except ValueError as error:
        raise ConfigurationError(f"--{error}") from error
    check_case(pieces, path, text_rules)
    advice = advice_on_language(text_rules)
    if advice:
        print_line(advice)
    return pieces, text_rules


def known_language(language: str | None) -> str:
    """Returns the code of `--language`, or of English for `None`.

    Raises:
        ConfigurationError: there is no such language; the message names the nearest code.
    """
    try:
        return check_language(DEFAULT_LANGUAGE if language is None else language)
    except ValueError as error:
        raise ConfigurationError(f"--{error}") from error


def check_language_of_preset(preset: str | os.PathLike, language: str) -> None:
    """Refuses `--language` beside a preset that states another one.

    Raises:
        BadInputError: as for `load_vocabulary_of_preset`.
        ConfigurationError: there is no such language.
        MismatchError: the preset states another one.
    """
    _, text_rules = load_vocabulary_of_preset(preset)
    if text_rules.language != known_language(language):
        raise MismatchError(
            f"{preset}: states the language {text_rules.language}, not {language}; leave out "
            "--language, or make the preset again with it (`convert`, or `pretrain` on records)"
        )


def load_vocabulary_of_preset(preset: str | os.PathLike) -> tuple[list[str], TextRules]:
    """Returns the vocabulary of a preset's tokenizer, and its text rules, without building a model.

    Args:
        preset: directory, or another name that `from_preset` takes.

    Raises:
        BadInputError: there is no preset of that name, its tokenizer is of another project, or one
            of the two files is missing or damaged.
    """
    files = PresetFiles(preset)
    config = _tokenizer_config(files)
    try:
        text_rules = TextRules.of(
            config["lowercase"], config.get("strip_accents"), config.get("language")
        )
    except ValueError as error:
        raise BadInputError(f"{files}: {TOKENIZER_CONFIG}: {error}; {_ADVICE}") from error
    vocabulary = files.find(TOKENIZER_VOCABULARY)
    if vocabulary is None:
        raise _missing(files, TOKENIZER_VOCABULARY)
    return load_vocabulary(vocabulary), text_rules


def segmentation_of_preset(
    preset: str | os.PathLike,
) -> tuple[WordSegmentation | None, str | None]:
    """Returns how a preset states that words are found, and by which model of spaCy.

    Both are `None` if words are found as its language needs it.

    Raises:
        BadInputError: as for `load_vocabulary_of_preset`.
    """
    config = _tokenizer_config(PresetFiles(preset))
    return config.get("word_segmentation"), config.get("spacy_model")


def _tokenizer_config(files: PresetFiles) -> _TokenizerConfig:
    description = files.description(TOKENIZER_CONFIG)
    if description is None:
        raise _missing(files, TOKENIZER_CONFIG)
    place = f"{files}: {TOKENIZER_CONFIG}"
    saved = check_json_value(description, _SavedTokenizer, place, _ADVICE)
    if saved["class_name"] != _TOKENIZER:
        raise BadInputError(
            f"{files}: its tokenizer is a {saved['class_name']}, not a {_TOKENIZER}; "
            f"{convert_keras_command(files.name)}"
        )
    return saved["config"]


def _missing(preset: PresetFiles, name: str) -> BadInputError:
    """Makes the error for a file that every preset with a tokenizer has."""
    return BadInputError(f"{preset}: {name} is missing; {_ADVICE}")

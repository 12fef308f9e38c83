"""Reads and writes the sizes, vocabulary and casing of a checkpoint.

They are read from the files that state them, and never guessed.
"""

import json
import os
from typing import Any

from spanbert_tf.config.positions import POSITION_EMBEDDINGS
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    SEGMENT_AWARE_SIZE_NAMES,
    SIZE_NAMES,
    Checkpoint,
)
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.files.kinds import look_into
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    TextRules,
    check_vocabulary,
    load_vocabulary,
)

_VOCABULARY_NAMES = ("vocab.txt", "vocabulary.txt")
_CONFIG_NAMES = ("config.json", "bert_config.json")
SEGABERT = "segabert"  # the `--model_type` of SegaBERT in its authors' programs
# Classes of `transformers` that split text as BERT does; `Fast` may follow the name. The last two
# read the rules from `tokenizer.json`.
_TOKENIZER_CLASSES = {
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "PreTrainedTokenizer",
    "TokenizersBackend",
}
_WORD_PIECES = {"type": "WordPiece", "continuing_subword_prefix": CONTINUATION_PREFIX}
_TOKENIZER = "tokenizer.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"


def read_json(path: str) -> dict:
    """Reads a JSON object from a file."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise BadInputError(f"{path}: holds no JSON object")
    return content


def read_config(directory: str, path: str) -> tuple[dict, str]:
    """Reads BERT's configuration.

    Args:
        directory: directory of the checkpoint.
        path: the user's name for it.

    Returns:
        The configuration, and its name in errors.

    Raises:
        BadInputError: there is no configuration, or it cannot be read.
    """
    names = config_names(directory)
    if not names:
        found = look_into(directory)
        seen = f" (it {found})" if found else ""
        raise BadInputError(f"{path}: holds no {' or '.join(_CONFIG_NAMES)}{seen}")
    return read_json(os.path.join(directory, names[0])), f"{path}: {names[0]}"


def config_names(directory: str) -> list[str]:
    """Returns the names of the files in a directory that contain BERT's configuration."""
    return [name for name in _CONFIG_NAMES if os.path.isfile(os.path.join(directory, name))]


def read_sizes(directory: str, path: str) -> dict[str, Any]:
    """Reads the arguments of `SpanBertBackbone` from BERT's configuration.

    Args:
        directory: directory of the checkpoint.
        path: the user's name for it.

    Returns:
        The arguments. The positions and the sizes of SegaBERT's tables are there if the
        configuration states them.

    Raises:
        BadInputError: the configuration is missing or wrong, or describes a model that cannot be
            converted.
    """
    config, where = read_config(directory, path)
    sizes: dict[str, Any] = {}
    for ours, theirs in (SIZE_NAMES | SEGMENT_AWARE_SIZE_NAMES).items():
        if theirs not in config:
            if ours in SEGMENT_AWARE_SIZE_NAMES:  # the tables have these sizes, too
                continue
            raise BadInputError(f"{where}: lacks {theirs}")
        value = config[theirs]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            raise BadInputError(f"{where}: {theirs} is {json.dumps(value)}, no positive integer")
        sizes[ours] = value
    for key, known in (
        ("hidden_act", ("gelu",)),
        ("position_embedding_type", tuple(POSITION_EMBEDDINGS)),
        ("model_type", ("bert", SEGABERT)),
    ):
        if (config.get(key) or known[0]) not in known:
            values = " or ".join(map(repr, known))
            raise BadInputError(f"{where}: {key} is {config[key]!r}; only {values} is converted")
    # Releases of `transformers` that have this key write "absolute" for SegaBERT's models, too. So
    # "absolute" says nothing, and all other values are from `convert`, which writes ours.
    if (config.get("position_embedding_type") or "absolute") != "absolute":
        sizes["position_embeddings"] = config["position_embedding_type"]
    if sizes["hidden_dim"] % sizes["num_heads"]:
        raise BadInputError(f"{where}: num_attention_heads does not divide hidden_size")
    dropout = _fraction(config, "hidden_dropout_prob", 0.1, where)
    epsilon = _fraction(config, "layer_norm_eps", BERT_EPSILON, where)
    attention_dropout = _fraction(config, "attention_probs_dropout_prob", dropout, where)
    if attention_dropout != dropout:
        sizes["attention_dropout"] = attention_dropout
    return {**sizes, "dropout": dropout, "layer_norm_epsilon": epsilon}


def _fraction(config: dict, key: str, default: float, where: str) -> float:
    """Returns a value of the configuration that must be at least 0 and below 1."""
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise BadInputError(f"{where}: {key} is {json.dumps(value)}, no number from 0 to 1")
    return float(value)


def find_vocabulary(directory: str, path: str, given: str | None) -> list[str]:
    """Reads the given vocabulary, or the checkpoint's own.

    Args:
        directory: directory of the checkpoint.
        path: the user's name for it.
        given: path of a vocabulary that is used instead of the checkpoint's.

    Returns:
        The pieces in the order of their ids.

    Raises:
        BadInputError: there is no vocabulary, or it is wrong.
    """
    if given:
        return load_vocabulary(given)
    for name in _VOCABULARY_NAMES:
        found = os.path.join(directory, name)
        if os.path.isfile(found):
            return load_vocabulary(found)
    tokenizer = os.path.join(directory, _TOKENIZER)
    if os.path.isfile(tokenizer):
        model = read_json(tokenizer).get("model")
        pieces = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(pieces, dict):
            if not all(type(piece_id) is int for piece_id in pieces.values()):
                raise BadInputError(f"{tokenizer}: model.vocab: its ids are not 0, 1, 2 …")
            _check_ids(pieces, tokenizer)
            vocabulary = sorted(pieces, key=pieces.__getitem__)
            check_vocabulary(vocabulary, tokenizer)
            return vocabulary
    raise BadInputError(f"{path}: holds no vocabulary; give it with --vocabulary vocab.txt")


def _check_ids(pieces: dict[str, int], path: str) -> None:
    """Checks that the ids are 0, 1, 2 …: a vocabulary is stored as a list, without other ids."""
    ids = set(pieces.values())
    for piece_id in range(len(pieces)):
        if piece_id not in ids:
            raise BadInputError(
                f"{path}: no piece has the id {piece_id}, and {len(pieces)} pieces need the ids "
                f"from 0 to {len(pieces) - 1}; give a vocabulary with --vocabulary vocab.txt"
            )


def save_vocabulary(directory: str, vocabulary: list[str]) -> None:
    """Writes `vocab.txt`, one piece a line."""
    with open(os.path.join(directory, _VOCABULARY_NAMES[0]), "w", encoding="utf-8") as file:
        file.writelines(f"{piece}\n" for piece in vocabulary)


def write_google_config(directory: str, checkpoint: Checkpoint) -> None:
    """Writes Google's `bert_config.json` and `vocab.txt`."""
    sizes = checkpoint.sizes
    config = {
        "attention_probs_dropout_prob": sizes.get("attention_dropout", sizes["dropout"]),
        "hidden_act": "gelu",
        "hidden_dropout_prob": sizes["dropout"],
        "initializer_range": 0.02,
        **{theirs: sizes[ours] for ours, theirs in SIZE_NAMES.items()},
    }
    with open(os.path.join(directory, "bert_config.json"), "w", encoding="utf-8") as file:
        json.dump(config, file, indent=2)
    save_vocabulary(directory, checkpoint.vocabulary)


def find_casing(
    directory: str,
    path: str,
    lowercase: bool | None,
    strip_accents: bool | None = None,
    stated_lowercase: bool | None = None,
) -> TextRules:
    """Returns how a checkpoint normalizes text.

    Args:
        directory: directory of the checkpoint, whose files may state it.
        path: the user's name for it.
        lowercase: `--lowercase` or `--cased`; `None`: not given.
        strip_accents: `False` for `--keep-accents`; `None`: not given.
        stated_lowercase: whether the checkpoint states that text is lowercased, if another file
            says so; `None`: the files of the directory are read.

    Returns:
        The casing. If nobody states whether accents are stripped, lowercased text loses them.

    Raises:
        ConfigurationError: it is neither stated nor given whether text is lowercased.
        MismatchError: the options contradict the checkpoint, or the tokenizer of this project
            cannot normalize text like that.
    """
    if stated_lowercase is None:
        stated_lowercase = _stated(directory, "do_lower_case", "lowercase")
    stated_strip_accents = _stated(directory, "strip_accents", "strip_accents")
    for stated, given, options in (
        (stated_lowercase, lowercase, ("--cased", "--lowercase")),
        (stated_strip_accents, strip_accents, ("--keep-accents", "that accents are stripped")),
    ):
        if stated is not None and given is not None and stated != given:
            raise MismatchError(f"{path}: states {options[stated]}, not {options[given]}")
    lowercase = stated_lowercase if lowercase is None else lowercase
    if lowercase is None:
        raise ConfigurationError(
            f"{path}: does not state whether it is cased; give --cased or --lowercase"
        )
    strip_accents = stated_strip_accents if strip_accents is None else strip_accents
    if strip_accents and not lowercase:
        raise MismatchError(
            f"{path}: states that accents are stripped and text is cased (strip_accents), which "
            "this project's tokenizer cannot"
        )
    return TextRules.of(lowercase, strip_accents)


def check_tokenizer(directory: str, path: str) -> None:
    """Checks that the tokenizer of a directory of `transformers` splits text as BERT's does.

    Args:
        directory: directory of the checkpoint.
        path: the user's name for it.

    Raises:
        BadInputError: its files state another tokenizer.
    """
    config = os.path.join(directory, _TOKENIZER_CONFIG)
    tokenizer = os.path.join(directory, _TOKENIZER)
    if os.path.isfile(config):
        kind = read_json(config).get("tokenizer_class")
        if kind is not None and str(kind).removesuffix("Fast") not in _TOKENIZER_CLASSES:
            raise BadInputError(
                f"{config}: tokenizer_class is {json.dumps(kind)}, which splits text otherwise; "
                "only BERT's word pieces are converted"
            )
    if os.path.isfile(tokenizer):
        model = read_json(tokenizer).get("model")
        for key, known in _WORD_PIECES.items():
            found = model.get(key, known) if isinstance(model, dict) else known
            if found != known:
                raise BadInputError(
                    f"{tokenizer}: model.{key} is {json.dumps(found)}; only BERT's word pieces, of "
                    f"{json.dumps(known)}, are converted"
                )
    if _stated(directory, "tokenize_chinese_chars", "handle_chinese_chars") is False:
        raise BadInputError(
            f"{path}: states that Chinese characters are not split into words of their own "
            "(tokenize_chinese_chars, handle_chinese_chars); this project always splits them, so "
            "the model cannot be converted"
        )


def _stated(directory: str, key: str, normalizer_key: str) -> bool | None:
    """Returns a setting of `tokenizer_config.json` or, if it is not there, of `tokenizer.json`.

    Args:
        directory: directory of the checkpoint.
        key: key in `tokenizer_config.json`.
        normalizer_key: key of the same setting in the normalizer of `tokenizer.json`.
    """
    stated = None
    config = os.path.join(directory, _TOKENIZER_CONFIG)
    tokenizer = os.path.join(directory, _TOKENIZER)
    if os.path.isfile(config):
        stated = _flag(read_json(config), key, config)
    if stated is None and os.path.isfile(tokenizer):
        normalizer = read_json(tokenizer).get("normalizer")
        if isinstance(normalizer, dict):
            stated = _flag(normalizer, normalizer_key, tokenizer)
    return stated


def _flag(values: dict, key: str, path: str) -> bool | None:
    """Returns a value that must be true, false or null."""
    value = values.get(key)
    if not isinstance(value, bool | None):
        raise BadInputError(f"{path}: {key} is {json.dumps(value)}, neither true, false nor null")
    return value

"""Sizes, vocabulary and casing of a checkpoint: read where they are stated, never guessed."""

import json
import os

from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    SEGMENT_AWARE_SIZE_NAMES,
    SIZE_NAMES,
    Checkpoint,
)
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.files.kinds import look_into
from spanbert_tf.models.span_bert_backbone import POSITION_EMBEDDINGS
from spanbert_tf.text.vocabulary import (
    CONTINUATION_PREFIX,
    Casing,
    check_vocabulary,
    load_vocabulary,
)

_VOCABULARY_NAMES = ("vocab.txt", "vocabulary.txt")
_CONFIG_NAMES = ("config.json", "bert_config.json")
SEGABERT = "segabert"  # `--model_type` of its authors' programs
# Classes of `transformers` that split text as BERT does, with `Fast` or without; the last two leave
# it to `tokenizer.json`.
_TOKENIZER_CLASSES = {
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"),
    *("PreTrainedTokenizer", "TokenizersBackend"),
}
_WORD_PIECES = {"type": "WordPiece", "continuing_subword_prefix": CONTINUATION_PREFIX}
_TOKENIZER, _TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"


def read_json(path: str) -> dict:
    """A JSON object."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInputError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise BadInputError(f"{path}: holds no JSON object")
    return content


def read_config(directory: str, path: str) -> tuple[dict, str]:
    """BERT's configuration, and what to call it in errors."""
    names = config_names(directory)
    if not names:
        found = look_into(directory)
        seen = f" (it {found})" if found else ""
        raise BadInputError(f"{path}: holds no {' or '.join(_CONFIG_NAMES)}{seen}")
    return read_json(os.path.join(directory, names[0])), f"{path}: {names[0]}"


def config_names(directory: str) -> list[str]:
    """The names by which BERT's configuration lies there."""
    return [name for name in _CONFIG_NAMES if os.path.isfile(os.path.join(directory, name))]


def read_sizes(directory: str, path: str) -> dict[str, int | float | str]:
    """Arguments of `SpanBertBackbone` from BERT's configuration; of SegaBERT's what it states."""
    config, where = read_config(directory, path)
    sizes = {}
    for ours, theirs in (SIZE_NAMES | SEGMENT_AWARE_SIZE_NAMES).items():
        if theirs not in config:
            if ours in SEGMENT_AWARE_SIZE_NAMES:  # the tables tell
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
            words = f"only {known[0]!r} is converted"
            raise BadInputError(f"{where}: {key} is {config[key]!r}; {words}")
    # "absolute" is what transformers writes of any model.
    if (config.get("position_embedding_type") or "absolute") != "absolute":
        sizes["position_embeddings"] = config["position_embedding_type"]
    if sizes["hidden_dim"] % sizes["num_heads"]:
        raise BadInputError(f"{where}: num_attention_heads does not divide hidden_size")
    dropout = _share(config, "hidden_dropout_prob", 0.1, where)
    epsilon = _share(config, "layer_norm_eps", BERT_EPSILON, where)
    of_attention = _share(config, "attention_probs_dropout_prob", dropout, where)
    if of_attention != dropout:
        sizes["attention_dropout"] = of_attention
    return {**sizes, "dropout": dropout, "layer_norm_epsilon": epsilon}


def _share(config: dict, key: str, default: float, where: str) -> float:
    """A number from 0 to below 1."""
    value = config.get(key, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise BadInputError(f"{where}: {key} is {json.dumps(value)}, no number from 0 to 1")
    return float(value)


def find_vocabulary(directory: str, path: str, given: str | None) -> list[str]:
    """The vocabulary that was given, or the checkpoint's own; `path` is the user's name for it."""
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
            if not all(type(number) is int for number in pieces.values()):
                raise BadInputError(f"{tokenizer}: model.vocab: its ids are not 0, 1, 2 …")
            _check_ids(pieces, tokenizer)
            vocabulary = sorted(pieces, key=pieces.get)
            check_vocabulary(vocabulary, tokenizer)
            return vocabulary
    raise BadInputError(f"{path}: holds no vocabulary; give it with --vocabulary vocab.txt")


def _check_ids(pieces: dict[str, int], path: str) -> None:
    """Refuses ids that are not 0, 1, 2 …: in a list of pieces they would become others."""
    numbers = {number: piece for piece, number in pieces.items()}
    for number in range(len(pieces)):
        if number not in numbers:
            raise BadInputError(
                f"{path}: no piece has the id {number}, and {len(pieces)} pieces need the ids from "
                f"0 to {len(pieces) - 1}; give a vocabulary with --vocabulary vocab.txt"
            )


def save_vocabulary(directory: str, vocabulary: list[str]) -> None:
    """Writes `vocab.txt`, one entry a line."""
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
) -> Casing:
    """What is done to text: as stated, there or by the caller, or given.

    By default accents go with upper case.
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
    return Casing.of(lowercase, strip_accents)


def check_tokenizer(directory: str, path: str) -> None:
    """Refuses a directory of `transformers` whose tokenizer is stated to be another than BERT's."""
    config, tokenizer = (os.path.join(directory, name) for name in (_TOKENIZER_CONFIG, _TOKENIZER))
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
            f"{path}: states that Chinese characters are no words of their own "
            "(tokenize_chinese_chars, handle_chinese_chars), as they are in this project; a model "
            "of such text cannot be converted"
        )


def _stated(directory: str, key: str, normalizer_key: str) -> bool | None:
    """What `tokenizer_config.json` says or, where it does not, `tokenizer.json`."""
    stated = None
    config, tokenizer = (os.path.join(directory, name) for name in (_TOKENIZER_CONFIG, _TOKENIZER))
    if os.path.isfile(config):
        stated = _truth(read_json(config), key, config)
    if stated is None and os.path.isfile(tokenizer):
        normalizer = read_json(tokenizer).get("normalizer")
        if isinstance(normalizer, dict):
            stated = _truth(normalizer, normalizer_key, tokenizer)
    return stated


def _truth(values: dict, key: str, path: str) -> bool | None:
    value = values.get(key)
    if not isinstance(value, bool | None):
        raise BadInputError(f"{path}: {key} is {json.dumps(value)}, neither true, false nor null")
    return value

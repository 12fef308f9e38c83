"""BERT directories of HuggingFace `transformers`, and the original SpanBERT archives."""

import json
import os

import numpy as np

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    MASKED_LM_HEAD,
    SIZE_NAMES,
    SPAN_CLASSIFIERS,
    TOKEN_TABLE,
    Checkpoint,
)
from spanbert_tf.conversion.torch_files import (
    read_pickled,
    read_safetensors,
    with_standard_names,
)
from spanbert_tf.conversion.vocabularies import (
    find_casing,
    find_vocabulary,
    read_json,
    write_vocabulary,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.vocabulary import PAD_TOKEN
from spanbert_tf.whole_directory import write_directory

_CONFIG_NAMES = ("config.json", "bert_config.json")
_INDEX_NAMES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHT_NAMES = ("model.safetensors", "pytorch_model.bin")
_HEAD_PARTS = ("encoder", "pooler", MASKED_LM_HEAD, "next_sentence_head", SPAN_CLASSIFIERS)


def read_huggingface(path: str, vocabulary: str | None, lowercase: bool | None) -> Checkpoint:
    """Reads a directory, or a .tar.gz archive of one.

    Args:
        path: holds `config.json` (or `bert_config.json`) and `model.safetensors`,
            `pytorch_model.bin`, or shards of one of them with their index.
        vocabulary: path of a vocabulary in place of the directory's own.
        lowercase: casing, where the directory does not state it.

    Raises:
        BadInputError: a file is missing or unusable, or the model is no plain BERT.
        ConfigurationError: the casing is not stated.
        MismatchError: the casing is stated otherwise.
    """
    with opened_source(path) as directory:
        sizes = read_sizes(directory, path)
        pieces = find_vocabulary(directory, path, vocabulary)
        is_lowercase = find_casing(directory, path, lowercase)
        arrays = with_standard_names(_read_weights(directory, path))
    return Checkpoint(path, sizes, arrays, pieces, is_lowercase)


def read_sizes(directory: str, path: str) -> dict[str, int | float]:
    """Arguments of `SpanBertBackbone` from BERT's configuration.

    Raises:
        BadInputError: there is none, it lacks a key, or says what this encoder cannot do.
    """
    names = [name for name in _CONFIG_NAMES if os.path.isfile(os.path.join(directory, name))]
    if not names:
        raise BadInputError(f"{path}: holds no {' or '.join(_CONFIG_NAMES)}")
    config = read_json(os.path.join(directory, names[0]))
    where = f"{path}: {names[0]}"
    sizes = {}
    for ours, theirs in SIZE_NAMES.items():
        if theirs not in config:
            raise BadInputError(f"{where}: lacks {theirs}")
        value = config[theirs]
        if not isinstance(value, int) or value < 1:
            raise BadInputError(f"{where}: {theirs} is {json.dumps(value)}, no positive integer")
        sizes[ours] = value
    for key, known in (
        ("hidden_act", "gelu"),
        ("position_embedding_type", "absolute"),
        ("model_type", "bert"),
    ):
        if (config.get(key) or known) != known:
            raise BadInputError(f"{where}: {key} is {config[key]!r}; only {known!r} is converted")
    if sizes["hidden_dim"] % sizes["num_heads"]:
        raise BadInputError(f"{where}: num_attention_heads does not divide hidden_size")
    dropout = config.get("hidden_dropout_prob", 0.1)
    epsilon = config.get("layer_norm_eps", BERT_EPSILON)
    return {**sizes, "dropout": float(dropout), "layer_norm_epsilon": float(epsilon)}


def _read_weights(directory: str, path: str) -> dict[str, np.ndarray]:
    for name in _INDEX_NAMES:
        index = os.path.join(directory, name)
        if os.path.isfile(index):
            shards = sorted(set(read_json(index).get("weight_map", {}).values()))
            break
    else:
        shards = [name for name in _WEIGHT_NAMES if os.path.isfile(os.path.join(directory, name))]
        shards = shards[:1]
    if not shards:
        raise BadInputError(f"{path}: holds no {' or '.join(_WEIGHT_NAMES)}")
    arrays = {}
    for shard in shards:
        file = os.path.join(directory, os.path.basename(shard))
        if not os.path.isfile(file):
            raise BadInputError(f"{path}: {shard} is missing")
        read = read_safetensors if shard.endswith(".safetensors") else read_pickled
        arrays |= read(file)
    return arrays


def write_huggingface(checkpoint: Checkpoint, directory: str) -> list[str]:
    """Writes a directory that `transformers` loads.

    As `BertForPreTraining`, `BertForMaskedLM`, `BertForQuestionAnswering` or `BertModel`, by the
    heads that are there; the classes of other tasks load its encoder.

    Args:
        checkpoint: what to write.
        directory: appears whole or not at all.

    Returns:
        The parts that this format has no place for.
    """
    found = [part for part in checkpoint.found_parts() if part in _HEAD_PARTS]

    def write(unfinished: str) -> None:
        _write_weights(checkpoint, found, unfinished)
        _write_json(unfinished, "config.json", _config(checkpoint, found))
        tokenizer = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": checkpoint.lowercase,
            "model_max_length": checkpoint.sizes["max_sequence_length"],
        }
        _write_json(unfinished, "tokenizer_config.json", tokenizer)
        write_vocabulary(unfinished, checkpoint.vocabulary)

    write_directory(directory, write)
    return [part for part in checkpoint.found_parts() if part not in found]


def _write_weights(checkpoint: Checkpoint, found: list[str], directory: str) -> None:
    from safetensors.numpy import save_file

    parts = checkpoint.parts()
    names = [name for part in found for name in parts[part]]
    arrays = {name: np.ascontiguousarray(checkpoint.arrays[name]) for name in names}
    if MASKED_LM_HEAD in found:  # older releases of transformers want to see the tied ones, too
        arrays["cls.predictions.decoder.weight"] = checkpoint.arrays[TOKEN_TABLE].copy()
        arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"].copy()
    save_file(arrays, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})


def _config(checkpoint: Checkpoint, found: list[str]) -> dict:
    sizes = checkpoint.sizes
    return {
        "architectures": [_architecture(found)],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_dropout_prob": sizes["dropout"],
        "attention_probs_dropout_prob": sizes["dropout"],
        "layer_norm_eps": sizes["layer_norm_epsilon"],
        "initializer_range": 0.02,
        "position_embedding_type": "absolute",
        "pad_token_id": checkpoint.vocabulary.index(PAD_TOKEN),
        **{theirs: sizes[ours] for ours, theirs in SIZE_NAMES.items()},
    }


def _architecture(parts: list[str]) -> str:
    if SPAN_CLASSIFIERS in parts:
        return "BertForQuestionAnswering"
    if "next_sentence_head" in parts and MASKED_LM_HEAD in parts:
        return "BertForPreTraining"
    return "BertForMaskedLM" if MASKED_LM_HEAD in parts else "BertModel"


def _write_json(directory: str, name: str, content: dict) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")

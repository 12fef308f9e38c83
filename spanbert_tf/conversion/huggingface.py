"""Directories of BERT models of `transformers`, and the archives of the original SpanBERT."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from spanbert_tf.config.positions import POSITION_EMBEDDINGS, reads_indices
from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    SEGMENT_AWARE_SIZE_NAMES,
    SIZE_NAMES,
    Array,
    Checkpoint,
)
from spanbert_tf.conversion.configuration import (
    SEGABERT,
    check_tokenizer,
    find_casing,
    find_vocabulary,
    read_config,
    read_json,
    read_sizes,
    save_vocabulary,
)
from spanbert_tf.conversion.names import (
    ENCODER,
    MASKED_LM_HEAD,
    NEXT_SENTENCE_HEAD,
    POOLER,
    SEGMENT_TABLE,
    SPAN_CLASSIFIERS,
    TEXT_CLASSIFIER,
    TOKEN_CLASSIFIER,
    TOKEN_TABLE,
    read_tables,
)
from spanbert_tf.conversion.torch_files import (
    read_pickled,
    read_safetensors,
    with_fused_attention,
    with_standard_names,
    write_safetensors,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.output import Output, OutputKind
from spanbert_tf.files.text_files import is_unicode
from spanbert_tf.text.vocabulary import PAD_TOKEN

HUGGINGFACE_KIND = OutputKind(
    "a model of transformers",
    "config.json",
    ("model.safetensors", "tokenizer_config.json", "vocab.txt"),
)
_WEIGHT_NAMES = ("model.safetensors", "pytorch_model.bin")
_INDEX_ENDING = ".index.json"  # ending of the file that lists the shards of the weights
_WRITTEN_PARTS = (
    ENCODER,
    POOLER,
    MASKED_LM_HEAD,
    NEXT_SENTENCE_HEAD,
    SPAN_CLASSIFIERS,
    TEXT_CLASSIFIER,
    TOKEN_CLASSIFIER,
)
# Kinds of positions, and whose classes compute them: those of BERT, or of SegaBERT's authors.
_MODEL_TYPES = {
    "absolute": "bert",
    **{kind: SEGABERT for kind in POSITION_EMBEDDINGS if reads_indices(kind)},
}
_CLASSIFIER = "classifier"  # name of the head in several classes of `transformers`


@contextlib.contextmanager
def read_huggingface(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Opens a directory, or an archive of one, with `config.json` (or `bert_config.json`).

    The weights are one file, or shards with an index.
    """
    with opened_source(path) as directory:
        sizes = read_sizes(directory, path)
        check_tokenizer(directory, path)
        pieces = find_vocabulary(directory, path, vocabulary)
        text_rules = find_casing(directory, path, lowercase, strip_accents)
        arrays = with_standard_names(_read_weights(directory, path))
        config, where = read_config(directory, path)
        part = _classifier_part(config, arrays)
        labels: tuple[str, ...] = ()
        if part is not None:
            arrays = _renamed(arrays, _CLASSIFIER, part)
            labels = _read_labels(config, len(arrays[f"{part}.weight"]), where)
        yield Checkpoint(path, sizes, arrays, pieces, text_rules, labels=labels)


def _classifier_part(config: dict, arrays: Mapping[str, Array]) -> str | None:
    """Returns the part that the head `classifier` is; `None` without such a head, or if unknown."""
    if f"{_CLASSIFIER}.weight" not in arrays or f"{_CLASSIFIER}.bias" not in arrays:
        return None
    classes = config.get("architectures") or ["BertForSequenceClassification"]
    if classes == ["BertForTokenClassification"]:
        return TOKEN_CLASSIFIER
    # Without a pooler it may be a token classifier whose configuration names no class.
    has_pooler = "bert.pooler.dense.weight" in arrays
    is_of_texts = classes == ["BertForSequenceClassification"]
    return TEXT_CLASSIFIER if has_pooler and is_of_texts else None


def _renamed(arrays: Mapping[str, Array], old: str, new: str) -> dict[str, Array]:
    """Returns the arrays, with the layer `old` renamed to `new`."""
    renamed = {}
    for name, array in arrays.items():
        if name.startswith(f"{old}."):
            name = f"{new}{name.removeprefix(old)}"
        renamed[name] = array
    return renamed


def _read_labels(config: dict, num_classes: int, where: str) -> tuple[str, ...]:
    """Returns the names of the classes, or the default names of `transformers`.

    Args:
        config: the configuration.
        num_classes: number of classes, or 1 for a regression.
        where: name of the configuration in errors.

    Raises:
        BadInputError: the names are not those of `num_classes` different classes, or the classifier
            cannot be converted.
    """
    kind = config.get("problem_type")
    if kind == "multi_label_classification" or (kind == "regression" and num_classes > 1):
        raise BadInputError(
            f"{where}: problem_type is {kind} of {num_classes}; only a choice of one class, or of "
            "one number, is converted"
        )
    keys = [str(label_id) for label_id in range(num_classes)]
    named = config.get("id2label") or {key: f"LABEL_{key}" for key in keys}
    if (
        not isinstance(named, dict)
        or set(named) != set(keys)
        or not all(isinstance(label, str) and is_unicode(label) for label in named.values())
        or len(set(named.values())) < num_classes
    ):
        raise BadInputError(f"{where}: id2label does not name {num_classes} different classes")
    return tuple(named[key] for key in keys)


def _read_weights(directory: str, path: str) -> dict[str, Array]:
    """Returns the arrays of all files of weights in a directory; `path` is the name for errors."""
    arrays: dict[str, Array] = {}
    for shard in _find_shards(directory, path):
        file = os.path.join(directory, os.path.basename(shard))
        if not os.path.isfile(file):
            raise BadInputError(f"{path}: {shard} is missing")
        read = read_safetensors if shard.endswith(".safetensors") else read_pickled
        arrays |= read(file)
    return arrays


def _find_shards(directory: str, path: str) -> list[str]:
    """Returns the names of the files of weights; of several kinds those that `transformers` loads.

    `save_pretrained` does not remove older files of another kind.
    """
    for name in _WEIGHT_NAMES:
        if os.path.isfile(os.path.join(directory, name)):
            return [name]
        index = os.path.join(directory, name + _INDEX_ENDING)
        if os.path.isfile(index):
            names = read_json(index).get("weight_map")
            if (
                not isinstance(names, dict)
                or not names
                or not all(isinstance(file, str) for file in names.values())
            ):
                where = f"{path}: {name}{_INDEX_ENDING}"
                raise BadInputError(f"{where}: weight_map: maps no names to files")
            return sorted(set(names.values()))
    raise BadInputError(f"{path}: holds no {' or '.join(_WEIGHT_NAMES)}")


def write_huggingface(
    checkpoint: Checkpoint, directory: str, *, overwrite: bool = False
) -> list[str]:
    """Writes a directory that `transformers` loads.

    The heads decide the class: `BertForPreTraining`, `BertForMaskedLM`, `BertForQuestionAnswering`,
    `BertForSequenceClassification`, `BertForTokenClassification` or `BertModel`. Classes of other
    tasks load the encoder. A model with SegaBERT's positions is written for the classes of its
    authors (rsvp-ai/segatron_aaai); no class of `transformers` has their `model_type`.

    Returns:
        The parts of the checkpoint that the format has no place for.

    Raises:
        BadInputError: the directory exists or cannot be written.
    """
    found = [part for part in checkpoint.found_parts() if part in _WRITTEN_PARTS]

    with Output(directory, HUGGINGFACE_KIND, overwrite=overwrite).written() as unfinished:
        _write_weights(checkpoint, found, unfinished)
        _write_json(unfinished, "config.json", _config(checkpoint, found))
        tokenizer = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": checkpoint.text_rules.lowercase,
            "strip_accents": checkpoint.text_rules.strip_accents,
            "model_max_length": checkpoint.sizes["max_sequence_length"],
        }
        _write_json(unfinished, "tokenizer_config.json", tokenizer)
        save_vocabulary(unfinished, checkpoint.vocabulary)
    return [part for part in checkpoint.found_parts() if part not in found]


def _write_weights(checkpoint: Checkpoint, found: list[str], directory: str) -> None:
    """Writes the arrays of the parts `found`."""
    parts = checkpoint.parts()
    arrays: dict[str, Array] = {}
    for part in found:
        for name in parts[part]:
            arrays[name] = checkpoint.arrays[name]
    if MASKED_LM_HEAD in found:  # older releases of `transformers` expect the tied copies as well
        arrays["cls.predictions.decoder.weight"] = checkpoint.arrays[TOKEN_TABLE]
        arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"]
    for part in (TEXT_CLASSIFIER, TOKEN_CLASSIFIER):
        arrays = _renamed(arrays, part, _CLASSIFIER)
    if _MODEL_TYPES[checkpoint.sizes["position_embeddings"]] == SEGABERT:
        arrays = with_fused_attention(arrays)
        # The authors' classes always add an embedding of the segment, with random weights if the
        # file has none.
        shape = (checkpoint.sizes["num_segments"], checkpoint.sizes["hidden_dim"])
        arrays.setdefault(SEGMENT_TABLE, np.zeros(shape, "float32"))
    write_safetensors(arrays, os.path.join(directory, "model.safetensors"))


def _config(checkpoint: Checkpoint, found: list[str]) -> dict[str, Any]:
    """Returns the content of `config.json` for a model with the parts `found`."""
    sizes = checkpoint.sizes
    positions = sizes["position_embeddings"]
    config: dict[str, Any] = {
        "architectures": [_architecture(found)],
        "model_type": _MODEL_TYPES[positions],
        "hidden_act": "gelu",
        "hidden_dropout_prob": sizes["dropout"],
        "attention_probs_dropout_prob": sizes.get("attention_dropout", sizes["dropout"]),
        "layer_norm_eps": sizes["layer_norm_epsilon"],
        "initializer_range": 0.02,
        "position_embedding_type": positions,
        "pad_token_id": checkpoint.vocabulary.index(PAD_TOKEN),
    }
    for ours, theirs in SIZE_NAMES.items():
        config[theirs] = sizes[ours]
    for ours in sorted(read_tables(positions) - SIZE_NAMES.keys()):
        config[SEGMENT_AWARE_SIZE_NAMES[ours]] = sizes[ours]
    labels = checkpoint.labels
    if TEXT_CLASSIFIER in found or TOKEN_CLASSIFIER in found:
        config["id2label"] = {str(label_id): label for label_id, label in enumerate(labels)}
        config["label2id"] = {label: label_id for label_id, label in enumerate(labels)}
    if TEXT_CLASSIFIER in found:
        kind = "regression" if len(labels) == 1 else "single_label_classification"
        config["problem_type"] = kind
    return config


def _architecture(parts: list[str]) -> str:
    """Returns the class of `transformers` for a model with these parts."""
    if SPAN_CLASSIFIERS in parts:
        return "BertForQuestionAnswering"
    if TEXT_CLASSIFIER in parts:
        return "BertForSequenceClassification"
    if TOKEN_CLASSIFIER in parts:
        return "BertForTokenClassification"
    if NEXT_SENTENCE_HEAD in parts and MASKED_LM_HEAD in parts:
        return "BertForPreTraining"
    return "BertForMaskedLM" if MASKED_LM_HEAD in parts else "BertModel"


def _write_json(directory: str, name: str, content: dict) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")

"""BERT directories of HuggingFace `transformers`, and the original SpanBERT archives."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping

import numpy as np

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    SEGMENT_AWARE_SIZE_NAMES,
    SIZE_NAMES,
    Array,
    Checkpoint,
    read_tables,
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
    MASKED_LM_HEAD,
    SEGMENT_TABLE,
    SPAN_CLASSIFIERS,
    TEXT_CLASSIFIER,
    TOKEN_CLASSIFIER,
    TOKEN_TABLE,
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
_INDEX_ENDING = ".index.json"  # of the file beside them that names their shards
_HEAD_PARTS = (
    *("encoder", "pooler", MASKED_LM_HEAD, "next_sentence_head"),
    *(SPAN_CLASSIFIERS, TEXT_CLASSIFIER, TOKEN_CLASSIFIER),
)
_CLASSIFIER = "classifier"  # the name of the head of several of their classes


@contextlib.contextmanager
def read_huggingface(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Reads `config.json` (or `bert_config.json`), and weights or their shards with an index."""
    with opened_source(path) as directory:
        sizes = read_sizes(directory, path)
        check_tokenizer(directory, path)
        pieces = find_vocabulary(directory, path, vocabulary)
        casing = find_casing(directory, path, lowercase, strip_accents)
        arrays = with_standard_names(_read_weights(directory, path))
        config, where = read_config(directory, path)
        part, labels = _classifier_part(config, arrays), ()
        if part is not None:
            arrays = _renamed(arrays, _CLASSIFIER, part)
            labels = _read_labels(config, len(arrays[f"{part}.weight"]), where)
        yield Checkpoint(path, sizes, arrays, pieces, casing, labels)


def _classifier_part(config: dict, arrays: Mapping[str, Array]) -> str | None:
    """The part that the head called `classifier` is; `None`: another one, or none."""
    if not all(f"{_CLASSIFIER}.{name}" in arrays for name in ("weight", "bias")):
        return None
    classes = config.get("architectures") or ["BertForSequenceClassification"]
    if classes == ["BertForTokenClassification"]:
        return TOKEN_CLASSIFIER
    # A classifier of tokens has no pooler.
    has_pooler = "bert.pooler.dense.weight" in arrays
    is_of_texts = classes == ["BertForSequenceClassification"]
    return TEXT_CLASSIFIER if has_pooler and is_of_texts else None


def _renamed(arrays: Mapping[str, Array], old: str, new: str) -> dict[str, Array]:
    """The arrays with a head of another name."""
    return {
        f"{new}{name.removeprefix(old)}" if name.startswith(f"{old}.") else name: array
        for name, array in arrays.items()
    }


def _read_labels(config: dict, num_classes: int, where: str) -> tuple[str, ...]:
    """Names of the classes; `transformers`' own if they are missing."""
    kind = config.get("problem_type")
    if kind == "multi_label_classification" or (kind == "regression" and num_classes > 1):
        raise BadInputError(
            f"{where}: problem_type is {kind} of {num_classes}; one class of several, or one "
            "number, is converted"
        )
    keys = [str(number) for number in range(num_classes)]
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
    arrays = {}
    for shard in _find_shards(directory, path):
        file = os.path.join(directory, os.path.basename(shard))
        if not os.path.isfile(file):
            raise BadInputError(f"{path}: {shard} is missing")
        read = read_safetensors if shard.endswith(".safetensors") else read_pickled
        arrays |= read(file)
    return arrays


def _find_shards(directory: str, path: str) -> list[str]:
    """The files of the weights; where there are several kinds, those that `transformers` takes.

    Its `save_pretrained` leaves older files of another kind beside the new ones.
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

    As `BertForPreTraining`, `BertForMaskedLM`, `BertForQuestionAnswering`,
    `BertForSequenceClassification`, `BertForTokenClassification` or `BertModel`, by the heads that
    are there; the classes of other tasks load its encoder. With SegaBERT's positions it is a
    directory for the classes of its authors (rsvp-ai/segatron_aaai), whose `model_type` no class of
    `transformers` takes for its own.
    """
    found = [part for part in checkpoint.found_parts() if part in _HEAD_PARTS]

    with Output(directory, HUGGINGFACE_KIND, overwrite=overwrite).written() as unfinished:
        _write_weights(checkpoint, found, unfinished)
        _write_json(unfinished, "config.json", _config(checkpoint, found))
        tokenizer = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": checkpoint.casing.lowercase,
            "strip_accents": checkpoint.casing.strip_accents,
            "model_max_length": checkpoint.sizes["max_sequence_length"],
        }
        _write_json(unfinished, "tokenizer_config.json", tokenizer)
        save_vocabulary(unfinished, checkpoint.vocabulary)
    return [part for part in checkpoint.found_parts() if part not in found]


def _write_weights(checkpoint: Checkpoint, found: list[str], directory: str) -> None:
    parts = checkpoint.parts()
    arrays = {name: checkpoint.arrays[name] for part in found for name in parts[part]}
    if MASKED_LM_HEAD in found:  # older releases of transformers want to see the tied ones, too
        arrays["cls.predictions.decoder.weight"] = checkpoint.arrays[TOKEN_TABLE]
        arrays["cls.predictions.decoder.bias"] = arrays["cls.predictions.bias"]
    for part in (TEXT_CLASSIFIER, TOKEN_CLASSIFIER):
        arrays = _renamed(arrays, part, _CLASSIFIER)
    if checkpoint.sizes["position_embeddings"] != "absolute":
        arrays = with_fused_attention(arrays)
        # Theirs always adds a segment; without weights of it, it would draw them.
        table = (checkpoint.sizes["num_segments"], checkpoint.sizes["hidden_dim"])
        arrays.setdefault(SEGMENT_TABLE, np.zeros(table, "float32"))
    write_safetensors(arrays, os.path.join(directory, "model.safetensors"))


def _config(checkpoint: Checkpoint, found: list[str]) -> dict:
    sizes = checkpoint.sizes
    positions = sizes["position_embeddings"]
    return {
        "architectures": [_architecture(found)],
        "model_type": "bert" if positions == "absolute" else SEGABERT,
        "hidden_act": "gelu",
        "hidden_dropout_prob": sizes["dropout"],
        "attention_probs_dropout_prob": sizes.get("attention_dropout", sizes["dropout"]),
        "layer_norm_eps": sizes["layer_norm_epsilon"],
        "initializer_range": 0.02,
        "position_embedding_type": positions,
        "pad_token_id": checkpoint.vocabulary.index(PAD_TOKEN),
        **{theirs: sizes[ours] for ours, theirs in SIZE_NAMES.items()},
        **{
            theirs: sizes[ours]
            for ours, theirs in SEGMENT_AWARE_SIZE_NAMES.items()
            if ours in read_tables(positions)
        },
        **(_label_settings(checkpoint.labels) if TEXT_CLASSIFIER in found else {}),
        **(_label_names(checkpoint.labels) if TOKEN_CLASSIFIER in found else {}),
    }


def _label_names(labels: tuple[str, ...]) -> dict:
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def _label_settings(labels: tuple[str, ...]) -> dict:
    """The names of the classes, and what is made of the outputs."""
    return {
        **_label_names(labels),
        "problem_type": "regression" if len(labels) == 1 else "single_label_classification",
    }


def _architecture(parts: list[str]) -> str:
    if SPAN_CLASSIFIERS in parts:
        return "BertForQuestionAnswering"
    if TEXT_CLASSIFIER in parts:
        return "BertForSequenceClassification"
    if TOKEN_CLASSIFIER in parts:
        return "BertForTokenClassification"
    if "next_sentence_head" in parts and MASKED_LM_HEAD in parts:
        return "BertForPreTraining"
    return "BertForMaskedLM" if MASKED_LM_HEAD in parts else "BertModel"


def _write_json(directory: str, name: str, content: dict) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")

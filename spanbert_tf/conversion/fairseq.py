"""Checkpoints of the original SpanBERT code (fairseq), with their pre-training heads."""

import os

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    SIZE_NAMES,
    SPAN_POSITIONS,
    TOKEN_TABLE,
    Checkpoint,
)
from spanbert_tf.conversion.configuration import (
    find_casing,
    find_vocabulary,
    read_json,
    read_sizes,
)
from spanbert_tf.conversion.torch_files import read_fairseq_file, with_standard_names
from spanbert_tf.errors import BadInputError

_HEAD_WIDTH = 64  # of all published BERT models; the weights do not tell
_DROPOUT = 0.1  # of the original code
_BERT_HF_EPSILON = 1e-5  # pretraining/fairseq/models/hf_bert.py of the original code
_MASKED_LM_BIAS = "cls.predictions.bias"


def read_fairseq(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Checkpoint:
    """Reads a .pt file, a directory with one, or an archive of a directory.

    A `config.json` beside it is used; without one, sizes are read from the shapes, and heads are 64
    wide.
    """
    if path.endswith(".pt"):
        return _read(
            os.path.dirname(path) or ".",
            os.path.basename(path),
            path,
            vocabulary,
            lowercase,
            strip_accents,
        )
    with opened_source(path) as directory:
        files = sorted(name for name in os.listdir(directory) if name.endswith(".pt"))
        if len(files) != 1:
            raise BadInputError(f"{path}: holds {len(files)} .pt files; give the path of one")
        return _read(directory, files[0], path, vocabulary, lowercase, strip_accents)


def _read(
    directory: str,
    file: str,
    path: str,
    vocabulary: str | None,
    lowercase: bool | None,
    strip_accents: bool | None,
) -> Checkpoint:
    pieces = find_vocabulary(directory, path, vocabulary)
    casing = find_casing(directory, path, lowercase, strip_accents)
    arrays, architecture = read_fairseq_file(os.path.join(directory, file))
    arrays = with_standard_names(arrays)
    epsilon = _epsilon(arrays, architecture)
    config = os.path.join(directory, "config.json")
    if os.path.isfile(config):
        sizes = read_sizes(directory, path)
        if "layer_norm_eps" not in read_json(config):
            sizes["layer_norm_epsilon"] = epsilon
    else:
        sizes = {**_sizes_of_shapes(path, arrays), "layer_norm_epsilon": epsilon}
    return Checkpoint(path, sizes, arrays, pieces, casing)


def _epsilon(arrays: dict, architecture: str | None) -> float:
    """LayerNorm's epsilon: 1e-5 in the original code's `bert_hf`, 1e-12 in its `bert_pair`.

    Where no architecture is stated, the heads tell: `bert_pair` has that of the span boundary
    objective beside the masked-language-model's, `bert_hf` does not. An encoder alone counts as
    one of the released ones, which `bert_pair` trained.
    """
    if architecture is None:
        is_plain = _MASKED_LM_BIAS in arrays and SPAN_POSITIONS not in arrays
    else:
        is_plain = "bert_hf" in architecture
    return _BERT_HF_EPSILON if is_plain else BERT_EPSILON


def _sizes_of_shapes(path: str, arrays: dict) -> dict[str, int | float]:
    def shape(name: str) -> tuple[int, int]:
        if name not in arrays:
            raise BadInputError(f"{path}: lacks {name}; it is no checkpoint of SpanBERT's code")
        return arrays[name].shape

    vocabulary_size, width = shape(TOKEN_TABLE)
    if width % _HEAD_WIDTH:
        raise BadInputError(
            f"{path}: its width is {width}, no multiple of {_HEAD_WIDTH}; put a config.json with "
            f"{SIZE_NAMES['num_heads']} beside it"
        )
    layers = {name.split(".")[3] for name in arrays if name.startswith("bert.encoder.layer.")}
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": len(layers),
        "num_heads": width // _HEAD_WIDTH,
        "hidden_dim": width,
        "intermediate_dim": shape("bert.encoder.layer.0.intermediate.dense.weight")[0],
        "max_sequence_length": shape("bert.embeddings.position_embeddings.weight")[0],
        "num_segments": shape("bert.embeddings.token_type_embeddings.weight")[0],
        "dropout": _DROPOUT,
    }

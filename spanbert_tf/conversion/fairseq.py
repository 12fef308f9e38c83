"""Checkpoints of the original SpanBERT code (fairseq), with their pre-training heads."""

import os

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import BERT_EPSILON, SIZE_NAMES, TOKEN_TABLE, Checkpoint
from spanbert_tf.conversion.huggingface import read_sizes
from spanbert_tf.conversion.torch_files import read_pickled, with_standard_names
from spanbert_tf.conversion.vocabularies import find_casing, find_vocabulary
from spanbert_tf.errors import BadInputError

_HEAD_WIDTH = 64  # of all published BERT models; the weights do not tell
_DROPOUT = 0.1  # of the original code


def read_fairseq(path: str, vocabulary: str | None, lowercase: bool | None) -> Checkpoint:
    """Reads a .pt file, a directory with one, or an archive of a directory.

    A `config.json` beside it is used; without one, sizes are read from the shapes, and heads are 64
    wide.

    Args:
        path: of the file, the directory or the archive; `spanbert_large_with_head.tar.gz`, for
            example.
        vocabulary: path of the vocabulary, if there is none beside the file.
        lowercase: casing, where nothing states it.

    Raises:
        BadInputError: a file is missing or unusable.
        ConfigurationError: the casing is not stated.
        MismatchError: the casing is stated otherwise.
    """
    if path.endswith(".pt"):
        return _read(
            os.path.dirname(path) or ".", os.path.basename(path), path, vocabulary, lowercase
        )
    with opened_source(path) as directory:
        files = sorted(name for name in os.listdir(directory) if name.endswith(".pt"))
        if len(files) != 1:
            raise BadInputError(f"{path}: holds {len(files)} .pt files; give the path of one")
        return _read(directory, files[0], path, vocabulary, lowercase)


def _read(
    directory: str, file: str, path: str, vocabulary: str | None, lowercase: bool | None
) -> Checkpoint:
    pieces = find_vocabulary(directory, path, vocabulary)
    is_lowercase = find_casing(directory, path, lowercase)
    arrays = with_standard_names(read_pickled(os.path.join(directory, file)))
    if os.path.isfile(os.path.join(directory, "config.json")):
        sizes = read_sizes(directory, path)
    else:
        sizes = _sizes_of_shapes(path, arrays)
    return Checkpoint(path, sizes, arrays, pieces, is_lowercase)


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
        "layer_norm_epsilon": BERT_EPSILON,
    }

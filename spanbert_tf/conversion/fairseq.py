"""Checkpoints of the original SpanBERT code (fairseq), with their pre-training heads."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

from spanbert_tf.conversion.archives import opened_source
from spanbert_tf.conversion.checkpoint import (
    BERT_EPSILON,
    INTERMEDIATE_MATRIX,
    SIZE_NAMES,
    Array,
    Checkpoint,
    sizes_of_arrays,
)
from spanbert_tf.conversion.configuration import (
    config_names,
    find_casing,
    find_vocabulary,
    read_config,
    read_sizes,
)
from spanbert_tf.conversion.names import (
    MASKED_LM_BIAS,
    PLACE_TABLE,
    SEGMENT_TABLE,
    SPAN_POSITIONS,
    TOKEN_TABLE,
)
from spanbert_tf.conversion.torch_files import PickledTensors, with_standard_names
from spanbert_tf.errors import BadInputError

_HEAD_WIDTH = 64  # of one attention head in all published BERT models; the weights do not show it
_BERT_HF_EPSILON = 1e-5  # pretraining/fairseq/models/hf_bert.py of the original code


@contextlib.contextmanager
def read_fairseq(
    path: str, vocabulary: str | None, lowercase: bool | None, strip_accents: bool | None = None
) -> Iterator[Checkpoint]:
    """Opens a .pt file, a directory with one, or an archive of such a directory.

    The sizes are those of a `config.json` or `bert_config.json` beside the file. Without one, they
    are derived from the shapes of the arrays, and attention heads are 64 wide.
    """
    given = (vocabulary, lowercase, strip_accents)
    if path.endswith(".pt"):
        yield _read(os.path.dirname(path) or ".", os.path.basename(path), path, *given)
        return
    with opened_source(path) as directory:
        files = sorted(name for name in os.listdir(directory) if name.endswith(".pt"))
        if len(files) != 1:
            raise BadInputError(f"{path}: holds {len(files)} .pt files; give the path of one")
        yield _read(directory, files[0], path, *given)


def _read(
    directory: str,
    file: str,
    path: str,
    vocabulary: str | None,
    lowercase: bool | None,
    strip_accents: bool | None,
) -> Checkpoint:
    """Reads a .pt file of a directory; `path` is the user's name for it."""
    pieces = find_vocabulary(directory, path, vocabulary)
    text_rules = find_casing(directory, path, lowercase, strip_accents)
    tensors = PickledTensors(os.path.join(directory, file))
    arrays = with_standard_names(tensors.arrays())
    epsilon = _epsilon(arrays, tensors.architecture)
    if config_names(directory):
        sizes = read_sizes(directory, path)
        if "layer_norm_eps" not in read_config(directory, path)[0]:
            sizes["layer_norm_epsilon"] = epsilon
    else:
        sizes = {**_sizes_of_shapes(path, arrays), "layer_norm_epsilon": epsilon}
    return Checkpoint(path, sizes, arrays, pieces, text_rules)


def _epsilon(arrays: Mapping[str, Array], architecture: str | None) -> float:
    """Returns LayerNorm's epsilon: 1e-5 in the original code's `bert_hf`, 1e-12 in its `bert_pair`.

    If the file states no architecture, the heads decide: `bert_pair` has a head of the span
    boundary objective, `bert_hf` has only that of the masked language model. An encoder without
    heads is taken for one of the released encoders, which `bert_pair` trained.
    """
    if architecture is None:
        is_plain = MASKED_LM_BIAS in arrays and SPAN_POSITIONS not in arrays
    else:
        is_plain = "bert_hf" in architecture
    return _BERT_HF_EPSILON if is_plain else BERT_EPSILON


def _sizes_of_shapes(path: str, arrays: Mapping[str, Array]) -> dict[str, Any]:
    """Returns the arguments of `SpanBertBackbone`, as the shapes of the arrays show them."""
    for name in (TOKEN_TABLE, INTERMEDIATE_MATRIX, PLACE_TABLE, SEGMENT_TABLE):
        if name not in arrays:
            raise BadInputError(f"{path}: lacks {name}; it is no checkpoint of SpanBERT's code")
        if len(arrays[name].shape) != 2:
            raise BadInputError(
                f"{path}: {name} has shape {list(arrays[name].shape)}, no rows and columns; it is "
                "no checkpoint of SpanBERT's code"
            )
    width = arrays[TOKEN_TABLE].shape[1]
    if width % _HEAD_WIDTH:
        raise BadInputError(
            f"{path}: its width is {width}, no multiple of {_HEAD_WIDTH}; put a config.json with "
            f"{SIZE_NAMES['num_heads']} beside it"
        )
    return sizes_of_arrays(arrays, width // _HEAD_WIDTH)

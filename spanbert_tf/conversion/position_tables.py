"""Which tables of positions a checkpoint's encoder reads: BERT's, SegaBERT's, or both.

SegaBERT's authors keep all of them in one class (rsvp-ai/segatron_aaai, transformers/
modeling_segabert.py, `BertEmbeddings`): those of positions, paragraphs, sentences and tokens, and
BERT's segments. Which are read depends on what a program calls it with, so that a checkpoint with
all four does not tell whether it is a SegaBERT, a BERT with P.S. or their BERT.
"""

import dataclasses
import re

import numpy as np

from spanbert_tf.conversion.checkpoint import (
    POSITION_TABLES,
    SEGMENT_TABLE,
    TEXT_CLASSIFIER,
    Checkpoint,
    read_tables,
)
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError

# `--positions`, and how the authors' configurations call the sizes.
POSITIONS = ("absolute", "segment_aware", "absolute_with_paragraph_and_sentence")
_EMBEDDING = re.compile(r"^bert\.embeddings\.|position|distance_embedding")
_WITH_SEGMENTS = "segment_aware_with_segments"


def with_positions(checkpoint: Checkpoint, positions: str | None) -> Checkpoint:
    """The checkpoint, told which positions its encoder reads, and how large their tables are.

    Args:
        checkpoint: as it was read; `position_embeddings` of its sizes is what its configuration
            states, if it does.
        positions: one of `POSITIONS`, where the user gave it.

    Raises:
        BadInputError: it holds embeddings that no encoder here reads, or lacks some that it needs.
        ConfigurationError: its tables fit several encoders, and nobody says which.
        MismatchError: configuration and `positions` do not agree.
    """
    sizes, arrays = dict(checkpoint.sizes), dict(checkpoint.arrays)
    stated = sizes.get("position_embeddings")
    if stated and positions and not stated.startswith(positions):
        raise MismatchError(f"{checkpoint.path}: states {stated} positions, not {positions}")
    kind = stated or positions or _only_reader(checkpoint)
    if kind == "segment_aware" and np.any(arrays.get(SEGMENT_TABLE, 0)):
        kind = _WITH_SEGMENTS
    tables = read_tables(kind)
    for size, name in POSITION_TABLES.items():
        if size in tables and name not in arrays:
            raise BadInputError(f"{checkpoint.path}: lacks {name}, which {kind} positions need")
        if size in tables:
            sizes.setdefault(size, len(arrays[name]))
        else:
            arrays.pop(name, None)
            if size != "max_sequence_length":  # which rows keep to without a table as well
                sizes.pop(size, None)
    if kind == "segment_aware":
        arrays.pop(SEGMENT_TABLE, None)  # adds nothing
    found = dataclasses.replace(
        checkpoint, sizes=sizes | {"position_embeddings": kind}, arrays=arrays
    )
    unknown = [name for name in found.unused() if _EMBEDDING.search(name)]
    if unknown:
        raise BadInputError(
            f"{checkpoint.path}: holds {unknown[0]}, which no encoder here reads; without it the "
            "model would be another one"
        )
    if kind == _WITH_SEGMENTS != stated and TEXT_CLASSIFIER in found.found_parts():
        # The authors' GLUE program gives all tokens of both texts segment 0 (run_glue.py).
        table = arrays[SEGMENT_TABLE]
        arrays[SEGMENT_TABLE] = np.repeat(table[:1], len(table), axis=0)
    return found


def _only_reader(checkpoint: Checkpoint) -> str:
    """The positions that read all tables which a checkpoint holds."""
    held = {size for size, name in POSITION_TABLES.items() if name in checkpoint.arrays}
    if held <= read_tables("absolute"):
        return "absolute"
    for kind in POSITIONS:
        if held == read_tables(kind):
            return kind
    fitting = [kind for kind in POSITIONS if read_tables(kind) <= held]
    tables = [name for size, name in POSITION_TABLES.items() if size in held]
    names = ", ".join(name.split(".")[2] for name in tables)
    if fitting in ([], ["absolute"]):
        raise BadInputError(
            f"{checkpoint.path}: holds {names}: no encoder here reads just these; a model that was "
            "called without SegaBERT's is --positions absolute"
        )
    raise ConfigurationError(
        f"{checkpoint.path}: holds {names}, and does not say which of them its encoder reads; give "
        f"--positions segment_aware for a SegaBERT, or one of {', '.join(fitting)}"
    )

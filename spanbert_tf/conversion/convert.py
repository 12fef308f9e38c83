"""`spanbert-tf convert`: reads one format, checks, writes another."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

import keras
import numpy as np
import rich.table

from spanbert_tf.console import table_console
from spanbert_tf.conversion.checkpoint import (
    Checkpoint,
    checked_checkpoint,
    read_tables,
)
from spanbert_tf.conversion.fairseq import read_fairseq
from spanbert_tf.conversion.huggingface import (
    HUGGINGFACE_KIND,
    read_huggingface,
    write_huggingface,
)
from spanbert_tf.conversion.keras_presets import (
    print_gelu_difference,
    read_keras,
    refuse_copy,
    write_keras,
    write_keras_bert,
)
from spanbert_tf.conversion.model_garden import (
    MODEL_GARDEN_KIND,
    read_model_garden,
    write_model_garden,
)
from spanbert_tf.conversion.names import (
    ENCODER,
    POOLER,
    POOLER_BIAS,
    POSITION_TABLES,
    SEGMENT_TABLE,
    TEXT_CLASSIFIER,
)
from spanbert_tf.conversion.tf1 import TF1_KIND, read_tf1, write_tf1
from spanbert_tf.conversion.tfhub import read_tfhub
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.files.contents import check_own_files
from spanbert_tf.files.output import Output, OutputKind
from spanbert_tf.files.preset import PRESET_KIND, TASK_CONFIG
from spanbert_tf.files.written import print_written
from spanbert_tf.lazy import load
from spanbert_tf.models.span_bert_backbone import was_trained
from spanbert_tf.terminal import print_line
from spanbert_tf.text.vocabulary import check_case


class Format(NamedTuple):
    """What this command knows of a format.

    Attributes:
        read: opens a directory, an archive or a preset. It takes the path, and what the source may
            not state: vocabulary, lowercase, strip_accents. The arrays are read one by one.
        write: writes a directory, whole or not at all, and returns the parts that the format has no
            place for; `None`: the format is read only.
        output: what such a directory looks like.
        approximate: who computes the GELU by tanh, where that is so.
        is_of_pytorch: whether it needs the extra `convert`.
    """

    read: Callable[..., AbstractContextManager[Checkpoint]] | None = None
    write: Callable[..., list[str]] | None = None
    output: OutputKind | None = None
    approximate: str = ""
    is_of_pytorch: bool = False


_FORMATS = {
    "huggingface": Format(
        read_huggingface, write_huggingface, HUGGINGFACE_KIND, is_of_pytorch=True
    ),
    "fairseq": Format(read_fairseq, is_of_pytorch=True),
    "tf1": Format(read_tf1, write_tf1, TF1_KIND),
    "model_garden": Format(
        read_model_garden,
        write_model_garden,
        MODEL_GARDEN_KIND,
        approximate="the Model Garden's encoder, unless it is given another activation,",
    ),
    "tfhub": Format(read_tfhub),
    "keras": Format(read_keras, write_keras, PRESET_KIND),
    "keras_bert": Format(write=write_keras_bert, output=PRESET_KIND, approximate="KerasHub's BERT"),
}
_EXTRA_MODULES = ("torch", "safetensors")
_SHOWN_UNUSED = 8
# SegaBERT's authors keep all tables in one class (rsvp-ai/segatron_aaai, transformers/
# modeling_segabert.py, `BertEmbeddings`): those of positions, paragraphs, sentences and tokens, and
# BERT's segments. Which are read depends on what a program calls it with, so that a checkpoint with
# all four does not tell whether it is a SegaBERT, a BERT with P.S. or their BERT.
_POSITIONS = ("absolute", "segment_aware", "absolute_with_paragraph_and_sentence")
_EMBEDDING = re.compile(r"^bert\.embeddings\.|position|distance_embedding")
_SEGMENTS_TOO = "_with_segments"
_WITH_SEGMENTS = f"segment_aware{_SEGMENTS_TOO}"


def convert_checkpoint(
    source_format: str,
    target_format: str,
    source: str,
    destination: str,
    *,
    vocabulary: str | None = None,
    lowercase: bool | None = None,
    overwrite: bool = False,
    strip_accents: bool | None = None,
    is_pair: bool = False,
    positions: str | None = None,
) -> None:
    """Converts a checkpoint and prints what was found, what is missing and what is not used.

    Args:
        source_format: `"huggingface"`, `"fairseq"`, `"tf1"`, `"model_garden"`, `"tfhub"` or
            `"keras"`.
        target_format: `"keras"`, `"keras_bert"`, `"huggingface"`, `"tf1"` or `"model_garden"`.
        source: directory, archive or preset.
        destination: directory, new or empty.
        vocabulary: path of `vocab.txt` for a source that holds none.
        lowercase: casing for a source that does not state it.
        overwrite: whether an earlier output of the target's format may be replaced.
        strip_accents: `False`: accents are kept, for a source that does not state it.
        is_pair: a text classifier reads pairs of texts, for a source that does not state it.
        positions: what `--positions` offers, for a source whose tables fit several encoders.

    Raises:
        BadInputError: the source cannot be used, or the destination exists or cannot be written.
        ConfigurationError: the casing, or which positions are read, is neither stated nor given.
        MismatchError: source and options, or source and target, do not fit together.
    """
    origin, target = _FORMATS[source_format], _FORMATS[target_format]
    destination = Output(destination, target.output, overwrite=overwrite).check()
    if os.path.realpath(source) == os.path.realpath(destination):
        raise BadInputError(f"{destination}: is SRC and DST at once; name another directory")
    if os.path.isdir(source):
        check_own_files(source)
    if source_format == target_format == "keras":
        refuse_copy(source)
    keras.utils.set_random_seed(0)  # of a pooler that the source lacks
    if origin.is_of_pytorch or target.is_of_pytorch:
        _check_extra()
    with origin.read(source, vocabulary, lowercase, strip_accents) as checkpoint:
        checkpoint = checked_checkpoint(with_positions(checkpoint, positions))
        if lowercase is not None:
            _warn_of_casing(checkpoint)
        if is_pair:
            if TEXT_CLASSIFIER not in checkpoint.found_parts():
                raise MismatchError(f"{source}: holds no text classifier; leave out --pairs")
            checkpoint = dataclasses.replace(checkpoint, is_pair=True)
        left_out = target.write(checkpoint, destination, overwrite=overwrite)
        if checkpoint.approximates_gelu != bool(target.approximate):
            whose = target.approximate or origin.approximate or "the source"
            print_gelu_difference(checkpoint, whose)
        _print_table(checkpoint, left_out)
    num_entries, num_rows = len(checkpoint.vocabulary), checkpoint.sizes["vocabulary_size"]
    if num_entries != num_rows:
        print_line(f"vocabulary: {num_entries:,} entries, token embedding: {num_rows:,} rows")
    print_line(f"{destination}: {target_format}, from {source}")
    print_written(destination, *_next_commands(target_format, destination))


def _next_commands(target_format: str, preset: str) -> Iterator[list[str]]:
    """What can be done with a preset; other formats are read by other programs."""
    if target_format != "keras":
        return
    if os.path.exists(os.path.join(preset, TASK_CONFIG)):
        answers = ["--input", "INPUTS", "--output", "predictions.jsonl"]
        yield ["spanbert-tf", "predict", "--preset", preset, *answers]
    records = ["--input", "FILE", "--output", "RECORDS"]
    yield ["spanbert-tf", "prepare", "TASK", "--preset", preset, *records]


def with_positions(checkpoint: Checkpoint, positions: str | None) -> Checkpoint:
    """The checkpoint, told which positions its encoder reads, and how large their tables are."""
    sizes, arrays = dict(checkpoint.sizes), dict(checkpoint.arrays)
    stated = sizes.get("position_embeddings")
    if stated and positions not in (None, stated, stated.removesuffix(_SEGMENTS_TOO)):
        raise MismatchError(f"{checkpoint.path}: states {stated} positions, not {positions}")
    kind = stated or positions or _only_reader(checkpoint)
    if kind == "segment_aware" and np.any(np.asarray(arrays.get(SEGMENT_TABLE, 0))):
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
        table = np.asarray(arrays[SEGMENT_TABLE])
        arrays[SEGMENT_TABLE] = np.repeat(table[:1], len(table), axis=0)
    return found


def _only_reader(checkpoint: Checkpoint) -> str:
    """The positions that read all tables which a checkpoint holds."""
    held = {size for size, name in POSITION_TABLES.items() if name in checkpoint.arrays}
    if held <= read_tables("absolute"):
        return "absolute"
    for kind in _POSITIONS:
        if held == read_tables(kind):
            return kind
    fitting = [kind for kind in _POSITIONS if read_tables(kind) <= held]
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


def _warn_of_casing(checkpoint: Checkpoint) -> None:
    """A casing that was given on the command line may be wrong, and nothing else would say so."""
    try:
        check_case(checkpoint.vocabulary, checkpoint.path, checkpoint.casing)
    except MismatchError as error:
        print_line(f"warning: {error}")


def _check_extra() -> None:
    try:
        for needed in _EXTRA_MODULES:
            load(needed)
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"{error.name} is not installed; pip install 'spanbert_tf[convert]'"
        ) from error


def _print_table(checkpoint: Checkpoint, left_out: list[str]) -> None:
    table = rich.table.Table("part", "in the source", "arrays", "parameters")
    for part, shapes in checkpoint.parts().items():
        present = [name for name in shapes if name in checkpoint.arrays]
        outcome = _outcome(checkpoint, part, shapes, present, left_out)
        table.add_row(part, outcome, *_counts(checkpoint, present))
    unused = checkpoint.unused()
    shown = ", ".join(unused[:_SHOWN_UNUSED]) + ", …" * (len(unused) > _SHOWN_UNUSED)
    table.add_row("others", f"unused: {shown}" if unused else "none", *_counts(checkpoint, unused))
    table_console().print(table)


def _outcome(
    checkpoint: Checkpoint, part: str, shapes: Mapping, present: list[str], left_out: list[str]
) -> str:
    if len(present) == len(shapes):
        if part in left_out:
            return "found, but the target has no place for it"
        if part == POOLER and not was_trained(np.asarray(checkpoint.arrays[POOLER_BIAS])):
            return "found, but never trained: random"
        return "found"
    if present:
        return f"unused: lacks {next(name for name in shapes if name not in present)}"
    if part == POOLER:
        return "missing: a new one, untrained"
    return "missing" if part != ENCODER else "found"


def _counts(checkpoint: Checkpoint, names: list[str]) -> tuple[str, str]:
    sizes = [checkpoint.arrays[name].size for name in names]
    return str(len(sizes)), f"{sum(sizes):,}"

"""`spanbert-tf convert`: reads one format, checks, writes another."""

import dataclasses
import os
from collections.abc import Callable, Mapping

import keras
import rich.table

from spanbert_tf.conversion.checkpoint import (
    ENCODER,
    POOLER,
    TEXT_CLASSIFIER,
    Checkpoint,
    checked_checkpoint,
)
from spanbert_tf.conversion.output_kinds import OUTPUT_KINDS
from spanbert_tf.conversion.position_tables import with_positions
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.contents import refuse_special_files
from spanbert_tf.files.outputs import check_output
from spanbert_tf.lazy import load
from spanbert_tf.process.console import table_console
from spanbert_tf.process.lines import print_line
from spanbert_tf.text.vocabulary import check_case

# Format: place in this package. Modules are imported when they are needed: some want PyTorch.
READERS = {
    "huggingface": "huggingface:read_huggingface",
    "fairseq": "fairseq:read_fairseq",
    "tf1": "tf1:read_tf1",
    "keras": "keras_sources:read_keras",
}
WRITERS = {
    "keras": "keras_presets:write_keras",
    "keras_bert": "keras_presets:write_keras_bert",
    "huggingface": "huggingface:write_huggingface",
    "tf1": "tf1:write_tf1",
}
_EXTRA_MODULES = ("torch", "safetensors")
_SHOWN_UNUSED = 8


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
        source_format: one of `READERS`.
        target_format: one of `WRITERS`.
        source: directory, archive or preset.
        destination: directory, new or empty.
        vocabulary: path of `vocab.txt` for a source that holds none.
        lowercase: casing for a source that does not state it.
        overwrite: whether an earlier output of the target's format may be replaced.
        strip_accents: `False`: accents are kept, for a source that does not state it.
        is_pair: a text classifier reads pairs of texts, for a source that does not state it.
        positions: one of `POSITIONS`, for a source whose tables fit several encoders.

    Raises:
        BadInputError: the source cannot be used, or the destination exists or cannot be written.
        ConfigurationError: the casing, or which positions are read, is neither stated nor given.
        MismatchError: source and options, or source and target, do not fit together.
    """
    destination = check_output(destination, OUTPUT_KINDS[target_format], overwrite=overwrite)
    if os.path.realpath(source) == os.path.realpath(destination):
        raise BadInputError(f"{destination}: is SRC and DST at once; name another directory")
    if os.path.isdir(source):
        refuse_special_files(source)
    if source_format == target_format == "keras":
        _function("keras_sources:refuse_copy")(source)
    keras.utils.set_random_seed(0)  # of a pooler that the source lacks
    read, write = _function(READERS[source_format]), _function(WRITERS[target_format])
    checkpoint = read(source, vocabulary, lowercase, strip_accents)
    checkpoint = checked_checkpoint(with_positions(checkpoint, positions))
    if lowercase is not None:
        _warn_of_casing(checkpoint)
    if is_pair:
        if TEXT_CLASSIFIER not in checkpoint.found_parts():
            raise MismatchError(f"{source}: holds no text classifier; leave out --pairs")
        checkpoint = dataclasses.replace(checkpoint, is_pair=True)
    left_out = write(checkpoint, destination, overwrite=overwrite)
    if checkpoint.approximates_gelu != (target_format == "keras_bert"):
        _function("keras_presets:print_gelu_difference")(checkpoint)
    _print_table(checkpoint, left_out)
    num_entries, num_rows = len(checkpoint.vocabulary), checkpoint.sizes["vocabulary_size"]
    if num_entries != num_rows:
        print_line(f"vocabulary: {num_entries:,} entries, token embedding: {num_rows:,} rows")
    print_line(f"{destination}: {target_format}, from {source}")


def _warn_of_casing(checkpoint: Checkpoint) -> None:
    """A casing that was given on the command line may be wrong, and nothing else would say so."""
    try:
        check_case(checkpoint.vocabulary, checkpoint.path, checkpoint.casing)
    except MismatchError as error:
        print_line(f"warning: {error}")


def _function(name: str) -> Callable:
    try:
        if name.startswith(("huggingface:", "fairseq:")):
            for needed in _EXTRA_MODULES:
                load(needed)
        return load(f"spanbert_tf.conversion.{name}")
    except ModuleNotFoundError as error:
        raise BadInputError(
            f"{error.name} is not installed; pip install 'spanbert_tf[convert]'"
        ) from error


def _print_table(checkpoint: Checkpoint, left_out: list[str]) -> None:
    table = rich.table.Table("part", "in the source", "arrays", "parameters")
    for part, shapes in checkpoint.parts().items():
        present = [name for name in shapes if name in checkpoint.arrays]
        table.add_row(
            part, _outcome(part, shapes, present, left_out), *_counts(checkpoint, present)
        )
    unused = checkpoint.unused()
    shown = ", ".join(unused[:_SHOWN_UNUSED]) + ", …" * (len(unused) > _SHOWN_UNUSED)
    table.add_row("others", f"unused: {shown}" if unused else "none", *_counts(checkpoint, unused))
    table_console().print(table)


def _outcome(part: str, shapes: Mapping, present: list[str], left_out: list[str]) -> str:
    if len(present) == len(shapes):
        return "found, but the target has no place for it" if part in left_out else "found"
    if present:
        return f"unused: lacks {next(name for name in shapes if name not in present)}"
    if part == POOLER:
        return "missing: a new one, untrained"
    return "missing" if part != ENCODER else "found"


def _counts(checkpoint: Checkpoint, names: list[str]) -> tuple[str, str]:
    sizes = [checkpoint.arrays[name].size for name in names]
    return str(len(sizes)), f"{sum(sizes):,}"

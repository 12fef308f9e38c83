"""`spanbert-tf convert`: reads a checkpoint of one format, checks it, and writes another."""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

import keras
import numpy as np
import rich.table

from spanbert_tf.config.positions import NAMED_POSITIONS, POSITION_EMBEDDINGS, with_segments
from spanbert_tf.console import table_console
from spanbert_tf.conversion.checkpoint import (
    Checkpoint,
    Shapes,
    checked_checkpoint,
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
    find_entry,
    read_tables,
)
from spanbert_tf.conversion.tf1 import TF1_KIND, read_tf1, write_tf1
from spanbert_tf.conversion.tfhub import read_tfhub
from spanbert_tf.errors import BadInputError, ConfigurationError, MismatchError
from spanbert_tf.files.contents import check_own_files
from spanbert_tf.files.output import Output, OutputKind
from spanbert_tf.files.preset import PRESET_KIND, TASK_CONFIG
from spanbert_tf.files.written import print_written
from spanbert_tf.models.span_bert_backbone import was_trained
from spanbert_tf.terminal import print_line
from spanbert_tf.text.chosen_vocabulary import known_language
from spanbert_tf.text.languages import DEFAULT_LANGUAGE
from spanbert_tf.text.vocabulary import check_case

# Opens a directory, an archive or a preset. The arguments are the path, and what the source may not
# state: vocabulary, lowercase, strip_accents. The arrays are read one by one.
Reader = Callable[[str, str | None, bool | None, bool | None], AbstractContextManager[Checkpoint]]

SOURCES: dict[str, Reader] = {
    "huggingface": read_huggingface,
    "fairseq": read_fairseq,
    "tf1": read_tf1,
    "model_garden": read_model_garden,
    "tfhub": read_tfhub,
    "keras": read_keras,
}


class Target(NamedTuple):
    """How a format is written.

    Attributes:
        write: writes a directory, completely or not at all. It takes the checkpoint, the directory
            and `overwrite`, and returns the parts that the format has no place for.
        output: the files of such a directory.
    """

    write: Callable[..., list[str]]
    output: OutputKind


TARGETS = {
    "huggingface": Target(write_huggingface, HUGGINGFACE_KIND),
    "tf1": Target(write_tf1, TF1_KIND),
    "model_garden": Target(write_model_garden, MODEL_GARDEN_KIND),
    "keras": Target(write_keras, PRESET_KIND),
    "keras_bert": Target(write_keras_bert, PRESET_KIND),
}
# The formats whose models compute the GELU by tanh, and what messages call these models.
_APPROXIMATE_MODELS = {
    "model_garden": "the Model Garden's encoder, unless it is given another activation,",
    "keras_bert": "KerasHub's BERT",
}
_FORMAT_WITH_LANGUAGE = "keras"  # keeps the language of texts
_SHOWN_UNUSED = 8  # names of unused arrays that are printed
# SegaBERT's authors have all tables in one class (rsvp-ai/segatron_aaai, transformers/
# modeling_segabert.py, `BertEmbeddings`): those of positions, paragraphs, sentences and tokens, and
# BERT's segments. The arguments of a call decide which are read. So a checkpoint with all four can
# be a SegaBERT, a BERT with paragraphs and sentences, or a BERT.
# Arrays of an encoder, and tables of positions in other formats. One that the table of names lacks
# is refused: relative positions (Shaw et al., 2018), for example, are tables of the layers.
_ENCODER_ARRAY = re.compile(r"^bert\.(embeddings|encoder)\.|position")


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
    language: str | None = None,
    show_next_steps: bool = True,
) -> None:
    """Converts a checkpoint, and prints which parts were found, are missing or are not used.

    Args:
        source_format: `"huggingface"`, `"fairseq"`, `"tf1"`, `"model_garden"`, `"tfhub"` or
            `"keras"`.
        target_format: `"keras"`, `"keras_bert"`, `"huggingface"`, `"tf1"` or `"model_garden"`.
        source: directory, archive or preset.
        destination: directory that is new or empty.
        vocabulary: path of a `vocab.txt`, for a source without a vocabulary.
        lowercase: whether text is lowercased, for a source that does not state it.
        overwrite: whether an earlier output of the target's format may be replaced.
        strip_accents: `False` if accents are kept, for a source that does not state it.
        is_pair: whether a text classifier reads pairs of texts, for a source that does not state
            it.
        positions: a value of `--positions`, for a source whose tables fit several encoders.
        language: code of the language of its texts, which a preset keeps; `None`: as the source
            states it, or English.
        show_next_steps: whether to print commands that use the result.

    Raises:
        BadInputError: the source cannot be used, or the destination exists or cannot be written.
        ConfigurationError: the casing or the positions are neither stated nor given, or the
            language is unknown, or the target has no place for it.
        MismatchError: the options or the target do not fit the source.
    """
    read = SOURCES[source_format]
    target = TARGETS[target_format]
    if language is not None:
        _check_language(language, target_format)
    destination = Output(destination, target.output, overwrite=overwrite).check()
    _check_source(source, destination)
    if source_format == target_format == "keras":
        refuse_copy(source)
    keras.utils.set_random_seed(0)  # for a new pooler, if the source has none
    with read(source, vocabulary, lowercase, strip_accents) as checkpoint:
        checkpoint = checked_checkpoint(with_positions(checkpoint, positions))
        if lowercase is not None:
            _warn_of_casing(checkpoint)
        if is_pair:
            if TEXT_CLASSIFIER not in checkpoint.found_parts():
                raise MismatchError(f"{source}: holds no text classifier; leave out --pairs")
            checkpoint = dataclasses.replace(checkpoint, is_pair=True)
        if language is not None:
            checkpoint = _with_language(checkpoint, language)
        left_out = target.write(checkpoint, destination, overwrite=overwrite)
        target_approximates_gelu = target_format in _APPROXIMATE_MODELS
        if checkpoint.approximates_gelu != target_approximates_gelu:
            approximate_format = target_format if target_approximates_gelu else source_format
            print_gelu_difference(
                checkpoint, _APPROXIMATE_MODELS.get(approximate_format, "the source")
            )
        _print_table(checkpoint, left_out)
        _print_unused_rows(checkpoint)
    print_line(f"{destination}: {target_format}, from {source}")
    if show_next_steps:
        print_written(destination, *_next_commands(target_format, destination))


def _check_language(language: str, target_format: str) -> None:
    """Checks that a language is known, and that the target has a place for it."""
    if target_format != _FORMAT_WITH_LANGUAGE:
        raise ConfigurationError(
            f"--language: {target_format} has no place for it; leave it out, or convert --to "
            f"{_FORMAT_WITH_LANGUAGE}"
        )
    known_language(language)


def _check_source(source: str, destination: str) -> None:
    """Checks that the source is another directory than the destination, and what it holds."""
    if os.path.realpath(source) == os.path.realpath(destination):
        raise BadInputError(f"{destination}: is SRC and DST at once; name another directory")
    if os.path.isdir(source):
        check_own_files(source)


def _next_commands(target_format: str, preset: str) -> Iterator[list[str]]:
    """Yields commands that use the new preset; other formats are for other programs."""
    if target_format != "keras":
        return
    if os.path.exists(os.path.join(preset, TASK_CONFIG)):
        files = ["--input", "INPUTS", "--output", "predictions.jsonl"]
        yield ["spanbert-tf", "predict", "--preset", preset, *files]
    files = ["--input", "FILE", "--output", "RECORDS"]
    yield ["spanbert-tf", "prepare", "TASK", "--preset", preset, *files]


def with_positions(checkpoint: Checkpoint, positions: str | None) -> Checkpoint:
    """Decides which tables of positions the encoder reads, and adds their sizes.

    Args:
        checkpoint: a checkpoint as it was read.
        positions: a value of `--positions`; `None`: not given.

    Returns:
        The checkpoint with `position_embeddings` and the sizes of the tables, and without tables
        that are not read.

    Raises:
        BadInputError: a table is missing, or there is one that no encoder here reads.
        ConfigurationError: several encoders fit the tables, and `positions` is not given.
        MismatchError: the checkpoint states other positions than `positions`.
    """
    stated = checkpoint.sizes.get("position_embeddings")
    if stated and positions and stated not in (positions, with_segments(positions)):
        raise MismatchError(f"{checkpoint.path}: states {stated} positions, not {positions}")
    named = stated or positions or _only_reader(checkpoint)
    kind = named
    segments = np.asarray(checkpoint.arrays.get(SEGMENT_TABLE, 0))
    if with_segments(named) != named and np.any(segments):
        kind = with_segments(named)
    checkpoint = _with_tables_of(kind, checkpoint)
    _check_encoder_arrays(checkpoint)
    if kind != named and TEXT_CLASSIFIER in checkpoint.found_parts():
        # In the authors' program for GLUE, all tokens of both texts have segment 0 (run_glue.py).
        segments = np.repeat(segments[:1], len(segments), axis=0)
        checkpoint = dataclasses.replace(
            checkpoint, arrays={**checkpoint.arrays, SEGMENT_TABLE: segments}
        )
    return checkpoint


def _with_tables_of(kind: str, checkpoint: Checkpoint) -> Checkpoint:
    """Adds a kind of positions and the sizes of its tables, and removes the tables of others."""
    sizes = {**checkpoint.sizes, "position_embeddings": kind}
    arrays = dict(checkpoint.arrays)
    tables = read_tables(kind)
    for size, name in POSITION_TABLES.items():
        if size in tables and name not in arrays:
            raise BadInputError(f"{checkpoint.path}: lacks {name}, which {kind} positions need")
        if size in tables:
            sizes.setdefault(size, len(arrays[name]))
        else:
            arrays.pop(name, None)
            if size != "max_sequence_length":  # the longest row, also without a table
                sizes.pop(size, None)
    if not POSITION_EMBEDDINGS[kind].segments:
        arrays.pop(SEGMENT_TABLE, None)  # all values are 0
    return dataclasses.replace(checkpoint, sizes=sizes, arrays=arrays)


def _check_encoder_arrays(checkpoint: Checkpoint) -> None:
    """Checks that each array of the encoder is in the table; layers above the last one may be."""
    for name in checkpoint.unused():
        if _ENCODER_ARRAY.search(name) and find_entry(name, "name") is None:
            raise BadInputError(
                f"{checkpoint.path}: holds {name}, which no encoder here reads; without it the "
                "model would compute something else"
            )


def _with_language(checkpoint: Checkpoint, language: str) -> Checkpoint:
    """Adds the language of its texts to a checkpoint, which may have stated none but English.

    Raises:
        MismatchError: it states another one.
    """
    stated = checkpoint.text_rules.language
    if stated not in (DEFAULT_LANGUAGE, language):
        raise MismatchError(
            f"{checkpoint.path}: states the language {stated}, not {language}; leave out --language"
        )
    text_rules = checkpoint.text_rules._replace(language=language)
    return dataclasses.replace(checkpoint, text_rules=text_rules)


def _only_reader(checkpoint: Checkpoint) -> str:
    """Returns the positions whose tables are exactly those of the checkpoint."""
    present = {size for size, name in POSITION_TABLES.items() if name in checkpoint.arrays}
    if present <= read_tables("absolute"):
        return "absolute"
    for kind in NAMED_POSITIONS:
        if present == read_tables(kind):
            return kind
    fitting = [kind for kind in NAMED_POSITIONS if read_tables(kind) <= present]
    tables = [name for size, name in POSITION_TABLES.items() if size in present]
    names = ", ".join(name.split(".")[2] for name in tables)
    if fitting in ([], ["absolute"]):
        raise BadInputError(
            f"{checkpoint.path}: holds {names}: no encoder here reads exactly these; give "
            "--positions absolute if the model was trained without SegaBERT's"
        )
    raise ConfigurationError(
        f"{checkpoint.path}: holds {names}, and does not say which of them its encoder reads; give "
        f"--positions segment_aware for a SegaBERT, or one of {', '.join(fitting)}"
    )


def _warn_of_casing(checkpoint: Checkpoint) -> None:
    """Prints a warning if the vocabulary contradicts the casing that the user gave."""
    try:
        check_case(checkpoint.vocabulary, checkpoint.path, checkpoint.text_rules)
    except MismatchError as error:
        print_line(f"warning: {error}")


def _print_table(checkpoint: Checkpoint, left_out: list[str]) -> None:
    """Prints each part: whether the source has it, and how many arrays and parameters it has."""
    table = rich.table.Table("part", "in the source", "arrays", "parameters")
    for part, shapes in checkpoint.parts().items():
        present = [name for name in shapes if name in checkpoint.arrays]
        outcome = _outcome(checkpoint, part, shapes, present, left_out)
        table.add_row(part, outcome, *_counts(checkpoint, present))
    unused = checkpoint.unused()
    shown = ", ".join(unused[:_SHOWN_UNUSED])
    if len(unused) > _SHOWN_UNUSED:
        shown += ", …"
    table.add_row("others", f"unused: {shown}" if unused else "none", *_counts(checkpoint, unused))
    table_console().print(table)


def _print_unused_rows(checkpoint: Checkpoint) -> None:
    """Prints if the token embedding has more rows than the vocabulary has pieces."""
    num_entries = len(checkpoint.vocabulary)
    num_rows = checkpoint.sizes["vocabulary_size"]
    if num_entries != num_rows:
        print_line(f"vocabulary: {num_entries:,} entries, token embedding: {num_rows:,} rows")


def _outcome(
    checkpoint: Checkpoint, part: str, shapes: Shapes, present: list[str], left_out: list[str]
) -> str:
    """Returns what became of a part.

    Args:
        checkpoint: the source.
        part: one of `names.PARTS`.
        shapes: name → shape of the part's arrays.
        present: names of those that the source has.
        left_out: parts that the target has no place for.
    """
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
    """Returns the number of arrays and the number of their values, as text."""
    sizes = [checkpoint.arrays[name].size for name in names]
    return str(len(sizes)), f"{sum(sizes):,}"

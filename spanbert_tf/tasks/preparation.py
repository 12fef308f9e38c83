"""The writer of records for all tasks: it writes rows, lengths, vocabulary and manifest."""

import abc
import collections
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, NamedTuple

import numpy as np

from spanbert_tf.conversion.converted_presets import converted_preset
from spanbert_tf.data.manifest import VOCABULARY_FILE, as_yaml, token_id_dtype, vocabulary_hash
from spanbert_tf.data.records import ROW_TOKEN_IDS, ManifestT, TaskManifest
from spanbert_tf.data.tfrecords import (
    lengths_path,
    record_writer,
    save_lengths,
    serialize_features,
)
from spanbert_tf.files.contents import checksums
from spanbert_tf.files.output import Output, OutputKind, write_text
from spanbert_tf.files.preset import PresetFiles
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.files.written import print_written
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.terminal import print_line
from spanbert_tf.text.chosen_vocabulary import chosen_vocabulary
from spanbert_tf.text.vocabulary import SpecialTokenIds, TextRules

_SMALL_WIDTH = 512  # encoders up to this width are fine-tuned on CPUs


class Row(NamedTuple):
    """A row to be stored as a `tf.train.Example`.

    Attributes:
        numbers: features that are one int64 or one float32.
        lists: features that are lists: arrays of the type that they are stored in. Token ids, which
            every row has, are converted to the type that fits the vocabulary.
    """

    numbers: Mapping[str, int | float]
    lists: Mapping[str, np.ndarray]


class RowMaker(abc.ABC, Generic[ManifestT]):
    """Makes the rows of a task's records for `write_task_records`.

    A subclass derives from `RowMaker` or from `RowMaker[ManifestClass]`.

    Attributes:
        manifest_class: class of the manifest, which names the files.
        title: what messages call the records, such as `"records of questions"`.
        is_labelled: whether the rows have labels to train on.
        counts: counts for the manifest.
        lines: the JSON lines of each file beside the rows: name of the file → lines.
    """

    manifest_class: type[ManifestT]
    title: ClassVar[str]
    is_labelled = True

    def __init__(self) -> None:
        self.counts: collections.Counter = collections.Counter()
        self.lines: dict[str, Iterable] = {name: [] for name in self.manifest_class.line_files}

    @abc.abstractmethod
    def rows(
        self, pieces: Sequence[str], text_rules: TextRules, sequence_length: int
    ) -> Iterator[Row]:
        """Yields the rows, those to train on first, and fills in `counts` and `lines`.

        Args:
            pieces: the vocabulary.
            text_rules: how text is normalized.
            sequence_length: largest number of positions of a row.
        """

    def described(self) -> dict[str, Any]:
        """Returns the values of the manifest's own fields. Called after all rows are written."""
        return {}

    def counted(self, written: Mapping[str, int]) -> dict[str, int]:
        """Returns the manifest's `counts`.

        Args:
            written: the numbers of `rows` and of their `tokens`.
        """
        counts = {**written, **self.counts}
        if not self.is_labelled:
            counts["training_rows"] = 0
        return counts

    def summary(self, manifest: ManifestT, seconds: float) -> Iterator[str]:
        """Yields the lines that are printed at the end. The first follows the name of the output.

        Args:
            manifest: manifest of the records.
            seconds: duration of the command.
        """
        yield f"{manifest.num_rows:,} rows, {manifest.num_tokens:,} tokens, {seconds:.1f} s"


class RowPacker:
    """Packs token ids as rows: `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    Args:
        pieces: the vocabulary.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._start, self._end, _ = SpecialTokenIds.from_vocabulary(pieces)

    def __call__(self, first: np.ndarray, *second: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns a row, and the position where its second segment begins.

        Args:
            first: token ids, int [T].
            *second: token ids of the second segment, if there is one.
        """
        parts: list[Sequence[int] | np.ndarray] = [[self._start]]
        for segment in (first, *second):
            parts += [segment, [self._end]]
        return np.concatenate(parts), 2 + len(first)


def write_task_records(
    maker: RowMaker[ManifestT],
    output: str,
    *,
    preset: str | None = None,
    vocabulary: str | None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    language: str | None = None,
    sequence_length: int,
    overwrite: bool = False,
) -> ManifestT:
    """Writes a directory of records, completely or not at all, and prints a summary.

    Args:
        maker: makes the rows.
        output: directory that is new or empty.
        preset: name of the preset to be fine-tuned; see `chosen_vocabulary`.
        vocabulary: as for `chosen_vocabulary`.
        lowercase: as for `chosen_vocabulary`.
        strip_accents: as for `chosen_vocabulary`.
        language: as for `chosen_vocabulary`.
        sequence_length: largest number of positions of a row.
        overwrite: whether earlier records of the same kind may be replaced.

    Returns:
        The manifest.

    Raises:
        BadInputError: the input, the preset or the vocabulary cannot be used, or the output exists
            or cannot be written.
        ConfigurationError: neither a preset nor a vocabulary is given, or both are.
        MismatchError: the vocabulary does not have the stated casing.
    """
    started = time.monotonic()
    manifest_class = maker.manifest_class
    kind = OutputKind(maker.title, manifest_class.file_name(), manifest_class.needed_files())
    target = Output(output, kind, overwrite=overwrite)
    output = target.check()
    own_preset = None if preset is None else converted_preset(preset, language=language)
    pieces, text_rules = chosen_vocabulary(
        preset=own_preset,
        vocabulary=vocabulary,
        lowercase=lowercase,
        strip_accents=strip_accents,
        language=language,
    )
    with target.written() as unfinished:
        manifest = _write_files(unfinished, maker, pieces, text_rules, sequence_length)
    first, *others = maker.summary(manifest, time.monotonic() - started)
    for line in (f"{output}: {first}", *others):
        print_line(line)
    name = manifest.shipped_config
    if own_preset is not None and 0 < PresetFiles(own_preset).hidden_dim <= _SMALL_WIDTH:
        name = manifest.small_config or name
    print_written(output, *_next_commands(manifest, output, preset or "PRESET", name))
    return manifest


def _next_commands(
    manifest: TaskManifest, output: str, preset: str, name: str | None
) -> Iterator[list[str]]:
    """Yields commands that use the records: `inspect`, and `finetune` or `predict`.

    Args:
        manifest: the manifest of the records.
        output: directory of the records.
        preset: name of the preset to be fine-tuned.
        name: name of the configuration to fine-tune with; `None` if none is shipped.
    """
    yield ["spanbert-tf", "inspect", output]
    if not manifest.num_training_rows:
        files = ["--data", output, "--output", "predictions"]
        yield ["spanbert-tf", "predict", "--preset", "PRESET", *files]
        return
    command = ["spanbert-tf", "finetune", "--config", name or "CONFIG"]
    if name is not None:
        differing = manifest.differing(load_task_config(name).data.model_dump())
        if differing:
            command.append("--set")
            command += [f"data.{key}={as_yaml(value)}" for key, value in differing.items()]
    yield [*command, "--preset", preset, "--data", output, "--output", "run"]


def _write_files(
    directory: str,
    maker: RowMaker[ManifestT],
    pieces: Sequence[str],
    text_rules: TextRules,
    sequence_length: int,
) -> ManifestT:
    """Writes all files to an empty directory, the manifest last, and returns the manifest."""
    manifest_class = maker.manifest_class
    rows = maker.rows(pieces, text_rules, sequence_length)
    path = os.path.join(directory, manifest_class.rows_file)
    counts = maker.counted(_write_rows(path, rows, token_id_dtype(len(pieces))))
    for name, lines in maker.lines.items():
        write_json_lines(os.path.join(directory, name), lines)
    text = "".join(f"{piece}\n" for piece in pieces)
    write_text(os.path.join(directory, VOCABULARY_FILE), text)
    manifest = manifest_class(
        vocabulary_hash=vocabulary_hash(pieces),
        vocabulary_size=len(pieces),
        **text_rules._asdict(),
        sequence_length=sequence_length,
        counts=counts,
        files=checksums(directory, sorted(os.listdir(directory))),
        version=manifest_class.records_version,
        **maker.described(),
    )
    write_text(os.path.join(directory, manifest.file_name()), manifest.to_json())
    return manifest


def _write_rows(path: str, rows: Iterable[Row], id_dtype: str) -> dict[str, int]:
    """Writes rows and their lengths; returns the numbers of rows and tokens."""
    lengths = []
    with record_writer(path) as write:
        for numbers, lists in rows:
            ids = lists[ROW_TOKEN_IDS].astype(np.dtype(id_dtype).newbyteorder("<"))
            lengths.append(len(ids))
            raw = {name: values.tobytes() for name, values in lists.items()}
            raw[ROW_TOKEN_IDS] = ids.tobytes()
            write(serialize_features(numbers, raw))
    save_lengths(lengths_path(path), lengths)
    return {"rows": len(lengths), "tokens": sum(lengths)}

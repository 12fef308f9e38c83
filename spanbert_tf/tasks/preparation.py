"""What the `prepare` of every task shares: one writer of rows, lengths, vocabulary and manifest."""

import abc
import collections
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from spanbert_tf.data.manifest import VOCABULARY_FILE, token_id_dtype, vocabulary_hash
from spanbert_tf.data.records import ROW_TOKEN_IDS, TaskManifest
from spanbert_tf.data.tfrecords import record_writer, save_lengths, serialize_features
from spanbert_tf.files.contents import checksums
from spanbert_tf.files.output import Output, OutputKind, write_text
from spanbert_tf.files.text_files import write_json_lines
from spanbert_tf.files.written import print_written
from spanbert_tf.tasks.table import load_task_config
from spanbert_tf.terminal import print_line
from spanbert_tf.text.chosen_vocabulary import chosen_vocabulary
from spanbert_tf.text.vocabulary import Casing, SpecialTokenIds


class Row(NamedTuple):
    """A row as it is stored, a `tf.train.Example`.

    Attributes:
        numbers: features of one int64, or of one float32.
        lists: features of one bytes value: arrays in the type that they are stored as. The token
            ids, which each row has, are stored in that of the vocabulary.
    """

    numbers: Mapping[str, int | float]
    lists: Mapping[str, np.ndarray]


class RowMaker(abc.ABC):
    """What a task's `prepare` makes of its input, for `write_task_records`.

    Attributes:
        info_class: class of the manifest, which names the files.
        title: of the records, for messages: `"records of questions"`.
        is_labelled: whether there is something to train.
        counts: what was met on the way, for the manifest.
        lines: the JSON lines of each file beside the rows, by its name.
    """

    info_class: ClassVar[type[TaskManifest]]
    title: ClassVar[str]
    is_labelled = True

    def __init__(self) -> None:
        self.counts: collections.Counter = collections.Counter()
        self.lines: dict[str, Iterable] = {name: [] for name in self.info_class.line_files}

    @abc.abstractmethod
    def rows(self, pieces: Sequence[str], casing: Casing, sequence_length: int) -> Iterator[Row]:
        """The rows, those that are trained first; fills in `counts` and `lines` on the way.

        Args:
            pieces: the vocabulary.
            casing: what is done to the text.
            sequence_length: positions of a row at most.
        """

    def described(self) -> dict[str, Any]:
        """The manifest's fields of the task's own; asked for when the rows are written."""
        return {}

    def counted(self, written: Mapping[str, int]) -> dict[str, int]:
        """The manifest's `counts`; `written`: `rows` and their `tokens`."""
        untrained = {} if self.is_labelled else {"training_rows": 0}
        return {**written, **self.counts, **untrained}

    def summary(self, info: TaskManifest, seconds: float) -> Iterator[str]:
        """What is printed at the end; the first line goes on after the output's name."""
        yield f"{info.num_rows:,} rows, {info.num_tokens:,} tokens, {seconds:.1f} s"


class RowPacker:
    """Packs token ids as rows: `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`.

    Args:
        pieces: the vocabulary.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self._start, self._end, _ = SpecialTokenIds.from_vocabulary(pieces)

    def __call__(self, first: np.ndarray, *second: np.ndarray) -> tuple[np.ndarray, int]:
        """A row, and where its second segment begins.

        Args:
            first: token ids, int [T].
            *second: token ids of the second segment, if there is one.
        """
        parts = [[self._start]]
        for segment in (first, *second):
            parts += [segment, [self._end]]
        return np.concatenate(parts), 2 + len(first)


def write_task_records(
    maker: RowMaker,
    output: str,
    *,
    preset: str | None = None,
    vocabulary: str | None = None,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
    sequence_length: int,
    overwrite: bool = False,
) -> TaskManifest:
    """Writes a directory of records; it appears whole or not at all. Prints a summary.

    Args:
        maker: makes the rows.
        output: directory, new or empty.
        preset: as for `chosen_vocabulary`; the preset that is to be fine-tuned.
        vocabulary: as for `chosen_vocabulary`.
        lowercase: as for `chosen_vocabulary`.
        strip_accents: as for `chosen_vocabulary`.
        sequence_length: positions of a row at most.
        overwrite: whether earlier records of the kind may be replaced.

    Returns:
        The manifest that was written.

    Raises:
        BadInputError: the input, the preset or the vocabulary cannot be used, or the output exists
            or cannot be written.
        ConfigurationError: neither a preset nor a vocabulary is given, or both are.
        MismatchError: the vocabulary is not of the stated case.
    """
    started = time.monotonic()
    info_class = maker.info_class
    kind = OutputKind(maker.title, info_class.file_name(), info_class.needed_files())
    output = Output(output, kind, overwrite=overwrite).check()
    pieces, casing = chosen_vocabulary(
        preset=preset, vocabulary=vocabulary, lowercase=lowercase, strip_accents=strip_accents
    )
    written: list[TaskManifest] = []

    def write(unfinished: str) -> None:
        written.append(_write_files(unfinished, maker, pieces, casing, sequence_length))

    with Output(output, kind, overwrite=overwrite).written() as unfinished:
        write(unfinished)
    (info,) = written
    first, *others = maker.summary(info, time.monotonic() - started)
    for line in (f"{output}: {first}", *others):
        print_line(line)
    print_written(output, *_next_commands(info, output, preset or "PRESET"))
    return info


def _next_commands(info: TaskManifest, output: str, preset: str) -> Iterator[list[str]]:
    """What is done with records next: a look at them, and training or, without labels, answers."""
    yield ["spanbert-tf", "inspect", output]
    if not info.num_training_rows:
        answers = ["--data", output, "--output", "predictions"]
        yield ["spanbert-tf", "predict", "--preset", "PRESET", *answers]
        return
    name, settings = info.shipped_config, []
    if name is not None:
        wanted = load_task_config(name).data.model_dump()
        differing = info.differing(wanted).items()
        settings = [f"data.{key}={_as_yaml(value)}" for key, value in differing]
    options = ["--config", name or "CONFIG", *(["--set", *settings] if settings else [])]
    options += ["--preset", preset, "--data", output, "--output", "run"]
    yield ["spanbert-tf", "finetune", *options]


def _as_yaml(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _write_files(
    directory: str, maker: RowMaker, pieces: Sequence[str], casing: Casing, sequence_length: int
) -> TaskManifest:
    """Fills an empty directory; the manifest, which is returned, comes last."""
    info_class = maker.info_class
    rows = maker.rows(pieces, casing, sequence_length)
    path = os.path.join(directory, info_class.rows_file)
    counts = maker.counted(_write_rows(path, rows, token_id_dtype(len(pieces))))
    for name, lines in maker.lines.items():
        write_json_lines(os.path.join(directory, name), lines)
    text = "".join(f"{piece}\n" for piece in pieces)
    write_text(os.path.join(directory, VOCABULARY_FILE), text)
    info = info_class(
        vocabulary_hash=vocabulary_hash(pieces),
        vocabulary_size=len(pieces),
        **casing._asdict(),
        sequence_length=sequence_length,
        counts=counts,
        files=checksums(directory, sorted(os.listdir(directory))),
        version=info_class.records_version,
        **maker.described(),
    )
    write_text(os.path.join(directory, info.file_name()), info.to_json())
    return info


def _write_rows(path: str, rows: Iterable[Row], id_dtype: str) -> dict[str, int]:
    """Writes rows and, beside them, their lengths; how many there are, and their tokens."""
    lengths = []
    with record_writer(path) as write:
        for numbers, lists in rows:
            ids = lists[ROW_TOKEN_IDS].astype(np.dtype(id_dtype).newbyteorder("<"))
            lengths.append(len(ids))
            stored = {**lists, ROW_TOKEN_IDS: ids}
            raw = {name: values.tobytes() for name, values in stored.items()}
            write(serialize_features(numbers, raw))
    save_lengths(path, lengths)
    return {"rows": len(lengths), "tokens": sum(lengths)}

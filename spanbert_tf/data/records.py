"""The records of a task: their manifest, and the class that reads them, without TensorFlow."""

import contextlib
import dataclasses
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from spanbert_tf.data.examples import Stored, find_damaged_record, named_damage
from spanbert_tf.data.manifest import VOCABULARY_FILE, Count, Manifest, token_id_dtype
from spanbert_tf.data.tfrecords import RecordFile, lengths_path, load_lengths
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.contents import Checksums, check_files, sha256
from spanbert_tf.files.text_files import read_json_lines

# Features of each row (a tf.train.Example). Lists are little-endian unsigned integers.
ROW_TOKEN_IDS = "token_ids"  # the row with [CLS] and [SEP], not padded; `token_id_dtype`
SECOND_START = "second_start"  # int64; position where the second segment begins
# With `segment_aware`, for each position of the row.
SEGMENT_POSITIONS = ("paragraph_indices", "sentence_indices", "token_indices")
POSITION_DTYPE = "uint32"

_ADVICE = "write the records again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskManifest(Manifest):
    """The common part of all tasks' manifests; a task derives a class with its own fields.

    Attributes:
        rows_file: name of the TFRecord file of the rows, a class attribute.
        line_files: files of JSON lines beside it, a class attribute: name → kind of a line and the
            name in `counts` of how many there are; `None` where nothing tells.
        needed_counts: names that `counts` must have, a class attribute.
        segment_aware_options: options of the task's `prepare` that write SegaBERT's positions, a
            class attribute; empty: there are none.
        counts: `rows`, their `tokens`, and `training_rows` if some rows are not for training. The
            rows to train on come first.
        files: checksums of the other files, all of them.
        segment_aware: whether rows hold SegaBERT's positions.
        version: `records_version` when they were written.
    """

    rows_file: ClassVar[str] = "rows.tfrecord"
    line_files: ClassVar[Mapping[str, tuple[Any, str | None]]] = {}
    needed_counts: ClassVar[tuple[str, ...]] = ("rows", "tokens")
    segment_aware_options: ClassVar[str] = ""

    counts: dict[str, Count]
    files: Checksums
    segment_aware: bool = False
    version: int = Manifest.records_version

    @property
    def num_rows(self) -> int:
        """Rows of all records."""
        return self.counts["rows"]

    @property
    def num_training_rows(self) -> int:
        """The number of rows to train on; they come first."""
        return self.counts.get("training_rows", self.num_rows)

    @property
    def is_labelled(self) -> bool:
        """Whether predictions can be scored: there are rows to train on, or no rows at all."""
        return self.num_training_rows > 0 or not self.num_rows

    @property
    def lack_of_labels(self) -> str:
        """The error message for records without labels, where `is_labelled` is false."""
        return "has no labels to score by, as a test set; `predict --data` takes it"

    @property
    def scoring_note(self) -> str | None:
        """A remark to print beside scores of these records; `None` if there is none."""
        return None

    @property
    def shipped_config(self) -> str | None:
        """The name of the shipped configuration that fine-tunes for such records, if one does."""
        return None

    @property
    def small_config(self) -> str | None:
        """The name of the shipped configuration for a small encoder on a CPU, if there is one."""
        return None

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows, special tokens counted."""
        return self.counts["tokens"]

    def fault(self) -> str | None:
        """Also reports missing counts and files, and more training rows than rows."""
        if missing := set(self.needed_counts) - self.counts.keys():
            return f"counts.{min(missing)}: is missing"
        if missing := set(self.needed_files()) - self.files.keys():
            return f"files: lacks {min(missing)}"
        if self.num_training_rows > self.num_rows:
            return "counts: more rows are trained than there are"
        return super().fault()

    def features(self) -> dict[str, Stored]:
        """Returns the task's own features of a packed row, beside those that all packed rows have.

        A list has a number for each position of the row, unless it says otherwise.
        """
        return {}

    def stored(self) -> dict[str, Stored]:
        """Returns all features of a row: how each is stored, and which numbers it may hold."""
        tokens = Stored(
            token_id_dtype(self.vocabulary_size),
            most=self.sequence_length,
            below=self.vocabulary_size,
        )
        row = {ROW_TOKEN_IDS: tokens, SECOND_START: Stored("int64")}
        if self.segment_aware:
            positions = Stored(POSITION_DTYPE, like=ROW_TOKEN_IDS, below=2**31)  # read as int32
            row |= dict.fromkeys(SEGMENT_POSITIONS, positions)
        for name, feature in self.features().items():
            if feature.is_list and feature.most is None:
                feature = feature._replace(most=ROW_TOKEN_IDS)
            row[name] = feature
        return row

    @classmethod
    def planned_fields(cls, data: Any) -> dict[str, Any]:
        """Returns values of the task's own fields for records that do not exist, for `plan`.

        Args:
            data: the section `data` of the task's configuration, a `RowsConfig`. Its values are
                fields of the manifest already.
        """
        return {}

    def describe(self) -> str:
        """Describes all records, for the first line of `inspect`."""
        text = f"{self.describe_rows()}, {self.text_rules.describe()}"
        text += f", vocabulary of {self.vocabulary_size:,}"
        if self.segment_aware:
            text += ", with SegaBERT's positions"
        return text

    def describe_rows(self) -> str:
        """Describes the rows in words."""
        return f"{self.task.replace('_', ' ')} in rows of up to {self.sequence_length}"

    @classmethod
    def needed_files(cls) -> tuple[str, ...]:
        """Lists the names of the files that `files` must describe."""
        rows = (cls.rows_file, lengths_path(cls.rows_file))
        return (*rows, *cls.line_files, VOCABULARY_FILE)


def fault_of_counts(label_counts: Sequence[int], labels: Sequence[str]) -> str | None:
    """Returns what is wrong with a manifest that has not one count for each label, or `None`."""
    if len(label_counts) == len(labels):
        return None
    return f"label_counts: are {len(label_counts)}, of {len(labels)} labels"


ManifestT = TypeVar("ManifestT", bound=TaskManifest)


class Records(os.PathLike, Generic[ManifestT]):
    """The records that `spanbert-tf prepare` wrote for a task. Only this class reads their files.

    The constructor compares all files with their checksums. A command opens its records once and
    passes them on; functions that take the path of the directory take them, too.

    Args:
        directory: directory of the records.
        manifest_class: class of their description.

    Attributes:
        directory: path of the directory.
        manifest: their description.

    Raises:
        BadInputError: a file is missing, damaged or not what the description says.
    """

    def __init__(self, directory: str | os.PathLike, manifest_class: type[ManifestT]) -> None:
        self.directory = os.fspath(directory)
        self.manifest = manifest_class.load(self.directory)
        check_files(self.directory, self.manifest.files)
        self._lines: dict[str, list] = {}

    @classmethod
    def of(
        cls, records: "str | os.PathLike | Records[Any]", manifest_class: type[ManifestT]
    ) -> "Records[ManifestT]":
        """Returns records that are open already as they are, and opens those of a path.

        Raises:
            BadInputError: as the constructor.
            MismatchError: they are those of another task.
        """
        if not isinstance(records, Records):
            return cls(records, manifest_class)
        if not isinstance(records.manifest, manifest_class):
            raise MismatchError(f"{records}: holds no records of {manifest_class.task}")
        return records

    def __fspath__(self) -> str:
        return self.directory

    def __str__(self) -> str:
        return self.directory

    def __repr__(self) -> str:
        return f"<{self.manifest.num_rows:,} rows of {self.manifest.task} in {self.directory}>"

    @functools.cached_property
    def digest(self) -> str:
        """A hexadecimal digest of the names and contents of all files."""
        name = self.manifest.file_name()
        digests = {file: written["sha256"] for file, written in self.manifest.files.items()}
        digests[name] = sha256(self._path(name))
        lines = "".join(f"{file}\0{digests[file]}\n" for file in sorted(digests))
        return hashlib.sha256(lines.encode()).hexdigest()

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """The entries in order of their ids.

        Raises:
            BadInputError: it cannot be read.
            MismatchError: it is not that of the description.
        """
        return self.manifest.vocabulary(self.directory)

    @functools.cached_property
    def rows(self) -> RecordFile:
        """The serialized rows, by number.

        Raises:
            BadInputError: they are damaged, or their number is not that of the description.
        """
        rows = RecordFile(self._path(self.manifest.rows_file))
        self._check_count(self.manifest.rows_file, len(rows), self.manifest.num_rows, "rows")
        return rows

    def lengths(self, *, training: bool = False) -> np.ndarray:
        """Reads the number of tokens of each row, int [rows].

        Args:
            training: whether to return only the rows to train on.

        Raises:
            BadInputError: they are damaged, not those of the description, or there is no row.
        """
        lengths = self._all_lengths
        manifest = self.manifest
        lengths = lengths[: manifest.num_training_rows] if training else lengths
        if not len(lengths):
            path = self._path(manifest.rows_file)
            raise BadInputError(f"{path}: holds no rows{' to train on' * training}")
        return lengths

    @functools.cached_property
    def _all_lengths(self) -> np.ndarray:
        manifest = self.manifest
        lengths = load_lengths(self._path(manifest.rows_file))
        self._check_count(manifest.rows_file, len(lengths), manifest.num_rows, "lengths of rows")
        if len(lengths) and min(lengths) < 1:
            raise BadInputError(
                f"{self._path(manifest.rows_file)}: has rows without tokens; {_ADVICE}"
            )
        self._check_count(manifest.rows_file, int(lengths.sum()), manifest.num_tokens, "tokens")
        return lengths

    def lines(self, name: str) -> list[Any]:
        """Reads the values of a file of JSON lines, which the description's `line_files` names.

        The list is cached: do not change it.

        Raises:
            BadInputError: a value has another type, or the description states another number.
        """
        if name not in self._lines:
            kind, count = self.manifest.line_files[name]
            lines = read_json_lines(self._path(name), kind)
            if count is not None:
                self._check_count(name, len(lines), self.manifest.counts.get(count, -1), "lines")
            self._lines[name] = lines
        return self._lines[name]

    def named_damage(self) -> contextlib.AbstractContextManager:
        """Names the damaged row if TensorFlow, which does not name it, fails to read one."""
        return named_damage(self.damage)

    def damage(self) -> BadInputError | None:
        """Returns an error that names the first damaged row; every row is read."""
        return find_damaged_record(
            self._path(self.manifest.rows_file),
            self.manifest.stored(),
            num_records=self.manifest.num_rows,
            info_file=self.manifest.file_name(),
            lengths=(ROW_TOKEN_IDS, self._all_lengths),
        )

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _check_count(self, name: str, found: int, stated: int, unit: str) -> None:
        if found != stated:
            raise BadInputError(
                f"{self._path(name)}: holds {found:,} {unit}, and "
                f"{self.manifest.file_name()} counts {stated:,}; {_ADVICE}"
            )

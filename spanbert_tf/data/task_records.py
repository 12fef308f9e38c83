"""The records of a task, and the one door to them. Nothing here needs TensorFlow."""

import functools
import hashlib
import os
from typing import Any, Generic, Self, TypeVar

import numpy as np

from spanbert_tf.data.row_lengths import load_lengths
from spanbert_tf.data.rows_info import RowsInfo
from spanbert_tf.data.schema import VOCABULARY_FILE, vocabulary_hash
from spanbert_tf.data.tfrecords import RecordFile
from spanbert_tf.errors import BadInputError, MismatchError
from spanbert_tf.files.contents import check_files, sha256
from spanbert_tf.files.text_files import read_json_lines
from spanbert_tf.text.vocabulary import load_vocabulary

Info = TypeVar("Info", bound=RowsInfo)
_ADVICE = "write the records again"


class Records(os.PathLike, Generic[Info]):
    """What `spanbert-tf prepare` wrote for a task; no file of it is read but through this.

    Opening compares all files with their checksums, once: a command opens its records and hands
    them on. Wherever the path of the directory is taken, they stand for it.

    Args:
        directory: directory of the records.
        info_class: class of their description.

    Attributes:
        directory: path of the directory.
        info: their description.

    Raises:
        BadInputError: a file is missing, damaged or not what the description says.
    """

    def __init__(self, directory: str | os.PathLike, info_class: type[Info]) -> None:
        self.directory = os.fspath(directory)
        self.info = info_class.load(self.directory)
        check_files(self.directory, self.info.files)
        self._lines: dict[str, list] = {}

    @classmethod
    def of(cls, records: "str | os.PathLike | Records", info_class: type[Info]) -> Self:
        """Records that are open already as they are; those of a path are opened.

        Raises:
            BadInputError: as the constructor.
            MismatchError: they are those of another task.
        """
        if not isinstance(records, Records):
            return cls(records, info_class)
        if not isinstance(records.info, info_class):
            raise MismatchError(f"{records}: holds no records of {info_class.task}")
        return records

    def __fspath__(self) -> str:
        return self.directory

    def __str__(self) -> str:
        return self.directory

    def __repr__(self) -> str:
        return f"<{self.info.num_rows:,} rows of {self.info.task} in {self.directory}>"

    @functools.cached_property
    def digest(self) -> str:
        """A hexadecimal digest of the names and contents of all files."""
        name = self.info.file_name()
        digests = {file: written["sha256"] for file, written in self.info.files.items()}
        digests[name] = sha256(self._path(name))
        lines = "".join(f"{file}\0{digests[file]}\n" for file in sorted(digests))
        return hashlib.sha256(lines.encode()).hexdigest()

    @functools.cached_property
    def vocabulary(self) -> list[str]:
        """The entries in order of their ids.

        Raises:
            BadInputError: it is none, or not that of the description.
        """
        path, info = self._path(VOCABULARY_FILE), self.info
        vocabulary = load_vocabulary(path)
        found = (len(vocabulary), vocabulary_hash(vocabulary))
        if found != (info.vocabulary_size, info.vocabulary_hash):
            raise BadInputError(
                f"{path}: not the vocabulary of {info.file_name()} (vocabulary_size, "
                f"vocabulary_hash); {_ADVICE}"
            )
        return vocabulary

    @functools.cached_property
    def rows(self) -> RecordFile:
        """The serialized rows, by number.

        Raises:
            BadInputError: they are damaged, or not as many as the description says.
        """
        rows = RecordFile(self._path(self.info.rows_file))
        self._check_count(self.info.rows_file, len(rows), self.info.num_rows, "rows")
        return rows

    def lengths(self, *, training: bool = False) -> np.ndarray:
        """Tokens of each row, int [rows].

        Args:
            training: whether the rows that are not trained are left out.

        Raises:
            BadInputError: they are damaged, not those of the description, or there is no row.
        """
        lengths, info = self._all_lengths, self.info
        lengths = lengths[: info.num_training_rows] if training else lengths
        if not len(lengths):
            path = self._path(info.rows_file)
            raise BadInputError(f"{path}: holds no rows{' to train on' * training}")
        return lengths

    @functools.cached_property
    def _all_lengths(self) -> np.ndarray:
        info = self.info
        lengths = load_lengths(self._path(info.rows_file))
        self._check_count(info.rows_file, len(lengths), info.num_rows, "lengths of rows")
        if len(lengths) and min(lengths) < 1:
            raise BadInputError(f"{self._path(info.rows_file)}: has rows without tokens; {_ADVICE}")
        self._check_count(info.rows_file, int(lengths.sum()), info.num_tokens, "tokens")
        return lengths

    def lines(self, name: str) -> list[Any]:
        """The values of a file of JSON lines, which the description's `line_files` names.

        They are kept: leave them as they are.

        Raises:
            BadInputError: one is no such value, or there are more or fewer than was counted.
        """
        if name not in self._lines:
            kind, count = self.info.line_files[name]
            lines = read_json_lines(self._path(name), kind)
            if count is not None:
                self._check_count(name, len(lines), self.info.counts.get(count, -1), "lines")
            self._lines[name] = lines
        return self._lines[name]

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def _check_count(self, name: str, found: int, stated: int, unit: str) -> None:
        if found != stated:
            raise BadInputError(
                f"{self._path(name)}: holds {found:,} {unit}, and {self.info.file_name()} counts "
                f"{stated:,}; {_ADVICE}"
            )

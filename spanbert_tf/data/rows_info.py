"""The description of a task's records, `TASK_info.json`. Nothing here needs TensorFlow."""

import dataclasses
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Lt

from spanbert_tf.data.row_lengths import lengths_path
from spanbert_tf.data.schema import VOCABULARY_FILE
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.contents import Checksums, regular_size
from spanbert_tf.files.kinds import refuse_other_records
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.text.vocabulary import Casing

# Features of each row (a tf.train.Example). Lists are little-endian unsigned integers.
ROW_TOKEN_IDS = "token_ids"  # the row with [CLS] and [SEP], not padded; `token_id_dtype`
SECOND_START = "second_start"  # int64; position where the second segment begins
# With `segment_aware`, for each position of the row.
SEGMENT_POSITIONS = ("paragraph_indices", "sentence_indices", "token_indices")
POSITION_DTYPE = "uint32"

_ADVICE = "write the records again"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsInfo:
    """What all tasks' descriptions have in common; a task derives a class with its own fields.

    Attributes:
        task: name of the task, a class attribute.
        rows_file: name of the TFRecord file of the rows, a class attribute.
        line_files: files of JSON lines beside it, a class attribute: name → kind of a line and the
            name in `counts` of how many there are; `None` where nothing tells.
        records_version: version of the task's records, a class attribute; others are refused.
        needed_counts: names that `counts` must have, a class attribute.
        segment_aware_options: options of the task's `prepare` that write SegaBERT's positions, a
            class attribute; empty: there are none.
        vocabulary_hash: hash of `vocab.txt`, as in `schema.vocabulary_hash`.
        vocabulary_size: entries of the vocabulary.
        lowercase: whether text was lower-cased.
        sequence_length: positions of a row at most.
        counts: numbers of what was read and written: `rows`, their `tokens` and, where some rows
            are not trained, `training_rows`, which are the first ones.
        segment_aware: whether rows hold SegaBERT's positions.
        files: checksums of the other files, all of them.
        strip_accents: whether accents were stripped.
        version: `records_version` when they were written.
    """

    task: ClassVar[str]
    rows_file: ClassVar[str] = "rows.tfrecord"
    records_version: ClassVar[int] = 1
    line_files: ClassVar[Mapping[str, tuple[Any, str | None]]] = {}
    needed_counts: ClassVar[tuple[str, ...]] = ("rows", "tokens")
    segment_aware_options: ClassVar[str] = ""
    __pydantic_config__: ClassVar[dict] = {"extra": "forbid"}

    vocabulary_hash: str
    vocabulary_size: Annotated[int, Gt(0), Lt(2**31)]
    lowercase: bool
    sequence_length: Annotated[int, Ge(3), Lt(2**16)]
    counts: dict[str, Annotated[int, Ge(0), Lt(2**63)]]
    files: Checksums
    segment_aware: bool = False
    strip_accents: bool
    version: int = 1

    @property
    def casing(self) -> Casing:
        """What was done to the text."""
        return Casing.of(self.lowercase, self.strip_accents)

    @property
    def num_rows(self) -> int:
        """Rows of all records."""
        return self.counts["rows"]

    @property
    def num_training_rows(self) -> int:
        """Rows that are trained, the first ones."""
        return self.counts.get("training_rows", self.num_rows)

    @property
    def is_labelled(self) -> bool:
        """Whether predictions can be scored; a task says so where test sets have no labels."""
        return True

    @property
    def lack_of_labels(self) -> str:
        """What is wrong, and what to do, where `is_labelled` is false."""
        return "has no labels to score by, as a test set; `predict --data` takes it"

    @property
    def scoring_note(self) -> str | None:
        """What people must know of scores for these records, where there is anything."""
        return None

    @property
    def num_tokens(self) -> int:
        """Tokens of all rows, special tokens counted."""
        return self.counts["tokens"]

    @classmethod
    def file_name(cls) -> str:
        """The name of the description in a directory of records."""
        return info_file(cls.task)

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    def fault(self) -> str | None:
        """What in it contradicts itself, in words; a task looks at its own fields."""
        if self.num_training_rows > self.num_rows:
            return "counts: more rows are trained than there are"
        if self.strip_accents and not self.lowercase:
            return "strip_accents: is true, and text is cased"
        return None

    @classmethod
    def needed_files(cls) -> tuple[str, ...]:
        """The names of the files that `files` must tell of."""
        rows = (cls.rows_file, lengths_path(cls.rows_file))
        return (*rows, *cls.line_files, VOCABULARY_FILE)

    @classmethod
    def load(cls, directory: str) -> Self:
        """Reads the file in a directory; `task_records.Records` alone calls this.

        Raises:
            BadInputError: it is missing, no such description, or of another version.
        """
        refuse_other_records(directory, cls.task)
        path = os.path.join(directory, cls.file_name())
        try:
            regular_size(path)
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(
                f"{path}: cannot be read; write records with `spanbert-tf prepare`"
            ) from error
        info = parse_json(text, cls, path, _ADVICE)
        if missing := set(cls.needed_counts) - info.counts.keys():
            raise BadInputError(f"{path}: counts.{min(missing)}: is missing; {_ADVICE}")
        if missing := set(cls.needed_files()) - info.files.keys():
            raise BadInputError(f"{path}: files: lacks {min(missing)}; {_ADVICE}")
        if fault := info.fault():
            raise BadInputError(f"{path}: {fault}; {_ADVICE}")
        if info.version != cls.records_version:
            raise BadInputError(f"{path}: version is not {cls.records_version}; {_ADVICE}")
        return info


def info_file(task: str) -> str:
    """The name of the file that describes the records of a task."""
    return f"{task}_info.json"

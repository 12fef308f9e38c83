"""Reads labelled texts from TSV, CSV and JSON lines.

A row whose number of columns differs from the header's is refused. Files of GLUE are read as they
are distributed: separated by tabs, without quotes, with a header (only CoLA's labelled files have
none). A file without a column for the label is a test set.
"""

import contextlib
import csv
import dataclasses
import io
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import parse_json, read_text_file, refuse_json_list
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, SCORE_RANGE, GlueTask

FORMATS = ("csv", "tsv", "jsonl")
_MAX_FIELD = 1 << 27  # characters of a field; the default of `csv` is 2 ** 17
_LARGEST = float.fromhex("0x1.fffffep127")  # largest float32; labels are stored as float32


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """A text, or a pair of texts.

    Attributes:
        line: its line in the file, from 1.
        texts: one text, or two.
        label: name of the class, or number of a regression; `None` if there is no label.
    """

    line: int
    texts: tuple[str, ...]
    label: str | float | None


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """The texts of a file. Either all of them have labels, or none has.

    Attributes:
        path: path of the file.
        examples: the texts in the order of the file.
        labels: names of the classes in the order of their numbers; for a regression, the name of
            the number.
        is_pair: whether the texts are pairs.
        is_regression: whether labels are numbers.
        dataset: name of the GLUE task.
        num_skipped: number of lines that were left out.
    """

    path: str
    examples: list[LabelledText]
    labels: tuple[str, ...]
    is_pair: bool
    is_regression: bool = False
    dataset: str | None = None
    num_skipped: int = 0

    def check(self) -> None:
        """Refuses an empty file, labels for only some texts, and unknown labels."""
        if not self.examples:
            raise BadInputError(f"{self.path}: holds no texts")
        first = self.examples[0]
        for example in self.examples:
            if (example.label is None) != (first.label is None):
                has, had = ("no", "one") if example.label is None else ("a", "none")
                raise BadInputError(
                    f"{self.path}: line {example.line}: has {has} label, line {first.line} has "
                    f"{had}; prepare texts without labels alone"
                )
        for example in self.examples:
            if isinstance(example.label, str) and example.label not in self.labels:
                raise BadInputError(
                    f"{self.path}: line {example.line}: label {example.label!r} is none of "
                    f"{', '.join(self.labels)}"
                )


def _parse_number(text: object, place: str) -> float:
    """Parses the number of a regression."""
    number = math.nan
    if not isinstance(text, bool):
        with contextlib.suppress(ValueError):
            number = float(str(text))
    if not math.isfinite(number):
        raise BadInputError(f"{place}: label {text!r} is no number")
    if abs(number) > _LARGEST:
        raise BadInputError(f"{place}: label {text!r} is infinite in float32; scale the labels")
    return number


class Line(NamedTuple):
    """A row of a table."""

    number: int  # number of its first line in the file, from 1
    cells: list[str]


class Row(NamedTuple):
    """A row with the names of its columns."""

    number: int  # as for `Line`
    values: Mapping[str, object]  # column → text; in JSON, any value


def read_tsv(path: str) -> list[Line]:
    """Reads lines of columns that are separated by tabs. Quotes have no meaning."""
    lines = _text(path).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise BadInputError(f"{path}: is empty")
    cells = (line.removesuffix("\r").split("\t") for line in lines)
    return [Line(number, row) for number, row in enumerate(cells, start=1)]


def read_csv(path: str) -> list[Line]:
    """Reads rows of columns that are separated by commas and quoted as in RFC 4180.

    Raises:
        BadInputError: as `read_tsv`; or a quote is not closed, or text follows a closing one.
    """
    csv.field_size_limit(_MAX_FIELD)
    reader = csv.reader(io.StringIO(_text(path), newline=""), strict=True)
    lines, first = [], 1
    try:
        for cells in reader:
            if cells:
                lines.append(Line(first, cells))
            first = reader.line_num + 1
    except csv.Error as error:
        raise BadInputError(
            f"{path}: line {first}: is no CSV ({error}); quote texts that hold quotes, and double "
            "those"
        ) from error
    if not lines:
        raise BadInputError(f"{path}: is empty")
    return lines


def with_header(path: str, lines: Sequence[Line], names: Iterable[str]) -> list[Row]:
    """Names the columns of rows by the first row."""
    header = lines[0].cells
    for name in names:
        if header.count(name) != 1:
            what = "has no column" if name not in header else "has more than one column"
            raise BadInputError(
                f"{path}: line {lines[0].number}: {what} {name!r}; it has {', '.join(header)}"
            )
    for line in lines[1:]:
        _check_width(path, line, len(header))
    return [Row(line.number, dict(zip(header, line.cells, strict=True))) for line in lines[1:]]


def _check_width(path: str, line: Line, width: int) -> None:
    """Refuses a row with another number of columns."""
    if len(line.cells) != width:
        raise BadInputError(
            f"{path}: line {line.number}: has {len(line.cells)} columns, {width} are expected; "
            "mend the line: its columns would be shifted"
        )


def _read_jsonl(path: str, names: Iterable[str]) -> list[Row]:
    """Reads the objects of JSON lines. Empty lines at the end are skipped."""
    rows, lines = [], read_tsv(path)
    refuse_json_list(path, lines[0].cells[0])
    for number, cells in lines:
        place = f"{path}: line {number}"
        values = parse_json("\t".join(cells), dict[str, object], place)
        for name in names:
            if name not in values:
                raise BadInputError(f"{place}: has no {name!r}; it has {', '.join(values)}")
        rows.append(Row(number, values))
    return rows


def _text(path: str) -> str:
    text = read_text_file(path)
    if (place := text.find("\0")) >= 0:
        number = text.count("\n", 0, place) + 1
        raise BadInputError(f"{path}: line {number}: holds a NUL; remove it")
    return text


def read_labelled_texts(
    path: str,
    text_columns: Sequence[str],
    label_column: str | None,
    *,
    is_regression: bool = False,
    labels: Sequence[str] | None = None,
    file_format: str | None = None,
) -> LabelledTexts:
    """Reads a table with a header, or JSON lines.

    Args:
        path: path of the file, compressed by gzip or not.
        text_columns: column of the text, or columns of both texts of a pair.
        label_column: column of the label; `None` to read no labels.
        is_regression: whether labels are numbers.
        labels: the classes in the order of their numbers; `None` for those of the file, sorted.
        file_format: one of `FORMATS`; `None` to choose by the name of the file.

    Raises:
        BadInputError: the file cannot be used; the message names the line.
    """
    names = [*text_columns, *([label_column] if label_column else [])]
    rows = _read_rows(path, names, file_format or _format_of(path))
    examples = [
        LabelledText(
            row.number,
            tuple(_cell_text(path, row, name) for name in text_columns),
            _label(path, row, label_column, is_regression) if label_column else None,
        )
        for row in rows
    ]
    if is_regression:
        labels = (label_column or "score",)
    elif labels is None:
        labels = sorted({str(example.label) for example in examples if label_column})
    if not labels or (len(labels) == 1 and not is_regression):
        raise BadInputError(
            f"{path}: {_describe_labels(labels, label_column)}; give at least two classes, or "
            "--labels-of the training records"
        )
    return LabelledTexts(
        path,
        examples,
        tuple(labels),
        is_pair=len(text_columns) == 2,
        is_regression=is_regression,
    )


def _describe_labels(labels: Sequence[str], label_column: str | None) -> str:
    if not label_column:
        return "no --label-column is given"
    return f"all labels are {labels[0]!r}" if labels else "holds no labels"


def _format_of(path: str) -> str:
    ending = os.path.basename(path).removesuffix(".gz").rpartition(".")[2].lower()
    ending = {"json": "jsonl", "ndjson": "jsonl", "tab": "tsv"}.get(ending, ending)
    if ending not in FORMATS:
        read_text_file(path)  # its content may tell more: Parquet, or a path that leads nowhere
        raise BadInputError(f"{path}: its name tells no format; give --format {'|'.join(FORMATS)}")
    return ending


def _read_rows(path: str, names: list[str], file_format: str) -> list[Row]:
    if file_format == "jsonl":
        return _read_jsonl(path, names)
    lines = read_csv(path) if file_format == "csv" else read_tsv(path)
    return with_header(path, lines, names)


def _cell_text(path: str, row: Row, name: str) -> str:
    value = row.values[name]
    if not isinstance(value, str):
        raise BadInputError(f"{path}: line {row.number}: {name} is no text but {value!r}")
    return value


def _label(path: str, row: Row, name: str, is_regression: bool) -> str | float:
    place, value = f"{path}: line {row.number}", row.values[name]
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadInputError(
            f"{place}: has no label in {name!r}; for texts without any leave out --label-column"
        )
    if is_regression:
        return _parse_number(value, place)
    if isinstance(value, float) or not isinstance(value, str | int):
        raise BadInputError(f"{place}: label {value!r} is no name; for numbers give --regression")
    return str(value).strip()


def read_glue(path: str, task: str) -> LabelledTexts:
    """Reads a file of a GLUE task.

    Args:
        path: path of `train.tsv`, `dev.tsv` or `test.tsv`. MNLI's mismatched files are recognised
            by their names; they become a data set of their own, `mnli_mm`.
        task: key of `GLUE_TASKS` other than `mnli_mm`.

    Raises:
        BadInputError: the file is not as GLUE has it; the message names the line.
    """
    if task == "mnli" and "mismatched" in os.path.basename(path):
        task = "mnli_mm"
    facts, lines = GLUE_TASKS[task], read_tsv(path)
    lines, num_skipped = _without_short_rows(facts, lines)
    rows = _glue_rows(path, facts, lines)
    is_labelled = facts.label is not None and bool(rows) and facts.label in rows[0].values
    examples = [
        LabelledText(
            row.number,
            tuple(str(row.values[name]) for name in facts.texts),
            _glue_label(path, facts, row) if is_labelled else None,
        )
        for row in rows
    ]
    texts = LabelledTexts(
        path,
        examples,
        facts.labels or (str(facts.label),),
        is_pair=facts.is_pair,
        is_regression=facts.is_regression,
        dataset=task,
        num_skipped=num_skipped,
    )
    if num_skipped and not is_labelled:
        raise BadInputError(
            f"{path}: {num_skipped:,} rows of this test set have too few columns; each row must "
            "be predicted: copy the file again"
        )
    return texts


def _without_short_rows(facts: GlueTask, lines: list[Line]) -> tuple[list[Line], int]:
    if not facts.skips_short_rows:
        return lines, 0
    kept = [line for line in lines if len(line.cells) >= len(lines[0].cells)]
    return kept, len(lines) - len(kept)


def _glue_rows(path: str, facts: GlueTask, lines: list[Line]) -> list[Row]:
    if not facts.columns or set(facts.texts) <= set(lines[0].cells):
        return with_header(path, lines, facts.texts)
    for line in lines:
        _check_width(path, line, len(facts.columns))
    return [Row(line.number, dict(zip(facts.columns, line.cells, strict=True))) for line in lines]


def _glue_label(path: str, facts: GlueTask, row: Row) -> str | float:
    assert facts.label is not None  # only files with labels are read by this
    label = str(row.values[facts.label])
    if not facts.is_regression:
        return label
    place = f"{path}: line {row.number}"
    number, (lowest, highest) = _parse_number(label, place), SCORE_RANGE
    if not lowest <= number <= highest:
        raise BadInputError(f"{place}: score {label} is not from {lowest:g} to {highest:g}")
    return number

"""Reads labelled texts from tables and from the files of GLUE.

Files of GLUE are read as they are distributed: columns separated by tabs, no quoting, and a header,
which only CoLA's labelled files lack. A file without a label column is a test set.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.tables import (
    Dialect,
    Row,
    check_width,
    read_lists,
    read_rows,
    shown_names,
)
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, SCORE_RANGE, GlueTask

_LARGEST = float.fromhex("0x1.fffffep127")  # largest float32; labels are stored as float32


@dataclasses.dataclass(frozen=True)
class LabelledText:
    """A text, or a pair of texts.

    Attributes:
        line: number of its line, row or entry in the file, from 1.
        texts: one text, or the two texts of a pair.
        label: name of the class, or the number that a regression predicts; `None` without a label.
    """

    line: int
    texts: tuple[str, ...]
    label: str | float | None


@dataclasses.dataclass(frozen=True)
class LabelledTexts:
    """The texts of a file. Either all of them have a label, or none of them has one.

    Attributes:
        path: path of the file.
        examples: the texts in the order of the file.
        labels: names of the classes in the order of their ids; for a regression, the name of the
            number.
        is_pair: whether the texts are pairs.
        is_regression: whether labels are numbers.
        dataset: name of the GLUE task; `None` for other data.
        num_skipped: number of lines that were skipped.
        unit: what `LabelledText.line` counts: `"line"`, `"row"` or `"entry"`.
    """

    path: str
    examples: list[LabelledText]
    labels: tuple[str, ...]
    is_pair: bool
    is_regression: bool = False
    dataset: str | None = None
    num_skipped: int = 0
    unit: str = "line"

    def check(self) -> None:
        """Raises `BadInputError` without texts, if only some have labels, or if one is unknown."""
        if not self.examples:
            raise BadInputError(f"{self.path}: contains no texts")
        first = self.examples[0]
        for example in self.examples:
            if (example.label is None) != (first.label is None):
                has, had = ("no", "one") if example.label is None else ("a", "none")
                raise BadInputError(
                    f"{self.path}: {self.unit} {example.line}: has {has} label, {self.unit} "
                    f"{first.line} has {had}; put texts without labels into a file of their own"
                )
        for example in self.examples:
            if isinstance(example.label, str) and example.label not in self.labels:
                raise BadInputError(
                    f"{self.path}: {self.unit} {example.line}: label {example.label!r} is not one "
                    f"of {', '.join(self.labels)}"
                )


def _parse_number(text: object, place: str) -> float:
    """Parses the label of a regression."""
    number = math.nan
    if not isinstance(text, bool):
        with contextlib.suppress(ValueError):
            number = float(str(text))
    if not math.isfinite(number):
        raise BadInputError(f"{place}: label {text!r} is not a number")
    if abs(number) > _LARGEST:
        raise BadInputError(f"{place}: label {text!r} is too large for float32; scale the labels")
    return number


class Line(NamedTuple):
    """A row of a file of GLUE."""

    number: int  # number of the line in the file, from 1
    cells: list[str]


def read_tsv(path: str) -> list[Line]:
    """Reads a table whose columns are separated by tabs. Quotes have no special meaning."""
    return [Line(*each) for each in read_lists(path, Dialect("\t", has_quotes=False))]


def with_header(path: str, lines: Sequence[Line], names: Iterable[str]) -> list[Row]:
    """Names the columns after the first line; `names` must be among them, once each."""
    header = lines[0].cells
    for name in names:
        if header.count(name) != 1:
            what = "has no column" if name not in header else "has more than one column"
            raise BadInputError(
                f"{path}: line {lines[0].number}: {what} {name!r}; it has {shown_names(header)}"
            )
    return _named(path, lines[1:], header)


def _named(path: str, lines: Iterable[Line], names: Sequence[str]) -> list[Row]:
    rows = []
    for number, cells in lines:
        check_width(path, number, cells, len(names))
        rows.append(Row(path, "line", number, dict(zip(names, cells, strict=True))))
    return rows


def read_labelled_texts(
    path: str,
    text_columns: Sequence[str],
    label_column: str | None,
    *,
    is_regression: bool = False,
    labels: Sequence[str] | None = None,
) -> LabelledTexts:
    """Reads labelled texts from a table in any format of `files.tables`.

    Args:
        path: path of the file.
        text_columns: name of the column of the text, or of the two columns of a pair.
        label_column: name of the column of the label; `None` for texts without labels.
        is_regression: whether labels are numbers.
        labels: names of the classes in the order of their ids; by default the labels of the file,
            sorted.

    Raises:
        BadInputError: a column is missing, or a row has no text or no valid label; the message
            names the row.
    """
    names = [*text_columns, *([label_column] if label_column else [])]
    rows = list(read_rows(path, names))
    examples = []
    for row in rows:
        texts = tuple(_cell_text(row, name) for name in text_columns)
        label = _label(row, label_column, is_regression) if label_column else None
        examples.append(LabelledText(row.number, texts, label))
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
        unit=rows[0].unit if rows else "row",
    )


def _describe_labels(labels: Sequence[str], label_column: str | None) -> str:
    if not label_column:
        return "no --label-column is given"
    return f"all labels are {labels[0]!r}" if labels else "holds no labels"


def _cell_text(row: Row, name: str) -> str:
    value = row.values[name]
    if not isinstance(value, str):
        raise BadInputError(f"{row.place}: {name} must be text, but is {value!r}")
    return value


def _label(row: Row, name: str, is_regression: bool) -> str | float:
    place = row.place
    value = row.values[name]
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadInputError(
            f"{place}: has no label in {name!r}; if no text has one, leave out --label-column"
        )
    if is_regression:
        return _parse_number(value, place)
    if isinstance(value, float) or not isinstance(value, str | int):
        raise BadInputError(
            f"{place}: label {value!r} is not a class name; for numbers give --regression"
        )
    return str(value).strip()


def read_glue(path: str, task: str) -> LabelledTexts:
    """Reads a file of a GLUE task as it is distributed.

    Args:
        path: path of `train.tsv`, `dev.tsv` or `test.tsv`. MNLI's mismatched files are recognized
            by their names and become the data set `mnli_mm`.
        task: key of `GLUE_TASKS` other than `mnli_mm`.

    Raises:
        BadInputError: the file differs from GLUE's format; the message names the line.
    """
    if task == "mnli" and "mismatched" in os.path.basename(path):
        task = "mnli_mm"
    facts = GLUE_TASKS[task]
    lines = read_tsv(path)
    lines, num_skipped = _without_short_rows(facts, lines)
    rows = _glue_rows(path, facts, lines)
    is_labelled = facts.label is not None and bool(rows) and facts.label in rows[0].values
    examples = []
    for row in rows:
        columns = tuple(str(row.values[name]) for name in facts.texts)
        label = _glue_label(facts, row) if is_labelled else None
        examples.append(LabelledText(row.number, columns, label))
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
            f"{path}: {num_skipped:,} rows of this test set have too few columns, but every row "
            "needs a prediction; download the file again"
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
    return _named(path, lines, facts.columns)


def _glue_label(facts: GlueTask, row: Row) -> str | float:
    assert facts.label is not None  # called only for files with labels
    label = str(row.values[facts.label])
    if not facts.is_regression:
        return label
    number = _parse_number(label, row.place)
    lowest, highest = SCORE_RANGE
    if not lowest <= number <= highest:
        raise BadInputError(f"{row.place}: score {label} is not between {lowest:g} and {highest:g}")
    return number

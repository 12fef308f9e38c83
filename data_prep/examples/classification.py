"""Anyone's own texts with labels: `spanbert-tf prepare classification`."""

import os
from collections.abc import Sequence

from data_prep.examples.labelled_texts import LabelledText, LabelledTexts, parse_number
from data_prep.examples.text_tables import (
    FORMATS,
    Row,
    read_csv,
    read_jsonl,
    read_tsv,
    with_header,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_text_file


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
        labels: the classes in the order of their numbers; `None`: those of the file, sorted.
        file_format: one of `FORMATS`; `None`: by the file's name.

    Raises:
        BadInputError: the file cannot be used; the message names the line.
    """
    names = [*text_columns, *([label_column] if label_column else [])]
    rows = _read_rows(path, names, file_format or _format_of(path))
    examples = [
        LabelledText(
            row.number,
            tuple(_text(path, row, name) for name in text_columns),
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
        return read_jsonl(path, names)
    lines = read_csv(path) if file_format == "csv" else read_tsv(path)
    return with_header(path, lines, names)


def _text(path: str, row: Row, name: str) -> str:
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
        return parse_number(value, place)
    if isinstance(value, float) or not isinstance(value, str | int):
        raise BadInputError(f"{place}: label {value!r} is no name; for numbers give --regression")
    return str(value).strip()

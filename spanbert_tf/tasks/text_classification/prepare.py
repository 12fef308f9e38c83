"""`spanbert-tf prepare classification` and `prepare glue`, and what they read.

Anyone's own texts with labels; and GLUE's files as it distributes them: tab-separated without
quotes, columns found by their header, which only CoLA's labelled files lack. A file without the
label's column is a test set.
"""

import os
from collections.abc import Sequence

import click

from spanbert_tf.command_line import (
    EXISTING_DIRECTORY,
    WritingCommand,
    record_options_with,
    segment_aware_option,
)
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.text_files import read_text_file
from spanbert_tf.tasks.text_classification.files import (
    FORMATS,
    LabelledText,
    LabelledTexts,
    Line,
    Row,
    check_width,
    parse_number,
    read_csv,
    read_jsonl,
    read_tsv,
    with_header,
)
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, SCORE_RANGE, GlueTask


@click.command("classification", cls=WritingCommand)
@record_options_with(sequence_length=128)
@segment_aware_option
@click.option("--text-column", required=True, metavar="NAME")
@click.option("--text-pair-column", metavar="NAME", help="Column of the second text of a pair.")
@click.option("--label-column", metavar="NAME", help="Leave it out where there are no labels.")
@click.option("--regression", "is_regression", is_flag=True, help="Labels are numbers.")
@click.option(
    "--labels-of",
    type=EXISTING_DIRECTORY,
    metavar="RECORDS",
    help="The training records, whose classes and no others may occur.",
)
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    help="Where the file's name does not tell.",
)
def prepare_classification(
    input_path: str,
    output: str,
    text_column: str,
    text_pair_column: str | None,
    label_column: str | None,
    is_regression: bool,
    labels_of: str | None,
    file_format: str | None,
    **options: object,
) -> None:
    """Write records of labelled texts, or pairs of texts, from CSV, TSV or JSON lines."""
    if is_regression and labels_of:
        raise click.UsageError("--regression has no classes; leave out --labels-of")
    from spanbert_tf.tasks.text_classification.rows import load_labels, write_labelled_texts

    texts = read_labelled_texts(
        input_path,
        [text_column, *([text_pair_column] if text_pair_column else [])],
        label_column,
        is_regression=is_regression,
        labels=load_labels(labels_of) if labels_of else None,
        file_format=file_format,
    )
    write_labelled_texts(texts, output, **options)


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


@click.command("glue", cls=WritingCommand)
@click.option(
    "--task",
    required=True,
    type=click.Choice([name for name in GLUE_TASKS if name != "mnli_mm"]),
    help="mnli takes the mismatched files, too, by their names.",
)
@record_options_with(sequence_length=128)
@segment_aware_option
def prepare_glue(task: str, input_path: str, output: str, **options: object) -> None:
    """Write records of a GLUE task's train.tsv, dev.tsv or test.tsv."""
    from spanbert_tf.tasks.text_classification.rows import write_labelled_texts

    write_labelled_texts(read_glue(input_path, task), output, **options)


def read_glue(path: str, task: str) -> LabelledTexts:
    """Reads a file of a GLUE task.

    Args:
        path: path of `train.tsv`, `dev.tsv` or `test.tsv`. MNLI's mismatched files are told by
            their name; they are a data set of their own (`mnli_mm`), on which no model is chosen.
        task: key of `GLUE_TASKS`, but `mnli_mm`.

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
        check_width(path, line, len(facts.columns))
    return [Row(line.number, dict(zip(facts.columns, line.cells, strict=True))) for line in lines]


def _glue_label(path: str, facts: GlueTask, row: Row) -> str | float:
    label = str(row.values[facts.label])
    if not facts.is_regression:
        return label
    place = f"{path}: line {row.number}"
    number, (lowest, highest) = parse_number(label, place), SCORE_RANGE
    if not lowest <= number <= highest:
        raise BadInputError(f"{place}: score {label} is not from {lowest:g} to {highest:g}")
    return number

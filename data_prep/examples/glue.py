"""The files of GLUE as it distributes them: `spanbert-tf prepare glue`.

Tab-separated without quotes; columns are found by their header, which only CoLA's labelled files
lack. A file without the label's column is a test set.
"""

import os

from data_prep.examples.labelled_texts import LabelledText, LabelledTexts, parse_number
from data_prep.examples.text_tables import Line, Row, check_width, read_tsv, with_header
from spanbert_tf.errors import BadInputError
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, SCORE_RANGE, GlueTask


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
    rows = _rows(path, facts, lines)
    is_labelled = facts.label is not None and bool(rows) and facts.label in rows[0].values
    examples = [
        LabelledText(
            row.number,
            tuple(str(row.values[name]) for name in facts.texts),
            _label(path, facts, row) if is_labelled else None,
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


def _rows(path: str, facts: GlueTask, lines: list[Line]) -> list[Row]:
    if not facts.columns or set(facts.texts) <= set(lines[0].cells):
        return with_header(path, lines, facts.texts)
    for line in lines:
        check_width(path, line, len(facts.columns))
    return [Row(line.number, dict(zip(facts.columns, line.cells, strict=True))) for line in lines]


def _label(path: str, facts: GlueTask, row: Row) -> str | float:
    label = str(row.values[facts.label])
    if not facts.is_regression:
        return label
    place = f"{path}: line {row.number}"
    number, (lowest, highest) = parse_number(label, place), SCORE_RANGE
    if not lowest <= number <= highest:
        raise BadInputError(f"{place}: score {label} is not from {lowest:g} to {highest:g}")
    return number

"""`spanbert-tf glue`: the papers' tables from a folder of runs, and GLUE's submission."""

import zipfile
from collections.abc import Mapping, Sequence

import numpy as np
import rich.table

from spanbert_tf.errors import BadInputError
from spanbert_tf.files.outputs import OutputKind, check_output_file
from spanbert_tf.files.writing import output_file
from spanbert_tf.process.console import DataConsole, table_console
from spanbert_tf.process.lines import print_line
from spanbert_tf.studies.glue_results import Result, find_predictions, find_results
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS
from spanbert_tf.tasks.text_classification.submission import submission_file

Scores = Mapping[str, Mapping[str, float]]  # data set → metric → percent

_SUBMISSION = OutputKind("a submission to GLUE", "CoLA.tsv")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that the same predictions are the same bytes
_MISSING = "-"
# Columns of table 5 (SpanBERT): title → data sets.
_COLUMNS = {
    **{GLUE_TASKS[name].title: (name,) for name in ("cola", "sst2", "mrpc", "stsb", "qqp")},
    "MNLI": ("mnli", "mnli_mm"),
    **{GLUE_TASKS[name].title: (name,) for name in ("qnli", "rte", "wnli")},
}
# SpanBERT, table 5: test sets, large; WNLI, which the table leaves out, is the majority class.
_WNLI_MAJORITY = 65.1
_PAPER = {
    "Google BERT": (59.3, 95.2, 88.5, 84.3, 86.4, 88.0, 71.2, 89.0, 86.1, 85.7, 93.0, 71.1),
    "Our BERT": (58.6, 93.9, 90.1, 86.6, 88.4, 89.1, 71.8, 89.3, 87.2, 86.6, 93.0, 74.7),
    "Our BERT-1seq": (63.5, 94.8, 91.2, 87.8, 89.0, 88.4, 72.1, 89.5, 88.0, 87.4, 93.0, 72.1),
    "SpanBERT": (64.3, 94.8, 90.9, 87.9, 89.9, 89.1, 71.9, 89.5, 88.1, 87.7, 94.3, 79.0),
}
# SegaBERT's nine columns, one metric each; which, the paper does not say: these are BERT's (Devlin
# et al., 2019, table 1).
_SEGABERT_COLUMNS = {
    **{"mnli": "accuracy", "mnli_mm": "accuracy", "qqp": "f1", "qnli": "accuracy"},
    **{"sst2": "accuracy", "cola": "matthews", "stsb": "spearman", "mrpc": "f1", "rte": "accuracy"},
}
_SEGABERT_AVERAGES = {  # SegaBERT, tables 1 and 3
    "BERT base (dev)": 80.9,
    "BERT base with P.S. (dev)": 80.8,
    "SegaBERT base (dev)": 81.9,
    "SegaBERT large (dev)": 86.5,
    "SegaBERT large (test)": 83.3,
}


def run_glue(runs: str, submission: str | None = None, *, overwrite: bool = False) -> None:
    """Prints the papers' tables with the scores of some runs, and writes a submission.

    Args:
        runs: directory; below it lie runs of `finetune` and outputs of `predict --data`.
        submission: path of a zip with the predictions for the test sets.
        overwrite: whether an earlier submission may be replaced.

    Raises:
        BadInputError: a file cannot be used, nothing of GLUE is there, or the zip cannot be
            written.
    """
    if submission is not None:
        submission = check_output_file(submission, _SUBMISSION, is_submission, overwrite=overwrite)
    results, predictions = find_results(runs), find_predictions(runs)
    if not results and not predictions:
        raise BadInputError(
            f"{runs}: holds no scores of GLUE; its tasks are run with data.dataset in their "
            "configuration (`finetune --config rte`)"
        )
    console = table_console()
    _print_tables(console, results)
    if submission is not None:
        _write_submission(submission, predictions)
        _print_missing(f"{submission}: without", set(GLUE_TASKS) - set(predictions))


def average_of_tasks(scores: Scores) -> float | None:
    """The mean over nine tasks, in each the mean of its metrics first (SpanBERT, table 5).

    Args:
        scores: scores of the data sets.

    Returns:
        `None` where one is missing.
    """
    columns = [
        [scores[name][metric] for name in names for metric in GLUE_TASKS[name].metrics]
        for names in _COLUMNS.values()
        if all(name in scores for name in names)
    ]
    if len(columns) < len(_COLUMNS):
        return None
    return float(np.mean([np.mean(column) for column in columns]))


def average_of_columns(scores: Scores) -> float | None:
    """The mean over SegaBERT's nine columns: both sets of MNLI, one metric each, no WNLI.

    Args:
        scores: scores of the data sets.

    Returns:
        `None` where one is missing.
    """
    if not _SEGABERT_COLUMNS.keys() <= scores.keys():
        return None
    return float(np.mean([scores[name][metric] for name, metric in _SEGABERT_COLUMNS.items()]))


def paper_scores() -> dict[str, Scores]:
    """The rows of SpanBERT's table 5, as scores of data sets."""
    places = [
        (name, metric)
        for names in list(_COLUMNS.values())[:-1]  # without WNLI
        for name in names
        for metric in GLUE_TASKS[name].metrics
    ]
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for system, values in _PAPER.items():
        rows[system] = {"wnli": {"accuracy": _WNLI_MAJORITY}}
        for (name, metric), value in zip(places, values, strict=True):
            rows[system].setdefault(name, {})[metric] = value
    return rows


def is_submission(path: str) -> bool:
    """Whether a file is a zip of GLUE's files and nothing else."""
    known = {submission_file(name) for name in GLUE_TASKS}
    try:
        with zipfile.ZipFile(path) as archive:
            return set(archive.namelist()) <= known
    except (OSError, zipfile.BadZipFile):
        return False


def _print_tables(console: DataConsole, results: Mapping[str, Result]) -> None:
    scores = {name: result.scores for name, result in results.items()}
    table = rich.table.Table("", *_COLUMNS, "average", title="GLUE, as SpanBERT's table 5")
    for system, row in paper_scores().items():
        table.add_row(f"{system} (paper, test)", *_cells(row), _shown(average_of_tasks(row)))
    table.add_row("these runs (dev)", *_cells(scores), _shown(average_of_tasks(scores)))
    console.print(table)
    averages = rich.table.Table("", "average of nine columns", title="GLUE, as SegaBERT's tables")
    for system, value in _SEGABERT_AVERAGES.items():
        averages.add_row(f"{system}, paper", _shown(value))
    averages.add_row("these runs (dev)", _shown(average_of_columns(scores)))
    console.print(averages)
    for name, result in results.items():
        console.print(f"{GLUE_TASKS[name].title}: {result.path}", soft_wrap=True)
    _print_missing("no scores of", set(GLUE_TASKS) - {"ax"} - set(results))


def _cells(scores: Scores) -> list[str]:
    """Metrics of a task, and data sets, separated by slashes."""
    cells = []
    for names in _COLUMNS.values():
        parts = [
            _shown(scores[name][metric]) if name in scores else _MISSING
            for name in names
            for metric in GLUE_TASKS[name].metrics
        ]
        cells.append("/".join(parts) if set(parts) != {_MISSING} else _MISSING)
    return cells


def _shown(value: float | None) -> str:
    return _MISSING if value is None else f"{value:.1f}"


def _print_missing(what: str, names: Sequence[str] | set[str]) -> None:
    if names:
        titles = ", ".join(GLUE_TASKS[name].title for name in GLUE_TASKS if name in names)
        print_line(f"{what} {titles}")


def _write_submission(path: str, predictions: Mapping[str, str]) -> None:
    if not predictions:
        raise BadInputError(
            f"{path}: there are no predictions for test sets to put in; make them with `predict "
            "--data`"
        )
    with output_file(path) as unfinished, zipfile.ZipFile(unfinished, "w") as archive:
        for dataset in (name for name in GLUE_TASKS if name in predictions):
            with open(predictions[dataset], encoding="utf-8") as file:
                entry = zipfile.ZipInfo(submission_file(dataset), _EPOCH)
                archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)
    print_line(f"{path}: predictions for {len(predictions)} test sets")

"""`spanbert-tf glue`: prints the papers' tables for a folder of runs and writes a submission."""

import itertools
import json
import math
import os
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, NotRequired, TypeVar

import numpy as np
import rich.table
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from spanbert_tf.config.run import CONFIG_FILE, INPUTS_FILE, PRESET, SCORES_FILE, VALIDATION_ROWS
from spanbert_tf.config.settings import read_settings
from spanbert_tf.console import DataConsole, table_console
from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import each_once, files_below, regular_size
from spanbert_tf.files.output import FileKind, Output
from spanbert_tf.files.preset import golden_digest
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.tasks.text_classification.glue import (
    EVALUATION_FILE,
    GLUE_TASKS,
    HEADER,
    SCORE_RANGE,
    submission_file,
)
from spanbert_tf.terminal import print_line

T = TypeVar("T")
Scores = Mapping[str, Mapping[str, float]]  # data set → metric → percent

_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same predictions give the same bytes
_MISSING = "-"
_NOT_SEARCHED = frozenset({"checkpoints", PRESET, "logs"})
_MATCHED = "mnli"
_MISMATCHED = "mnli_mm"
_TITLES = {submission_file(name): name for name in GLUE_TASKS}
# Columns of table 5 (SpanBERT): title → data sets.
_COLUMNS = {
    **{GLUE_TASKS[name].title: (name,) for name in ("cola", "sst2", "mrpc", "stsb", "qqp")},
    "MNLI": ("mnli", "mnli_mm"),
    **{GLUE_TASKS[name].title: (name,) for name in ("qnli", "rte", "wnli")},
}
# SpanBERT, table 5: large models on test sets. WNLI, which the table omits, is the majority class.
_WNLI_MAJORITY = 65.1
_PAPER = {
    "Google BERT": (59.3, 95.2, 88.5, 84.3, 86.4, 88.0, 71.2, 89.0, 86.1, 85.7, 93.0, 71.1),
    "Our BERT": (58.6, 93.9, 90.1, 86.6, 88.4, 89.1, 71.8, 89.3, 87.2, 86.6, 93.0, 74.7),
    "Our BERT-1seq": (63.5, 94.8, 91.2, 87.8, 89.0, 88.4, 72.1, 89.5, 88.0, 87.4, 93.0, 72.1),
    "SpanBERT": (64.3, 94.8, 90.9, 87.9, 89.9, 89.1, 71.9, 89.5, 88.1, 87.7, 94.3, 79.0),
}
# SegaBERT's nine columns, each with one metric. The paper does not name the metrics; these are the
# metrics of BERT (Devlin et al., 2019, table 1).
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


class _Evaluation(TypedDict):
    dataset: NotRequired[str | None]
    rows: NotRequired[int | None]
    golden_sha256: NotRequired[str | None]
    scores: NotRequired[dict[str, float] | None]


class _Inputs(TypedDict):
    validation_rows: NotRequired[int | None]  # the key `VALIDATION_ROWS`


class Result(NamedTuple):
    """Scores of a run on the development set of a task.

    Attributes:
        scores: metric → percent.
        path: directory of the file with the scores.
        golden_sha256: identifies the model, see `golden_digest`; `None` if it is not known.
    """

    scores: dict[str, float]
    path: str
    golden_sha256: str | None = None


def run_glue(runs: str, submission: str | None = None, *, overwrite: bool = False) -> None:
    """Prints the papers' tables with the scores of some runs, and writes a submission.

    Args:
        runs: directory with runs of `finetune` and outputs of `predict --data`, at any depth.
        submission: path of a zip to write with the predictions for the test sets.
        overwrite: whether an earlier submission may be replaced.

    Raises:
        BadInputError: a file cannot be used, there are no scores or predictions for GLUE, or the
            zip cannot be written.
    """
    if submission is not None:
        kind = FileKind("a submission to GLUE", is_submission)
        submission = Output(submission, kind, overwrite=overwrite).check()
    results = find_results(runs)
    predictions = find_predictions(runs)
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
    """Returns the mean over nine tasks of the mean of each task's metrics (SpanBERT, table 5).

    Args:
        scores: scores of data sets.

    Returns:
        The mean, or `None` if a task has no scores.
    """
    means = []
    for names in _COLUMNS.values():
        if not scores.keys() >= set(names):
            return None
        means.append(np.mean([scores[name][metric] for name, metric in _metrics_of(names)]))
    return float(np.mean(means))


def _metrics_of(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields each data set with each of its metrics."""
    for name in names:
        for metric in GLUE_TASKS[name].metrics:
            yield name, metric


def average_of_columns(scores: Scores) -> float | None:
    """Returns the mean of SegaBERT's nine columns: one metric each, both sets of MNLI, no WNLI."""
    if not _SEGABERT_COLUMNS.keys() <= scores.keys():
        return None
    return float(np.mean([scores[name][metric] for name, metric in _SEGABERT_COLUMNS.items()]))


def paper_scores() -> dict[str, Scores]:
    """Returns the rows of SpanBERT's table 5, as scores of data sets."""
    columns = list(_COLUMNS.values())[:-1]  # without WNLI
    places = list(_metrics_of(itertools.chain.from_iterable(columns)))
    rows: dict[str, Scores] = {}
    for system, values in _PAPER.items():
        row = {"wnli": {"accuracy": _WNLI_MAJORITY}}
        for (name, metric), value in zip(places, values, strict=True):
            row.setdefault(name, {})[metric] = value
        rows[system] = row
    return rows


def is_submission(path: str) -> bool:
    """Whether a file is a zip that only has GLUE's files."""
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
    """Returns a cell for each column: all metrics of its data sets, separated by slashes."""
    cells = []
    for names in _COLUMNS.values():
        parts = []
        for name, metric in _metrics_of(names):
            parts.append(_shown(scores[name][metric]) if name in scores else _MISSING)
        has_scores = set(parts) != {_MISSING}
        cells.append("/".join(parts) if has_scores else _MISSING)
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
    with Output(path).opened() as output, zipfile.ZipFile(output, "w") as archive:
        for dataset in (name for name in GLUE_TASKS if name in predictions):
            with open(predictions[dataset], encoding="utf-8") as file:
                entry = zipfile.ZipInfo(submission_file(dataset), _EPOCH)
                archive.writestr(entry, file.read(), zipfile.ZIP_DEFLATED)
    print_line(f"{path}: predictions for {len(predictions)} test sets")


def find_results(runs: str) -> dict[str, Result]:
    """Finds the best scores for each GLUE task below a directory.

    Scores are those of runs of `finetune` on their validation data, and those of outputs of
    `predict --data` for a development set, for example for MNLI's mismatched set. Scores for
    another number of texts than the development set has are ignored.

    The best model is never chosen on the mismatched set: its scores are those of the model that is
    best on the matched set. A single result on the mismatched set is also used if it is not known
    which model it is of, because some presets have no `golden.json` that identifies them.

    Args:
        runs: path of the directory.

    Returns:
        The result for each data set that has one.

    Raises:
        BadInputError: a file cannot be used.
    """
    found: dict[str, list[Result]] = {}
    for directory, names in _directories(runs):
        for dataset, result in _results_in(directory, names):
            found.setdefault(dataset, []).append(result)
    mismatched = found.pop(_MISMATCHED, [])
    best = {
        dataset: max(results, key=lambda result: _mean_of_metrics(dataset, result.scores))
        for dataset, results in found.items()
    }
    chosen = _of_chosen_model(mismatched, best.get(_MATCHED))
    if chosen:
        best[_MISMATCHED] = chosen
    return best


def _mean_of_metrics(dataset: str, scores: Mapping[str, float]) -> float:
    return float(np.mean([scores[metric] for metric in GLUE_TASKS[dataset].metrics]))


def _of_chosen_model(mismatched: list[Result], matched: Result | None) -> Result | None:
    """Returns the mismatched set's result of the model that is best on MNLI's matched set."""
    chosen = matched.golden_sha256 if matched else None
    of_chosen = [result for result in mismatched if chosen and result.golden_sha256 == chosen]
    if len(mismatched) == 1:
        is_known = None not in (chosen, mismatched[0].golden_sha256)
        if not is_known:  # the result may be that of the chosen model
            of_chosen = mismatched
    if mismatched and not of_chosen:
        whose = f"of {matched.path}" if matched else "chosen on the matched set"
        print_line(
            f"{GLUE_TASKS[_MISMATCHED].title}: no result (of {len(mismatched)}) is known to be of "
            f"the model {whose}: none counts; predict that set with this model again",
        )
    return of_chosen[0] if of_chosen else None


def find_predictions(runs: str) -> dict[str, str]:
    """Finds the file of predictions for each test set below a directory, and checks its format.

    Args:
        runs: path of the directory.

    Returns:
        The path of the file for each data set that has one.

    Raises:
        BadInputError: a file has a wrong format, or a data set has two files.
    """
    found: dict[str, str] = {}
    for directory, names in _directories(runs):
        for name in sorted(_TITLES.keys() & set(names)):
            dataset = _TITLES[name]
            path = os.path.join(directory, name)
            if dataset in found:
                raise BadInputError(f"{path}: {found[dataset]} is there, too; remove one of them")
            _check_predictions(path, dataset)
            found[dataset] = path
    return found


def _directories(runs: str) -> Iterable[tuple[str, list[str]]]:
    """Returns all directories that have files, with their files' names; it follows links."""
    names: dict[str, list[str]] = {}
    try:
        for path in files_below(runs, lambda path: os.path.basename(path) not in _NOT_SEARCHED):
            names.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    except OSError as error:
        raise BadInputError(f"{runs}: cannot be searched ({reason(error)})") from error
    return [(directory, names[directory]) for directory in each_once(names)]


def _results_in(directory: str, names: list[str]) -> Iterator[tuple[str, Result]]:
    if CONFIG_FILE in names and SCORES_FILE in names:
        settings = read_settings(os.path.join(directory, CONFIG_FILE), layer=0)
        named = settings.get("data.dataset")
        # In a file of somebody else the value may be a list, which cannot be looked up.
        if named is not None and isinstance(named.value, str) and named.value in GLUE_TASKS:
            path = os.path.join(directory, SCORES_FILE)
            digest = golden_digest(os.path.join(directory, PRESET))
            rows = _validation_rows(directory) if INPUTS_FILE in names else None
            if _is_of_development_set(named.value, rows, path):
                yield from _result(named.value, _read(path, dict[str, float]), path, digest)
    if EVALUATION_FILE in names:
        path = os.path.join(directory, EVALUATION_FILE)
        content = _read(path, _Evaluation)
        dataset = content.get("dataset")
        scores = content.get("scores")
        if dataset is None or dataset not in GLUE_TASKS or scores is None:
            return
        if _is_of_development_set(dataset, content.get("rows"), path):
            yield from _result(dataset, scores, path, content.get("golden_sha256"))


def _validation_rows(directory: str) -> int | None:
    """Returns the number of texts on which a run was scored; `None` without validation data."""
    path = os.path.join(directory, INPUTS_FILE)
    return _read(path, _Inputs).get(VALIDATION_ROWS)


def _is_of_development_set(dataset: str, rows: int | None, path: str) -> bool:
    """Whether scores are for as many texts as the development set has, if their number is known."""
    facts = GLUE_TASKS[dataset]
    if rows is None or rows == facts.dev_rows:
        return True
    print_line(
        f"{path}: does not count: {rows:,} texts, and the development set of {facts.title} has "
        f"{facts.dev_rows:,}",
    )
    return False


def _result(
    dataset: str, scores: dict[str, float], path: str, golden_sha256: str | None
) -> Iterator[tuple[str, Result]]:
    """Yields the result of a run, or nothing for a run without validation data."""
    needed = GLUE_TASKS[dataset].metrics
    if missing := [name for name in needed if scores and name not in scores]:
        raise BadInputError(f"{path}: has no {missing[0]}; evaluate the run again")
    if scores:
        yield dataset, Result(scores, os.path.dirname(path), golden_sha256)


def _read(path: str, kind: type[T]) -> T:
    return parse_json(_text(path), kind, path, "evaluate the run again")


def _text(path: str) -> str:
    try:
        regular_size(path)  # refuses pipes: a folder of runs may come from somebody else
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({reason(error)})") from error


def _check_predictions(path: str, dataset: str) -> None:
    facts = GLUE_TASKS[dataset]
    header, *lines = _text(path).removesuffix("\n").split("\n")
    if header != HEADER:
        raise BadInputError(f"{path}: line 1: is not {json.dumps(HEADER)}; predict again")
    for number, line in enumerate(lines):
        index, _, prediction = line.partition("\t")
        if index != str(number) or not _is_prediction(prediction, facts.labels):
            raise BadInputError(
                f"{path}: line {number + 2}: {line!r} is no prediction {number} of {facts.title}; "
                "predict again"
            )
    if len(lines) != facts.test_rows:
        raise BadInputError(
            f"{path}: holds {len(lines):,} predictions, GLUE's test set of {facts.title} has "
            f"{facts.test_rows:,} texts; prepare the whole file and predict again"
        )


def _is_prediction(text: str, labels: tuple[str, ...]) -> bool:
    if labels:
        return text in labels
    try:
        number = float(text)
    except ValueError:
        return False
    return math.isfinite(number) and SCORE_RANGE[0] <= number <= SCORE_RANGE[1]

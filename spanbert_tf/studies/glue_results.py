"""What a folder of runs holds of GLUE: scores on the development sets, and predicted test sets."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from spanbert_tf.config.run import CONFIG_FILE, INPUTS_FILE, VALIDATION_ROWS
from spanbert_tf.config.settings import read_settings
from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import each_once, files_below
from spanbert_tf.files.preset_files import golden_digest
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.process.lines import print_line
from spanbert_tf.tasks.text_classification.glue import GLUE_TASKS, SCORE_RANGE
from spanbert_tf.tasks.text_classification.submission import HEADER, submission_file

_SCORES, _EVALUATION = "scores.json", "evaluation.json"
_PRESET = "preset"
_NOT_SEARCHED = frozenset({"checkpoints", _PRESET, "logs"})
_MATCHED, _MISMATCHED = "mnli", "mnli_mm"
_TITLES = {submission_file(name): name for name in GLUE_TASKS}


class Result(NamedTuple):
    """Scores of a run on the development set of a task.

    Attributes:
        scores: name → percent; `score` is their mean.
        path: directory that holds them.
        golden_sha256: tells the model that they are of, see `golden_digest`, where it is known.
    """

    scores: dict[str, float]
    path: str
    golden_sha256: str | None = None


def find_results(runs: str) -> dict[str, Result]:
    """The best scores of each GLUE task below a directory.

    A run of `finetune` has those of its validation data; predictions of `predict --data` for a
    development set have theirs, such as those of a model of MNLI for the mismatched set. Those of
    another number of texts than the development set has do not count. Nothing is chosen on the
    mismatched set: its scores are those of the model that is best on the matched one.

    Args:
        runs: directory to search.

    Raises:
        BadInputError: a file cannot be read.
    """
    found: dict[str, list[Result]] = {}
    for directory, names in _directories(runs):
        for dataset, result in _results_in(directory, names):
            found.setdefault(dataset, []).append(result)
    mismatched = found.pop(_MISMATCHED, [])
    best = {
        dataset: max(results, key=lambda result: result.scores["score"])
        for dataset, results in found.items()
    }
    if result := _of_chosen_model(mismatched, best.get(_MATCHED)):
        best[_MISMATCHED] = result
    return best


def _of_chosen_model(mismatched: list[Result], matched: Result | None) -> Result | None:
    """The result on MNLI's mismatched set that goes with the one on its matched set."""
    if matched is not None and matched.golden_sha256 is not None:
        for result in mismatched:
            if result.golden_sha256 == matched.golden_sha256:
                return result
    if len(mismatched) == 1:  # some presets have no golden.json
        return mismatched[0]
    if mismatched:
        chosen = f"that of {matched.path}" if matched else "chosen on the matched set"
        print_line(
            f"{GLUE_TASKS[_MISMATCHED].title}: {len(mismatched)} results, none of which is known "
            f"to be of the model {chosen}: none counts; predict that set with this model again",
        )
    return None


def find_predictions(runs: str) -> dict[str, str]:
    """The file of predictions for each test set below a directory, checked as GLUE would.

    Raises:
        BadInputError: there are two of a task, or one is not as GLUE wants it.
    """
    found: dict[str, str] = {}
    for directory, names in _directories(runs):
        for name in sorted(_TITLES.keys() & set(names)):
            dataset, path = _TITLES[name], os.path.join(directory, name)
            if dataset in found:
                raise BadInputError(f"{path}: {found[dataset]} is there, too; remove one of them")
            _check_predictions(path, dataset)
            found[dataset] = path
    return found


def _directories(runs: str) -> Iterable[tuple[str, list[str]]]:
    """Directories that hold files, with the names of these; those of linked runs, too."""
    names: dict[str, list[str]] = {}
    try:
        for path in files_below(runs, lambda path: os.path.basename(path) not in _NOT_SEARCHED):
            names.setdefault(os.path.dirname(path), []).append(os.path.basename(path))
    except OSError as error:
        raise BadInputError(f"{runs}: cannot be searched ({reason(error)})") from error
    return [(directory, names[directory]) for directory in each_once(names)]


def _results_in(directory: str, names: list[str]) -> Iterator[tuple[str, Result]]:
    if CONFIG_FILE in names and _SCORES in names:
        settings = read_settings(os.path.join(directory, CONFIG_FILE), layer=0)
        named = settings.get("data.dataset")
        if named is not None and named.value in GLUE_TASKS:
            path = os.path.join(directory, _SCORES)
            digest = golden_digest(os.path.join(directory, _PRESET))
            rows = _validation_rows(directory) if INPUTS_FILE in names else None
            if _is_of_development_set(named.value, rows, path):
                yield from _result(named.value, _read(path, dict[str, float]), path, digest)
    if _EVALUATION in names:
        path = os.path.join(directory, _EVALUATION)
        content = _read(path, dict[str, str | int | dict[str, float] | None])
        dataset, scores = content.get("dataset"), content.get("scores")
        is_scored = dataset in GLUE_TASKS and isinstance(scores, dict)
        if is_scored and _is_of_development_set(dataset, content.get("rows"), path):
            yield from _result(dataset, scores, path, content.get("golden_sha256"))


def _validation_rows(directory: str) -> int | None:
    """How many texts the scores of a run are of; `None` without validation data."""
    path = os.path.join(directory, INPUTS_FILE)
    return _read(path, dict[str, str | int | None]).get(VALIDATION_ROWS)


def _is_of_development_set(dataset: str, rows: int | None, path: str) -> bool:
    """Whether a data set is as large as the development set, where its size is known."""
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
    """None for a run without validation data, which has no scores."""
    needed = ("score", *GLUE_TASKS[dataset].metrics)
    if missing := [name for name in needed if scores and name not in scores]:
        raise BadInputError(f"{path}: has no {missing[0]}; evaluate the run again")
    if scores:
        yield dataset, Result(scores, os.path.dirname(path), golden_sha256)


def _read(path: str, kind: type) -> dict:
    try:
        with open(path, encoding="utf-8") as file:
            return parse_json(file.read(), kind, path, "evaluate the run again")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({reason(error)})") from error


def _check_predictions(path: str, dataset: str) -> None:
    facts = GLUE_TASKS[dataset]
    try:
        with open(path, encoding="utf-8") as file:
            header, *lines = file.read().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({reason(error)})") from error
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

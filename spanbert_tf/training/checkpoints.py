"""Checkpoints of a training run: complete or absent, and checked when they are read.

A checkpoint is a directory `step-00001000` of a TensorFlow checkpoint and `checkpoint.json`, which
holds the step and a checksum of each file. It is written under another name and renamed, so a
process that is killed leaves no half of one; damage that comes later is seen by the checksums.
`best.json` names the one with the best value of a metric, where that is kept.
"""

import itertools
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import keras
import tensorflow as tf
from annotated_types import Ge
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import file_fault, is_file_name, regular_size, sha256
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.files.writing import write_text

_DESCRIPTION_FILE = "checkpoint.json"
_STATE_PREFIX = "state"
_BEST_FILE = "best.json"
_PREFIX, _UNFINISHED, _DAMAGED = "step-", ".unfinished", "damaged-"
_CHECKPOINT = re.compile(rf"{_PREFIX}(\d{{8,}})")  # other names are a user's own copies


class Best(NamedTuple):
    """What is better: checkpoints, patience and the grid choose by it.

    Attributes:
        metric: of an evaluation.
        mode: whether its lowest or its highest value is the best.
    """

    metric: str
    mode: Literal["min", "max"]

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another one; as good is not better."""
        return value < than if self.mode == "min" else value > than

    def place(self, values: Sequence[float]) -> int:
        """Where the best of some values stands, the first of several."""
        choose = min if self.mode == "min" else max
        return values.index(choose(values))


class _Best(TypedDict, extra_items=float):  # beside the step, the value of a metric by its name
    step: Annotated[int, Ge(0)]


class _Description(TypedDict):
    sha256: dict[str, str]


class Checkpoints:
    """Saves and restores all that a step changes: weights, optimizer, state of the dropout.

    `tf.train.Checkpoint(model=model)` and `save_weights` both leave out Keras' seed generators;
    `model.variables` has them. Variables are told apart by their order, since their names depend
    on what else the process has built.

    Args:
        directory: where the checkpoints lie; made with the first one.
        model: a built model with a built optimizer.
        best: which one is kept beside the newest ones, see `keep_if_best`.
        max_to_keep: older checkpoints are deleted.
        report: takes one line of text about a damaged checkpoint.
        writes: whether this process writes; of several workers one does.
    """

    def __init__(
        self,
        directory: str,
        model: keras.Model,
        *,
        best: Best,
        max_to_keep: int,
        report: Callable[[str], None] = print,
        writes: bool = True,
    ) -> None:
        self._directory = directory
        self._by = best
        self._max_to_keep = max_to_keep
        self._report = report
        self._writes = writes
        self._checkpoint = tf.train.Checkpoint(
            model=[variable.value for variable in model.variables],
            optimizer=[variable.value for variable in model.optimizer.variables],
        )
        for name in self._names():  # what a killed process has left
            if writes and name.endswith(_UNFINISHED):
                _delete(os.path.join(directory, name))

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, oldest first."""
        found = map(_CHECKPOINT.fullmatch, self._names())
        return sorted(int(match[1]) for match in found if match)

    def save(self, step: int) -> None:
        """Writes the checkpoint of a step unless it is there, then deletes those that are too many.

        Raises:
            BadInputError: it cannot be written (a full disk); earlier ones are untouched.
        """
        if step in self.steps() or not self._writes:
            return
        final = self._path(step)
        unfinished = final + _UNFINISHED
        try:
            if not os.path.isdir(self._directory):
                os.mkdir(self._directory)  # and nothing above it: a run that was removed stays so
            os.mkdir(unfinished)
            self._checkpoint.write(os.path.join(unfinished, _STATE_PREFIX))
            _write_description(unfinished, step)
            os.rename(unfinished, final)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise BadInputError(
                f"{final}: cannot be written ({reason(error)}); free some space and run the "
                "same command again, it goes on from the checkpoint before"
            ) from error
        self._remove_old()

    def keep_if_best(self, step: int, metrics: Mapping[str, float]) -> None:
        """Saves the checkpoint of a step and keeps it until another one has a better value.

        Args:
            step: step that the model has reached.
            metrics: what an evaluation found; a value that is not finite is never the best.

        Raises:
            BadInputError: it cannot be written (a full disk); earlier ones are untouched.
        """
        metric, value = self._by.metric, float(metrics[self._by.metric])
        kept = self._best()
        best = kept.get(metric) if kept.get("step") in self.steps() else None
        is_better = best is None or self._by.is_better(value, best)
        if not self._writes or not is_better or not math.isfinite(value):
            return
        self.save(step)
        write_text(
            os.path.join(self._directory, _BEST_FILE), json.dumps({"step": step, metric: value})
        )
        self._remove_old()

    def restore_best(self) -> int | None:
        """Restores the checkpoint that `keep_if_best` has kept; returns its step, `None` for none.

        A damaged one is reported and left alone; the model stays as it is.
        """
        step = self._best().get("step")
        if step is None or step not in self.steps():
            return None
        if damage := _find_damage(self._path(step)):
            self._report(f"{self._path(step)} is damaged ({damage}); the last step is used")
            return None
        self._read(step)
        return step

    def restore(self) -> int:
        """Restores the newest checkpoint that is not damaged.

        A damaged one is reported, renamed to `damaged-…`, and the one before it is used.

        Returns:
            Its step; 0 where there is no checkpoint.

        Raises:
            BadInputError: there are checkpoints, and all of them are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            path = self._path(step)
            damage = _find_damage(path)
            if not damage:
                self._read(step)
                return step
            if self._writes:
                self._report(f"{path} is damaged ({damage}); using the checkpoint before it")
                os.rename(path, self._unused_name(f"{_DAMAGED}{os.path.basename(path)}"))
        if steps:
            raise BadInputError(
                f"{self._directory}: every checkpoint is damaged; delete the run and start it again"
            )
        return 0

    def _read(self, step: int) -> None:
        path = self._path(step)
        try:
            self._checkpoint.read(os.path.join(path, _STATE_PREFIX)).assert_consumed()
        except (AssertionError, ValueError, tf.errors.OpError) as error:
            raise BadInputError(
                f"{path}: does not hold the variables of this model ({reason(error)}); it was "
                "written by another version or for another model: start a new run"
            ) from error

    def _unused_name(self, name: str) -> str:
        """A path in the directory that is not there yet: the same step can be damaged again."""
        path = os.path.join(self._directory, name)
        for number in itertools.count(2):
            if not os.path.exists(path):
                return path
            path = os.path.join(self._directory, f"{name}-{number}")

    def _best(self) -> dict[str, float]:
        """Step and value of the best checkpoint; empty without one."""
        try:
            with open(os.path.join(self._directory, _BEST_FILE), encoding="utf-8") as file:
                return parse_json(file.read(), _Best, file.name)
        except (OSError, UnicodeDecodeError, BadInputError):
            return {}

    def _remove_old(self) -> None:
        best = self._best().get("step")
        for step in self.steps()[: -self._max_to_keep]:
            if step != best:
                self._remove(step)

    def _names(self) -> list[str]:
        return os.listdir(self._directory) if os.path.isdir(self._directory) else []

    def _path(self, step: int) -> str:
        return os.path.join(self._directory, f"{_PREFIX}{step:08d}")

    def _remove(self, step: int) -> None:
        """Deletes a checkpoint; killed in the middle, it leaves nothing that looks like one."""
        doomed = self._path(step) + ".deleted" + _UNFINISHED
        os.rename(self._path(step), doomed)
        shutil.rmtree(doomed)


def _delete(path: str) -> None:
    shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def _write_description(directory: str, step: int) -> None:
    checksums = {name: sha256(os.path.join(directory, name)) for name in os.listdir(directory)}
    with open(os.path.join(directory, _DESCRIPTION_FILE), "w", encoding="utf-8") as file:
        json.dump({"step": step, "sha256": checksums}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _find_damage(directory: str) -> str | None:
    """What is wrong with the files of a checkpoint, or None."""
    try:
        path = os.path.join(directory, _DESCRIPTION_FILE)
        regular_size(path)
        with open(path, encoding="utf-8") as file:
            checksums = parse_json(file.read(), _Description, _DESCRIPTION_FILE)["sha256"]
        for name, checksum in checksums.items():
            if fault := file_fault(directory, name, checksum):
                return f"{name if is_file_name(name) else repr(name)} {fault}"
    except (OSError, ValueError, BadInputError) as error:
        return reason(error)
    return None

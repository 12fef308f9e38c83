"""Checkpoints of a training run: whole or not there, checked when they are read.

A checkpoint is a directory `step-00001000` of a TensorFlow checkpoint and `checkpoint.json`, which
holds the step and a checksum of each file. `best.json` names the one with the lowest held-out loss,
where that is kept. It is written under another name and renamed, so a
process that is killed leaves no half of one; damage that comes later is seen by the checksums.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable

import keras
import tensorflow as tf

from spanbert_tf.errors import BadInputError

_DESCRIPTION_FILE = "checkpoint.json"
_STATE_PREFIX = "state"
_BEST_FILE = "best.json"
_PREFIX, _UNFINISHED, _DAMAGED = "step-", ".unfinished", "damaged-"


class Checkpoints:
    """Saves and restores all that a step changes: weights, optimizer, state of the dropout.

    `tf.train.Checkpoint(model=model)` and `save_weights` both leave out Keras' seed generators;
    `model.variables` has them. Variables are told apart by their order, since their names depend
    on what else the process has built.

    Args:
        directory: where the checkpoints lie; made with the first one.
        model: a built model with a built optimizer.
        max_to_keep: older checkpoints are deleted.
        report: takes one line of text about a damaged checkpoint.
        writes: whether this process writes; of several workers one does.
    """

    def __init__(
        self,
        directory: str,
        model: keras.Model,
        *,
        max_to_keep: int,
        report: Callable[[str], None] = print,
        writes: bool = True,
    ) -> None:
        self._directory = directory
        self._max_to_keep = max_to_keep
        self._report = report
        self._writes = writes
        self._checkpoint = tf.train.Checkpoint(
            model=[variable.value for variable in model.variables],
            optimizer=[variable.value for variable in model.optimizer.variables],
        )
        for name in self._names():  # what a killed process left behind
            if writes and name.endswith(_UNFINISHED):
                _delete(os.path.join(directory, name))

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, oldest first."""
        return sorted(
            int(name.removeprefix(_PREFIX))
            for name in self._names()
            if name.startswith(_PREFIX) and not name.endswith(_UNFINISHED)
        )

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
            os.makedirs(unfinished)
            self._checkpoint.write(os.path.join(unfinished, _STATE_PREFIX))
            _write_description(unfinished, step)
            os.rename(unfinished, final)
        except (OSError, tf.errors.OpError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise BadInputError(
                f"{final}: cannot be written ({_first_line(error)}); free some space and run the "
                "same command again, it goes on from the checkpoint before"
            ) from error
        self._remove_old()

    def keep_if_best(self, step: int, loss: float) -> None:
        """Saves the checkpoint of a step and keeps it until another one has a lower loss.

        Raises:
            BadInputError: it cannot be written (a full disk); earlier ones are untouched.
        """
        best = self._best()
        if not self._writes or not loss < best.get("loss", math.inf):
            return
        self.save(step)
        path = os.path.join(self._directory, _BEST_FILE)
        with open(path + _UNFINISHED, "w", encoding="utf-8") as file:
            json.dump({"step": step, "loss": loss}, file)
        os.replace(path + _UNFINISHED, path)
        self._remove_old()

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
                self._checkpoint.read(os.path.join(path, _STATE_PREFIX)).assert_consumed()
                return step
            if self._writes:
                self._report(f"{path} is damaged ({damage}); using the checkpoint before it")
                new_name = f"{_DAMAGED}{os.path.basename(path)}"
                os.rename(path, os.path.join(self._directory, new_name))
        if steps:
            raise BadInputError(
                f"{self._directory}: every checkpoint is damaged; delete the run and start it again"
            )
        return 0

    def _best(self) -> dict[str, float]:
        """Step and loss of the best checkpoint; empty if there is none."""
        try:
            with open(os.path.join(self._directory, _BEST_FILE), encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
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
    checksums = {name: _checksum(os.path.join(directory, name)) for name in os.listdir(directory)}
    with open(os.path.join(directory, _DESCRIPTION_FILE), "w", encoding="utf-8") as file:
        json.dump({"step": step, "sha256": checksums}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _find_damage(directory: str) -> str | None:
    """What is wrong with the files of a checkpoint, or None."""
    try:
        with open(os.path.join(directory, _DESCRIPTION_FILE), encoding="utf-8") as file:
            checksums = json.load(file)["sha256"]
        for name, checksum in checksums.items():
            if _checksum(os.path.join(directory, name)) != checksum:
                return f"{name} has changed"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _first_line(error)
    return None


def _checksum(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]

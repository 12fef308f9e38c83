"""Saves and restores the checkpoints of a training run.

`step-00001000` holds all state that a step changes. `best-00001000` holds only the weights of the
best evaluation, if `training.keep_best` is set. `checkpoint_files` describes their files.

A thread writes a checkpoint under another name while training continues, and renames it when it is
complete (`files.output`), so a killed process leaves no incomplete checkpoint. The checksum reveals
later damage.
"""

import concurrent.futures
import itertools
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from safetensors import SafetensorError, safe_open

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.contents import regular_size
from spanbert_tf.files.output import Output
from spanbert_tf.files.paths import UNFINISHED
from spanbert_tf.training.checkpoint_files import (
    BEST,
    STATE_FILE,
    STEP,
    Description,
    find_damage,
    names_in,
    read_description,
    saved_steps,
    write_files,
)
from spanbert_tf.training.devices import backend

_DAMAGED = "damaged-"
_DELETED = ".deleted"


class Best(NamedTuple):
    """The criterion by which checkpoints, patience and the grid choose the best evaluation.

    Attributes:
        metric: name of a metric of the evaluations.
        mode: whether the lowest or the highest value is the best.
    """

    metric: str
    mode: Literal["min", "max"]

    def or_by(self, metric: str | None) -> "Best":
        """Returns the criterion for another metric, or this one if `metric` is `None`."""
        if metric is None or metric == self.metric:
            return self
        return Best(metric, "min" if metric.endswith("loss") else "max")

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another one. Equal values are not better."""
        return value < than if self.mode == "min" else value > than

    def index_of_best(self, values: Sequence[float]) -> int:
        """Returns the index of the first best value. A value that is not finite is the worst."""
        sign = 1 if self.mode == "min" else -1
        losses = [sign * value if math.isfinite(value) else math.inf for value in values]
        return losses.index(min(losses))


class Checkpoints:
    """Saves and restores all state that a step changes: weights, optimizer, dropout generators.

    Keras' `save_weights` leaves out the seed generators; `model.variables` includes them. The
    variables are identified by their order, because their names depend on what else the process
    has built. Frozen weights are left out if `base` names the preset from which they can be read
    again.

    Saving copies the variables and returns; a thread then writes them, one checkpoint at a time. If
    the thread fails, the next call raises its error.

    Args:
        directory: directory of the checkpoints; it is created with the first one.
        model: a built model with a built optimizer.
        best: criterion of the best weights, see `keep_if_best`.
        max_to_keep: number of checkpoints to keep; older ones are deleted.
        base: digest of the preset that holds the frozen weights; `None` saves these weights, too.
        report: a function that prints a line about a damaged or late checkpoint.
        writes: whether this process writes. One of several workers does.
    """

    def __init__(
        self,
        directory: str,
        model: keras.Model,
        *,
        best: Best,
        max_to_keep: int,
        base: str | None = None,
        report: Callable[[str], None] = print,
        writes: bool = True,
    ) -> None:
        self._directory = directory
        self._criterion = best
        self._max_to_keep = max_to_keep
        self._report = report
        self._writes = writes
        left_out = []
        if base is not None:
            left_out = [weight for weight in model.weights if not weight.trainable]
        self._base = base if left_out else None
        self._weights = _named("weight", _without(model.weights, left_out))
        self._state = {
            **self._weights,
            **_named("state", _without(model.variables, model.weights)),
            **_named("optimizer", model.optimizer.variables),
        }
        self._step_of_model: int | None = None  # step of the model's weights; `None` if unknown
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._under_way: concurrent.futures.Future | None = None
        if writes:
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Removes the checkpoints that a killed process was writing or deleting."""
        for name in names_in(self._directory):
            path = os.path.join(self._directory, name)
            if name.endswith(UNFINISHED):
                Output(path.removesuffix(UNFINISHED)).discard()
            elif name.endswith(_DELETED):
                shutil.rmtree(path)

    def close(self) -> None:
        """Waits for the thread that writes, and ends it."""
        self._thread.shutdown()

    def remove(self) -> None:
        """Deletes all checkpoints, including the best one, but not copies under other names."""
        for prefix in (STEP, BEST):
            self._remove_old(prefix, 0)

    def steps(self) -> list[int]:
        """Returns the steps of the existing checkpoints, oldest first."""
        return saved_steps(self._directory)

    def room(self, keep_best: bool) -> dict[str, int]:
        """Returns the bytes that the checkpoints of a whole run take on disk, by their kind.

        Args:
            keep_best: whether the best weights are kept, too.
        """
        # Before the oldest checkpoint is deleted, a further one is written.
        num_checkpoints = self._max_to_keep + 1
        num_best = 2 if keep_best else 0
        return {
            "checkpoints": num_checkpoints * num_bytes(self._state.values()),
            "the best one": num_best * num_bytes(self._weights.values()),
        }

    def save(self, step: int) -> None:
        """Starts to write the checkpoint of a step, unless it exists.

        When the checkpoint is complete, the oldest ones beyond `max_to_keep` are deleted. If the
        previous checkpoint is still being written, this waits for it.

        Raises:
            BadInputError: the previous checkpoint could not be written, for example because the
                disk is full. Earlier checkpoints are untouched.
        """
        self._step_of_model = step
        if not self._writes:
            return
        if self._under_way is not None and not self._under_way.done():
            self._report(
                f"{self._directory}: the checkpoint before that of step {step:,} is still being "
                "written, and training waits for it; raise training.checkpoint_every_minutes "
                "if it often does"
            )
        self.wait()
        if step not in self.steps():
            self._begin_writing(STEP, step, self._state, self._max_to_keep)

    def check(self) -> None:
        """Raises the error of the checkpoint being written, if it has failed; does not wait."""
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def wait(self) -> None:
        """Waits until the current checkpoint is written; raises the same error as `save`."""
        under_way = self._under_way
        self._under_way = None
        if under_way is not None:
            under_way.result()

    def keep_if_best(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the weights of a step if their evaluation is the best one so far.

        It returns when the weights are written, so an evaluation is logged after its weights are
        saved.

        Args:
            step: step that the model has reached.
            metrics: metrics of its evaluation. A value that is not finite is never the best.

        Raises:
            BadInputError: the weights cannot be written, for example because the disk is full.
                Earlier ones are untouched.
        """
        metric = self._criterion.metric
        value = float(metrics[metric])
        best = self._describe_best()
        is_better = best is None or self._criterion.is_better(value, best["value"])
        if self._writes and is_better and math.isfinite(value):
            self._step_of_model = step
            self.wait()
            self._begin_writing(BEST, step, self._weights, 1, value=value, metric=metric)
            self.wait()

    def restore_best(self) -> int | None:
        """Restores the weights that `keep_if_best` has kept.

        Damaged weights are reported and not restored.

        Returns:
            The step of the restored weights; `None` if the model was not changed.
        """
        best = self._describe_best()
        if best is None:
            return None
        path = self._path(BEST, best["step"])
        if best["step"] != self._step_of_model:
            damage = find_damage(path)
            if damage:
                self._report(f"{path} is damaged ({damage}); the last step is used")
                return None
            self._read(path, self._weights)
        return best["step"]

    def restore(self) -> int:
        """Restores the newest checkpoint that is not damaged.

        A damaged checkpoint is reported and renamed to `damaged-…`, and the previous one is used.
        Best weights of steps after the restored one are deleted, like the lines of these steps in
        the log.

        Returns:
            The step of the checkpoint; 0 if there is none.

        Raises:
            BadInputError: all checkpoints are damaged, including those that were renamed earlier;
                or one cannot be read, so nothing is known about its content.
        """
        steps = self.steps()
        had_damaged = any(name.startswith(_DAMAGED) for name in names_in(self._directory))
        for step in reversed(steps):
            path = self._path(STEP, step)
            # Checking takes as long as reading, so a thread checks while this one reads. If the
            # checkpoint is damaged, the previous one overwrites the values that were read.
            checked = self._thread.submit(find_damage, path)
            try:
                self._read(path, self._state)
            except (BadInputError, OSError, ValueError):
                if not checked.result():
                    raise
            damage = checked.result()
            if not damage:
                self._step_of_model = step
                break
            if self._writes:
                self._report(f"{path} is damaged ({damage}); using the checkpoint before it")
                os.rename(path, self._unused_name(f"{_DAMAGED}{os.path.basename(path)}"))
        else:
            step = 0
            if steps or had_damaged:
                raise BadInputError(
                    f"{self._directory}: every checkpoint is damaged; delete the run and start it "
                    "again"
                )
        if self._writes:
            for best in saved_steps(self._directory, BEST):
                if best > step:
                    self._remove(BEST, best)
        return step

    def _begin_writing(
        self,
        prefix: str,
        step: int,
        variables: Mapping[str, keras.Variable],
        num_kept: int,
        **facts: float | str,
    ) -> None:
        if self._base is not None:
            facts["base"] = self._base
        arrays = {name: backend.read_value(variable) for name, variable in variables.items()}
        self._under_way = self._thread.submit(
            self._write, prefix, step, arrays, num_kept, {"step": step, **facts}
        )

    def _write(
        self,
        prefix: str,
        step: int,
        arrays: Mapping[str, np.ndarray],
        num_kept: int,
        facts: Mapping[str, float | str],
    ) -> None:
        """Writes a checkpoint under another name, renames it, and deletes the oldest ones."""
        checkpoint = Output(self._path(prefix, step))
        try:
            if not os.path.isdir(self._directory):
                # Not `makedirs`: the directory of a run that was removed is not created again.
                os.mkdir(self._directory)
            needed = sum(array.nbytes for array in arrays.values())
            if shutil.disk_usage(self._directory).free < needed:
                self._remove_old(prefix, max(num_kept - 1, 1))  # always keeps the newest
            with checkpoint.unfinished():
                os.mkdir(checkpoint.new)
                write_files(checkpoint.new, arrays, facts)
                checkpoint.publish()
        except (OSError, SafetensorError) as error:
            raise BadInputError(
                f"{checkpoint.path}: cannot be written ({reason(error)}); free some space and run "
                "the same command again, it goes on from the checkpoint before"
            ) from error
        self._remove_old(prefix, num_kept)

    def _read(self, path: str, variables: Mapping[str, keras.Variable]) -> None:
        """Assigns the arrays of a checkpoint to variables."""
        base = read_description(path).get("base")
        state = os.path.join(path, STATE_FILE)
        regular_size(state)  # refuses a pipe, from which reading would never return
        try:
            with safe_open(state, "numpy") as file:
                names = file.keys()
                shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names}
                if shapes != {name: tuple(v.shape) for name, v in variables.items()}:
                    raise ValueError("other names or shapes")
                if base != self._base:
                    raise ValueError("its weights were trained beside others, of another preset")
                for name, variable in variables.items():
                    variable.assign(file.get_tensor(name))
        except (ValueError, SafetensorError) as error:
            raise BadInputError(
                f"{path}: does not hold the variables of this model ({reason(error)}); it was "
                "written by another version or for another model: start a new run"
            ) from error

    def _unused_name(self, name: str) -> str:
        """Returns an unused path for a name; the checkpoint of a step can be damaged repeatedly."""
        path = os.path.join(self._directory, name)
        for number in itertools.count(2):
            if not os.path.exists(path):
                break
            path = os.path.join(self._directory, f"{name}-{number}")
        return path

    def _describe_best(self) -> Description | None:
        """Describes the best weights; `None` if none were chosen by the metric of this run."""
        try:
            step = max(saved_steps(self._directory, BEST))
            description = read_description(self._path(BEST, step))
        except (OSError, ValueError):
            return None
        is_by_metric = description.get("metric") == self._criterion.metric
        return description if is_by_metric and "value" in description else None

    def _remove_old(self, prefix: str, num_kept: int) -> None:
        steps = saved_steps(self._directory, prefix)
        for step in steps[: max(len(steps) - num_kept, 0)]:
            self._remove(prefix, step)

    def _remove(self, prefix: str, step: int) -> None:
        """Deletes a checkpoint; it is renamed first, so a killed process leaves no part of one."""
        path = self._path(prefix, step)
        os.rename(path, path + _DELETED)
        shutil.rmtree(path + _DELETED)

    def _path(self, prefix: str, step: int) -> str:
        return os.path.join(self._directory, f"{prefix}{step:08d}")


def _without(
    variables: Iterable[keras.Variable], left_out: Iterable[keras.Variable]
) -> list[keras.Variable]:
    """Returns the variables that are not among those to leave out."""
    ids = {id(variable) for variable in left_out}
    return [variable for variable in variables if id(variable) not in ids]


def _named(kind: str, variables: Iterable[keras.Variable]) -> dict[str, keras.Variable]:
    """Names variables by their kind and their index."""
    return {f"{kind}.{index:04d}": variable for index, variable in enumerate(variables)}


def num_bytes(variables: Iterable[keras.Variable]) -> int:
    """Returns the number of bytes that the values of variables take."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)

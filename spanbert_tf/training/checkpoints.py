"""Checkpoints of a training run: complete or absent, and checked when they are read.

`step-00001000` is one of all that a step changes, `best-00001000` of the weights alone, where the
best ones are kept; `checkpoint_files` says what is in them. A thread writes it aside while
training goes on (`files.output`), so a killed process leaves no half of one. The checksum shows
damage that comes later.
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

_DAMAGED, _DELETED = "damaged-", ".deleted"


class Best(NamedTuple):
    """What is better: checkpoints, patience and the grid choose by it.

    Attributes:
        metric: of an evaluation.
        mode: whether its lowest or its highest value is the best.
    """

    metric: str
    mode: Literal["min", "max"]

    def or_by(self, metric: str | None) -> "Best":
        """The best one by another metric, `training.best_metric`; this one where it is `None`."""
        if metric is None or metric == self.metric:
            return self
        return Best(metric, "min" if metric.endswith("loss") else "max")

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another one; as good is not better."""
        return value < than if self.mode == "min" else value > than

    def place(self, values: Sequence[float]) -> int:
        """Where the best of some values stands, the first of several; it is finite if one is."""
        sign = 1 if self.mode == "min" else -1
        losses = [sign * value if math.isfinite(value) else math.inf for value in values]
        return losses.index(min(losses))


class Checkpoints:
    """Saves and restores all that a step changes: weights, optimizer, state of the dropout.

    `save_weights` leaves out Keras' seed generators; `model.variables` has them. Variables are told
    apart by their order, since their names depend on what else the process has built. Weights that
    are not trained are left out where their source is known: it can be read again.

    Saving copies the variables and returns; a thread writes them, one checkpoint at a time. What it
    fails with is raised by the next call.

    Args:
        directory: where the checkpoints lie; made with the first one.
        model: a built model with a built optimizer.
        best: which one is kept beside the newest ones, see `keep_if_best`.
        max_to_keep: older checkpoints are deleted.
        base: digest of the preset that the weights come from that are not trained; `None`: these
            are saved, too.
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
        base: str | None = None,
        report: Callable[[str], None] = print,
        writes: bool = True,
    ) -> None:
        self._directory, self._by, self._max_to_keep = directory, best, max_to_keep
        self._report, self._writes = report, writes
        frozen = {id(v) for v in model.weights if base is not None and not v.trainable}
        self._base = base if frozen else None
        self._weights = _named("weight", (v for v in model.weights if id(v) not in frozen))
        known = {id(v) for v in model.weights}
        others = (v for v in model.variables if id(v) not in known)
        self._state = {
            **self._weights,
            **_named("state", others),
            **_named("optimizer", model.optimizer.variables),
        }
        self._held: int | None = None  # the step whose weights the model has, if that is known
        self._thread = concurrent.futures.ThreadPoolExecutor(1)
        self._under_way: concurrent.futures.Future | None = None
        if writes:
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Removes what a killed process was writing or deleting."""
        for name in names_in(self._directory):
            path = os.path.join(self._directory, name)
            if name.endswith(UNFINISHED):
                Output(path.removesuffix(UNFINISHED)).discard()
            elif name.endswith(_DELETED):
                shutil.rmtree(path)

    def close(self) -> None:
        """Ends the thread that writes, when it has written."""
        self._thread.shutdown()

    def remove(self) -> None:
        """Deletes all checkpoints, the best one, too; a user's copies stay."""
        for prefix in (STEP, BEST):
            self._remove_old(prefix, 0)

    def steps(self) -> list[int]:
        """Steps of the checkpoints that are there, oldest first."""
        return saved_steps(self._directory)

    def room(self, keep_best: bool) -> dict[str, int]:
        """Bytes that a whole run takes: the checkpoints, the one under way among them.

        Args:
            keep_best: whether the best weights are kept, too.
        """
        weights, state = num_bytes(self._weights.values()), num_bytes(self._state.values())
        # One more of each is written before the oldest goes.
        return {
            "checkpoints": (self._max_to_keep + 1) * state,
            "the best one": 2 * weights if keep_best else 0,
        }

    def save(self, step: int) -> None:
        """Begins to write the checkpoint of a step, unless it is there.

        Older ones that are too many are deleted once it is complete. Where the one before is still
        under way, training waits for it.

        Raises:
            BadInputError: the one before could not be written (a full disk); earlier ones are
                untouched.
        """
        if not self._writes:
            return
        self._held = step
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
        """Raises what a checkpoint under way has failed with, as `save`; waits for nothing."""
        if self._under_way is not None and self._under_way.done():
            self.wait()

    def wait(self) -> None:
        """Waits for the checkpoint under way; raises as `save`."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()

    def keep_if_best(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the weights of a step and keeps them until others have a better value.

        Returns when they are complete: an evaluation that is logged has its weights.

        Args:
            step: step that the model has reached.
            metrics: what an evaluation found; a value that is not finite is never the best.

        Raises:
            BadInputError: they cannot be written (a full disk); earlier ones are untouched.
        """
        value, best = float(metrics[self._by.metric]), self._best()
        is_better = best is None or self._by.is_better(value, best["value"])
        if self._writes and is_better and math.isfinite(value):
            self._held = step
            self.wait()
            self._begin_writing(BEST, step, self._weights, 1, value=value, metric=self._by.metric)
            self.wait()

    def restore_best(self) -> int | None:
        """Restores the weights that `keep_if_best` has kept; returns their step, `None` for none.

        Damaged ones are reported and left alone; the model stays as it is.
        """
        if (best := self._best()) is None:
            return None
        path = self._path(BEST, best["step"])
        if best["step"] != self._held:
            if damage := find_damage(path):
                self._report(f"{path} is damaged ({damage}); the last step is used")
                return None
            self._read(path, self._weights)
        return best["step"]

    def restore(self) -> int:
        """Restores the newest checkpoint that is not damaged.

        A damaged one is reported, renamed to `damaged-…`, and the one before it is used. What was
        the best after the step that is restored is forgotten, as its line in the log is.

        Returns:
            Its step; 0 where there is no checkpoint.

        Raises:
            BadInputError: there are checkpoints, and all of them are damaged, now or before; or
                one cannot be read, which says nothing of its content.
        """
        steps = self.steps()
        had_damaged = any(name.startswith(_DAMAGED) for name in names_in(self._directory))
        for step in reversed(steps):
            path = self._path(STEP, step)
            # Beside the reading, which takes as long; what is read of a damaged one is overwritten.
            checked = self._thread.submit(find_damage, path)
            try:
                self._read(path, self._state)
            except (BadInputError, OSError, ValueError):
                if not checked.result():
                    raise
            if not (damage := checked.result()):
                self._held = step
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
        for best in saved_steps(self._directory, BEST) if self._writes else []:
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
        """Writes a checkpoint aside, publishes it, then deletes those too many."""
        checkpoint = Output(self._path(prefix, step))
        try:
            if not os.path.isdir(self._directory):
                os.mkdir(self._directory)  # and nothing above it: a run that was removed stays so
            needed = sum(array.nbytes for array in arrays.values())
            if shutil.disk_usage(self._directory).free < needed:
                self._remove_old(prefix, max(num_kept - 1, 1))  # the newest stays in any case
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
        base = read_description(path).get("base")
        state = os.path.join(path, STATE_FILE)
        regular_size(state)  # a pipe would be waited for
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
        """A path in the directory that is not there yet: the same step can be damaged again."""
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        paths = (os.path.join(self._directory, name) for name in names)
        return next(path for path in paths if not os.path.exists(path))

    def _best(self) -> Description | None:
        """Step and value of the best weights; `None` without any that the same metric chose."""
        try:
            step = max(saved_steps(self._directory, BEST))
            description = read_description(self._path(BEST, step))
        except (OSError, ValueError):
            return None
        is_by_metric = description.get("metric") == self._by.metric
        return description if is_by_metric and "value" in description else None

    def _remove_old(self, prefix: str, num_kept: int) -> None:
        steps = saved_steps(self._directory, prefix)
        for step in steps[: max(len(steps) - num_kept, 0)]:
            self._remove(prefix, step)

    def _remove(self, prefix: str, step: int) -> None:
        """Deletes a checkpoint, so that a kill leaves nothing that looks like one."""
        path = self._path(prefix, step)
        os.rename(path, path + _DELETED)
        shutil.rmtree(path + _DELETED)

    def _path(self, prefix: str, step: int) -> str:
        return os.path.join(self._directory, f"{prefix}{step:08d}")


def _named(kind: str, variables: Iterable[keras.Variable]) -> dict[str, keras.Variable]:
    return {f"{kind}.{number:04d}": variable for number, variable in enumerate(variables)}


def num_bytes(variables: Iterable[keras.Variable]) -> int:
    """The bytes of the values of variables."""
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)

"""Writes the metrics of a run to `metrics.jsonl` and to TensorBoard."""

import contextlib
import glob
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import keras
import tensorflow as tf
from annotated_types import Ge
from keras.src import backend as keras_backend
from tensorboard.plugins.hparams import api as hparams
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.output import write_text
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.terminal import print_line
from spanbert_tf.training.throughput import Measured, Throughput

METRICS_FILE = "metrics.jsonl"
# Values of a line that a clock gives, so that they differ between two equal runs.
CLOCKED = (
    "tokens_per_second",
    "input_wait_share",
    "operations_per_second",
    "limit_share",
    "seconds_left",
)
LOGS = "logs"
# Folders of TensorBoard's files, below `LOGS`.
_TRAINING = "train"
_VALIDATION = "validation"
_PREFIX = "validation_"  # of the metrics of an evaluation


class MetricsLog:
    """Writes `metrics.jsonl` and TensorBoard's scalars.

    A line of training has `step`, `learning_rate`, `gradient_norm` (both of the last update, the
    norm before clipping), the model's metrics, the values of `Throughput`, and `seconds_left`. The
    metrics and the values of `Throughput` belong to an interval: the steps since the previous line,
    evaluation, restart or change of phase. A line of an evaluation has `step` and the metrics with
    the prefix `validation_`.

    Args:
        directory: directory of the run.
        first_step: number of finished steps. Lines of later steps are removed, also from
            TensorBoard.
        is_due: a function that says whether a line follows a step.
        throughput: measures the intervals.
        seconds_left: maps a step to the time until the run ends; `None` if it is not known.
        hyperparameters: maps a name to a value, for TensorBoard's table of runs.
        writes: whether this process writes. Other workers only take part in reading the metrics.

    Attributes:
        directory: directory of TensorBoard's files of training.
        last_line: the last line of training; empty before the first one.
    """

    def __init__(
        self,
        directory: str,
        first_step: int,
        *,
        is_due: Callable[[int], bool],
        throughput: Throughput,
        seconds_left: Callable[[int], float | None],
        hyperparameters: Mapping[str, Any],
        writes: bool = True,
    ) -> None:
        self.last_line: dict[str, float] = {}
        self.directory = os.path.join(directory, LOGS, _TRAINING)
        self._path = os.path.join(directory, METRICS_FILE)
        self._is_due = is_due
        self._throughput = throughput
        self._seconds_left = seconds_left
        self._starts_interval = True
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        lines = read_metrics(self._path) if os.path.exists(self._path) else []
        self._lines = [line for line in lines if line["step"] <= first_step]
        if writes:
            self._open(os.path.join(directory, LOGS), len(self._lines) < len(lines))
            self._write_hyperparameters(hyperparameters)

    @property
    def evaluated_steps(self) -> set[int]:
        """The steps whose evaluation was logged."""
        return {int(line["step"]) for line in self._lines if _is_evaluation(line)}

    def evaluations(self) -> list[dict[str, float]]:
        """Returns the evaluations so far: `step` and the metrics without their prefix."""
        return [_without_prefix(line) for line in self._lines if _is_evaluation(line)]

    def begin_interval(self) -> None:
        """Starts an interval with the next step."""
        self._starts_interval = True

    def on_step_begin(self, model: keras.Model) -> None:
        """Resets the metrics and the clock if an interval starts with this step."""
        if self._starts_interval:
            model.reset_metrics()
            self._throughput.begin(model)
            self._starts_interval = False

    def on_step_end(self, step: int, model: keras.Model) -> None:
        """Writes a line of training if one is due."""
        if not self._is_due(step):
            return
        measured = self._measure(model)
        self._throughput.add(measured)
        self.last_line = self._line(step, model, measured)
        self._write(self.last_line)
        self.begin_interval()

    def line_so_far(self, step: int, model: keras.Model) -> dict[str, float]:
        """Returns the line of training after a step, and waits for the device to compute it.

        If several workers share the run, all of them must call this after the same step.
        """
        return self._line(step, model, self._measure(model))

    def _measure(self, model: keras.Model) -> Measured:
        model.fetch_state()
        return self._throughput.measure(model)

    def _line(self, step: int, model: keras.Model, measured: Measured) -> dict[str, float]:
        # Not Keras' `logs`: they are the mean of the replicas' means, although the replicas have
        # different numbers of targets.
        metrics = {name: float(value) for name, value in model.get_metrics_result().items()}
        optimizer = model.optimizer
        num_updates = int(optimizer.iterations.numpy())  # steps, without those that were skipped
        line = {
            "step": step,
            "learning_rate": float(optimizer.schedule(num_updates - 1)),
            "gradient_norm": float(optimizer.gradient_norm.numpy()),
            **metrics,
            **self._throughput.values(measured),
        }
        seconds_left = self._seconds_left(step)
        if seconds_left is not None:
            line["seconds_left"] = round(seconds_left, 1)
        return line

    def write_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes a line of an evaluation, and starts an interval of training."""
        named = {f"{_PREFIX}{name}": float(value) for name, value in metrics.items()}
        self._write({"step": step, **named})
        self._starts_interval = True

    def _open(self, logs: str, has_later_lines: bool) -> None:
        """Opens TensorBoard's files, and drops the lines after the last checkpoint of the run."""
        if os.path.exists(self._path):  # a killed process may have left an incomplete line
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in self._lines))
        if has_later_lines:
            for path in glob.glob(os.path.join(glob.escape(logs), "*", "events*")):
                os.remove(path)  # it is written again below, since it cannot be truncated
        self._writers = {
            name: tf.summary.create_file_writer(os.path.join(logs, name))
            for name in (_TRAINING, _VALIDATION)
        }
        if has_later_lines:
            for line in self._lines:
                self._write_scalars(line)
        for writer in self._writers.values():
            writer.flush()

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Writes hyperparameters; those of `data` are left out, since paths may be private."""
        plain: dict[str, bool | int | float | str] = {}
        for name, value in values.items():
            if name.startswith("data."):
                continue
            plain[name] = value if isinstance(value, bool | int | float | str) else str(value)
        with self._writers[_TRAINING].as_default():
            hparams.hparams(plain)

    def _write(self, line: dict[str, float]) -> None:
        self._lines.append(line)
        if not self._writers:
            return
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._write_scalars(line).flush()

    def _write_scalars(self, line: dict[str, float]) -> tf.summary.SummaryWriter:
        writer = self._writers[_VALIDATION if _is_evaluation(line) else _TRAINING]
        with writer.as_default(line["step"]):
            for name, value in _without_prefix(line).items():
                if name != "step":
                    tf.summary.scalar(name, value)
        return writer


class Profile:
    """Records what the devices do in some steps, for TensorBoard's profiler.

    It records whole executions: those of the first and of the last step, and all between them.

    Args:
        steps: the first and the last step, counted from 1; `None` for no profile.
        directory: directory of TensorBoard's files.
        steps_per_execution: number of steps of an execution.
        writes: whether this process writes the profile.

    Attributes:
        ends: numbers of finished steps at which the profile starts and ends; empty for no profile.
    """

    def __init__(
        self,
        steps: Sequence[int] | None,
        directory: str,
        *,
        steps_per_execution: int,
        writes: bool,
    ) -> None:
        self.ends: tuple[int, ...] = ()
        if steps:
            first, last = steps
            first_execution = (first - 1) // steps_per_execution
            last_execution = (last - 1) // steps_per_execution
            start = first_execution * steps_per_execution
            self.ends = (start, (last_execution + 1) * steps_per_execution)
        self._directory = directory
        self._writes = writes
        self._is_running = False

    def on_step_begin(self, step: int) -> None:
        """Starts the profile if it is due after `step` steps; a resumed run may start it late."""
        if self._writes and self.ends and self.ends[0] <= step < self.ends[1]:
            self._writes = False  # also if it fails, the profile is started once
            with _named_failure():
                keras_backend.tensorboard.start_trace(self._directory)
                self._is_running = True

    def on_step_end(self, step: int) -> None:
        """Ends the profile if it is due after `step` steps."""
        if self._is_running and step >= self.ends[1]:
            self.stop()

    def stop(self) -> None:
        """Ends the profile if it is running, and writes it."""
        if self._is_running:
            self._is_running = False
            with _named_failure():
                keras_backend.tensorboard.stop_trace(save=True)


@contextlib.contextmanager
def _named_failure() -> Iterator[None]:
    """Prints a failure of the profiler, which does not end the run.

    It fails, for example, if another profile is running or the disk is full.
    """
    try:
        yield
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        print_line(f"training.profile_steps: no profile is written ({reason(error)})")


if TYPE_CHECKING:
    _Line = dict[str, float]  # mypy does not know `extra_items` (PEP 728) yet
else:

    class _Line(TypedDict, extra_items=float):
        step: Annotated[int, Ge(0)]


def read_metrics(path: str) -> list[dict[str, float]]:
    """Reads `metrics.jsonl`, without an incomplete last line, which a killed process leaves.

    Raises:
        BadInputError: a complete line is not a JSON object of numbers with a step.
    """
    lines = []
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith("\n"):
                    lines.append(parse_json(line, _Line, f"{path}: line {number}", "remove it"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read ({error})") from error
    return lines


def _is_evaluation(line: Mapping[str, float]) -> bool:
    return any(name.startswith(_PREFIX) for name in line)


def _without_prefix(line: Mapping[str, float]) -> dict[str, float]:
    """Removes the prefix of an evaluation from the names of metrics."""
    return {name.removeprefix(_PREFIX): value for name, value in line.items()}

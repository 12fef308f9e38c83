"""`metrics.jsonl` of a run, and what TensorBoard shows of it."""

import contextlib
import glob
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import keras
import tensorflow as tf
from annotated_types import Ge
from keras.src import backend as keras_backend
from tensorboard.plugins.hparams import api as hparams
from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.files.output import write_text
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.terminal import print_line

METRICS_FILE, LOGS = "metrics.jsonl", "logs"
_TRAINING, _VALIDATION = "train", "validation_"


class MetricsLog:
    """Writes `metrics.jsonl` and TensorBoard's scalars.

    A line of training has `step`, `learning_rate`, `gradient_norm` (of the last step, before
    clipping), `tokens_per_second` and the model's metrics, as means over the steps since the line
    before (or since an evaluation, a restart or a new phase between them). A line of an
    evaluation has `step` and the metrics with the prefix `validation_`.

    Args:
        directory: directory of the run.
        first_step: steps that are done; lines about later steps are removed, in TensorBoard, too.
        is_due: whether there is a line after a step.
        learning_rate: the rate as a function of the step, from 0.
        tokens_per_step: word pieces of a batch, padding apart.
        hyperparameters: name → value, for TensorBoard's table of runs.
        writes: whether this process writes; the others only take part in reading the metrics.

    Attributes:
        directory: where the lines of training are for TensorBoard.
        last_line: the last line of training; empty before the first one.
    """

    def __init__(
        self,
        directory: str,
        first_step: int,
        *,
        is_due: Callable[[int], bool],
        learning_rate: Callable[[int], float],
        tokens_per_step: float,
        hyperparameters: Mapping[str, Any],
        writes: bool = True,
    ) -> None:
        self.last_line: dict[str, float] = {}
        self.directory = os.path.join(directory, LOGS, _TRAINING)
        self._path = os.path.join(directory, METRICS_FILE)
        self._is_due = is_due
        self._learning_rate = learning_rate
        self._tokens_per_step = tokens_per_step
        self._starts_interval = True
        self._writers: dict[str, tf.summary.SummaryWriter] = {}
        lines = read_metrics(self._path) if os.path.exists(self._path) else []
        self._lines = [line for line in lines if line["step"] <= first_step]
        if writes:
            self._open(os.path.join(directory, LOGS), len(self._lines) < len(lines))
            self._write_hyperparameters(hyperparameters)

    @property
    def evaluated_steps(self) -> set[int]:
        """The steps after which an evaluation was logged."""
        return {line["step"] for line in self._lines if _is_evaluation(line)}

    def evaluations(self) -> list[dict[str, float]]:
        """The evaluations so far: `step` and the metrics without their prefix."""
        return [
            {name.removeprefix(_VALIDATION): value for name, value in line.items()}
            for line in self._lines
            if _is_evaluation(line)
        ]

    def begin_interval(self) -> None:
        """Has the next step begin an interval."""
        self._starts_interval = True

    def on_step_begin(self, step: int, model: keras.Model) -> None:
        """Begins an interval where one is due, with metrics set back and a new clock."""
        if self._starts_interval:
            model.reset_metrics()
            self._interval_start = (step, time.perf_counter())
            self._starts_interval = False

    def on_step_end(self, step: int, model: keras.Model) -> None:
        """Writes a line of training where one is due."""
        if not self._is_due(step):
            return
        self.last_line = self.line_so_far(step, model)
        self._write(self.last_line)
        self.begin_interval()

    def line_so_far(self, step: int, model: keras.Model) -> dict[str, float]:
        """The line of training that would be written after a step; reading it waits for the device.

        All workers of several must call it in the same step.
        """
        model.fetch_state()
        # Keras' `logs` would be the mean of the replicas' means, which have unequal numbers of
        # targets.
        metrics = {name: float(value) for name, value in model.get_metrics_result().items()}
        first_step, start = self._interval_start
        tokens = (step - first_step) * self._tokens_per_step
        return {
            "step": step,
            "learning_rate": float(self._learning_rate(step - 1)),
            "gradient_norm": float(model.optimizer.gradient_norm.numpy()),
            **metrics,
            "tokens_per_second": round(tokens / (time.perf_counter() - start), 1),
        }

    def write_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes a line of an evaluation, after which an interval of training begins."""
        named = {f"{_VALIDATION}{name}": float(value) for name, value in metrics.items()}
        self._write({"step": step, **named})
        self._starts_interval = True

    def _open(self, logs: str, has_later_lines: bool) -> None:
        """Opens TensorBoard's files; drops what a run wrote after its last checkpoint."""
        if os.path.exists(self._path):  # a killed process may have left half a line
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in self._lines))
        if has_later_lines:
            for path in glob.glob(os.path.join(glob.escape(logs), "*", "events*")):
                os.remove(path)  # such a file cannot be cut
        self._writers = {
            name: tf.summary.create_file_writer(os.path.join(logs, name))
            for name in (_TRAINING, "validation")
        }
        for line in self._lines if has_later_lines else ():
            self._write_scalars(line)
        for writer in self._writers.values():
            writer.flush()

    def _write_hyperparameters(self, values: Mapping[str, Any]) -> None:
        """Numbers, texts and flags as they are, others as texts; nothing private, such as paths."""
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in values.items()
            if not name.startswith("data.")
        }
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
        writer = self._writers["validation" if _is_evaluation(line) else _TRAINING]
        with writer.as_default(line["step"]):
            for name, value in line.items():
                if name != "step":
                    tf.summary.scalar(name.removeprefix(_VALIDATION), value)
        return writer


class Profile:
    """What the devices do in some steps, for TensorBoard's profiler.

    It shows whole executions: those of the first step, of the last one, and all between.

    Args:
        steps: the first and the last step, from 1; `None` for no profile.
        directory: where TensorBoard finds it.
        steps_per_execution: steps of an execution.
        writes: whether this process writes it.

    Attributes:
        ends: the steps after which it begins and ends; empty for no profile.
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
            num_before = (first - 1) // steps_per_execution  # executions
            num_after = -(-last // steps_per_execution)
            self.ends = (num_before * steps_per_execution, num_after * steps_per_execution)
        self._directory, self._writes = directory, writes
        self._is_running = False

    def on_step_begin(self, step: int) -> None:
        """Begins, after so many steps; a run that goes on in the middle begins there."""
        if self._writes and self.ends and self.ends[0] <= step < self.ends[1]:
            self._writes = False  # once, whatever comes of it
            with _named_failure():
                keras_backend.tensorboard.start_trace(self._directory)
                self._is_running = True

    def on_step_end(self, step: int) -> None:
        """Ends, after so many steps."""
        if self._is_running and step >= self.ends[1]:
            self.stop()

    def stop(self) -> None:
        """Writes what there is."""
        if self._is_running:
            self._is_running = False
            with _named_failure():
                keras_backend.tensorboard.stop_trace(save=True)


@contextlib.contextmanager
def _named_failure() -> Iterator[None]:
    """A profiler that fails, such as one that runs already, or on a full disk, ends no run."""
    try:
        yield
    except (tf.errors.OpError, RuntimeError, OSError) as error:
        print_line(f"training.profile_steps: no profile is written ({reason(error)})")


class _Line(TypedDict, extra_items=float):
    step: Annotated[int, Ge(0)]


def read_metrics(path: str) -> list[dict[str, float]]:
    """Reads `metrics.jsonl`; a last line that a killed process did not finish is left out.

    Raises:
        BadInputError: another line is not an object of numbers with a step.
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
    return any(name.startswith(_VALIDATION) for name in line)

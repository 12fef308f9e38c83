"""What happens beside the steps of a run: the log, checkpoints, a signal to stop."""

import json
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

import keras
import tensorflow as tf

from spanbert_tf.training.checkpoints import Checkpoints


class RunInterrupted(Exception):
    """The run was asked to stop, and has saved a checkpoint.

    Attributes:
        step: the checkpoint's.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step = step


class TrainingDiverged(Exception):
    """Too many updates in a row had gradients that are not finite.

    Attributes:
        step: the last one.
        num_steps: how many.
    """

    def __init__(self, step: int, num_steps: int) -> None:
        super().__init__(f"no finite gradients in {num_steps} steps up to {step}")
        self.step = step
        self.num_steps = num_steps


class StepCallback(keras.callbacks.Callback):
    """A callback that counts the steps of the whole run, over epochs, fits and restarts.

    The optimizer's own counter would not do: with float16 it leaves out the steps that overflow.

    Args:
        first_step: steps that are done already.
    """

    def __init__(self, first_step: int) -> None:
        super().__init__()
        self.step = first_step

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Notes where the epoch begins."""
        self._first_step_of_epoch = self.step

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts, then calls `on_step_end`; `batch` is the last one of an execution."""
        self.step = self._first_step_of_epoch + batch + 1
        self.on_step_end(logs or {})

    def on_step_end(self, logs: dict) -> None:
        """Called after each execution; `logs` has Keras' running means of the metrics."""


class MetricsLog(StepCallback):
    """Writes `metrics.jsonl` and TensorBoard's scalars.

    A line of training has `step`, `learning_rate`, `tokens_per_second` and the model's metrics,
    as means over the steps since the line before (or since an evaluation or a restart between
    them). A line of an evaluation has `step` and the metrics with the prefix `validation_`.

    Args:
        directory: of the run.
        first_step: steps that are done; lines about later ones are removed from the file.
        every: steps between lines.
        schedule: learning rate as a function of the step, from 0.
        tokens_per_step: word pieces of a batch, padding apart.
        writes: whether this process writes; the others only take part in reading the metrics.
    """

    def __init__(
        self,
        directory: str,
        first_step: int,
        *,
        every: int,
        schedule: Callable[[int], float],
        tokens_per_step: float,
        writes: bool = True,
    ) -> None:
        super().__init__(first_step)
        self._path = os.path.join(directory, "metrics.jsonl")
        self._every = every
        self._schedule = schedule
        self._tokens_per_step = tokens_per_step
        self._writers = {}
        self._starts_interval = True
        self.evaluated_steps = self._evaluated_until(first_step)
        if writes:
            self._writers = {
                name: tf.summary.create_file_writer(os.path.join(directory, "logs", name))
                for name in ("train", "validation")
            }
            self._keep_lines_until(first_step)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Begins an interval: Keras sets the metrics back here."""
        super().on_epoch_begin(epoch, logs)
        self._starts_interval = True

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Begins an interval after a line was written, with metrics set back and a new clock."""
        if self._starts_interval:
            self.model.reset_metrics()
            self._interval_start = (self.step, time.perf_counter())
            self._starts_interval = False

    def on_step_end(self, logs: dict) -> None:
        """Writes a line of training where one is due."""
        if self.step % self._every:
            return
        # `logs` would be the mean of the replicas' means, which have unequal numbers of targets.
        metrics = {name: float(value) for name, value in self.model.get_metrics_result().items()}
        first_step, start = self._interval_start
        tokens = (self.step - first_step) * self._tokens_per_step
        self._write(
            "train",
            {
                "learning_rate": float(self._schedule(self.step - 1)),
                **metrics,
                "tokens_per_second": round(tokens / (time.perf_counter() - start), 1),
            },
        )
        self._starts_interval = True

    def on_test_end(self, logs: dict | None = None) -> None:
        """Writes a line of an evaluation."""
        self._write("validation", {name: float(value) for name, value in (logs or {}).items()})
        self.evaluated_steps.add(self.step)

    def _write(self, split: str, values: dict[str, float]) -> None:
        if not self._writers:
            return
        prefix = "" if split == "train" else f"{split}_"
        line = {"step": self.step} | {prefix + name: value for name, value in values.items()}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        with self._writers[split].as_default(self.step):
            for name, value in values.items():
                tf.summary.scalar(name, value)
        self._writers[split].flush()

    def _evaluated_until(self, step: int) -> set[int]:
        if not os.path.exists(self._path):
            return set()
        lines = [line for line in read_metrics(self._path) if line["step"] <= step]
        return {line["step"] for line in lines if "validation_loss" in line}

    def _keep_lines_until(self, step: int) -> None:
        """Removes lines that a run wrote between its last checkpoint and its end."""
        if not os.path.exists(self._path):
            return
        kept = [line for line in read_metrics(self._path) if line["step"] <= step]
        with open(f"{self._path}.new", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in kept)
        os.replace(f"{self._path}.new", self._path)


def read_metrics(path: str) -> list[dict[str, float]]:
    """Reads `metrics.jsonl`; a last line that a killed process did not finish is left out."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.endswith("\n")]


class StopOnDivergence(StepCallback):
    """Ends the run after too many updates in a row that were left out.

    It stands before `PeriodicCheckpoint`, so that the last checkpoint is a good one: an update
    that is left out changes no weight.

    Args:
        first_step: steps that are done.
        max_skipped_steps: how many updates in a row may be left out.
    """

    def __init__(self, first_step: int, *, max_skipped_steps: int) -> None:
        super().__init__(first_step)
        self._max_skipped_steps = max_skipped_steps

    def on_step_end(self, logs: dict) -> None:
        """Looks at the optimizer's count."""
        skipped = int(self.model.optimizer.skipped_in_a_row.numpy())
        if skipped >= self._max_skipped_steps:
            raise TrainingDiverged(self.step, skipped)


class PeriodicCheckpoint(StepCallback):
    """Saves a checkpoint every so many steps.

    Args:
        checkpoints: where to.
        first_step: steps that are done.
        every: steps between checkpoints.
    """

    def __init__(self, checkpoints: Checkpoints, first_step: int, *, every: int) -> None:
        super().__init__(first_step)
        self._checkpoints = checkpoints
        self._every = every

    def on_step_end(self, logs: dict) -> None:
        """Saves where one is due."""
        if self.step % self._every == 0:
            self._checkpoints.save(self.step)


class BestCheckpoint(StepCallback):
    """Saves a checkpoint after an evaluation that found the lowest loss, and has it kept.

    Args:
        checkpoints: where to save.
        first_step: steps that are done.
    """

    def __init__(self, checkpoints: Checkpoints, first_step: int) -> None:
        super().__init__(first_step)
        self._checkpoints = checkpoints

    def on_test_end(self, logs: dict | None = None) -> None:
        """Hands the loss of the held-out records on."""
        self._checkpoints.keep_if_best(self.step, float(logs["loss"]))


class StopOnSignal(StepCallback):
    """On SIGTERM, as before a preemption: finishes the step, saves a checkpoint, ends the run.

    Use it as a context manager around `fit`, which puts the former handler back.

    Args:
        checkpoints: where to save.
        first_step: steps that are done.
        any_worker: whether one of the workers was signalled, given whether this one was; all of
            them stop in the same step.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        first_step: int,
        any_worker: Callable[[bool], bool] = bool,
    ) -> None:
        super().__init__(first_step)
        self._checkpoints = checkpoints
        self._any_worker = any_worker
        self._signalled = False

    def __enter__(self) -> "StopOnSignal":
        self._former_handler = signal.signal(signal.SIGTERM, self._note_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGTERM, self._former_handler)

    def on_step_end(self, logs: dict) -> None:
        """Stops if there was a signal."""
        self._stop_if_signalled()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops an evaluation, too: it can be longer than the notice that a machine gives."""
        self._stop_if_signalled()

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True  # in the middle of a step nothing can be saved

    def _stop_if_signalled(self) -> None:
        if self._any_worker(self._signalled):
            self._checkpoints.save(self.step)
            raise RunInterrupted(self.step)

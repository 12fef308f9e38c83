"""What a run shows while it trains: a bar on a terminal, a line now and then elsewhere."""

import datetime
import math
import sys
import time
from collections.abc import Mapping

import keras
import rich.console
import rich.progress
import tensorflow as tf

from spanbert_tf.process.lines import print_line
from spanbert_tf.training.callbacks import StepCallback
from spanbert_tf.training.metrics_log import MetricsLog


class TrainingProgress(StepCallback):
    """Shows step, losses, learning rate, speed, and the time that went by and is left.

    It stands after `MetricsLog`, and after what saves. Use it as a context manager around `fit`.

    Args:
        log: log whose lines are shown.
        first_step: steps that are done.
        num_steps: steps of the whole run.
        shows: whether this process shows anything; of several workers one does.
    """

    def __init__(
        self, log: MetricsLog, first_step: int, *, num_steps: int, shows: bool = True
    ) -> None:
        super().__init__(first_step)
        self._log = log
        self._num_steps = num_steps
        self._shows = shows
        self._first_step = first_step
        self._bar: rich.progress.Progress | None = None

    def __enter__(self) -> "TrainingProgress":
        self._start = time.monotonic()
        if self._shows and sys.stdout.isatty():
            columns = (
                rich.progress.BarColumn(),
                rich.progress.TextColumn("{task.description}", markup=False),
            )
            self._bar = rich.progress.Progress(*columns, console=rich.console.Console())
            self._task = self._bar.add_task(
                f"step {self.step:,} of {self._num_steps:,}",
                total=self._num_steps,
                completed=self.step,
            )
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_step_end(self, logs: dict) -> None:
        """Moves the bar, or prints a line where the log has a new one."""
        if self._bar is not None:
            self._bar.update(self._task, completed=self.step, description=self._describe())
        elif self._shows and self._log.last_line.get("step") == self.step:
            print_line(self._describe())

    def _describe(self) -> str:
        text = f"step {self.step:,} of {self._num_steps:,}"
        if line := self._log.last_line:
            text += f": {describe_losses(line)}, learning rate {line['learning_rate']:.2e}, "
            text += f"{line['tokens_per_second']:,.0f} tokens/s"
        gone = time.monotonic() - self._start
        per_step = gone / max(self.step - self._first_step, 1)
        times = (gone, per_step * (self._num_steps - self.step))
        gone, left = (str(datetime.timedelta(seconds=round(seconds))) for seconds in times)
        return f"{text}, {gone} elapsed, {left} left"


def describe_losses(line: Mapping[str, float]) -> str:
    """The loss, and the losses that it is the sum of, where there are several.

    Args:
        line: a line of training of `metrics.jsonl`.
    """
    parts = [
        f"{name.removesuffix('_loss').replace('_', ' ')} {value:.4f}"
        for name, value in line.items()
        if name.endswith("_loss")
    ]
    text = f"loss {line['loss']:.4f}"
    return f"{text} ({', '.join(parts)})" if len(parts) > 1 else text


def describe_run(model: keras.Model, strategy: tf.distribute.Strategy, precision: str) -> str:
    """What runs where, in a line.

    Args:
        model: the model that is trained.
        strategy: distribution strategy of the run.
        precision: Keras' dtype policy.
    """
    gpus = tf.config.list_logical_devices("GPU")
    kind, count = ("GPU", len(gpus)) if gpus else ("CPU", 1)
    replicas = strategy.num_replicas_in_sync
    devices = f"{max(count, replicas) if replicas > 1 else 1} {kind}"
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    shared = f" as {replicas} replicas" if replicas > 1 else ""
    return f"{parameters:,} trained parameters on {devices}{shared} in {precision}"

"""How far a run is: a bar on a terminal, lines elsewhere."""

import datetime
import sys
import time
from collections.abc import Mapping

import rich.console
import rich.progress

from spanbert_tf.terminal import print_line

# Seconds until a run first says how far it is, whatever `log_every` is; less, if the steps so far
# have shown how long one takes.
_FIRST_LINE, _ENOUGH_STEPS = 30.0, 10.0


class RunProgress:
    """Shows step, losses, learning rate, speed, the time that has passed and the time that is left.

    It is a bar on a terminal. Elsewhere it is a line for each new line of the log. Before the first
    line of the log there are early ones, each after twice the time of the one before.

    Args:
        step: steps that are done.
        num_steps: steps of the whole run.
    """

    def __init__(self, step: int, num_steps: int) -> None:
        self._first_step, self._num_steps = step, num_steps
        self._start: float | None = None
        self._bar: rich.progress.Progress | None = None
        self._compiled: tuple[int, float] | None = None  # step and time of the first step's end
        self._early_at = 0.0  # when the next early line is due
        self._early_line: Mapping[str, float] = {}

    def start(self) -> None:
        """Starts bar and clock with the first step."""
        if self._start is not None:
            return
        self._start = time.monotonic()
        if sys.stdout.isatty():
            columns = (
                rich.progress.BarColumn(),
                rich.progress.TextColumn("{task.description}", markup=False),
            )
            self._bar = rich.progress.Progress(*columns, console=rich.console.Console())
            title = f"step {self._first_step:,} of {self._num_steps:,}"
            self._task = self._bar.add_task(
                title, total=self._num_steps, completed=self._first_step
            )
            self._bar.start()

    def end_step(self, step: int) -> None:
        """Notes when the first step ends, which is compiled before it runs."""
        if self._compiled is None:
            now = time.monotonic()
            self._compiled = (step, now)
            self._early_at = min(self._start + _FIRST_LINE, now + _ENOUGH_STEPS)

    def is_early_line_due(self) -> bool:
        """Whether it is time for a line if the log has none yet."""
        return time.monotonic() >= self._early_at

    def show_early(self, step: int, line: Mapping[str, float]) -> None:
        """Shows a line before the log's first one; the next is due after twice the time."""
        now = time.monotonic()
        self._early_at = now + max(now - self._start, _FIRST_LINE)
        self._early_line = line
        self._print(step, line)

    def show(self, step: int, line: Mapping[str, float]) -> None:
        """Moves the bar, or prints the last line of the log if it is of this step."""
        if self._bar is not None or line.get("step") == step:
            self._print(step, line or self._early_line)

    def stop(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()

    def _print(self, step: int, line: Mapping[str, float]) -> None:
        text = self._describe(step, line)
        if self._bar is None:
            print_line(text)
        else:
            self._bar.update(self._task, completed=step, description=text)

    def _describe(self, step: int, line: Mapping[str, float]) -> str:
        parts = []
        if line:
            parts.append(_describe_losses(line))
            parts.append(f"learning rate {line['learning_rate']:.2e}")
            parts.append(f"{line['tokens_per_second']:,.0f} tokens/s")
        now = time.monotonic()
        parts.append(f"{_duration(now - self._start)} elapsed")
        first, since = self._compiled  # the first step is compiled, unlike the others
        if step == self._num_steps:
            parts.append(f"{_duration(0)} left")
        elif step > first:
            seconds = (now - since) / (step - first) * (self._num_steps - step)
            parts.append(f"{_duration(seconds)} left")
        return f"step {step:,} of {self._num_steps:,}: {', '.join(parts)}"


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _describe_losses(line: Mapping[str, float]) -> str:
    """The loss, and the losses that it is the sum of if there are several."""
    losses = {name: value for name, value in line.items() if name.endswith("_loss")}
    text = f"loss {line['loss']:.4f}"
    if len(losses) < 2:
        return text
    parts = [
        f"{name.removesuffix('_loss').replace('_', ' ')} {value:.4f}"
        for name, value in losses.items()
    ]
    return f"{text} ({', '.join(parts)})"

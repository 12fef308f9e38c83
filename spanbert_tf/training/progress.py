"""Shows the progress of a run: a bar on a terminal, lines elsewhere."""

import datetime
import sys
import time
from collections.abc import Mapping

import rich.console
import rich.progress

from spanbert_tf.terminal import print_line

# The first line appears after 30 seconds, or 10 seconds after the first step if that is earlier,
# even if `log_every` is much longer. By then the time of a step can be estimated.
_FIRST_LINE = 30.0
_ENOUGH_STEPS = 10.0
# A smaller share of the time that steps wait for their batches is in `metrics.jsonl` alone.
_NOTABLE_WAIT = 0.05


class RunProgress:
    """Shows the step, losses, learning rate, speed, elapsed time and remaining time.

    On a terminal it shows a bar. Elsewhere it prints each new line of the log. Until the log has a
    first line, it prints early lines, each after twice the time of the previous one.

    Args:
        step: number of finished steps.
        num_steps: number of steps of the whole run.
        shows: whether this process shows it. Other workers only estimate the remaining time.
    """

    def __init__(self, step: int, num_steps: int, *, shows: bool) -> None:
        self._shows = shows
        self._first_step = step
        self._num_steps = num_steps
        self._is_started = False
        self._started_at = 0.0
        self._bar: rich.progress.Progress | None = None
        # The first step is compiled before it runs, so the time that is left is estimated from
        # the steps after it.
        self._is_compiled = False
        self._compiled_step = 0
        self._compiled_at = 0.0
        self._early_at = 0.0  # when the next early line is due
        self._early_line: Mapping[str, float] = {}

    def start(self) -> None:
        """Starts the bar and the clock when the first step starts."""
        if self._is_started:
            return
        self._is_started = True
        self._started_at = time.monotonic()
        if self._shows and sys.stdout.isatty():
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
        """Records when the first step ends."""
        if self._is_compiled:
            return
        self._is_compiled = True
        self._compiled_step = step
        self._compiled_at = time.monotonic()
        self._early_at = min(self._started_at + _FIRST_LINE, self._compiled_at + _ENOUGH_STEPS)

    def is_early_line_due(self) -> bool:
        """Whether an early line is due if the log has no line yet."""
        return time.monotonic() >= self._early_at

    def show_early(self, step: int, line: Mapping[str, float]) -> None:
        """Shows an early line; the next one is due after twice the elapsed time."""
        now = time.monotonic()
        self._early_at = now + max(now - self._started_at, _FIRST_LINE)
        self._early_line = line
        self._print(step, line)

    def seconds_left(self, step: int) -> float | None:
        """Estimates the time until the run ends, with evaluations and checkpoints as so far.

        `None` if no step has ended but the first one, which was compiled.
        """
        if step == self._num_steps:
            return 0.0
        if not self._is_compiled or step <= self._compiled_step:
            return None
        seconds_per_step = (time.monotonic() - self._compiled_at) / (step - self._compiled_step)
        return seconds_per_step * (self._num_steps - step)

    def show(self, step: int, line: Mapping[str, float]) -> None:
        """Advances the bar, or prints the last line of the log if it belongs to this step."""
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
            if line.get("input_wait_share", 0) >= _NOTABLE_WAIT:
                parts.append(f"{line['input_wait_share']:.0%} of the time waits for input")
        parts.append(f"{_duration(time.monotonic() - self._started_at)} elapsed")
        seconds_left = self.seconds_left(step)
        if seconds_left is not None:
            parts.append(f"{_duration(seconds_left)} left")
        return f"step {step:,} of {self._num_steps:,}: {', '.join(parts)}"


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def _describe_losses(line: Mapping[str, float]) -> str:
    """Formats the loss, and its parts if it is the sum of several losses."""
    losses = {name: value for name, value in line.items() if name.endswith("_loss")}
    text = f"loss {line['loss']:.4f}"
    if len(losses) < 2:
        return text
    parts = [
        f"{name.removesuffix('_loss').replace('_', ' ')} {value:.4f}"
        for name, value in losses.items()
    ]
    return f"{text} ({', '.join(parts)})"

"""What happens beside the steps of a run: log, checkpoints, evaluations, reasons to stop."""

import datetime
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType

import keras
import rich.console
import rich.progress

from spanbert_tf.config.settings import flat_values
from spanbert_tf.terminal import print_line
from spanbert_tf.training.checkpoints import Checkpoints
from spanbert_tf.training.devices import Devices
from spanbert_tf.training.job import Job, TrainingDiverged, check_best
from spanbert_tf.training.metrics_log import MetricsLog, Profile

if keras.backend.backend() == "jax":
    import jax

_MILLISECONDS_BETWEEN_QUESTIONS = 2_000  # much less than the notice of a machine's end
# Seconds until a run says for the first time how far it is, whatever `log_every`; less, if enough
# steps have shown how long one takes.
_FIRST_LINE, _ENOUGH_STEPS = 30.0, 10.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopTraining(Exception):
    """The run ends before its last step; caught by `Watch`.

    Its text is what is said of it.

    Attributes:
        is_interrupted: whether the same command is to go on.
    """

    def __init__(self, line: str, *, is_interrupted: bool) -> None:
        super().__init__(line)
        self.is_interrupted = is_interrupted


class Watch(keras.callbacks.Callback):
    """The one callback of a run: after each step it does what is due, in the order of `_after`.

    Use it as a context manager around all `fit`s of a run: it handles signals, saves the last
    step, and catches `StopTraining`.

    It counts the steps of the whole run, over fits and restarts. The optimizer's own counter would
    not do: with float16 it leaves out the steps that overflow. Several steps of an execution end
    where something is due after a step.

    Args:
        job: what is trained.
        model: its model.
        checkpoints: where to save.
        output: directory of the run.
        devices: those of the run; of several workers one writes and shows.
        step: steps that are done already.

    Attributes:
        step: steps that are done.
        is_interrupted: whether a signal has ended the run.
    """

    def __init__(
        self,
        job: Job,
        model: keras.Model,
        checkpoints: Checkpoints,
        output: str,
        devices: Devices,
        step: int,
    ) -> None:
        super().__init__()
        self.step = step
        self.is_interrupted = False
        self._training = job.config.training
        self._last_step = job.num_steps  # of this `fit`
        self._job, self._trained, self._checkpoints = job, model, checkpoints
        self._output, self._devices = output, devices
        self._log = MetricsLog(
            output,
            step,
            is_due=self._is_log_due,
            learning_rate=job.learning_rate,
            tokens_per_step=job.tokens_per_step,
            hyperparameters=flat_values(job.config),
            writes=devices.is_chief,
        )
        self._profile = Profile(
            self._training.profile_steps, self._log.directory, writes=devices.is_chief
        )
        self._signals = StopSignals()
        self._progress = _Progress(step, job.num_steps) if devices.is_chief else None
        self._asked = (step, time.monotonic())  # several workers each other, for signals
        self._asks_at = step
        self._after: tuple[Callable[[], None], ...] = (
            self._stop_on_divergence,  # before the checkpoint, so that the last one is a good one
            self._save,
            self._stop_on_signal,
            self._show,  # what is shown cannot keep a step from being saved
            self._evaluate,  # inside of `fit`, so that the stream of batches goes on
        )

    def __enter__(self) -> "Watch":
        self._signals.__enter__()
        self._saved_at = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            if self._progress:
                self._progress.stop()
            is_early = isinstance(error, StopTraining)
            if error is None or is_early:
                self._checkpoints.save(self.step)
                self._checkpoints.wait()
            self._profile.stop()  # when all is saved
            try:
                if error is None:  # a signal may have come while the last step was scored or saved
                    self.stop_on_signal()
            except StopTraining as late:
                error = late
            if isinstance(error, StopTraining):
                self.is_interrupted = error.is_interrupted
                self._devices.say(f"{self._output}: {error}")
            return is_early
        finally:
            self._checkpoints.close()
            self._signals.__exit__()

    def catch_up(self) -> None:
        """Does what a run that was stopped between a step and its evaluation lacks."""
        if self.step and self.step not in self._log.evaluated_steps:
            self._evaluate()
        self._stop_if_patience_ends()

    def until(self, step: int) -> "_Unread":
        """The callbacks of a `fit` that is to end after a step."""
        self._last_step = step
        return _Unread([self], add_history=True, model=self._trained)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Keras sets the metrics back here."""
        self._log.begin_interval()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Says how many steps are next, and begins the log's interval, if the last one has ended.

        Keras counts batches as if all executions had as many.
        """
        self._executed = self._num_steps_to_what_is_due()
        self._trained.steps_per_execution = self._executed
        self._log.on_step_begin(self.step, self._trained)
        self._profile.on_step_begin(self.step)
        if self._progress:
            self._progress.start()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts, and does what is due."""
        self.step += self._executed
        if self._progress:
            self._progress.end_step(self.step)
        self._trained.steps_per_execution = self._training.steps_per_execution
        self._trained.stop_training = self.step == self._last_step
        if self._is_log_due(self.step):
            self._fetch()
        self._log.on_step_end(self.step, self._trained)
        if self._is_due():
            self._fetch()
            for call in self._after:
                call()
        else:
            self._show()
        self._profile.on_step_end(self.step)

    def _fetch(self) -> None:
        """On JAX the step's results lie beside the variables until they are asked for."""
        if keras.backend.backend() == "jax":
            self._trained.jax_state_sync()

    def _is_due(self) -> bool:
        """Whether a result of the step is needed: to fetch one is to wait for the device.

        Several workers ask each other for signals where that is due for all of them.
        """
        return (
            (self._devices.are_several and self.step >= self._asks_at)
            or self._signals.received is not None
            or self.step % self._training.max_skipped_steps < self._executed
            or self._is_log_due(self.step)
            or self._is_save_due()
            or self.step in self._profile.ends
        )

    def stop_on_signal(self) -> None:
        """Ends the run if one of its workers was signalled; all of them ask in the same step.

        Evaluations call it, too: they can take longer than a machine's notice of its end.
        """
        if self._devices.any(self._signals.received is not None):
            name = (self._signals.received or signal.SIGTERM).name
            line = (
                f"{name}: saved step {self.step:,} of {self._job.num_steps:,}; run the same "
                "command again to go on"
            )
            raise StopTraining(line, is_interrupted=True)

    def _stop_on_signal(self) -> None:
        """As `stop_on_signal`, of several workers every two seconds: to ask is to wait for all."""
        if self._devices.are_several and self.step < self._asks_at:
            return
        self.stop_on_signal()
        step, begin = self._asked
        self._asked = (self.step, time.monotonic())
        milliseconds = 1_000 * (self._asked[1] - begin) / max(self.step - step, 1)
        pace = max(self._devices.agreed(round(milliseconds)), 1)
        self._asks_at = self.step + max(_MILLISECONDS_BETWEEN_QUESTIONS // pace, 1)

    def _num_steps_to_what_is_due(self) -> int:
        """Steps of the next execution: as many as are wanted, if nothing is planned before."""
        most = min(self._training.steps_per_execution, self._last_step - self.step)
        for number in range(1, most):
            step = self.step + number
            if self._is_log_due(step) or self._is_save_planned(step) or step in self._profile.ends:
                return number
        return most

    def _is_log_due(self, step: int) -> bool:
        is_last = step == self._job.num_steps
        is_due = step % self._training.log_every == 0
        return is_due or is_last or self._job.evaluates_after(step)

    def _stop_on_divergence(self) -> None:
        """An update that is left out changes no weight."""
        skipped = int(self._trained.optimizer.skipped_in_a_row.numpy())
        if skipped >= self._training.max_skipped_steps:
            raise TrainingDiverged(self.step, skipped)

    def _save(self) -> None:
        self._checkpoints.check()
        if self._is_save_due():
            self._checkpoints.save(self.step)
            self._saved_at = time.monotonic()

    def _is_save_due(self) -> bool:
        """Whether a checkpoint is due, by steps or by the clock."""
        minutes = self._training.checkpoint_every_minutes
        by_clock = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        return by_clock or self._is_save_planned(self.step)

    def _is_save_planned(self, step: int) -> bool:
        every = self._training.checkpoint_every_steps
        return every is not None and step % every == 0

    def _show(self) -> None:
        if not self._progress:
            return
        line = self._log.last_line
        if line or not self._progress.is_early_line_due():
            self._progress.show(self.step, line)
            return
        # The first line of the log may be hours away. Several workers would all have to read their
        # losses now.
        if not self._devices.are_several:
            self._fetch()
            line = self._log.line_so_far(self.step, self._trained)
        self._progress.show_early(self.step, line)

    def _evaluate(self) -> None:
        """Evaluates if it is due, logs, keeps the best checkpoint, and stops if patience ends."""
        if not self._job.evaluates_after(self.step):
            return
        metrics, remark = self._job.evaluate(self._trained, self.stop_on_signal)
        if self._job.best.metric not in metrics:
            self._checkpoints.save(self.step)  # the same command goes on from here
        check_best(self._job.best, metrics, self._output)
        if self._training.keep_best:
            self._checkpoints.keep_if_best(self.step, metrics)
        # Last: killed before it, the run evaluates again.
        self._log.write_evaluation(self.step, metrics)
        shown = ", ".join(f"{name.replace('_', ' ')} {v:.4f}" for name, v in metrics.items())
        precision = named_precision(self._job.config.training.precision)
        said = f"evaluated after step {self.step:,}{precision}: {shown}{remark and f'; {remark}'}"
        self._devices.say(said)
        if self.step < self._job.num_steps:
            self._stop_if_patience_ends()

    def _stop_if_patience_ends(self) -> None:
        patience, best = self._job.patience, self._job.best
        if patience is None:
            return
        values = [line[best.metric] for line in self._log.evaluations()]
        is_over = bool(values) and len(values) - 1 - best.place(values) >= patience
        # The chief's, whose lines a run that goes on reads: scores of others differ by a rounding.
        if self._devices.any(is_over and self._devices.is_chief):
            line = f"no better for {patience} evaluations: stopped"
            raise StopTraining(line, is_interrupted=False)


class _Unread(keras.callbacks.CallbackList):
    """Keras' list; it would fetch each step's results, and leave the device idle meanwhile."""

    _before: dict | None = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if keras.backend.backend() == "jax":
            # One more than runs: of many, signals wait for all, and processors for each other.
            jax.block_until_ready(self._before)
            self._before = logs
        super().on_train_batch_end(batch)


class StopSignals:
    """Notes SIGTERM and Ctrl-C while the context lasts, and puts the former handlers back.

    A signal that the process ignores (SIGINT of a child in the background) stays ignored. That a
    second signal ends the process at once is the command line's (`spanbert_tf.signals`).

    Attributes:
        received: the last one; in the middle of a step nothing can be saved.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._former: dict[int, object] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return  # Python lets the main thread alone handle signals
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's own
                self._former[number] = signal.signal(number, self._note)

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)


class _Progress:
    """Step, losses, learning rate, speed, and the time that went by and is left.

    A bar on a terminal, elsewhere a line where the log has a new one. Before the log's first line
    there are early ones, each after twice the time of the one before.
    """

    def __init__(self, step: int, num_steps: int) -> None:
        self._first_step, self._num_steps = step, num_steps
        self._start: float | None = None
        self._bar: rich.progress.Progress | None = None
        self._compiled: tuple[int, float] | None = None  # step and time of the first one's end
        self._early_at = 0.0  # when the next early line is due
        self._early_line: Mapping[str, float] = {}

    def start(self) -> None:
        """Begins with the first step; the clock, too."""
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
        """Notes when the first step has ended, which is compiled before it runs."""
        if self._compiled is None:
            now = time.monotonic()
            self._compiled = (step, now)
            self._early_at = min(self._start + _FIRST_LINE, now + _ENOUGH_STEPS)

    def is_early_line_due(self) -> bool:
        """Whether it is time to say how far the run is, where the log has no line yet."""
        return time.monotonic() >= self._early_at

    def show_early(self, step: int, line: Mapping[str, float]) -> None:
        """Shows a line that is not the log's; the next one comes after twice the time."""
        now = time.monotonic()
        self._early_at = now + max(now - self._start, _FIRST_LINE)
        self._early_line = line
        self._print(step, line)

    def show(self, step: int, line: Mapping[str, float]) -> None:
        """Moves the bar, or prints the log's last line if it is that of this step."""
        if self._bar is not None or line.get("step") == step:
            self._print(step, line or self._early_line)

    def _print(self, step: int, line: Mapping[str, float]) -> None:
        if self._bar is None:
            print_line(self._describe(step, line))
        else:
            self._bar.update(self._task, completed=step, description=self._describe(step, line))

    def stop(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()

    def _describe(self, step: int, line: Mapping[str, float]) -> str:
        text = f"step {step:,} of {self._num_steps:,}"
        if line:
            text += f": {describe_losses(line)}, learning rate {line['learning_rate']:.2e}, "
            text += f"{line['tokens_per_second']:,.0f} tokens/s"
        now = time.monotonic()
        text += f"{', ' if line else ': '}{_duration(now - self._start)} elapsed"
        # The first step is compiled, which the others are not.
        first, since = self._compiled
        if step == self._num_steps:
            return f"{text}, {_duration(0)} left"
        if step == first:
            return text
        per_step = (now - since) / (step - first)
        return f"{text}, {_duration(per_step * (self._num_steps - step))} left"


def _duration(seconds: float) -> str:
    return str(datetime.timedelta(seconds=round(seconds)))


def named_precision(precision: str) -> str:
    """What is said of a score that was not computed in float32, as an end of a clause."""
    return "" if precision == "float32" else f" in {precision.removeprefix('mixed_')}"


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

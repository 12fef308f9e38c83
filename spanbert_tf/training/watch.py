"""The callback of a run: logs, saves, evaluates, and decides when to stop."""

import signal
import time
from types import TracebackType

import keras

from spanbert_tf.config.settings import flat_values
from spanbert_tf.models.train_step import wait_until_computed
from spanbert_tf.process import StopSignals
from spanbert_tf.training.callbacks import CallbackFailed, UserCallbacks
from spanbert_tf.training.checkpoints import Checkpoints
from spanbert_tf.training.devices import Devices
from spanbert_tf.training.job import Job, TrainingDiverged, check_best
from spanbert_tf.training.metrics_log import MetricsLog, Profile
from spanbert_tf.training.progress import RunProgress
from spanbert_tf.training.throughput import Throughput

_MILLISECONDS_BETWEEN_CHECKS = (
    2_000  # much shorter than the notice before a cloud machine is preempted
)


class StopTraining(Exception):
    """Ends a run before its last step. `Watch` catches it and prints its text.

    Attributes:
        is_interrupted: whether the same command will resume the run.
    """

    def __init__(self, line: str, *, is_interrupted: bool) -> None:
        super().__init__(line)
        self.is_interrupted = is_interrupted


class Watch(keras.callbacks.Callback):
    """The only callback that `fit` knows. `on_train_batch_end` shows what it does after a step.

    It calls the user's own callbacks when it logs or evaluates.

    Use it as a context manager around all calls of `fit` of a run: it handles signals, saves the
    last step, and catches `StopTraining`.

    It counts the steps of the whole run, across calls of `fit` and restarts. The counter of the
    optimizer does not count the steps that overflow in float16. Executions of several steps end at
    multiples of `training.steps_per_execution`, which divides the periods of log, checkpoints and
    evaluations.

    Args:
        job: the job of the run.
        model: the model of the job.
        checkpoints: the checkpoints of the run.
        output: directory of the run.
        devices: devices of the run. Of several workers, only the chief writes and prints.
        step: number of finished steps.
        callbacks: the user's own callbacks; `None` if the run has none, or in other workers than
            the chief.

    Attributes:
        step: number of finished steps.
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
        callbacks: UserCallbacks | None = None,
    ) -> None:
        super().__init__()
        self.step = step
        self._user_callbacks = callbacks
        self.is_interrupted = False
        self._training = job.config.training
        self._last_step = job.num_steps  # of this `fit`
        self._job = job
        self._trained = model  # Keras sets `self.model` when `fit` starts
        self._checkpoints = checkpoints
        self._output = output
        self._devices = devices
        self._progress = RunProgress(step, job.num_steps, shows=devices.is_chief)
        self._throughput = Throughput(devices, self._training.precision)
        self._log = MetricsLog(
            output,
            step,
            is_due=self._is_log_due,
            throughput=self._throughput,
            seconds_left=self._progress.seconds_left,
            hyperparameters=flat_values(job.config),
            writes=devices.is_chief,
        )
        self._profile = Profile(
            self._training.profile_steps,
            self._log.directory,
            steps_per_execution=self._training.steps_per_execution,
            writes=devices.is_chief,
        )
        self._signals = StopSignals()
        # When workers last asked each other for signals, and the step after which they ask next.
        self._asked_at_step = step
        self._asked_at = time.monotonic()
        self._next_asking_step = step

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
            self._progress.stop()
            is_early = isinstance(error, StopTraining)
            is_saved = error is None or is_early or isinstance(error, CallbackFailed)
            if is_saved:
                self._checkpoints.save(self.step)
                self._checkpoints.wait()
            if error is None or is_early:
                self._say_summary()
            if is_saved and self._user_callbacks:
                self._user_callbacks.end()
            self._profile.stop()  # after saving, which matters more
            try:
                # A signal may have arrived while the last step was evaluated or saved.
                if error is None:
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

    def _say_summary(self) -> None:
        """Prints what the steps of this process have achieved, if the log has a line of them."""
        summary = self._throughput.summary()
        if summary:
            self._devices.say(f"{self._output}: {summary}")

    def catch_up(self) -> None:
        """Evaluates a resumed run if it was stopped between a step and its evaluation."""
        if self._user_callbacks:
            self._user_callbacks.begin(len(self._log.evaluations()))
        if self.step and self.step not in self._log.evaluated_steps:
            self._evaluate()
        self._stop_if_patience_ends()

    def until(self, step: int) -> keras.callbacks.CallbackList:
        """Returns the callbacks for a `fit` that ends after a step."""
        self._last_step = step
        return _CallbacksWithoutResults([self], add_history=True, model=self._trained)

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        """Starts an interval of the log, since Keras resets the metrics here."""
        self._log.begin_interval()

    def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
        """Sets the number of steps of the execution, and starts an interval of the log if due.

        The step does not follow from `batch`: Keras counts as if all executions had the same number
        of steps.
        """
        # The first execution of a resumed run and the last one of a `fit` may be shorter.
        num_steps = self._training.steps_per_execution
        self._num_executed = min(num_steps - self.step % num_steps, self._last_step - self.step)
        self._trained.steps_per_execution = self._num_executed
        self._log.on_step_begin(self._trained)
        self._profile.on_step_begin(self.step)
        self._progress.start()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Counts the steps, then logs, saves, shows and evaluates where due, in this order."""
        self.step += self._num_executed
        self._trained.stop_training = self.step == self._last_step
        self._progress.end_step(self.step)
        self._log.on_step_end(self.step, self._trained)
        if self._is_result_needed():
            self._trained.fetch_state()
            self._stop_on_divergence()  # before saving, so that the last checkpoint is good
            self._save()
            self._stop_on_agreed_signal()
            self._call_back()  # after saving, since the user's code may fail
            self._show()  # after saving, which a failing terminal must not prevent
            self._evaluate()  # inside `fit`, so that the stream of batches is not restarted
        else:
            self._show()
        self._profile.on_step_end(self.step)

    def _is_result_needed(self) -> bool:
        """Whether the result of the step is needed now. Fetching it waits for the device."""
        return (
            # All workers ask each other for signals after the same step.
            (self._devices.are_several and self.step >= self._next_asking_step)
            or self._signals.received is not None
            # `_stop_on_divergence` looks after each `max_skipped_steps` steps.
            or self.step % self._training.max_skipped_steps < self._num_executed
            or self._is_log_due(self.step)
            or self._is_save_due()
            or self.step in self._profile.ends
        )

    def _is_log_due(self, step: int) -> bool:
        return (
            step % self._training.log_every == 0
            or step == self._job.num_steps
            or self._job.evaluates_after(step)
        )

    def _stop_on_divergence(self) -> None:
        """Raises `TrainingDiverged` if too many updates in a row were skipped."""
        skipped = int(self._trained.optimizer.skipped_in_a_row.numpy())
        if skipped >= self._training.max_skipped_steps:
            raise TrainingDiverged(self.step, skipped)

    def _save(self) -> None:
        self._checkpoints.check()
        if self._is_save_due():
            self._checkpoints.save(self.step)
            self._saved_at = time.monotonic()

    def _is_save_due(self) -> bool:
        """Whether a checkpoint is due, by the clock or by steps."""
        minutes = self._training.checkpoint_every_minutes
        if minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes:
            return True
        every = self._training.checkpoint_every_steps
        return every is not None and self.step % every == 0

    def stop_on_signal(self) -> None:
        """Ends the run if any of its workers has received a signal.

        All workers must call it after the same step. Evaluations call it after each batch, since an
        evaluation can take longer than the notice before a machine is taken away.
        """
        if not self._devices.any(self._signals.received is not None):
            return
        name = (self._signals.received or signal.SIGTERM).name
        line = (
            f"{name}: saved step {self.step:,} of {self._job.num_steps:,}; run the same "
            "command again to go on"
        )
        raise StopTraining(line, is_interrupted=True)

    def _stop_on_agreed_signal(self) -> None:
        """Calls `stop_on_signal`; several workers, which wait for all, do so every 2 seconds."""
        if self._devices.are_several and self.step < self._next_asking_step:
            return
        self.stop_on_signal()
        now = time.monotonic()
        num_steps = max(self.step - self._asked_at_step, 1)
        milliseconds = round(1_000 * (now - self._asked_at) / num_steps)
        self._asked_at_step = self.step
        self._asked_at = now
        pace = max(self._devices.agreed(milliseconds), 1)  # milliseconds per step, of all workers
        self._next_asking_step = self.step + max(_MILLISECONDS_BETWEEN_CHECKS // pace, 1)

    def _call_back(self) -> None:
        """Passes the line of the log, if this step has one, to the user's callbacks."""
        if self._training.callbacks and self._is_log_due(self.step):
            stops = False
            if self._user_callbacks:
                stops = self._user_callbacks.log(self.step, self._log.last_line)
            self._stop_for_callback(stops)

    def _stop_for_callback(self, stops: bool) -> None:
        """Interrupts the run if a callback asks for it. Of several workers, the chief has them."""
        if self._devices.any(stops) and self.step < self._job.num_steps:
            line = (
                f"a callback has stopped the training: saved step {self.step:,} of "
                f"{self._job.num_steps:,}; run the same command again to go on"
            )
            raise StopTraining(line, is_interrupted=True)

    def _show(self) -> None:
        if not self._devices.is_chief:
            return
        line = self._log.last_line
        if line or not self._progress.is_early_line_due():
            self._progress.show(self.step, line)
            return
        # The first line of the log may be hours away. An early line of several workers shows no
        # losses, because all workers would have to read theirs now.
        if not self._devices.are_several:
            line = self._log.line_so_far(self.step, self._trained)
        self._progress.show_early(self.step, line)

    def _evaluate(self) -> None:
        """Evaluates if due, keeps the best checkpoint, logs, and stops if the patience is over."""
        if not self._job.evaluates_after(self.step):
            return
        metrics, remark = self._job.evaluate(self._trained, self.stop_on_signal)
        if self._job.best.metric not in metrics:
            self._checkpoints.save(self.step)  # the same command resumes from here
        check_best(self._job.best, metrics, self._output)
        if self._training.keep_best:
            self._checkpoints.keep_if_best(self.step, metrics)
        # The log comes last: a run that is killed earlier evaluates again when it is resumed.
        self._log.write_evaluation(self.step, metrics)
        shown = ", ".join(f"{name.replace('_', ' ')} {v:.4f}" for name, v in metrics.items())
        precision = named_precision(self._training.precision)
        line = f"evaluated after step {self.step:,}{precision}: {shown}"
        if remark:
            line += f"; {remark}"
        self._devices.say(line)
        if self._training.callbacks:
            stops = False
            if self._user_callbacks:
                stops = self._user_callbacks.evaluated(metrics)
            self._stop_for_callback(stops)
        if self.step < self._job.num_steps:
            self._stop_if_patience_ends()

    def _stop_if_patience_ends(self) -> None:
        patience = self._job.patience
        if patience is None:
            return
        best = self._job.best
        values = [line[best.metric] for line in self._log.evaluations()]
        is_over = bool(values) and len(values) - 1 - best.index_of_best(values) >= patience
        # The chief decides, because the scores of other workers may differ in the last bits, and a
        # resumed run reads the chief's log.
        if self._devices.any(is_over and self._devices.is_chief):
            line = f"no better for {patience} evaluations: stopped"
            raise StopTraining(line, is_interrupted=False)


class _CallbacksWithoutResults(keras.callbacks.CallbackList):
    """Keras' list, without the results of a step, since fetching them waits for the device."""

    _results: dict | None = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        # Keep at most one step in flight besides the running one: a longer queue delays signals and
        # makes CPU devices wait for each other.
        wait_until_computed(self._results)
        self._results = logs
        super().on_train_batch_end(batch)


def named_precision(precision: str) -> str:
    """Returns ` in PRECISION` for a score that was not computed in float32, else nothing."""
    return "" if precision == "float32" else f" in {precision.removeprefix('mixed_')}"

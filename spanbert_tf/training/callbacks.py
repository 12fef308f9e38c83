"""What happens beside the steps of a run: checkpoints, evaluations, reasons to stop."""

import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType

import keras

from spanbert_tf.training.checkpoints import Checkpoints

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class RunInterrupted(Exception):
    """The run was asked to stop, and has saved a checkpoint.

    Attributes:
        step: the checkpoint's.
        signal_name: what asked for it, `"SIGTERM"` for example.
    """

    def __init__(self, step: int, signal_name: str) -> None:
        super().__init__(f"{signal_name} at step {step}")
        self.step = step
        self.signal_name = signal_name


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


class StoppedEarly(Exception):
    """The evaluations have not become better for as long as the configuration allows.

    Attributes:
        step: the last one.
    """

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped early at step {step}")
        self.step = step


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


class StopOnDivergence(StepCallback):
    """Ends the run after too many updates in a row that were left out.

    It stands before `PeriodicCheckpoint`, so that the last checkpoint is a good one: an update
    that is left out changes no weight.

    Args:
        first_step: steps that are done.
        max_skipped_steps: how many updates in a row, left out, end the run.
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
    """Saves a checkpoint every so many steps, and after some steps in particular.

    Args:
        checkpoints: where to save.
        first_step: steps that are done.
        every: steps between checkpoints.
        also_at: further steps, such as the ends of epochs.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        first_step: int,
        *,
        every: int,
        also_at: Collection[int] = (),
    ) -> None:
        super().__init__(first_step)
        self._checkpoints = checkpoints
        self._every = every
        self._also_at = frozenset(also_at)

    def on_step_end(self, logs: dict) -> None:
        """Saves a checkpoint if one is due."""
        if self.step % self._every == 0 or self.step in self._also_at:
            self._checkpoints.save(self.step)


class Evaluation(StepCallback):
    """Evaluates after some steps, inside of `fit`, so that the stream of batches goes on.

    It stands last of all callbacks, so that the others have counted and saved the step before.

    Args:
        first_step: steps that are done.
        is_due: whether to evaluate after a step.
        evaluate: is called with the step.
    """

    def __init__(
        self,
        first_step: int,
        *,
        is_due: Callable[[int], bool],
        evaluate: Callable[[int], None],
    ) -> None:
        super().__init__(first_step)
        self._is_due = is_due
        self._evaluate = evaluate

    def on_step_end(self, logs: dict) -> None:
        """Evaluates if an evaluation is due."""
        if self._is_due(self.step):
            self._evaluate(self.step)


class StopOnSignal(StepCallback):
    """On SIGTERM or Ctrl-C: finishes the step, saves a checkpoint, ends the run.

    Use it as a context manager around `fit`, which puts the former handlers back. A signal that
    the process ignores (SIGINT of a child in the background) stays ignored. That a second signal
    ends the process at once is the command line's (`spanbert_tf.process.signals`).

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
        self._signal: signal.Signals | None = None
        self._former_handlers: dict[int, object] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is not threading.main_thread():
            return self  # Python lets the main thread alone handle signals
        for number in _STOP_SIGNALS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's own
                self._former_handlers[number] = signal.signal(number, self._note_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._former_handlers.items():
            signal.signal(number, handler)

    def on_step_end(self, logs: dict) -> None:
        """Stops if there was a signal."""
        self.stop_if_signalled()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Stops evaluations, too: they can take longer than a machine's notice of its end."""
        self.stop_if_signalled()

    def stop_if_signalled(self) -> None:
        """Saves a checkpoint and raises `RunInterrupted` if there was a signal."""
        if self._any_worker(self._signal is not None):
            self._checkpoints.save(self.step)
            raise RunInterrupted(self.step, (self._signal or signal.SIGTERM).name)

    def _note_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = signal.Signals(number)  # in the middle of a step nothing can be saved

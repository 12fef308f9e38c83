"""The one training loop: pre-training and every fine-tuning task go through it."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from spanbert_tf.errors import BadInputError, MismatchError, TrainingError, reason
from spanbert_tf.process.lines import print_line
from spanbert_tf.training.callbacks import (
    Evaluation,
    PeriodicCheckpoint,
    RunInterrupted,
    StopOnDivergence,
    StopOnSignal,
    StoppedEarly,
    TrainingDiverged,
)
from spanbert_tf.training.checkpoints import Checkpoints
from spanbert_tf.training.metrics_log import MetricsLog
from spanbert_tf.training.replicated_model import ReplicatedModel
from spanbert_tf.training.run_directory import CHECKPOINTS
from spanbert_tf.training.run_display import TrainingProgress
from spanbert_tf.training.strategies import NVIDIA_CARD, unused_card
from spanbert_tf.training.workers import Workers

# What TensorFlow raises where another worker cannot be reached any more.
_LOST_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

CheckStop = Callable[[], None]  # raises `RunInterrupted` where a signal has come


class Evaluated(NamedTuple):
    """What an evaluation found.

    Attributes:
        metrics: their names, without a prefix, and their values.
        remark: what is to be said of the predictions, in a clause; empty for nothing.
    """

    metrics: Mapping[str, float]
    remark: str = ""


@dataclasses.dataclass(frozen=True)
class HeldStart:
    """Variables that stay as they are in the first steps of a run.

    Attributes:
        variables: those that are held; the optimizer was built with them.
        num_steps: for how many steps; the whole run if it has no more.
    """

    variables: Sequence[keras.Variable]
    num_steps: int


@dataclasses.dataclass(frozen=True)
class LoopOptions:
    """The course of a run.

    Attributes:
        num_steps: steps of the whole run.
        log_every: steps between lines of the log.
        checkpoint_every_steps: steps between checkpoints.
        max_checkpoints: checkpoints that are kept, the newest ones.
        max_skipped_steps: the run ends after so many updates in a row whose gradients were not
            finite.
        evaluate_at: whether to evaluate after a step.
        best_metric: metric of the evaluations that says which one is the best.
        checkpoint_at: further steps to save, such as the ends of epochs.
        keeps_best: whether the best checkpoint is kept beside the newest ones.
        higher_is_better: whether a higher value of that metric is better.
        patience: the run ends after so many evaluations in a row that were no better than the best
            one; `None`: it goes on.
        held_start: variables that are trained later than the others; `None`: none.
    """

    num_steps: int
    log_every: int
    checkpoint_every_steps: int
    max_checkpoints: int
    max_skipped_steps: int
    evaluate_at: Callable[[int], bool]
    best_metric: str
    checkpoint_at: Collection[int] = ()
    keeps_best: bool = False
    higher_is_better: bool = False
    patience: int | None = None
    held_start: HeldStart | None = None


@dataclasses.dataclass(frozen=True)
class Course:
    """What a run trains on, and how it is evaluated.

    Attributes:
        batches: the endless training batches from a step on.
        evaluate: evaluates the current model; calls its argument after each batch.
        schedule: learning rate as a function of the step, from 0.
        tokens_per_step: word pieces of a batch, padding apart.
        name_damage: what to raise where a batch could not be read, if the file can be named.
        describe_step: the files that the records of a step come from; empty if unknown.
    """

    batches: Callable[[int], tf.data.Dataset]
    evaluate: Callable[[CheckStop], Evaluated] | None
    schedule: Callable[[int], float]
    tokens_per_step: float
    name_damage: Callable[[], BadInputError | None] = lambda: None
    describe_step: Callable[[int], str] = lambda step: ""


class TrainingLoop:
    """Trains a model from its newest checkpoint to the end, or until it is stopped.

    Args:
        model: compiled and built, with its optimizer.
        output: directory of the run.
        options: the course of the run.
        workers: the processes of the run.
    """

    def __init__(
        self, model: ReplicatedModel, output: str, options: LoopOptions, workers: Workers
    ) -> None:
        self._model = model
        self._output = output
        self._options = options
        self._workers = workers
        self._checkpoints = Checkpoints(
            os.path.join(output, CHECKPOINTS),
            model,
            max_to_keep=options.max_checkpoints,
            report=print_line,
            writes=workers.is_chief,
        )

    @property
    def has_begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return bool(self._checkpoints.steps())

    def restore(self) -> int:
        """Restores the newest checkpoint that is not damaged; returns its step, 0 for none.

        Raises:
            BadInputError: all checkpoints are damaged.
            MismatchError: there are more steps than the run is to have, or workers differ.
        """
        step, num_steps = self._checkpoints.restore(), self._options.num_steps
        self._workers.check_same_step(step, self._output)
        if step > num_steps:
            raise MismatchError(
                f"{self._output}: has {step} steps already, more than training.steps "
                f"({num_steps}); raise it, or name another --output"
            )
        if step:
            self.say(f"{self._output}: going on after step {step:,} of {num_steps:,}")
        return step

    def run(self, course: Course, first_step: int) -> bool:
        """Trains from a step to the end.

        Args:
            course: what to train on.
            first_step: what `restore` returned.

        Returns:
            Whether the end was reached; a signal ends the run before, with a checkpoint.

        Raises:
            BadInputError: a record is damaged, or the run's directory cannot be written.
            TrainingError: gradients were not finite again and again, or a worker was lost.
        """
        with self.named_errors(course):
            try:
                self._fit(course, first_step)
            except RunInterrupted as stop:
                self.say(
                    f"{self._output}: {stop.signal_name}: saved step {stop.step:,} of "
                    f"{self._options.num_steps:,}; run the same command again to go on"
                )
                return False
        return True

    def restore_best(self) -> int | None:
        """Restores the best checkpoint by `best_metric`; returns its step, `None` for none."""
        return self._checkpoints.restore_best()

    def say(self, line: str) -> None:
        """Prints a line, once for all workers."""
        if self._workers.is_chief:
            print_line(line)

    def _fit(self, course: Course, first_step: int) -> None:
        options, chief = self._options, self._workers.is_chief
        if advice := unused_card(NVIDIA_CARD):
            self.say(advice)
        log = MetricsLog(
            self._output,
            first_step,
            every=options.log_every,
            also_at=lambda step: options.evaluate_at(step) or step == options.num_steps,
            schedule=course.schedule,
            tokens_per_step=course.tokens_per_step,
            writes=chief,
        )
        stop = StopOnSignal(self._checkpoints, first_step, self._workers.any)
        progress = TrainingProgress(log, first_step, num_steps=options.num_steps, shows=chief)

        def evaluate(step: int) -> None:
            self._evaluate(course, log, stop, step)

        callbacks = [
            log,
            StopOnDivergence(first_step, max_skipped_steps=options.max_skipped_steps),
            PeriodicCheckpoint(
                self._checkpoints,
                first_step,
                every=options.checkpoint_every_steps,
                also_at=options.checkpoint_at,
            ),
            stop,
            progress,  # what is shown cannot keep a step from being saved
            Evaluation(first_step, is_due=self._options.evaluate_at, evaluate=evaluate),
        ]
        try:
            with stop:
                # The run may have been stopped between a step and its evaluation.
                is_missing = first_step not in log.evaluated_steps
                if first_step and self._options.evaluate_at(first_step) and is_missing:
                    evaluate(first_step)
                self._stop_if_patience_ends(log, first_step)
                if first_step < options.num_steps:
                    with progress:
                        self._fit_phases(course, first_step, callbacks)
                self._checkpoints.save(options.num_steps)
        except StoppedEarly as early:
            self._checkpoints.save(early.step)
            self.say(f"{self._output}: no better for {options.patience} evaluations: stopped")

    def _fit_phases(
        self, course: Course, first_step: int, callbacks: list[keras.callbacks.Callback]
    ) -> None:
        """Trains to the end, where variables are held in two phases; each begins at its step."""
        num_steps, start = self._options.num_steps, self._options.held_start
        switch = min(start.num_steps, num_steps) if start else 0
        for begin, end, held in (
            (first_step, switch, start.variables if start else ()),
            (max(first_step, switch), num_steps, ()),
        ):
            if begin >= end:
                continue
            self._model.hold(held)
            self._model.fit(
                course.batches(begin),
                steps_per_epoch=end - begin,
                callbacks=callbacks,
                shuffle=False,  # the data set is shuffled
                verbose=0,
            )

    def _evaluate(self, course: Course, log: MetricsLog, stop: StopOnSignal, step: int) -> None:
        """Evaluates, logs, keeps the best checkpoint, and stops if patience is exhausted."""
        if course.evaluate is None:
            return
        options = self._options
        metrics, remark = course.evaluate(stop.stop_if_signalled)
        if options.keeps_best:
            self._checkpoints.keep_if_best(
                step,
                options.best_metric,
                float(metrics[options.best_metric]),
                higher_is_better=options.higher_is_better,
            )
        log.write_evaluation(step, metrics)  # last: killed before it, the run evaluates again
        shown = ", ".join(f"{name.replace('_', ' ')} {v:.4f}" for name, v in metrics.items())
        self.say(f"evaluated after step {step:,}: {shown}{remark and f'; {remark}'}")
        if step < options.num_steps:
            self._stop_if_patience_ends(log, step)

    def _stop_if_patience_ends(self, log: MetricsLog, step: int) -> None:
        options = self._options
        if options.patience is None:
            return
        values = [line[options.best_metric] for line in log.evaluations()]
        if not values:
            return
        best = max(values) if options.higher_is_better else min(values)
        if len(values) - 1 - values.index(best) >= options.patience:
            raise StoppedEarly(step)

    @contextlib.contextmanager
    def named_errors(self, course: Course) -> Iterator[None]:
        """Says which file is meant where TensorFlow or the operating system would not."""
        try:
            yield
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise course.name_damage() or error from error
        except _LOST_WORKER_ERRORS as error:
            if not self._workers.are_several:
                raise
            raise TrainingError(
                f"{self._output}: another worker was lost ({type(error).__name__}); start all "
                "workers again to go on from the last checkpoint"
            ) from error
        except TrainingDiverged as error:
            raise TrainingError(self._describe_divergence(course, error)) from error
        except (OSError, BadInputError) as error:
            if not os.path.isdir(self._output):
                raise TrainingError(
                    f"{self._output}: was removed or renamed while it was trained; if it still "
                    "has its checkpoints, name its new place as --output to go on"
                ) from error
            if isinstance(error, BadInputError):
                raise
            raise BadInputError(
                f"{self._output}: cannot be written ({reason(error)}); free some space and run the "
                "same command again to go on"
            ) from error

    def _describe_divergence(self, course: Course, error: TrainingDiverged) -> str:
        """Where the gradients were not finite: the step, and the files of its records."""
        first_step = error.step - error.num_steps
        files = course.describe_step(first_step)
        where = f", whose records are in {files}" if files else ""
        advice = ", or look at these records" if files else ""
        return (
            f"{self._output}: gradients were not finite in {error.num_steps} steps in a row, from "
            f"step {first_step + 1} on{where}; lower optimizer.learning_rate{advice}; the last "
            "good checkpoint is kept"
        )

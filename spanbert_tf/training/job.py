"""The interface between `training.run` and its two jobs, pre-training and fine-tuning."""

import abc
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple

import keras
import tensorflow as tf

from spanbert_tf.data.examples import named_damage
from spanbert_tf.errors import (
    BadInputError,
    ConfigurationError,
    MismatchError,
    TrainingError,
    reason,
)
from spanbert_tf.files.contents import is_inside
from spanbert_tf.training.checkpoints import Best, Checkpoints
from spanbert_tf.training.devices import LOST_WORKER_ERRORS, Devices
from spanbert_tf.training.memory import is_exhaustion
from spanbert_tf.training.run_directory import Config, RunDirectory

CheckStop = Callable[[], None]  # raises `StopTraining` if a signal has arrived


class Evaluated(NamedTuple):
    """The result of an evaluation.

    Attributes:
        metrics: maps the name of a metric, without a prefix, to its value.
        remark: a clause about the predictions to print; may be empty.
    """

    metrics: Mapping[str, float]
    remark: str = ""


def check_best(best: Best, metrics: Iterable[str], place: str) -> None:
    """Checks that the metric by which the best evaluation is chosen exists.

    Args:
        best: the criterion.
        metrics: names of the metrics of an evaluation.
        place: the run or the task, for the error message.

    Raises:
        ConfigurationError: the evaluations have no metric of this name.
    """
    if best.metric not in metrics:
        raise ConfigurationError(
            f"{place}: its best evaluation is to be chosen by {best.metric!r}, and they have "
            f"{', '.join(metrics)}; --set training.best_metric to one of these, and give the same "
            "command again"
        )


class Phase(NamedTuple):
    """A part of a run in which the same variables are trained.

    Attributes:
        first: number of steps done before the phase.
        last: number of steps done after the phase.
        frozen: variables that are not trained in the phase.
    """

    first: int
    last: int
    frozen: Sequence[keras.Variable] = ()


class TrainingDiverged(Exception):
    """Raised when the gradients of too many steps in a row were not finite.

    Attributes:
        step: the last of these steps.
        num_steps: number of these steps.
    """

    def __init__(self, step: int, num_steps: int) -> None:
        super().__init__(f"no finite gradients in {num_steps} steps up to {step}")
        self.step = step
        self.num_steps = num_steps


class Job(abc.ABC, Generic[Config]):
    """What a run trains: pre-training, or the fine-tuning of a task.

    `run` calls `load_config` to `finish` in the order in which they are defined. For a finished run
    without checkpoints it calls `read_result` in place of those after `build`. These methods call
    the others.

    Attributes:
        config: configuration of the run; its section `training` is a `RunConfig`.
        best: criterion of the best evaluation.
        patience: the run ends after this number of evaluations without a better one; `None` for no
            limit.
        inputs: maps an option of the command to the digest of its file or directory, or to `None`
            if the option is not given. Also maps a setting that names code of another package (a
            masking scheme) to a description of that code. A resumed run must have the same values.
        num_steps: number of steps of the whole run.
        hidden_dim: width of the encoder, on which `precision: auto` depends.
        base: digest of the preset with the weights that checkpoints leave out; known after `build`.
    """

    config: Config
    best: Best
    patience: int | None = None
    inputs: dict[str, str | None]
    num_steps: int
    hidden_dim: int
    base: str | None = None

    @abc.abstractmethod
    def load_config(self, path: str) -> Config:
        """Reads the `config.yaml` of a run of this job."""

    @abc.abstractmethod
    def build(self, devices: Devices) -> keras.Model:
        """Builds and compiles the model with its optimizer, inside the scope of the strategy."""

    @abc.abstractmethod
    def begin(self, model: keras.Model, output: str, *, is_new: bool) -> None:
        """Gives the model its initial weights, and completes `inputs`.

        Args:
            model: the model that `build` returned.
            output: directory of the run.
            is_new: whether the run has no checkpoint from which weights are restored afterwards.
        """

    def restore(self, checkpoints: Checkpoints, output: str, devices: Devices) -> int:
        """Restores the newest undamaged checkpoint and returns its step; 0 if there is none."""
        step = checkpoints.restore()
        devices.check_same_step(step, output)
        if step > self.num_steps:
            raise MismatchError(
                f"{output}: has {step} steps already, more than training.steps "
                f"({self.num_steps}); raise it, or name another --output"
            )
        if step:
            devices.say(f"{output}: going on after step {step:,} of {self.num_steps:,}")
        return step

    def write(self, output: str, *, is_new: bool) -> None:
        """Writes the files that a resumed run reads besides its checkpoints."""
        RunDirectory(output).write(self.config, self.inputs)

    @abc.abstractmethod
    def describe(self, model: keras.Model) -> str:
        """Describes the run in a clause that follows the description of the devices."""

    def phases(self, first_step: int) -> Iterable[Phase]:
        """Returns the phases that remain after `first_step` steps."""
        return [Phase(first_step, self.num_steps)] if first_step < self.num_steps else []

    @abc.abstractmethod
    def batches(self, first_step: int) -> tf.data.Dataset:
        """Returns the endless training batches after `first_step` steps."""

    @abc.abstractmethod
    def evaluates_after(self, step: int) -> bool:
        """Whether the model is evaluated after a step."""

    @abc.abstractmethod
    def evaluate(self, model: keras.Model, check_stop: CheckStop) -> Evaluated:
        """Evaluates the model, and calls `check_stop` after each batch."""

    @abc.abstractmethod
    def finish(
        self, model: keras.Model, checkpoints: Checkpoints, output: str, *, is_chief: bool
    ) -> Any:
        """Writes the preset and the scores after the last step, and prints the summary.

        Args:
            model: the trained model.
            checkpoints: the checkpoints of the run, including the best one.
            output: directory of the run.
            is_chief: whether this process writes.

        Returns:
            The value that `run` returns.
        """

    def restore_best(self, checkpoints: Checkpoints, devices: Devices) -> int | None:
        """Restores the weights of the best evaluation and prints their step.

        Returns:
            The step; `None` if the model keeps the weights of the last step, because
            `training.keep_best` is not set or no evaluation chose a checkpoint.
        """
        if not self.config.training.keep_best:
            return None
        step = checkpoints.restore_best()
        if step is None:
            devices.say(
                "training.keep_best: no evaluation of this run chose a checkpoint ("
                f"{self.why_none_is_best()}); the weights of the last step are kept"
            )
        else:
            devices.say(f"the best checkpoint by {self.best.metric} is that of step {step:,}")
        return step

    def why_none_is_best(self) -> str:
        """Says why a finished run with `training.keep_best` has no best checkpoint."""
        return "all were before training.keep_best was set"

    @abc.abstractmethod
    def read_result(self, model: keras.Model, output: str) -> Any:
        """Returns the result of a finished run whose checkpoints are deleted.

        Args:
            model: the model that `build` returned.
            output: directory of the run.
        """

    def damage(self) -> BadInputError | None:
        """Returns an error that names the damaged file, after reading a batch has failed."""
        return None

    def files_of_step(self, step: int) -> str:
        """Names the files of the records that are trained after `step` steps; empty if unknown."""
        return ""

    @contextlib.contextmanager
    def named_errors(self, output: str, devices: Devices) -> Iterator[None]:
        """Replaces errors of TensorFlow and the operating system by errors that name the file."""
        try:
            with lost_workers_named(output, devices), named_damage(self.damage):
                yield
        except TrainingDiverged as error:
            raise TrainingError(self._describe_divergence(output, error)) from error
        except (OSError, BadInputError) as error:
            if not os.path.isdir(output):
                raise TrainingError(
                    f"{output}: was removed or renamed while it was trained; if it still "
                    "has its checkpoints, name its new place as --output to go on"
                ) from error
            if isinstance(error, BadInputError):
                raise
            if isinstance(error.filename, str) and not is_inside(error.filename, output):
                raise BadInputError(f"{error.filename}: {reason(error)}") from error
            raise BadInputError(
                f"{output}: cannot be written ({reason(error)}); free some space and run the "
                "same command again to go on"
            ) from error

    def _describe_divergence(self, output: str, error: TrainingDiverged) -> str:
        """Names the first step whose gradients were not finite, and the files of its records."""
        first_step = error.step - error.num_steps
        files = self.files_of_step(first_step)
        where = ""
        advice = ""
        if files:
            where = f", whose records are in {files}"
            advice = ", or look at these records"
        return (
            f"{output}: gradients were not finite in {error.num_steps} steps in a row, from "
            f"step {first_step + 1} on{where}; lower optimizer.learning_rate{advice}; the last "
            "good checkpoint is kept"
        )


@contextlib.contextmanager
def lost_workers_named(output: str, devices: Devices) -> Iterator[None]:
    """Raises a `TrainingError` if another worker cannot be reached any more."""
    try:
        yield
    except LOST_WORKER_ERRORS as error:
        if not devices.are_several or is_exhaustion(error):
            raise
        raise TrainingError(
            f"{output}: another worker was lost ({_kind(error)}); start all workers again to "
            "go on from the last checkpoint"
        ) from error


def _kind(error: Exception) -> str:
    """Names the class of an error, and its reason if it is JAX's, which has one class for all."""
    name = type(error).__name__
    if isinstance(error, tf.errors.OpError):
        return name
    return f"{name}: {reason(error)}"

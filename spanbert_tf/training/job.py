"""What `training.run` asks of what it trains: pre-training, or the fine-tuning of a task."""

import abc
import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
from spanbert_tf.training.run_directory import AnyConfig, RunDirectory

CheckStop = Callable[[], None]  # raises where a signal has come


class Evaluated(NamedTuple):
    """What an evaluation found.

    Attributes:
        metrics: their names, without a prefix, and their values.
        remark: what is to be said of the predictions, in a clause; empty for nothing.
    """

    metrics: Mapping[str, float]
    remark: str = ""


def check_best(best: Best, metrics: Iterable[str], place: str) -> None:
    """Checks that evaluations have the metric that the best one is chosen by.

    Raises:
        ConfigurationError: they have others, which are named after `place`, a run or a task.
    """
    if best.metric not in metrics:
        raise ConfigurationError(
            f"{place}: its best evaluation is to be chosen by {best.metric!r}, and they have "
            f"{', '.join(metrics)}; --set training.best_metric to one of these, and give the same "
            "command again"
        )


class Phase(NamedTuple):
    """Steps in which the same variables are trained.

    Attributes:
        first: steps that are done before.
        last: steps that are done after.
        frozen: variables that are not trained.
    """

    first: int
    last: int
    frozen: Sequence[keras.Variable] = ()


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


class Job(abc.ABC):
    """One way to fill a run: what is built, what it reads, how it is evaluated, what comes of it.

    Its methods are called in the order in which they stand here.

    Attributes:
        config: configuration of the run; its section `training` is a `RunConfig`.
        best: which evaluation is the best one.
        patience: the run ends after so many evaluations in a row that were no better than the best
            one; `None`: it goes on.
        inputs: option of the command → digest of what it names, `None` where it is not given; a
            resumed run must find the same again.
        num_steps: steps of the whole run.
        tokens_per_step: word pieces of a batch, padding apart.
        learning_rate: number of finished steps → learning rate of the next step.
        hidden_dim: width of the encoder, by which `precision: auto` is decided.
    """

    config: AnyConfig
    best: Best
    patience: int | None = None
    inputs: dict[str, str | None]
    num_steps: int
    tokens_per_step: float
    learning_rate: Callable[[int], float]
    hidden_dim: int

    @abc.abstractmethod
    def load_config(self, path: str) -> AnyConfig:
        """Reads the `config.yaml` of a run of this kind."""

    @abc.abstractmethod
    def build(self, devices: Devices) -> keras.Model:
        """A compiled model, built with its optimizer, inside the scope of the run's strategy."""

    @abc.abstractmethod
    def begin(self, model: keras.Model, output: str, *, is_new: bool) -> None:
        """Gives the model its first weights, and completes `inputs`.

        Args:
            model: what `build` returned.
            output: directory of the run.
            is_new: whether there is no checkpoint, whose weights come after these.
        """

    def restore(self, checkpoints: Checkpoints, output: str, devices: Devices) -> int:
        """Restores the newest checkpoint that is not damaged; returns its step, 0 for none."""
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
        """Writes what the run must find again beside its checkpoints; the configuration last."""
        RunDirectory(output).write(self.config, self.inputs)

    @abc.abstractmethod
    def describe(self, model: keras.Model) -> str:
        """What the run does, in a line that goes on after the devices."""

    def phases(self, first_step: int) -> Iterable[Phase]:
        """The steps that are left."""
        return [Phase(first_step, self.num_steps)] if first_step < self.num_steps else []

    @abc.abstractmethod
    def batches(self, first_step: int) -> tf.data.Dataset:
        """The endless training batches from a step on."""

    @abc.abstractmethod
    def evaluates_after(self, step: int) -> bool:
        """Whether there is an evaluation after a step."""

    @abc.abstractmethod
    def evaluate(self, model: keras.Model, check_stop: CheckStop) -> Evaluated:
        """Evaluates; calls `check_stop` after each batch."""

    @abc.abstractmethod
    def finish(
        self, model: keras.Model, checkpoints: Checkpoints, output: str, *, is_chief: bool
    ) -> Any:
        """What comes after the last step: preset, scores and summary.

        Args:
            model: as trained.
            checkpoints: those of the run, the best one among them.
            output: directory of the run.
            is_chief: whether this process writes.

        Returns:
            What the run returns.
        """

    def restore_best(self, checkpoints: Checkpoints, devices: Devices) -> int | None:
        """Gives the model the weights of the best evaluation, and says of which step they are.

        Returns:
            The step; `None` if the weights of the last step stay, since `training.keep_best` is not
            set or no evaluation chose a checkpoint.
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
        """The reason why a finished run with `training.keep_best` has no best checkpoint."""
        return "all were before training.keep_best was set"

    @abc.abstractmethod
    def read_result(self, model: keras.Model, output: str) -> Any:
        """What a finished run returned, whose checkpoints are gone.

        Args:
            model: what `build` returned.
            output: directory of the run.
        """

    def damage(self) -> BadInputError | None:
        """What to raise where a batch could not be read, if the file can be named."""
        return None

    def files_of_step(self, step: int) -> str:
        """The files that the records of the step after so many come from; empty if unknown."""
        return ""

    @contextlib.contextmanager
    def named_errors(self, output: str, devices: Devices) -> Iterator[None]:
        """Says which file is meant where TensorFlow or the operating system would not."""
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
                raise BadInputError(f"{error.filename}: {reason(error)}") from error  # read, mostly
            raise BadInputError(
                f"{output}: cannot be written ({reason(error)}); free some space and run the "
                "same command again to go on"
            ) from error

    def _describe_divergence(self, output: str, error: TrainingDiverged) -> str:
        """Where the gradients were not finite: the step, and the files of its records."""
        first_step = error.step - error.num_steps
        files = self.files_of_step(first_step)
        where = f", whose records are in {files}" if files else ""
        advice = ", or look at these records" if files else ""
        return (
            f"{output}: gradients were not finite in {error.num_steps} steps in a row, from "
            f"step {first_step + 1} on{where}; lower optimizer.learning_rate{advice}; the last "
            "good checkpoint is kept"
        )


@contextlib.contextmanager
def lost_workers_named(output: str, devices: Devices) -> Iterator[None]:
    """Raises a `TrainingError` where another worker cannot be reached any more."""
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
    """The name of an error; JAX has one for all, whose words tell what it is."""
    name = type(error).__name__
    return name if isinstance(error, tf.errors.OpError) else f"{name}: {reason(error)}"

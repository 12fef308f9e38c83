"""One pre-training run: checks, `model.fit`, checkpoints, and the preset at the end."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator

import keras
import tensorflow as tf

from spanbert_tf.config import PretrainingConfig, TrainingConfig
from spanbert_tf.data.records import files_of_records, find_damage, load_dataset_info
from spanbert_tf.data.repair import repaired_records
from spanbert_tf.data.schema import DatasetInfo
from spanbert_tf.errors import BadInputError, MismatchError, TrainingError
from spanbert_tf.training.callbacks import (
    BestCheckpoint,
    MetricsLog,
    PeriodicCheckpoint,
    RunInterrupted,
    StopOnDivergence,
    StopOnSignal,
    TrainingDiverged,
)
from spanbert_tf.training.checkpoints import Checkpoints
from spanbert_tf.training.datasets import RunDatasets, check_records, tokens_per_row
from spanbert_tf.training.initial_preset import begin_with_preset
from spanbert_tf.training.optimizers import WarmupLinearDecay
from spanbert_tf.training.pretrainer import compiled_pretrainer
from spanbert_tf.training.replicated_pretrainer import ReplicatedPretrainer
from spanbert_tf.training.run_directory import (
    CHECKPOINTS,
    REPAIRED_RECORDS,
    check_directory,
    check_run,
    write_run,
)
from spanbert_tf.training.run_results import print_summary, save_run_preset
from spanbert_tf.training.strategies import make_strategy
from spanbert_tf.training.workers import Workers

# What TensorFlow raises where another worker cannot be reached any more.
_LOST_WORKER_ERRORS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)


def run_pretraining(
    config: PretrainingConfig,
    data: str,
    output: str,
    initial_preset: str | None = None,
    *,
    num_devices: int | None = None,
) -> ReplicatedPretrainer | None:
    """Trains a model, or goes on with a run that was stopped or killed.

    A run that is killed at any time and started again ends with the same weights, bit for bit, as
    one that never was, on the same machine.

    Args:
        config: of the run.
        data: directory of the records.
        output: directory of the run; several workers share it.
        initial_preset: preset whose weights the run begins with, where it has them; a run that
            resumes does not read it again.
        num_devices: devices of each machine to use, all by default.

    Returns:
        The trained model, or `None` if SIGTERM ended the run.

    Raises:
        BadInputError: a file or directory cannot be used, or a record is damaged.
        MismatchError: records, configuration, preset and earlier run do not fit together.
        ConfigurationError: the devices cannot share the batch equally, or are not there.
        TrainingError: gradients were not finite again and again, or another worker was lost.
    """
    training = config.training
    info = load_dataset_info(data)
    check_records(config, info, data)
    strategy = make_strategy(training, num_devices)
    workers = Workers(strategy)
    if config.data.on_corrupt == "skip":
        check_directory(output)
        repaired = os.path.join(output, f"{REPAIRED_RECORDS}{workers.number}")
        data, info = repaired_records(data, info, repaired)
    if training.deterministic:
        tf.config.experimental.enable_op_determinism()
    datasets = RunDatasets(config, data, info, strategy)
    run = _Run(config, data, output, info, datasets, workers)
    held_out = datasets.held_out()  # refuses records that lack what the masking needs
    check_run(output, config, info)
    keras.utils.set_random_seed(training.seed)
    with strategy.scope():
        model = compiled_pretrainer(config, info.vocabulary_size)
    checkpoints = Checkpoints(
        os.path.join(output, CHECKPOINTS),
        model,
        max_to_keep=training.max_checkpoints,
        writes=run.workers.is_chief,
    )
    if initial_preset and not checkpoints.steps():
        begin_with_preset(model, initial_preset, data, info)
    with _named_errors(run):
        first_step = _restore(checkpoints, run)
        try:
            _fit(model, run, held_out, checkpoints, first_step)
        except RunInterrupted as stop:
            run.print(
                f"{output}: SIGTERM: saved step {stop.step} of {training.steps}; run the same "
                "command again to go on"
            )
            return None
        if run.workers.is_chief:
            save_run_preset(model, config, data, output, info)
    if run.workers.is_chief:
        print_summary(output)
    return model


@dataclasses.dataclass(frozen=True)
class _Run:
    config: PretrainingConfig
    data: str  # directory of the records
    output: str  # directory of the run
    info: DatasetInfo
    datasets: RunDatasets
    workers: Workers

    def print(self, line: str) -> None:
        if self.workers.is_chief:
            print(line, flush=True)


def _restore(checkpoints: Checkpoints, run: _Run) -> int:
    """Restores the newest checkpoint, describes the run in its directory; returns the step."""
    steps = run.config.training.steps
    first_step = checkpoints.restore()
    run.workers.check_same_step(first_step, run.output)
    if first_step > steps:
        raise MismatchError(
            f"{run.output}: has {first_step} steps already, more than training.steps ({steps}); "
            "raise it, or name another --output"
        )
    if run.workers.is_chief:
        write_run(run.output, run.config, run.info)
    if first_step:
        run.print(f"{run.output}: going on after step {first_step} of {steps}")
    return first_step


@contextlib.contextmanager
def _named_errors(run: _Run) -> Iterator[None]:
    """Says which file is meant where TensorFlow or the operating system would not."""
    try:
        yield
    except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
        files = [os.path.join(run.data, shard.file) for shard in run.info.shards]
        raise find_damage(files) or error from error
    except _LOST_WORKER_ERRORS as error:
        if not run.workers.are_several:
            raise
        raise TrainingError(
            f"{run.output}: another worker was lost ({type(error).__name__}); start all workers "
            "again to go on from the last checkpoint"
        ) from error
    except TrainingDiverged as error:
        raise TrainingError(_describe_divergence(run, error)) from error
    except OSError as error:
        raise BadInputError(
            f"{run.output}: cannot be written ({error}); free some space and run the same command "
            "again to go on"
        ) from error


def _describe_divergence(run: _Run, error: TrainingDiverged) -> str:
    """Where the gradients were not finite: the step, and the files that its records are from."""
    first_step = error.step - error.num_steps
    (batch,) = run.datasets.record_ids(first_step).take(1).as_numpy_iterator()
    files = files_of_records(run.info.files(run.data, "train"), batch.tolist())
    return (
        f"{run.output}: gradients were not finite in {error.num_steps} steps in a row, from step "
        f"{first_step + 1} on, whose records are in {', '.join(files)}; lower "
        "optimizer.learning_rate, or look at these records; the last good checkpoint is kept"
    )


def _fit(
    model: ReplicatedPretrainer,
    run: _Run,
    held_out: tf.data.Dataset,
    checkpoints: Checkpoints,
    first_step: int,
) -> None:
    """Trains from `first_step` to the end, with an evaluation every so many steps."""
    training, workers = run.config.training, run.workers
    log = _metrics_log(run, first_step)
    periodic = PeriodicCheckpoint(checkpoints, first_step, every=training.checkpoint_every_steps)
    diverged = StopOnDivergence(first_step, max_skipped_steps=training.max_skipped_steps)
    # Without a terminal, Keras would print its bar again and again: a line an epoch, then.
    verbose = (1 if sys.stdout.isatty() else 2) if workers.is_chief else 0
    with StopOnSignal(checkpoints, first_step, workers.any) as stop:
        callbacks = [log, diverged, periodic, stop]
        if training.keep_best:
            callbacks.insert(1, BestCheckpoint(checkpoints, first_step))
        if _stopped_before_evaluation(first_step, training, log):
            model.evaluate(held_out, callbacks=callbacks, verbose=verbose)
        for start, num_steps, num_epochs in _fits(first_step, run.config):
            first_epoch = start // training.evaluate_every
            model.fit(
                run.datasets.training(first_batch=start),
                initial_epoch=first_epoch,
                epochs=first_epoch + num_epochs,
                steps_per_epoch=num_steps,
                validation_data=held_out,
                callbacks=callbacks,
                shuffle=False,  # the data set is shuffled
                verbose=verbose,
            )
        checkpoints.save(training.steps)


def _metrics_log(run: _Run, first_step: int) -> MetricsLog:
    training, optimizer = run.config.training, run.config.optimizer
    return MetricsLog(
        run.output,
        first_step,
        every=training.log_every,
        schedule=WarmupLinearDecay(
            optimizer.learning_rate, optimizer.warmup_steps, training.schedule_steps
        ),
        tokens_per_step=training.batch_size * tokens_per_row(run.info),
        writes=run.workers.is_chief,
    )


def _stopped_before_evaluation(first_step: int, training: TrainingConfig, log: MetricsLog) -> bool:
    """Whether a run was stopped between the last step of an epoch and the epoch's evaluation."""
    ends_epoch = first_step % training.evaluate_every == 0 or first_step == training.steps
    return first_step > 0 and ends_epoch and first_step not in log.evaluated_steps


def _fits(first_step: int, config: PretrainingConfig) -> Iterator[tuple[int, int, int]]:
    """The calls of `fit` that lead from a step to the end, as (first step, steps, epochs).

    An epoch of Keras is the stretch between two evaluations: what is left of the one that a
    stopped run was in, all whole ones, and the rest.
    """
    steps, every = config.training.steps, config.training.evaluate_every
    start = first_step
    if num_steps := min(-start % every, steps - start):
        yield start, num_steps, 1
        start += num_steps
    if num_epochs := (steps - start) // every:
        yield start, every, num_epochs
        start += num_epochs * every
    if start < steps:
        yield start, steps - start, 1

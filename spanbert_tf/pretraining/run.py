"""One pre-training run: checks, the loop, and the preset at the end."""

import os

import keras
import tensorflow as tf

from spanbert_tf.config import PretrainingConfig
from spanbert_tf.data.records import files_of_records, find_damage, load_dataset_info
from spanbert_tf.data.repair import repaired_records
from spanbert_tf.data.schema import DatasetInfo
from spanbert_tf.pretraining.data_service import watched_service
from spanbert_tf.pretraining.datasets import RunDatasets, check_records, tokens_per_row
from spanbert_tf.pretraining.initial_encoder import (
    check_initial_encoder,
    keep_initial_encoder,
    mix_with_initial,
)
from spanbert_tf.pretraining.initial_preset import begin_run, check_same_preset, note_preset
from spanbert_tf.pretraining.model import compiled_pretrainer
from spanbert_tf.pretraining.results import last_evaluation, print_summary, save_run_preset
from spanbert_tf.process.lines import print_line
from spanbert_tf.process.supervision import one_run
from spanbert_tf.training.encoder_variables import encoder_variables
from spanbert_tf.training.loop import (
    CheckStop,
    Course,
    Evaluated,
    HeldStart,
    LoopOptions,
    TrainingLoop,
)
from spanbert_tf.training.replicated_model import ReplicatedModel
from spanbert_tf.training.run_directory import (
    REPAIRED_RECORDS,
    check_directory,
    check_run,
    write_run,
)
from spanbert_tf.training.run_display import describe_run
from spanbert_tf.training.schedule import WarmupLinearDecay
from spanbert_tf.training.strategies import decide_precision, make_strategy
from spanbert_tf.training.workers import Workers


@one_run
def run_pretraining(
    config: PretrainingConfig,
    data: str,
    output: str,
    initial_preset: str | None = None,
    *,
    num_devices: int | None = None,
    show_next_steps: bool = True,
) -> ReplicatedModel | None:
    """Trains a model, or goes on with a run that was stopped or killed.

    A run that is killed at any time and started again ends with the same weights, bit for bit, as
    one that never was, on the same machine.

    Args:
        config: configuration of the run.
        data: directory of the records.
        output: directory of the run; several workers share it.
        initial_preset: preset whose weights the run begins with, where it has them; a run that
            resumes does not need it again, and refuses another one.
        num_devices: devices of each machine to use, all by default.
        show_next_steps: whether to print what can be done with the finished run.

    Returns:
        The trained model, or `None` if a signal ended the run.

    Raises:
        BadInputError: a file or directory cannot be used, or a record is damaged.
        MismatchError: records, configuration, preset and earlier run do not fit together.
        ConfigurationError: the devices cannot share the batch equally, or are not there.
        TrainingError: gradients were not finite again and again, or another worker was lost.
    """
    training = config.training
    skips_damage = config.data.on_corrupt == "skip"
    described = info = load_dataset_info(data, check_sizes=not skips_damage)
    check_records(config, info, data)
    strategy = make_strategy(training, num_devices)
    workers = Workers(strategy)
    if skips_damage:
        check_directory(output)
        repaired = os.path.join(output, f"{REPAIRED_RECORDS}{workers.number}")
        data, info = repaired_records(data, info, repaired)
    if training.deterministic:
        tf.config.experimental.enable_op_determinism()
    datasets = RunDatasets(config, data, info, strategy)
    held_out = datasets.held_out()  # refuses records that lack what the masking needs
    # Damage that comes later does not make them other records.
    before = check_run(output, config, described)
    config = decide_precision(config, before, config.model.hidden_dim)
    keras.utils.set_random_seed(training.library_seed)
    with strategy.scope():
        model = compiled_pretrainer(config, info.vocabulary_size)
    loop = TrainingLoop(model, output, _loop_options(config, model), workers)
    course = _course(config, data, info, datasets, model, held_out)
    has_begun = loop.has_begun
    share = training.initial_encoder_share
    check_initial_encoder(share, output, initial_preset, has_begun=has_begun)
    if has_begun and initial_preset:
        check_same_preset(model.model, initial_preset, output)
    if not has_begun:
        begin_run(model.model, config, initial_preset, data, info)
    with loop.named_errors(course):
        first_step = loop.restore()
        if workers.is_chief:
            if not has_begun:
                note_preset(model.model, initial_preset, output)
            write_run(output, config, described)
            if share and not has_begun:
                keep_initial_encoder(model.model.backbone, output)
    loop.say(_describe(config, info, model, strategy))
    with watched_service(config.data.service_address, lambda: course.batches(first_step)):
        is_finished = loop.run(course, first_step)
    if not is_finished:
        return None
    with loop.named_errors(course):
        _finish(model, config, data, output, info, course, workers, show_next_steps=show_next_steps)
    return model


def _finish(
    model: ReplicatedModel,
    config: PretrainingConfig,
    data: str,
    output: str,
    info: DatasetInfo,
    course: Course,
    workers: Workers,
    *,
    show_next_steps: bool,
) -> None:
    """What comes after the last step: the encoder's mean, its evaluation, preset and summary."""
    share, mixed = config.training.initial_encoder_share, None
    if share:
        mix_with_initial(model.model.backbone, output, share)
        # By all workers; before, it was what was trained.
        mixed = course.evaluate(lambda: None).metrics
    if not workers.is_chief:
        return
    if share:
        print_line(f"encoder: {share:g} x first weights + {1 - share:g} x trained weights")
    measured = mixed or last_evaluation(output)
    save_run_preset(model.model, config, data, output, info, measured)
    print_summary(output, config.training.steps, measured, show_next_steps=show_next_steps)


def _loop_options(config: PretrainingConfig, model: ReplicatedModel) -> LoopOptions:
    training = config.training
    held_start = None
    if training.head_steps:
        held_start = HeldStart(encoder_variables(model.model), training.head_steps)
    return LoopOptions(
        num_steps=training.steps,
        log_every=training.log_every,
        checkpoint_every_steps=training.checkpoint_every_steps,
        max_checkpoints=training.max_checkpoints,
        max_skipped_steps=training.max_skipped_steps,
        evaluate_at=lambda step: step % training.evaluate_every == 0 or step == training.steps,
        best_metric="loss",
        keeps_best=training.keep_best,
        held_start=held_start,
    )


def _course(
    config: PretrainingConfig,
    data: str,
    info: DatasetInfo,
    datasets: RunDatasets,
    model: ReplicatedModel,
    held_out: tf.data.Dataset,
) -> Course:
    training, optimizer = config.training, config.optimizer
    files = [os.path.join(data, shard.file) for shard in info.shards]
    num_records = [shard.num_records for shard in info.shards]

    def evaluate(check_stop: CheckStop) -> Evaluated:
        stop = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: check_stop())
        return Evaluated(model.evaluate(held_out, callbacks=[stop], return_dict=True, verbose=0))

    def describe_step(step: int) -> str:
        (batch,) = datasets.record_ids(step).take(1).as_numpy_iterator()
        return ", ".join(files_of_records(info.files(data, "train"), batch.tolist()))

    return Course(
        batches=datasets.training,
        evaluate=evaluate,
        schedule=WarmupLinearDecay(
            optimizer.learning_rate, optimizer.warmup_steps, training.schedule_steps
        ),
        tokens_per_step=training.batch_size * tokens_per_row(info),
        name_damage=lambda: find_damage(files, num_records),
        describe_step=describe_step,
    )


def _describe(
    config: PretrainingConfig,
    info: DatasetInfo,
    model: ReplicatedModel,
    strategy: tf.distribute.Strategy,
) -> str:
    """What the run does, in a line."""
    training, num_records = config.training, info.num_records("train")
    passes = training.steps * training.batch_size / num_records
    alone = min(training.head_steps, training.steps)
    heads = f", the heads alone in the first {alone:,}" if alone else ""
    return (
        f"{describe_run(model, strategy, model.model.backbone.dtype_policy.name)}: "
        f"{training.steps:,} steps of {training.batch_size:,} rows of {info.sequence_length}, "
        f"{passes:,.1f} epochs of {num_records:,} records{heads}"
    )

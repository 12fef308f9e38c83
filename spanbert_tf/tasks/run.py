"""`spanbert-tf finetune`: one run of any task."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence

import keras
import keras_hub
import tensorflow as tf

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.config.runs import VALIDATION_ROWS
from spanbert_tf.data.rows_info import RowsInfo
from spanbert_tf.data.task_records import Records
from spanbert_tf.errors import BadInputError
from spanbert_tf.files.writing import write_text
from spanbert_tf.models import SpanBertBackbone
from spanbert_tf.models.task_presets import encoder_width
from spanbert_tf.presets.loading import (
    load_checked,
    load_preset,
    weights_digest,
)
from spanbert_tf.presets.model_card import published_name
from spanbert_tf.presets.writing import write_preset
from spanbert_tf.process.lines import print_line
from spanbert_tf.process.supervision import one_run
from spanbert_tf.tasks.optimizer import add_adapters, finetuning_optimizer, frozen_variables
from spanbert_tf.tasks.run_inputs import (
    check_labelled,
    check_reads,
    check_records,
    load_encoder,
)
from spanbert_tf.tasks.table import load_task, load_task_config
from spanbert_tf.tasks.task import Task
from spanbert_tf.training.loop import CheckStop, Course, Evaluated, LoopOptions, TrainingLoop
from spanbert_tf.training.replicated_model import ReplicatedModel
from spanbert_tf.training.run_directory import (
    CONFIG_FILE,
    PRESET,
    check_same_config,
    check_same_inputs,
    write_finetuning_run,
)
from spanbert_tf.training.run_display import describe_run
from spanbert_tf.training.strategies import decide_precision, for_workers, make_strategy
from spanbert_tf.training.workers import Workers

SCORES_FILE = "scores.json"
_PERFECT = 100.0 - 1e-9  # of all tasks' main metrics


@one_run
def run_finetuning(
    config: FinetuningConfig,
    preset: str,
    data: str | Records,
    output: str,
    validation_data: str | Records | None = None,
    *,
    num_devices: int | None = None,
) -> dict[str, float] | None:
    """Fine-tunes an encoder for a task, or goes on with a run that was stopped or killed.

    Args:
        config: configuration of the run; its `task` names the task.
        preset: preset whose encoder the run begins with.
        data: directory of the training records, or the records.
        output: directory of the run.
        validation_data: directory of records, or records, to score the model on; they also decide
            what the task chooses on development data, such as the threshold of SQuAD 2.0.
        num_devices: devices of each machine to use, all by default.

    Returns:
        The scores; empty without `validation_data`; `None` if a signal ended the run.

    Raises:
        BadInputError: a file or directory cannot be used.
        MismatchError: preset, records, configuration and earlier run do not fit together.
        ConfigurationError: the devices cannot share the batch equally, or are not there; or more
            layers are to be frozen than there are.
        TrainingError: gradients were not finite again and again, or another worker was lost.
    """
    task: Task = load_task(config.task)
    data = task.records(data)
    if validation_data:
        validation_data = task.records(validation_data)
    info = data.info
    if not info.num_training_rows:
        raise BadInputError(f"{data}: holds no rows to train on; write records with labels")
    for directory in filter(None, (data, validation_data)):
        check_records(config, directory.info, directory)
    if validation_data:
        check_labelled(validation_data.info, validation_data)
    inputs = {"--data": data, "--validation-data": validation_data}
    inputs = {option: records and records.digest for option, records in inputs.items()}
    before = check_same_config(output, config, load_task_config)
    check_same_inputs(output, inputs)
    training = config.training
    strategy = make_strategy(training, num_devices)
    workers = Workers(strategy)
    if training.deterministic:
        tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(training.library_seed)
    plan = _Plan(config, info)
    with strategy.scope():
        config = decide_precision(config, before, encoder_width(preset))
        precision = config.training.precision
        backbone, tokenizer = load_encoder(preset, info, data, precision)
        if validation_data:
            check_reads(backbone, tokenizer, validation_data.info, validation_data, preset)
        if training.random_weights:
            options = {"dtype": precision, "load_weights": False}
            backbone = load_preset(SpanBertBackbone, preset, **options)
        inputs["--preset"] = None if training.random_weights else weights_digest(backbone)
        check_same_inputs(output, inputs)
        model = task.build(backbone, tokenizer, info, config)
        if config.optimizer.lora_rank is not None:
            add_adapters(model, config.optimizer.lora_rank)
        if validation_data and task.check_model is not None:
            task.check_model(model, validation_data.info, validation_data, data)
        frozen = frozen_variables(backbone, config.optimizer.frozen_layers)
        trained = ReplicatedModel(model, training.accumulation_steps, frozen)
        _compile(trained, config, plan)
    loop = TrainingLoop(trained, output, plan.loop_options(task), workers)
    course = _course(task, config, plan, trained, strategy, data, validation_data)
    with loop.named_errors(course):
        first_step = loop.restore()
        if workers.is_chief:
            rows = validation_data.info.num_rows if validation_data else None
            write_finetuning_run(output, config.to_yaml(), {**inputs, VALIDATION_ROWS: rows})
    if model.reads_pooler and not (backbone.is_pooler_trained or training.random_weights):
        loop.say(
            f"{preset}: its pooler was never trained, as pre-training on single sequences leaves "
            "it; it is trained now, from random weights"
        )
    loop.say(
        f"{describe_run(trained, strategy, backbone.dtype_policy.name)}: {plan.num_steps:,} steps "
        f"of {training.batch_size:,} rows, {plan.num_steps / plan.steps_per_epoch:,.4g} epochs of "
        f"{info.num_training_rows:,} rows"
    )
    if not loop.run(course, first_step):
        return None
    if training.keep_best:
        best = loop.restore_best()
        loop.say(
            f"training.keep_best: no evaluation of this run chose a checkpoint ("
            f"{_why_none_is_best(plan, validation_data)}); the weights of the last step are kept"
            if best is None
            else f"the best checkpoint is that of step {best}"
        )
    if not workers.is_chief:
        return {}
    with loop.named_errors(course):
        return _finish(task, model, config, plan, preset, data, output, validation_data)


class _Plan:
    """The steps of a run: how many there are, which end an epoch, which precede an evaluation."""

    def __init__(self, config: FinetuningConfig, info: RowsInfo) -> None:
        training = config.training
        self._config = config
        self.steps_per_epoch = -(-info.num_training_rows // training.batch_size)
        self.num_steps = training.max_steps or training.epochs * self.steps_per_epoch
        self.tokens_per_step = training.batch_size * info.num_tokens / info.num_rows
        self.scored_steps = frozenset(self._scored_steps())

    def _scored_steps(self) -> Iterator[int]:
        """The steps that end a part of an epoch, but for those too soon after another; the last."""
        training, last = self._config.training, 0
        parts = training.evaluations_per_epoch
        if not parts or not self.num_steps:
            return
        for part in range(1, self.num_steps * parts // self.steps_per_epoch + 1):
            step = -(-part * self.steps_per_epoch // parts)  # the first that completes the part
            if step - last >= training.min_steps_between_evaluations:
                yield (last := step)
        yield self.num_steps

    def loop_options(self, task: Task) -> LoopOptions:
        training = self._config.training
        return LoopOptions(
            num_steps=self.num_steps,
            log_every=training.log_every,
            checkpoint_every_steps=training.checkpoint_every_steps,
            max_checkpoints=training.max_checkpoints,
            max_skipped_steps=training.max_skipped_steps,
            evaluate_at=self.scored_steps.__contains__,
            checkpoint_at=range(self.steps_per_epoch, self.num_steps + 1, self.steps_per_epoch),
            best_metric=task.main_metric,
            keeps_best=training.keep_best,
            higher_is_better=True,
            patience=training.early_stopping_patience,
        )


def _course(
    task: Task,
    config: FinetuningConfig,
    plan: _Plan,
    trained: ReplicatedModel,
    strategy: tf.distribute.Strategy,
    data: Records,
    validation_data: Records | None,
) -> Course:
    training = config.training

    def batches(first_batch: int) -> tf.data.Dataset:
        dataset = task.dataset(
            data,
            batch_size=training.batch_size,
            training=True,
            seed=training.seed,
            first_batch=first_batch,
        )
        return for_workers(dataset, strategy)

    def evaluate(check_stop: CheckStop) -> Evaluated:
        return _calibrated_scores(
            task, trained.model, validation_data, config, after_batch=check_stop
        )

    return Course(
        batches=batches,
        evaluate=evaluate if validation_data else None,
        schedule=trained.optimizer.schedule,
        tokens_per_step=plan.tokens_per_step,
    )


def _calibrated_scores(
    task: Task,
    model: keras_hub.models.Task,
    validation_data: Records,
    config: FinetuningConfig,
    **options: CheckStop,
) -> Evaluated:
    """Lets the task choose what depends on development data, and scores the model there."""
    batch_size = config.prediction.batch_size
    predictions = task.predict(model, validation_data, batch_size=batch_size, **options)
    if task.calibrate is not None:
        task.calibrate(model, validation_data, predictions)
    scores = task.score(model, validation_data, predictions)
    answers = [] if task.answers is None else task.answers(model, validation_data, predictions)
    return Evaluated(scores, _remark(scores[task.main_metric], answers))


def _remark(score: float, answers: Sequence[str]) -> str:
    """Says what to try where all answers are the same, or none is right.

    Args:
        score: the main metric, in percent.
        answers: what is predicted for each item, empty for nothing.
    """
    if score >= _PERFECT or len(answers) < 2:  # the records themselves may have one class
        return ""
    if len(set(answers)) == 1:
        label = textwrap.shorten(repr(answers[0]), 60, placeholder="…")  # may be a whole answer
        found = f"{label} alone is predicted" if answers[0] else "nothing is predicted"
    elif score == 0:
        found = "nothing right is predicted"
    else:
        return ""
    return (
        f"{found}; if it stays so, raise optimizer.learning_rate or training.epochs, or lower "
        "training.batch_size"
    )


def _why_none_is_best(plan: _Plan, validation_data: str | None) -> str:
    """Why a finished run has no best checkpoint."""
    if not validation_data:
        return "it has no --validation-data"
    if not plan.num_steps:
        return "it has no steps"
    return "all were before training.keep_best was set"


def _compile(trained: ReplicatedModel, config: FinetuningConfig, plan: _Plan) -> None:
    trained.compile(
        optimizer=finetuning_optimizer(
            trained.model,
            config.optimizer,
            num_steps=max(plan.num_steps, 1),
        ),
        auto_scale_loss=False,  # the optimizer's own scale looks at all replicas
        jit_compile=config.training.jit_compile,
    )
    trained.optimizer.build(trained.trainable_variables)


def _finish(
    task: Task,
    model: keras_hub.models.Task,
    config: FinetuningConfig,
    plan: _Plan,
    preset: str,
    data: Records,
    output: str,
    validation_data: Records | None,
) -> dict[str, float]:
    """Writes the preset, and scores what was written as `evaluate` does."""
    directory = os.path.join(output, PRESET)
    encoder = published_name(preset)
    random_weights = f"random weights of the shape of {encoder}"
    facts = {
        "Fine-tuned from": random_weights if config.training.random_weights else encoder,
        "Data": published_name(str(data)),
    }
    if plan.num_steps:  # otherwise the weights that it was built with must tell
        model.is_head_trained = True
    write_preset(model, directory, facts=facts, of_run=True)
    scores = {}
    if validation_data:
        saved = load_checked(task.model_class, directory)  # in float32
        scores, remark = _calibrated_scores(task, saved, validation_data, config)
        write_text(os.path.join(output, SCORES_FILE), json.dumps(scores, indent=1) + "\n")
        said = f"; {remark}" if remark and plan.num_steps else ""
        print_line(f"{validation_data}: {shown_scores(scores)}{said}")
        facts["Scores"] = shown_scores(scores)
        write_preset(saved, directory, facts=facts, of_run=True)
    print_line(f"{output}: {PRESET}/, checkpoints/, metrics.jsonl, {CONFIG_FILE}")
    return scores


def shown_scores(scores: Mapping[str, float]) -> str:
    """Scores as a line for people."""
    return ", ".join(f"{name} {value:.2f}" for name, value in scores.items())

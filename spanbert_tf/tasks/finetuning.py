"""The fine-tuning of any task, as a job of `training.run`."""

import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras_hub
import tensorflow as tf

from spanbert_tf.config import FinetuningConfig
from spanbert_tf.config.run import CONFIG_FILE, PRESET, SCORES_FILE, VALIDATION_ROWS
from spanbert_tf.data.records import Records, TaskManifest
from spanbert_tf.errors import BadInputError, MismatchError, reason
from spanbert_tf.files.output import write_text
from spanbert_tf.files.preset import ENCODER_VARIABLE
from spanbert_tf.files.text_files import parse_json
from spanbert_tf.files.written import print_written
from spanbert_tf.models import SpanBertBackbone, SpanBertTokenizer
from spanbert_tf.models.adapters import (
    Adapter,
    merge_adapters,
    read_adapter,
    write_adapter,
)
from spanbert_tf.models.keras_hub_presets import weights_digest, without_mixed_precision
from spanbert_tf.presets.preset import Preset, check_tokenizer
from spanbert_tf.presets.writing import published_name, write_preset
from spanbert_tf.tasks.evaluation import check_encoder, check_labelled, check_reads, shown_scores
from spanbert_tf.tasks.lookup import open_records
from spanbert_tf.tasks.table import TASKS, load_task, load_task_config
from spanbert_tf.tasks.task import Task
from spanbert_tf.terminal import print_line
from spanbert_tf.training.checkpoints import Best, Checkpoints
from spanbert_tf.training.cluster import locks_run
from spanbert_tf.training.configured_optimizer import compile_task, train_new_pooler
from spanbert_tf.training.devices import Devices
from spanbert_tf.training.job import CheckStop, Evaluated, Job, check_best
from spanbert_tf.training.run import run
from spanbert_tf.training.run_directory import ADAPTER

LOSS = "loss"  # name of the validation loss, a metric besides the official scores
_PERFECT = 100.0 - 1e-9  # the highest value of a metric in percent, up to rounding


@locks_run
def run_finetuning(
    config: FinetuningConfig,
    preset: str | Preset,
    data: str | Records,
    output: str,
    validation_data: str | Records | None = None,
    *,
    show_next_steps: bool = True,
    **options: Any,
) -> dict[str, float] | None:
    """Fine-tunes an encoder for a task, or resumes a run that was stopped or killed.

    Args:
        config: as for `FinetuningJob`.
        preset: as for `FinetuningJob`.
        data: as for `FinetuningJob`.
        output: directory of the run.
        validation_data: as for `FinetuningJob`.
        show_next_steps: as for `FinetuningJob`.
        **options: `num_devices` and `backend_changed`, as for `training.run.run`.

    Returns:
        The scores; empty without `validation_data`; `None` if a signal ended the run.

    Raises:
        BadInputError: a file or directory cannot be used.
        MismatchError: preset, records, configuration and earlier run do not fit together.
        ConfigurationError: the devices do not exist or cannot share the batch equally, or the
            configuration freezes more layers than the encoder has.
        TrainingError: gradients were not finite several times in a row, or a worker was lost.
    """
    job = FinetuningJob(config, preset, data, validation_data, show_next_steps=show_next_steps)
    return run(job, output, **options)


class FinetuningJob(Job[FinetuningConfig]):
    """Fine-tunes an encoder for a task.

    Args:
        config: configuration of the run; its `task` names the task.
        preset: preset of the encoder that the run begins with, or its name.
        data: directory of the training records, or the records.
        validation_data: directory of records, or records, to score the model on. They also decide
            values such as the threshold of SQuAD 2.0.
        show_next_steps: whether to print commands that use the finished model.
    """

    config: FinetuningConfig

    def __init__(
        self,
        config: FinetuningConfig,
        preset: str | Preset,
        data: str | Records,
        validation_data: str | Records | None,
        *,
        show_next_steps: bool = True,
    ) -> None:
        self._show_next_steps = show_next_steps
        self._task: Task = load_task(config.task)
        self._task.configure(config)
        self._data = open_records(data, self._task)
        self._validation_data: Records | None = None
        if validation_data:
            self._validation_data = open_records(validation_data, self._task)
        self._manifest = self._data.manifest
        if not self._manifest.num_training_rows:
            raise BadInputError(f"{data}: holds no rows to train on; write records with labels")
        check_records(config, self._manifest, str(self._data))
        if self._validation_data:
            check_records(config, self._validation_data.manifest, str(self._validation_data))
            check_labelled(self._validation_data.manifest, str(self._validation_data))
            self._task.check_metric(self._validation_data)
        self.config = config
        self._preset = Preset.of(preset)
        self.best = best_evaluation(self._task, config, self._validation_data or self._data)
        if self._validation_data:
            self._check_best(self._validation_data)
        self._adapter = self._adapter_to_continue()
        self._encoder = Preset.of(self._adapter.encoder) if self._adapter else self._preset
        self.patience = config.training.early_stopping_patience
        self.inputs = {
            "--data": self._data.digest,
            "--validation-data": self._validation_data.digest if self._validation_data else None,
        }
        self._plan = _Plan(config, self._manifest)
        self.num_steps = self._plan.num_steps
        self.hidden_dim = self._preset.hidden_dim

    def _check_best(self, records: Records) -> None:
        """Checks that the task has the best metric, before the first step.

        The names of the task's metrics are those of its baseline's scores.
        """
        task = self._task
        is_known = task.name in TASKS and self.config.training.best_metric is None
        if is_known or task.baseline is None or self.best.metric == LOSS:
            return
        scores = task.score(task.outcome(None, records, task.baseline(records)))
        check_best(self.best, [*scores, LOSS], f"task {task.name}")

    def load_config(self, path: str) -> FinetuningConfig:
        """Reads the `config.yaml` of a run of any task."""
        return load_task_config(path)

    def build(self, devices: Devices) -> keras_hub.models.Task:
        """Creates the task's model on the encoder of the preset."""
        self._devices = devices
        config = self.config
        preset = self._encoder
        data = str(self._data)
        precision = config.training.precision
        lora = self._lora_options()
        backbone, tokenizer = load_encoder(preset, self._manifest, data, precision, **lora)
        if self._validation_data:
            check_reads(backbone, tokenizer, self._validation_data, preset.name)
        self.inputs["--preset"] = None
        if config.training.random_weights:
            backbone = preset.encoder(precision, load_weights=False, **lora)
        else:
            self._encoder_digest = weights_digest(backbone)
            self.inputs["--preset"] = self._encoder_digest
            self.base = self._encoder_digest
        model = self._task.build(backbone, tokenizer, self._manifest, config)
        if lora:
            train_new_pooler(model, is_pooler_trained=backbone.is_pooler_trained)
        if self._adapter:
            self._adapter.check_encoder(self._encoder_digest)
            self._adapter.assign_to(backbone)
        if self._validation_data:
            self._task.check_model(model, self._validation_data, data)
        compile_task(model, config, max(self.num_steps, 1))
        return model

    def _adapter_to_continue(self) -> Adapter | None:
        """Returns the adapter in `--preset` that the run continues to train.

        `None`: there is none, or the run does not train adapters, and the adapter is merged.
        """
        rank = self.config.optimizer.lora_rank
        if rank is None or self.config.training.random_weights:
            return None
        if self._preset.adapter is None:
            return None
        self._preset.check_checksums()
        adapter = read_adapter(self._preset)
        if adapter.rank != rank:
            raise MismatchError(
                f"{self._preset}: has rank {adapter.rank}, and optimizer.lora_rank is {rank}; set "
                f"it to {adapter.rank}, or begin with the {PRESET}/ beside the adapter"
            )
        return adapter

    def _lora_options(self) -> Mapping[str, Any]:
        """Returns the encoder's arguments for adapters, which are new or those of the preset."""
        if self._adapter:
            return self._adapter.options
        if self.config.optimizer.lora_rank is None:
            return {}
        return {"lora_rank": self.config.optimizer.lora_rank}

    def begin(self, model: keras_hub.models.Task, output: str, *, is_new: bool) -> None:
        """Warns about a pooler that was never trained. The model already has its first weights."""
        has_weights = model.backbone.is_pooler_trained or self.config.training.random_weights
        if model.reads_pooler and not has_weights:
            self._devices.say(
                f"{self._preset}: its pooler was never trained, as pre-training on single "
                "sequences leaves it; it is trained now, from random weights"
                f"{self._task.pooler_advice}"
            )

    def write(self, output: str, *, is_new: bool) -> None:
        """Writes the files of a run, and the number of validation rows.

        `glue` recognizes the data set by this number.
        """
        if self._validation_data:
            self.inputs[VALIDATION_ROWS] = self._validation_data.manifest.num_rows
        super().write(output, is_new=is_new)

    def describe(self, model: keras_hub.models.Task) -> str:
        """Returns the numbers of steps, rows and epochs as text."""
        return (
            f"{self.num_steps:,} steps of {self.config.training.batch_size:,} rows, "
            f"{self.num_steps / self._plan.steps_per_epoch:,.4g} epochs of "
            f"{self._manifest.num_training_rows:,} rows"
        )

    def batches(self, first_step: int) -> tf.data.Dataset:
        """Returns the task's training batches after a step."""
        training = self.config.training
        options = {"last_batch": self.num_steps} if self._devices.are_tpu else {}
        dataset = self._task.dataset(
            self._data,
            batch_size=training.batch_size,
            training=True,
            seed=training.seed,
            first_batch=first_step,
            **options,
        )
        return self._devices.for_workers(dataset)

    def evaluates_after(self, step: int) -> bool:
        """Whether the step ends a part of an epoch and there are validation records."""
        return self._validation_data is not None and step in self._plan.scored_steps

    def evaluate(self, model: keras_hub.models.Task, check_stop: CheckStop) -> Evaluated:
        """Computes the task's scores and the loss on the validation records."""
        assert self._validation_data is not None  # `evaluates_after` is false without them
        return self._evaluated(model, self._validation_data, check_stop)

    def finish(
        self, model: keras_hub.models.Task, checkpoints: Checkpoints, output: str, *, is_chief: bool
    ) -> dict[str, float]:
        """Restores the best checkpoint, writes the preset, and returns its scores."""
        self._devices.leave(model)
        if not is_chief:
            return {}
        self.restore_best(checkpoints, self._devices)
        return self._write_scored_preset(model, output)

    def read_result(self, model: keras_hub.models.Task, output: str) -> dict[str, float]:
        """Reads the scores that the finished run wrote."""
        if not (self._validation_data and self._devices.is_chief):
            return {}
        path = os.path.join(output, SCORES_FILE)
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(
                f"{path}: cannot be read ({reason(error)}); remove {output}, or take its preset"
            ) from error
        scores = parse_json(text, dict[str, float], path)
        print_line(f"{self._validation_data}: {shown_scores(scores)}")
        return scores

    def damage(self) -> BadInputError | None:
        """Returns the error that names the first damaged row of the records."""
        for records in (self._data, self._validation_data):
            found = records.damage() if records else None
            if found:
                return found
        return None

    def why_none_is_best(self) -> str:
        """Returns the reason why a finished run has no best checkpoint."""
        if not self._validation_data:
            return "it has no --validation-data"
        if not self.num_steps:
            return "it has no steps"
        return super().why_none_is_best()

    def _write_scored_preset(self, model: keras_hub.models.Task, output: str) -> dict[str, float]:
        """Scores the model in float32, as `evaluate` does, and writes the preset."""
        directory = os.path.join(output, PRESET)
        begun_with = published_name(self._preset.name)
        if self.config.training.random_weights:
            begun_with = f"random weights of the shape of {begun_with}"
        facts = {"Fine-tuned from": begun_with, "Data": published_name(str(self._data))}
        scores: dict[str, float] = {}
        remark = ""
        if self._validation_data:
            with without_mixed_precision(model):
                metrics, remark = self._evaluated(model, self._validation_data)
            scores = dict(metrics)
            if self.best.metric != LOSS:  # the loss is not an official score
                del scores[LOSS]
            facts["Scores"] = shown_scores(scores)
        whole = model
        if self.config.optimizer.lora_rank is not None:
            whole = merge_adapters(model)
        write_preset(whole, directory, facts=facts, overwrite=True)
        if self._validation_data:
            write_text(os.path.join(output, SCORES_FILE), json.dumps(scores, indent=1) + "\n")
            advice = f"; {remark}" if remark and self.num_steps else ""
            # The evaluations of the run may have been in another precision.
            is_mixed = self.config.training.precision != "float32"
            precision = " in float32" if is_mixed else ""
            print_line(f"{self._validation_data}{precision}: {shown_scores(scores)}{advice}")
        written = f"{PRESET}/"
        commands = [*commands_with(directory, self._task, self._validation_data)]
        if self.config.optimizer.lora_rank and not self.config.training.random_weights:
            adapter = os.path.join(output, ADAPTER)
            write_adapter(
                model,
                adapter,
                preset=directory,
                encoder=self._encoder,
                digest=self._encoder_digest,
            )
            written += f", {ADAPTER}/"
            commands.append(["env", f"{ENCODER_VARIABLE}={self._encoder}", *_predicting(adapter)])
        contents = f"{written}, checkpoints/, metrics.jsonl, {CONFIG_FILE}"
        print_written(output, *(commands if self._show_next_steps else ()), contents=contents)
        return scores

    def _evaluated(
        self,
        model: keras_hub.models.Task,
        records: Records,
        after_batch: CheckStop = lambda: None,
    ) -> Evaluated:
        """Calibrates the model on the validation records, and scores it on them."""
        task = self._task
        batch_size = self.config.prediction.batch_size
        predictions, loss = task.predict_with_loss(
            model, records, batch_size=batch_size, after_batch=after_batch
        )
        task.calibrate(model, records, predictions)
        outcome = task.outcome(model, records, predictions)
        scores = task.score(outcome)
        remark = _remark(scores.get(self.best.metric), outcome.texts)
        return Evaluated({**scores, LOSS: loss}, remark)


def commands_with(preset: str, task: Task, validation_data: Records | None) -> Iterator[list[str]]:
    """Yields the words of commands that use a finished model."""
    if validation_data:
        options = ["--preset", preset, "--data", str(validation_data)]
        if task.report:
            options += ["--report", "report.html"]
        yield ["spanbert-tf", "evaluate", *options]
    yield _predicting(preset)
    yield ["spanbert-tf", "export", "--preset", preset, "--output", "served"]


def _predicting(preset: str) -> list[str]:
    """Returns the words of the command that predicts with a finished model."""
    files = ["--input", "INPUTS", "--output", "predictions.jsonl"]
    return ["spanbert-tf", "predict", "--preset", preset, *files]


def best_evaluation(task: Task, config: FinetuningConfig, records: Records) -> Best:
    """Returns the evaluation that counts as the best: the configuration's, or the task's."""
    return task.best_of(records.manifest).or_by(config.training.best_metric)


def check_records(config: FinetuningConfig, manifest: TaskManifest, directory: str) -> None:
    """Checks that records have the values of the section `data` of the configuration.

    Args:
        config: configuration of the run.
        manifest: manifest of the records.
        directory: directory of the records, for errors.

    Raises:
        MismatchError: a value differs.
    """
    manifest.check_values(
        config.data.model_dump(),
        directory,
        lambda name, found: [f"data.{name}={json.dumps(found)}"],
    )


def load_encoder(
    preset: Preset, manifest: TaskManifest, data: str, precision: str, **options: Any
) -> tuple[SpanBertBackbone, SpanBertTokenizer]:
    """Loads the encoder of a preset and its tokenizer, and checks that they fit records.

    Args:
        preset: the preset.
        manifest: manifest of the records.
        data: directory of the records, for errors.
        precision: dtype policy of the encoder. Its weights are in float32.
        **options: arguments of the encoder that replace the preset's.

    Raises:
        BadInputError: the preset cannot be used.
        MismatchError: the encoder is not one of this project, or does not fit the records.
    """
    backbone = preset.encoder(precision, **options)
    if not isinstance(backbone, SpanBertBackbone):
        raise MismatchError(
            f"{preset}: is no encoder of this project; `spanbert-tf convert` makes one"
        )
    check_encoder(backbone, manifest, data, preset.name)
    check_tokenizer(preset.tokenizer, preset.name, data, manifest)
    return backbone, preset.tokenizer


class _Plan:
    """The number of steps of a run, and the steps after which the model is evaluated.

    Attributes:
        steps_per_epoch: number of steps of an epoch; the last one may have fewer rows.
        num_steps: number of steps of the run.
        scored_steps: the steps after which the model is evaluated.
    """

    def __init__(self, config: FinetuningConfig, manifest: TaskManifest) -> None:
        training = config.training
        self._config = config
        self.steps_per_epoch = -(-manifest.num_training_rows // training.batch_size)
        self.num_steps = training.max_steps or training.epochs * self.steps_per_epoch
        self.scored_steps = frozenset(self._scored_steps())

    def _scored_steps(self) -> Iterator[int]:
        """Yields the steps that complete a part of an epoch, and the last step of the run.

        Steps that are too close to the evaluation before them are left out.
        """
        training = self._config.training
        parts_per_epoch = training.evaluations_per_epoch
        steps_per_execution = training.steps_per_execution
        if not parts_per_epoch or not self.num_steps:
            return
        num_parts = self.num_steps * parts_per_epoch // self.steps_per_epoch
        last = 0
        for part in range(1, num_parts + 1):
            step = -(-part * self.steps_per_epoch // parts_per_epoch)
            num_executions = -(-step // steps_per_execution)
            step = min(num_executions * steps_per_execution, self.num_steps)
            if step - last >= training.min_steps_between_evaluations:
                yield step
                last = step
        yield self.num_steps


def _remark(score: float | None, answers: Sequence[str]) -> str:
    """Returns advice for a model whose predictions are all the same or all wrong; `""` for others.

    Args:
        score: the main metric in percent; `None` if it is not a score, such as the loss.
        answers: the prediction for each item as text, empty if nothing is predicted.
    """
    is_perfect = score is not None and score >= _PERFECT
    if is_perfect or len(answers) < 2:  # all records may have the same class
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

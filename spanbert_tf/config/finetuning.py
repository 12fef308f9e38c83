"""Configurations of fine-tuning, `configs/finetune/*.yaml`; `base: NAME` as in pre-training.

`task: NAME` names the task. The sections `optimizer`, `training` and `grid` are the same for
all tasks; `data` and `prediction` are the task's own.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from spanbert_tf.config.run import AdamWConfig, RunConfig
from spanbert_tf.config.settings import Configuration, Setting, build_config, load_settings
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.validation import (
    BelowOne,
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    PositiveUpToOne,
    Section,
    conflict,
    largest_divisor,
)


class TaskLayersConfig(Section):
    """Other values for the task's own layers, which begin untrained; null: the encoder's value.

    Attributes:
        learning_rate: peak of their schedule.
        warmup_fraction: share of the steps until the peak.
        weight_decay: decoupled weight decay of kernels and embeddings.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the norm of only their gradients; null: one limit for all.
    """

    learning_rate: Positive | None = None
    warmup_fraction: BelowOne | None = None
    weight_decay: NotNegative | None = None
    epsilon: Positive | None = None
    global_clipnorm: Positive | None = None


class FinetuningOptimizerConfig(AdamWConfig):
    """The schedule decays to 0 at the end of the run.

    Attributes:
        learning_rate: peak of the schedule.
        weight_decay: decoupled weight decay of kernels and embeddings.
        warmup_fraction: share of the steps until the peak.
        layer_decay: factor of the learning rate from each layer to the layer below; 1: the same
            rate for all layers.
        frozen_layers: number of transformer layers, from the first, that are not trained; the
            embeddings are then not trained either. 0: everything is trained.
        task_layers: other values for the task's own layers.
        lora_rank: rank of low-rank adapters of queries and values (Hu et al., 2021), which are
            trained instead of the encoder. A pooler that the task reads is trained as well, if it
            never was. null: no adapters.
    """

    learning_rate: Positive = 2e-5
    weight_decay: NotNegative = 0.01
    warmup_fraction: BelowOne = 0.1
    layer_decay: PositiveUpToOne = 1.0
    frozen_layers: NotNegativeInt = 0
    task_layers: TaskLayersConfig = TaskLayersConfig()
    lora_rank: PositiveInt | None = None


class FinetuningTrainingConfig(RunConfig):
    """The course of a fine-tuning run.

    Attributes:
        random_weights: whether to begin with new weights in the preset's shape, to measure what its
            weights contribute.
        epochs: passes over all rows; 0: the model is not trained.
        max_steps: number of steps of the run and of its schedule, instead of `epochs`; null:
            `epochs` decides.
        evaluations_per_epoch: number of evaluations on the validation data in an epoch; 0: only one
            at the end of the run.
        min_steps_between_evaluations: least number of steps between two evaluations, so that there
            are fewer of them on few rows. There is always one after the last step.
        early_stopping_patience: the run stops after this number of evaluations in a row without a
            better one; null: it does not stop early.
    """

    random_weights: bool = False
    epochs: NotNegativeInt = 4
    max_steps: PositiveInt | None = None
    evaluations_per_epoch: NotNegativeInt = 0
    min_steps_between_evaluations: PositiveInt = 20
    early_stopping_patience: PositiveInt | None = None


class GridConfig(Section):
    """The values that `finetune --grid` tries, in all combinations (SpanBERT, appendix B).

    Attributes:
        learning_rates: values for `optimizer.learning_rate`.
        batch_sizes: values for `training.batch_size`.
        epochs: values for `training.epochs`; empty: only the configured value.
    """

    learning_rates: Annotated[list[Positive], Field(min_length=1)] = Field(
        default=[5e-6, 1e-5, 2e-5, 3e-5, 5e-5]
    )
    batch_sizes: Annotated[list[PositiveInt], Field(min_length=1)] = Field(default=[16, 32])
    epochs: list[PositiveInt] = Field(default=[])


class RowsConfig(Section):
    """Requirements on the records of any task; other records are refused.

    Attributes:
        sequence_length: largest number of positions of a row (SpanBERT, appendix B: 512).
        segment_aware: whether rows have SegaBERT's positions, for an encoder that reads them.
    """

    sequence_length: PositiveInt = 512
    segment_aware: bool = False

    @property
    def num_positions(self) -> int:
        """The largest number of positions of an example of a training batch."""
        return self.sequence_length


class PredictionConfig(Section):
    """Settings of the predictions of any task.

    Attributes:
        batch_size: rows of a batch.
    """

    batch_size: PositiveInt = 32


class FinetuningConfig(Configuration):
    """A fine-tuning run; each task derives a class with its name and further sections.

    Attributes:
        task: name of the task.
        optimizer: the optimizer and its schedule.
        training: the course of the run.
        data: requirements on the records.
        prediction: settings of the predictions.
        grid: the values that `finetune --grid` tries.
    """

    task: str = ""
    optimizer: FinetuningOptimizerConfig = FinetuningOptimizerConfig()
    training: FinetuningTrainingConfig = FinetuningTrainingConfig()
    data: RowsConfig = RowsConfig()
    prediction: PredictionConfig = PredictionConfig()
    grid: GridConfig = GridConfig()

    @model_validator(mode="after")
    def _check_what_depends(self) -> Self:
        _check_accumulation(self.training)
        _check_evaluations(self.training)
        _check_adapters(self.optimizer)
        return self


def load_finetuning_config(
    name_or_path: str,
    overrides: Sequence[str],
    tasks: Collection[str],
    class_of: Callable[[str], type[FinetuningConfig]],
) -> FinetuningConfig:
    """Loads, overrides and checks a configuration of tasks that the caller knows.

    Args:
        name_or_path: a shipped name (`squad_v1`), or the path of a YAML file.
        overrides: texts `section.key=value`, the values in YAML.
        tasks: the names that `task` may have.
        class_of: the configuration class of such a name.

    Returns:
        The configuration, of the task's class.

    Raises:
        ConfigurationError: a file, a key, a type or a value is wrong.
    """
    settings = load_settings("finetune", name_or_path, overrides)
    task = settings.get("task", Setting(None, name_or_path))
    if not isinstance(task.value, str) or task.value not in tasks:
        raise ConfigurationError(
            f"{task.place}: task must be {' or '.join(tasks)}, not {task.value!r}"
        )
    return build_config(class_of(task.value), settings, name_or_path)


def _check_accumulation(training: FinetuningTrainingConfig) -> None:
    parts = training.accumulation_steps
    if training.batch_size % parts:
        raise conflict(
            f"{training.batch_size} is no multiple of training.accumulation_steps ({parts})",
            "training.batch_size",
            "training.accumulation_steps",
            fix=f"training.accumulation_steps={largest_divisor(training.batch_size, parts)}",
        )


def _check_adapters(optimizer: FinetuningOptimizerConfig) -> None:
    """Refuses what would leave adapters of some layers as they were drawn."""
    if optimizer.lora_rank is not None and optimizer.frozen_layers:
        raise conflict(
            "with adapters all layers stay as they are",
            "optimizer.frozen_layers",
            "optimizer.lora_rank",
            fix="optimizer.frozen_layers=0",
        )


def _check_evaluations(training: FinetuningTrainingConfig) -> None:
    """Checks that there is more than one evaluation where the best one is chosen or waited for."""
    if training.evaluations_per_epoch:
        return
    for name, is_set in (
        ("keep_best", training.keep_best),
        ("early_stopping_patience", training.early_stopping_patience is not None),
    ):
        if is_set:
            raise conflict(
                "needs evaluations before the end, but training.evaluations_per_epoch is 0",
                f"training.{name}",
                "training.evaluations_per_epoch",
                fix="training.evaluations_per_epoch=1",
            )

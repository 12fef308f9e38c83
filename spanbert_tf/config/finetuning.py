"""Configurations of fine-tuning, `configs/finetune/*.yaml`; `base: NAME` as in pre-training.

`task: NAME` says what is learned (question answering, where a file does not say). The sections
`optimizer`, `training` and `grid` are the same for all tasks; `data` and `prediction` are the
task's own.
"""

from dataclasses import field
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from spanbert_tf.config.runs import AdamWConfig, RunConfig
from spanbert_tf.config.yaml_files import dump_yaml
from spanbert_tf.validation import (
    BelowOne,
    InvalidValueError,
    NotNegative,
    NotNegativeInt,
    Positive,
    PositiveInt,
    PositiveUpToOne,
    Section,
    largest_divisor,
)


@dataclass(frozen=True)
class TaskLayersConfig(Section):
    """Other values for the task's own layers, which begin untrained; null: as the encoder's.

    Attributes:
        learning_rate: peak of their schedule.
        warmup_fraction: share of the steps until the peak.
        weight_decay: decoupled, on kernels and embeddings.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the norm of their gradients alone; null: one limit for all.
    """

    learning_rate: Positive | None = None
    warmup_fraction: BelowOne | None = None
    weight_decay: NotNegative | None = None
    epsilon: Positive | None = None
    global_clipnorm: Positive | None = None


@dataclass(frozen=True)
class FinetuningOptimizerConfig(AdamWConfig):
    """The schedule decays to 0 at the end of the run.

    Attributes:
        learning_rate: peak of the schedule.
        weight_decay: decoupled, on kernels and embeddings.
        warmup_fraction: share of the steps until the peak.
        layer_decay: factor of the learning rate from each layer to the one below; 1: no decay.
        frozen_layers: transformer layers that stay as they are, from the first, and below them
            the embeddings; 0: all is trained.
        task_layers: what is different for the task's own layers.
        lora_rank: rank of low-rank adapters, trained in place of the encoder (and beside a pooler
            that the task reads and nothing has trained); null: no adapters.
    """

    learning_rate: Positive = 2e-5
    weight_decay: NotNegative = 0.01
    warmup_fraction: BelowOne = 0.1
    layer_decay: PositiveUpToOne = 1.0
    frozen_layers: NotNegativeInt = 0
    task_layers: TaskLayersConfig = field(default_factory=TaskLayersConfig)
    lora_rank: PositiveInt | None = None


@dataclass(frozen=True)
class FinetuningTrainingConfig(RunConfig):
    """The course of a fine-tuning run.

    Attributes:
        random_weights: begin with new weights of the preset's shape, to see what its own are worth.
        epochs: passes over all rows; 0: the model stays as it was built.
        max_steps: steps of the run, and of its schedule, in place of `epochs`; null: `epochs` says.
        evaluations_per_epoch: evaluations on the validation data; 0: only at the end of the run.
        min_steps_between_evaluations: on few rows there are fewer evaluations than that, at least
            so many steps apart; after the last step there is one all the same.
        early_stopping_patience: the run stops after so many evaluations in a row without a better
            one; null: it goes on.
    """

    random_weights: bool = False
    epochs: NotNegativeInt = 4
    max_steps: PositiveInt | None = None
    evaluations_per_epoch: NotNegativeInt = 0
    min_steps_between_evaluations: PositiveInt = 20
    early_stopping_patience: PositiveInt | None = None


@dataclass(frozen=True)
class GridConfig(Section):
    """What `finetune --grid` tries, in all combinations (SpanBERT, appendix B).

    Attributes:
        learning_rates: values for `optimizer.learning_rate`.
        batch_sizes: values for `training.batch_size`.
        epochs: values for `training.epochs`; empty: that one alone.
    """

    learning_rates: Annotated[list[Positive], Field(min_length=1)] = field(
        default_factory=lambda: [5e-6, 1e-5, 2e-5, 3e-5, 5e-5]
    )
    batch_sizes: Annotated[list[PositiveInt], Field(min_length=1)] = field(
        default_factory=lambda: [16, 32]
    )
    epochs: list[PositiveInt] = field(default_factory=list)


@dataclass(frozen=True)
class RowsConfig(Section):
    """What the records of any task must be; records that are not are refused.

    Attributes:
        sequence_length: positions of a row at most (SpanBERT, appendix B: 512).
        segment_aware: whether rows hold SegaBERT's positions, for an encoder that reads them.
    """

    sequence_length: PositiveInt = 512
    segment_aware: bool = False


@dataclass(frozen=True)
class PredictionConfig(Section):
    """How any task predicts.

    Attributes:
        batch_size: rows of a batch.
    """

    batch_size: PositiveInt = 32


@dataclass(frozen=True)
class FinetuningConfig(Section):
    """A fine-tuning run; each task derives a class with its name and further sections.

    Attributes:
        task: what is learned.
        optimizer: how it is learned.
        training: how long, and what is kept.
        data: what the task's records must be.
        prediction: how the task predicts.
        grid: what `finetune --grid` tries.
    """

    task: str = ""
    optimizer: FinetuningOptimizerConfig = field(default_factory=FinetuningOptimizerConfig)
    training: FinetuningTrainingConfig = field(default_factory=FinetuningTrainingConfig)
    data: RowsConfig = field(default_factory=RowsConfig)
    prediction: PredictionConfig = field(default_factory=PredictionConfig)
    grid: GridConfig = field(default_factory=GridConfig)

    def __post_init__(self) -> None:
        _check_accumulation(self.training)
        _check_evaluations(self.training)

    def to_yaml(self) -> str:
        """The whole configuration as the text of a file that `load_finetuning_config` reads."""
        return dump_yaml(self.as_dict())


def _check_accumulation(training: FinetuningTrainingConfig) -> None:
    parts = training.accumulation_steps
    if training.batch_size % parts:
        raise InvalidValueError(
            "training.batch_size",
            f": {training.batch_size} is no multiple of training.accumulation_steps ({parts})",
            beside=["training.accumulation_steps"],
            fix=f"training.accumulation_steps={largest_divisor(training.batch_size, parts)}",
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
            raise InvalidValueError(
                f"training.{name}",
                ": needs evaluations before the end, but training.evaluations_per_epoch is 0",
                beside=["training.evaluations_per_epoch"],
                fix="training.evaluations_per_epoch=1",
            )

"""Configurations of fine-tuning, `configs/finetune/*.yaml`; `base: NAME` as in pre-training."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import yaml
from official.modeling.hyperparams import base_config

from spanbert_tf.config_files import load_settings
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.strict_yaml import build_config, flat_values

_AT_LEAST_1 = (
    "training.epochs",
    "training.batch_size",
    "training.log_every",
    "training.checkpoint_every_steps",
    "prediction.max_answer_tokens",
    "prediction.num_candidates",
    "prediction.batch_size",
)


@dataclasses.dataclass
class FinetuningOptimizerConfig(base_config.Config):
    """AdamW with linear warm-up and linear decay to 0 at the end of the run.

    Attributes:
        learning_rate: peak of the schedule.
        warmup_fraction: share of the steps until the peak.
        weight_decay: decoupled, on kernels and embeddings.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the gradients' global norm.
    """

    learning_rate: float = 2e-5
    warmup_fraction: float = 0.1
    weight_decay: float = 0.01
    epsilon: float = 1e-8
    global_clipnorm: float | None = 1.0


@dataclasses.dataclass
class FinetuningTrainingConfig(base_config.Config):
    """The course of the run.

    Attributes:
        seed: of the new layers, dropout and the order of the rows.
        random_weights: begin with new weights of the preset's shape, to see what its own are worth.
        epochs: over all rows.
        batch_size: rows of a batch.
        precision: `auto` is bfloat16 or float16 on a GPU that has it, and float32 elsewhere.
        log_every: steps between lines of `metrics.jsonl`.
        checkpoint_every_steps: steps between checkpoints.
        max_checkpoints: checkpoints that are kept, the newest ones.
    """

    seed: int = 0
    random_weights: bool = False
    epochs: int = 4
    batch_size: int = 32
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "auto"
    log_every: int = 50
    checkpoint_every_steps: int = 500
    max_checkpoints: int = 2


@dataclasses.dataclass
class QuestionDataConfig(base_config.Config):
    """What the records must be; records that are not are refused.

    Attributes:
        sequence_length: positions of a row at most (SpanBERT, appendix B: 512).
        stride: tokens from one window of a passage to the next (appendix B: 128).
        question_first: whether the question stands before the passage.
        has_unanswerable: whether questions may have no answer.
        segment_aware: whether rows tell SegaBERT's positions, for an encoder that reads them.
    """

    sequence_length: int = 512
    stride: int = 128
    question_first: bool = False
    has_unanswerable: bool = False
    segment_aware: bool = False


@dataclasses.dataclass
class PredictionConfig(base_config.Config):
    """How answers are chosen.

    Attributes:
        batch_size: rows of a batch.
        max_answer_tokens: longest answer.
        num_candidates: possible answers that are kept for each question.
    """

    batch_size: int = 32
    max_answer_tokens: int = 30
    num_candidates: int = 20


@dataclasses.dataclass
class GridConfig(base_config.Config):
    """What `finetune --grid` tries, in all combinations (SpanBERT, appendix B).

    Attributes:
        learning_rates: in place of `optimizer.learning_rate`.
        batch_sizes: in place of `training.batch_size`.
    """

    learning_rates: list[float] = dataclasses.field(
        default_factory=lambda: [5e-6, 1e-5, 2e-5, 3e-5, 5e-5]
    )
    batch_sizes: list[int] = dataclasses.field(default_factory=lambda: [16, 32])


@dataclasses.dataclass
class QuestionAnsweringConfig(base_config.Config):
    """A fine-tuning run for extractive question answering.

    Attributes:
        optimizer: how.
        training: how long, and what is kept.
        data: what the records must be.
        prediction: how answers are chosen.
        grid: what `finetune --grid` tries.
    """

    optimizer: FinetuningOptimizerConfig = dataclasses.field(
        default_factory=FinetuningOptimizerConfig
    )
    training: FinetuningTrainingConfig = dataclasses.field(default_factory=FinetuningTrainingConfig)
    data: QuestionDataConfig = dataclasses.field(default_factory=QuestionDataConfig)
    prediction: PredictionConfig = dataclasses.field(default_factory=PredictionConfig)
    grid: GridConfig = dataclasses.field(default_factory=GridConfig)

    def to_yaml(self) -> str:
        """The whole configuration as the text of a file that `load_finetuning_config` reads."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False)


def load_finetuning_config(
    name_or_path: str, overrides: Sequence[str] = ()
) -> QuestionAnsweringConfig:
    """Loads, overrides and checks a configuration.

    Args:
        name_or_path: a shipped name (`squad_v1`), or the path of a YAML file.
        overrides: texts `section.key=value`, the values in YAML.

    Raises:
        ConfigurationError: a file, a key, a type or a value is wrong.
    """
    settings = load_settings("finetune", name_or_path, overrides)
    config = build_config(QuestionAnsweringConfig, settings)
    values = flat_values(config)
    for key in _AT_LEAST_1:
        if values[key] < 1:
            raise ConfigurationError(f"{name_or_path}: {key}: {values[key]} is less than 1")
    if values["optimizer.learning_rate"] <= 0:
        raise ConfigurationError(f"{name_or_path}: optimizer.learning_rate: is not more than 0")
    if not 0 <= values["optimizer.warmup_fraction"] < 1:
        raise ConfigurationError(
            f"{name_or_path}: optimizer.warmup_fraction: is not from 0 to below 1"
        )
    return config

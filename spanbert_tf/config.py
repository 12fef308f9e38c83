"""The configuration of a pre-training run: its keys, its files, its checks.

A configuration file is YAML with the sections below. `base: NAME` takes over another file (a
shipped name, or a path seen from the file) and the rest overrides it key by key. What a file does
not set has the default here. Keys are those of the classes, and nothing else is accepted.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

import yaml
from official.modeling.hyperparams import base_config

from spanbert_tf.config_checks import check_values
from spanbert_tf.config_files import load_settings
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.masking.options import MaskingOptions
from spanbert_tf.strict_yaml import build_config, flat_values


@dataclasses.dataclass
class ModelConfig(base_config.Config):
    """The encoder. The defaults are BERT's base shape (Devlin et al. 2019, section 3).

    Attributes:
        num_layers: transformer layers.
        num_heads: attention heads; must divide `hidden_dim`.
        hidden_dim: width of the token representations.
        intermediate_dim: width of the feed-forward layers.
        dropout: rate on all layers and on attention weights (SpanBERT 4.2: 0.1).
        max_sequence_length: rows of the position table.
        layer_norm_epsilon: BERT's TensorFlow code has 1e-12.
        position_embeddings: of the place in the row (BERT); of paragraph, sentence and token in
            its stead (SegaBERT 2); or of paragraph and sentence beside it (SegaBERT 3.3).
    """

    num_layers: int = 12
    num_heads: int = 12
    hidden_dim: int = 768
    intermediate_dim: int = 3072
    dropout: float = 0.1
    max_sequence_length: int = 512
    layer_norm_epsilon: float = 1e-12
    position_embeddings: Literal[
        "absolute", "segment_aware", "absolute_with_paragraph_and_sentence"
    ] = "absolute"


@dataclasses.dataclass
class MaskingConfig(base_config.Config):
    """What to mask and what to put in its place; see `spanbert_tf.masking.MaskingOptions`.

    Attributes:
        scheme: what one draw masks.
        rate: share of a block's tokens that is masked (SpanBERT 3.1: 15 %).
        geometric_p: parameter of the span lengths' distribution (3.1: 0.2).
        max_span_length: longest span, in words (3.1: 10).
        mask_token_rate: share of units replaced by [MASK] (3.1: 80 %).
        random_token_rate: share of units replaced by random tokens (3.1: 10 %).
        replacement_unit: what one draw of these rates decides for; null: the scheme's own.
        span_start: where a geometric span begins.
        max_span_targets: SBO targets of a span, counted from its start.
        boundary_at_special_tokens: whether [CLS] and [SEP] may be the boundary of a span.
    """

    scheme: Literal["subwords", "whole_words", "geometric_spans", "entities", "noun_phrases"] = (
        "geometric_spans"
    )
    rate: float = 0.15
    geometric_p: float = 0.2
    max_span_length: int = 10
    mask_token_rate: float = 0.8
    random_token_rate: float = 0.1
    replacement_unit: Literal["token", "word", "span"] | None = None
    span_start: Literal["anchor_token", "word"] = "anchor_token"
    max_span_targets: int = 20
    boundary_at_special_tokens: bool = False


@dataclasses.dataclass
class ObjectivesConfig(base_config.Config):
    """What is learned beside the masked-language model.

    Attributes:
        span_boundary: the span boundary objective (SpanBERT 3.2).
        span_position_dim: width of its position embeddings (4.2: 200).
        next_sentence: next sentence prediction (BERT), for records of pairs.
    """

    span_boundary: bool = True
    span_position_dim: int = 200
    next_sentence: bool = False


@dataclasses.dataclass
class OptimizerConfig(base_config.Config):
    """AdamW with linear warm-up and linear decay; the defaults are SpanBERT's (4.2).

    Attributes:
        learning_rate: peak of the schedule.
        warmup_steps: steps until the peak; the decay ends at `training.schedule_steps`.
        weight_decay: decoupled, on kernels and embeddings (the released command has 0.01).
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the second moment.
        global_clipnorm: limit of the gradients' global norm (released command); null: none.
    """

    learning_rate: float = 1e-4
    warmup_steps: int = 10_000
    weight_decay: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    global_clipnorm: float | None = 1.0


@dataclasses.dataclass
class TrainingConfig(base_config.Config):
    """The course of the run.

    Attributes:
        seed: of the weights, dropout, the order of the records and the masks.
        steps: the run stops after this many.
        schedule_steps: steps of the whole learning-rate schedule (SpanBERT 4.2: 2.4 M).
        batch_size: rows of a global batch, all devices together.
        accumulation_steps: micro-batches that each device's rows of a batch are cut into, to save
            memory; the result is the same.
        max_skipped_steps: the run stops after so many updates in a row whose gradients were not
            finite.
        strategy: `one_device`; `mirrored` over the devices of this machine; `multi_worker` over
            the machines that TF_CONFIG or Slurm names; `tpu`.
        precision: `auto` is bfloat16 or float16 on a GPU that has it, and float32 elsewhere.
        deterministic: the same bits for the same run on a GPU, too; slower there.
        jit_compile: compile the step with XLA.
        steps_per_execution: steps that run without returning to Python.
        log_every: steps between lines of `metrics.jsonl`.
        evaluate_every: steps between evaluations on held-out records.
        evaluate_batches: batches of an evaluation; null: all held-out records.
        checkpoint_every_steps: steps between checkpoints.
        max_checkpoints: checkpoints that are kept, the newest ones.
        keep_best: whether to keep the checkpoint with the lowest held-out loss beside them.
    """

    seed: int = 0
    steps: int = 2_400_000
    schedule_steps: int = 2_400_000
    batch_size: int = 256
    accumulation_steps: int = 1
    max_skipped_steps: int = 10
    strategy: Literal["one_device", "mirrored", "multi_worker", "tpu"] = "one_device"
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "auto"
    deterministic: bool = False
    jit_compile: bool = False
    steps_per_execution: int = 1
    log_every: int = 100
    evaluate_every: int = 10_000
    evaluate_batches: int | None = None
    checkpoint_every_steps: int = 1000
    max_checkpoints: int = 3
    keep_best: bool = False


@dataclasses.dataclass
class DataConfig(base_config.Config):
    """What the records must be; records that are not are refused.

    Attributes:
        sequence_length: positions of a packed row, special tokens included (SpanBERT 4.2: 512).
        sequences: one block a row, or two with [SEP] between.
        vocabulary_size: entries of the records' vocabulary; null: any. The model takes its size
            from the records.
        on_corrupt: `error` stops at a damaged record; `skip` reads all shards once, leaves damaged
            records out, and says how many.
        service_address: `grpc://HOST:PORT` of a tf.data service of one worker that reads and masks
            instead of this machine; it sees the records under the same path. null: none.
    """

    sequence_length: int = 512
    sequences: Literal["single", "pair"] = "single"
    vocabulary_size: int | None = None
    on_corrupt: Literal["error", "skip"] = "error"
    service_address: str | None = None


@dataclasses.dataclass
class PretrainingConfig(base_config.Config):
    """A pre-training run.

    Attributes:
        model: the encoder.
        masking: what is masked.
        objectives: what is learned.
        optimizer: how.
        training: how long, and what is kept.
        data: what the records must be.
    """

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)
    objectives: ObjectivesConfig = dataclasses.field(default_factory=ObjectivesConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)

    def masking_options(self) -> MaskingOptions:
        """The section `masking` as the data pipeline takes it."""
        return MaskingOptions(**self.masking.as_dict())

    def to_yaml(self) -> str:
        """The whole configuration as the text of a file that `load_config` reads."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False)


def load_config(name_or_path: str, overrides: Sequence[str] = ()) -> PretrainingConfig:
    """Loads, overrides and checks a configuration.

    Args:
        name_or_path: a shipped name (`spanbert_base`), or the path of a YAML file.
        overrides: texts `section.key=value`, the values in YAML.

    Returns:
        The configuration: the file's values over its bases' over the defaults.

    Raises:
        ConfigurationError: a file, a key, a type or a value is wrong.
    """
    config = build_config(PretrainingConfig, load_settings("pretrain", name_or_path, overrides))
    try:
        config.masking_options()  # checks the section
        check_values(flat_values(config))
    except ConfigurationError as error:
        raise ConfigurationError(f"{name_or_path}: {error}") from error
    return config

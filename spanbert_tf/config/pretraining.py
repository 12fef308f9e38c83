"""The configuration of a pre-training run: its keys, its files, its checks.

A configuration file is YAML with the sections below. `base: NAME` takes over another file (a
shipped name, or a path seen from the file) and the rest overrides it key by key. What a file does
not set has the default here. Keys are those of the classes, and nothing else is accepted.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from spanbert_tf.config.positions import PositionEmbeddings, reads_indices
from spanbert_tf.config.run import AdamWConfig, RunConfig
from spanbert_tf.config.settings import Configuration, build_config, load_settings
from spanbert_tf.masking.options import MaskingOptions
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

_SHORTEST_ROW = 8  # positions


class ModelConfig(Section):
    """The encoder. The defaults are BERT's base shape (Devlin et al. 2019, section 3).

    Attributes:
        num_layers: transformer layers.
        num_heads: attention heads; their number must divide `hidden_dim`.
        hidden_dim: width of the token representations.
        intermediate_dim: width of the feed-forward layers.
        dropout: dropout rate of all layers (SpanBERT 4.2: 0.1).
        attention_dropout: dropout rate of the attention weights; null: the value of `dropout`
            (4.2). With 0, attention is one fused operation on accelerators.
        max_sequence_length: length of the longest row in pre-training, and of the table of absolute
            positions. Rows of a task may be longer if the encoder has no such table.
        layer_norm_epsilon: epsilon of layer normalization (1e-12 in BERT's TensorFlow code).
        position_embeddings: which positions are embedded: the place in the row (BERT); paragraph,
            sentence and token instead (SegaBERT 2), with BERT's segments beside them (the code of
            its authors) or without; or paragraph and sentence as well (SegaBERT 3.3).
        num_paragraphs: rows of the table of paragraphs (SegaBERT 2: 50).
        num_sentences: rows of the table of sentences in a paragraph (100).
        max_sentence_length: rows of the table of tokens in a sentence (256; the released command
            has 512).
        from_preset: whether keys of this section that are not set take the values of
            `--initial-preset`; so do the sizes of its span boundary head, if it has one.
    """

    num_layers: PositiveInt = 12
    num_heads: PositiveInt = 12
    hidden_dim: PositiveInt = 768
    intermediate_dim: PositiveInt = 3072
    dropout: BelowOne = 0.1
    attention_dropout: BelowOne | None = None
    max_sequence_length: PositiveInt = 512
    layer_norm_epsilon: Positive = 1e-12
    position_embeddings: PositionEmbeddings = "absolute"
    num_paragraphs: PositiveInt = 50
    num_sentences: PositiveInt = 100
    max_sentence_length: PositiveInt = 256
    from_preset: bool = False

    @property
    def segment_aware(self) -> bool:
        """Whether the encoder reads SegaBERT's indices, so that rows must have them."""
        return reads_indices(self.position_embeddings)

    def encoder_options(self) -> dict[str, Any]:
        """Returns the arguments of the encoder's constructor."""
        return self.model_dump(exclude={"from_preset"})


class ObjectivesConfig(Section):
    """The objectives besides the masked-language model.

    Attributes:
        span_boundary: whether to train the span boundary objective (SpanBERT 3.2).
        span_position_dim: width of its position embeddings (4.2: 200).
        next_sentence: whether to train next sentence prediction (BERT), for records of pairs.
        output_bias: initial output biases of new heads: `zeros` (BERT), or `unigrams`, the
            logarithms of the tokens' shares in the training text, with 1 added to each count.
    """

    span_boundary: bool = True
    span_position_dim: PositiveInt = 200
    next_sentence: bool = False
    output_bias: Literal["zeros", "unigrams"] = "zeros"


class OptimizerConfig(AdamWConfig):
    """The defaults are SpanBERT's (4.2); decay and clip of the released command differ.

    Attributes:
        learning_rate: peak of the schedule.
        weight_decay: decoupled weight decay of kernels and embeddings (the released command has
            0.01).
        warmup_steps: steps until the peak; the decay ends at `training.schedule_steps`.
        encoder_learning_rate: peak for the encoder only; null: the value of `learning_rate`.
        layer_decay: factor of the learning rate from each layer of the encoder to the layer below;
            1: the same rate for all layers.
    """

    learning_rate: Positive = 1e-4
    weight_decay: NotNegative = 0.1
    warmup_steps: NotNegativeInt = 10_000
    encoder_learning_rate: Positive | None = None
    layer_decay: PositiveUpToOne = 1.0


class TrainingConfig(RunConfig):
    """The course of a pre-training run.

    Attributes:
        batch_by_length: whether a batch has rows of similar length, padded to one of at most 8
            widths. A batch then has about as many positions as `batch_size` rows of
            `data.sequence_length`, and so more rows. This is for records of short documents. If
            `accumulation_steps` does not divide the rows of a batch, it has more micro-batches.
        steps: number of steps of the run.
        schedule_steps: steps of the whole schedule of the learning rate (SpanBERT 4.2: 2.4 M), and
            of `masking.rate` if it has two values.
        head_steps: number of first steps that train only the heads. The encoder's learning rate
            then warms up, and joins the schedule.
        initial_encoder_share: weight of the initial encoder in the preset: share · initial +
            (1 - share) · trained. It needs `--initial-preset`.
        evaluate_every: steps between evaluations on held-out records.
        evaluate_batches: number of batches of an evaluation; null: all held-out records.
    """

    batch_size: PositiveInt = 256
    batch_by_length: bool = False
    log_every: PositiveInt = 100
    max_checkpoints: PositiveInt = 3
    steps: PositiveInt = 2_400_000
    schedule_steps: PositiveInt = 2_400_000
    head_steps: NotNegativeInt = 0
    initial_encoder_share: BelowOne = 0.0
    evaluate_every: PositiveInt = 10_000
    evaluate_batches: PositiveInt | None = None

    periods: ClassVar[tuple[str, ...]] = (*RunConfig.periods, "evaluate_every")


class DataConfig(Section):
    """Requirements on the records; other records are refused.

    Attributes:
        sequence_length: positions of a packed row, with special tokens (SpanBERT 4.2: 512).
        sequences: `single`: one block in a row; `pair`: two blocks with [SEP] between them.
        vocabulary_size: number of entries of the records' vocabulary; null: any number. The model
            takes its size from the records.
    """

    sequence_length: Annotated[int, Field(ge=_SHORTEST_ROW)] = 512
    sequences: Literal["single", "pair"] = "single"
    vocabulary_size: PositiveInt | None = None


class PretrainingConfig(Configuration):
    """A pre-training run.

    Attributes:
        model: the encoder.
        masking: the masking of tokens.
        objectives: the objectives besides the masked-language model.
        optimizer: the optimizer and its schedule.
        training: the course of the run.
        data: requirements on the records.
    """

    model: ModelConfig = ModelConfig()
    masking: MaskingOptions = MaskingOptions()
    objectives: ObjectivesConfig = ObjectivesConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()

    @model_validator(mode="after")
    def _check_what_depends(self) -> Self:
        _check_model(self.model)
        _check_rows(self)
        _check_schedule(self.optimizer, self.training)
        return self


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
    settings = load_settings("pretrain", name_or_path, overrides)
    return build_config(PretrainingConfig, settings, name_or_path)


def _check_model(model: ModelConfig) -> None:
    if model.hidden_dim % model.num_heads:
        num_heads = largest_divisor(model.hidden_dim, model.num_heads)
        raise conflict(
            f"{model.hidden_dim} is no multiple of model.num_heads ({model.num_heads})",
            "model.hidden_dim",
            "model.num_heads",
            fix=f"model.num_heads={num_heads}",
        )


def _check_rows(config: PretrainingConfig) -> None:
    """Checks that model and objectives can read the records' rows."""
    length = config.data.sequence_length
    longest = config.model.max_sequence_length
    if length > longest:
        raise conflict(
            f"{length} is more than model.max_sequence_length ({longest})",
            "data.sequence_length",
            "model.max_sequence_length",
            fix=(
                f"data.sequence_length={longest}"  # a preset's table has no more rows
                if config.model.from_preset and longest >= _SHORTEST_ROW
                else f"model.max_sequence_length={length}"
            ),
        )
    kind = config.model.position_embeddings
    is_pair = config.data.sequences == "pair"
    next_sentence = config.objectives.next_sentence
    if reads_indices(kind) and (is_pair or next_sentence):
        raise conflict(
            f"{kind} needs data.sequences=single and objectives.next_sentence=false",
            "model.position_embeddings",
            "data.sequences",
            "objectives.next_sentence",
            fix="data.sequences=single" if is_pair else "objectives.next_sentence=false",
        )
    if next_sentence and not is_pair:
        raise conflict(
            "needs data.sequences=pair",
            "objectives.next_sentence",
            "data.sequences",
            fix="data.sequences=pair",
        )


def _check_schedule(optimizer: OptimizerConfig, training: TrainingConfig) -> None:
    steps = training.steps
    schedule_steps = training.schedule_steps
    if steps > schedule_steps:
        raise conflict(
            f"{steps} is more than training.schedule_steps ({schedule_steps}), where the "
            "learning rate is 0",
            "training.steps",
            "training.schedule_steps",
            fix=f"training.schedule_steps={steps}",
        )
    if optimizer.warmup_steps >= schedule_steps:
        raise conflict(
            f"{optimizer.warmup_steps} is not less than training.schedule_steps ({schedule_steps})",
            "optimizer.warmup_steps",
            "training.schedule_steps",
            fix=f"optimizer.warmup_steps={schedule_steps // 10}",
        )

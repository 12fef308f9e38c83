"""The ranges of a configuration's values, and which of them must go together."""

from collections.abc import Mapping
from typing import Any

from spanbert_tf.errors import ConfigurationError

_AT_LEAST = {
    8: ("data.sequence_length",),
    1: (
        "model.num_layers",
        "model.num_heads",
        "model.hidden_dim",
        "model.intermediate_dim",
        "objectives.span_position_dim",
        "training.steps",
        "training.batch_size",
        "training.accumulation_steps",
        "training.max_skipped_steps",
        "training.steps_per_execution",
        "training.log_every",
        "training.evaluate_every",
        "training.evaluate_batches",
        "training.checkpoint_every_steps",
        "training.max_checkpoints",
    ),
    0: ("optimizer.warmup_steps", "optimizer.weight_decay", "training.seed"),
}
_POSITIVE = (
    "model.layer_norm_epsilon",
    "optimizer.learning_rate",
    "optimizer.epsilon",
    "optimizer.global_clipnorm",
)
_FROM_0_TO_BELOW_1 = ("model.dropout", "optimizer.beta_1", "optimizer.beta_2")
_IN_EXECUTIONS = ("steps", "log_every", "evaluate_every", "checkpoint_every_steps")


def check_values(values: Mapping[str, Any]) -> None:
    """Checks values, keyed `section.key`, that have the right types. `None` is in every range.

    Raises:
        ConfigurationError: a value is out of range or does not go with another one.
    """
    set_values = {key: value for key, value in values.items() if value is not None}
    for least, keys in _AT_LEAST.items():
        for key in keys:
            if set_values.get(key, least) < least:
                raise ConfigurationError(f"{key}: {values[key]} is less than {least}")
    for key in _POSITIVE:
        if set_values.get(key, 1) <= 0:
            raise ConfigurationError(f"{key}: {values[key]} is not more than 0")
    for key in _FROM_0_TO_BELOW_1:
        if not 0 <= values[key] < 1:
            raise ConfigurationError(f"{key}: {values[key]} is not from 0 to below 1")
    _check_model_and_data(values)
    _check_steps(values)


def _check_model_and_data(values: Mapping[str, Any]) -> None:
    width, num_heads = values["model.hidden_dim"], values["model.num_heads"]
    if width % num_heads:
        raise ConfigurationError(
            f"model.hidden_dim: {width} is no multiple of model.num_heads ({num_heads})"
        )
    length, longest = values["data.sequence_length"], values["model.max_sequence_length"]
    if length > longest:
        raise ConfigurationError(
            f"data.sequence_length: {length} is more than model.max_sequence_length ({longest})"
        )
    positions, sequences = values["model.position_embeddings"], values["data.sequences"]
    if positions != "absolute" and sequences != "single":
        raise ConfigurationError(
            f"model.position_embeddings: {positions} needs data.sequences=single"
        )
    if values["objectives.next_sentence"] and sequences != "pair":
        raise ConfigurationError("objectives.next_sentence: needs data.sequences=pair")


def _check_steps(values: Mapping[str, Any]) -> None:
    steps, schedule_steps = values["training.steps"], values["training.schedule_steps"]
    if steps > schedule_steps:
        raise ConfigurationError(
            f"training.steps: {steps} is more than training.schedule_steps ({schedule_steps}), "
            "where the learning rate is 0"
        )
    warmup_steps = values["optimizer.warmup_steps"]
    if warmup_steps >= schedule_steps:
        raise ConfigurationError(
            f"optimizer.warmup_steps: {warmup_steps} is not less than training.schedule_steps "
            f"({schedule_steps})"
        )
    num_steps = values["training.steps_per_execution"]
    for key in _IN_EXECUTIONS:
        if values[f"training.{key}"] % num_steps:
            raise ConfigurationError(
                f"training.{key}: {values[f'training.{key}']} is no multiple of "
                f"training.steps_per_execution ({num_steps})"
            )

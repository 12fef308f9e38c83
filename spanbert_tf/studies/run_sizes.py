"""The configurations of a comparison, all in one size: a small one, or that of a preset."""

from collections.abc import Mapping, Sequence
from typing import Any

from spanbert_tf.config import PretrainingConfig, load_config, shape_values
from spanbert_tf.data.schema import DatasetInfo

_CONTINUING = "continue"  # the configuration whose batches all ways of continuing have


def small_version(
    name: str, info: DatasetInfo, steps: int, overrides: Sequence[str]
) -> PretrainingConfig:
    """A configuration with the size and the optimizer of `spanbert_tiny`.

    Args:
        name: shipped name, or path of a file.
        info: description of the records.
        steps: steps of the run and of its schedule.
        overrides: texts `section.key=value` that lie over the size.
    """
    tiny = load_config("spanbert_tiny")
    sizes = ("num_layers", "num_heads", "hidden_dim", "intermediate_dim", "dropout")
    return _sized(
        name,
        {
            **{f"model.{size}": getattr(tiny.model, size) for size in sizes},
            "model.max_sequence_length": info.sequence_length,
            "objectives.span_position_dim": tiny.objectives.span_position_dim,
            "optimizer.learning_rate": tiny.optimizer.learning_rate,
            "training.batch_size": tiny.training.batch_size,
            # All begin at random: nothing is to be kept, or trained later or less than the rest.
            "training.initial_encoder_share": 0,
            "training.head_steps": 0,
            "optimizer.encoder_learning_rate": "null",
            "optimizer.layer_decay": 1,
        },
        info,
        steps,
        overrides,
    )


def continued_version(
    name: str, preset: str, info: DatasetInfo, steps: int, overrides: Sequence[str]
) -> PretrainingConfig:
    """A configuration with the shape of a preset, whose heads train alone for their share of steps.

    Args:
        name: as for `small_version`.
        preset: as for `shape_values`.
        info: as for `small_version`.
        steps: as for `small_version`.
        overrides: as for `small_version`.
    """
    training = load_config(name).training
    head_share = training.head_steps / training.schedule_steps
    return _sized(
        name,
        {
            **shape_values(preset),
            "model.from_preset": "true",
            "training.head_steps": round(head_share * steps),
            "training.batch_size": load_config(_CONTINUING).training.batch_size,
        },
        info,
        steps,
        overrides,
    )


def _sized(
    name: str, size: Mapping[str, Any], info: DatasetInfo, steps: int, overrides: Sequence[str]
) -> PretrainingConfig:
    values = {
        **size,
        "data.sequence_length": info.sequence_length,
        "optimizer.warmup_steps": steps // 10,
        "training.strategy": "one_device",
        "training.steps": steps,
        "training.schedule_steps": steps,
        "training.evaluate_every": steps,
        "training.checkpoint_every_steps": steps,
    }
    return load_config(name, [*(f"{key}={value}" for key, value in values.items()), *overrides])

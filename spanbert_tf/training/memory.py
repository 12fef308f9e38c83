"""Estimates the memory of a training step, and advises when a device runs out of memory."""

import functools
import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from rich.filesize import decimal

from spanbert_tf.config import FinetuningTrainingConfig, TrainingConfig
from spanbert_tf.errors import TrainingError
from spanbert_tf.training.checkpoints import num_bytes
from spanbert_tf.training.run_directory import AnyConfig

# A layer keeps arrays until its gradients are computed. Their size is 19 times that of its input
# [sequence, width]: the input, keys, values, queries and heads twice, the feed-forward network
# (4 + 4), the inputs of both norms, the output and the bits of dropout.
_KEPT_INPUTS = 19
# It also keeps the attention weights [heads, sequence, sequence] and the bits of their dropout.
_KEPT_WEIGHTS = 1.3
_KEPT_LOGITS = 3  # for each prediction slot: logits, their softmax, and the gradient
# Messages of TensorFlow's allocators, and of XLA, which raises a `RuntimeError`.
_OUT_OF_MEMORY = re.compile(r"OOM when allocating|out of memory|failed to allocate", re.IGNORECASE)
_TENSOR = re.compile(r"shape(\[[\d,]*\]) and type (\w+) on \S*device:(\w+:\d+)")


def describe_step(model: keras.Model, config: AnyConfig, num_replicas: int) -> str:
    """Describes the memory that a step takes on each device; activations are estimated.

    Args:
        model: a task, built with its optimizer.
        config: configuration of the run.
        num_replicas: number of replicas that share a batch.
    """
    parts = {
        "weights": num_bytes(model.variables),
        "optimizer": num_bytes(model.optimizer.variables),
        "gradients": num_bytes(model.trainable_variables),
        "activations": activations(model, config, num_replicas),
    }
    sizes = ", ".join(f"{name} {decimal(size)}" for name, size in parts.items())
    return f"about {decimal(sum(parts.values()))} of memory on each device ({sizes})"


def activations(model: keras.Model, config: AnyConfig, num_replicas: int) -> int:
    """Estimates the bytes that a step keeps until gradients are computed.

    It counts the encoder and the logits over the vocabulary, but not a task's own layers.

    Args:
        model: a task.
        config: configuration of the run, with the length of a row and the rows of a batch.
        num_replicas: number of replicas that share a batch.
    """
    training = config.training
    backbone = model.backbone
    length = config.data.sequence_length
    num_rows = training.batch_size // (num_replicas * training.accumulation_steps)
    num_rows *= getattr(model, "max_segments", 1)  # rows of a document
    value_bytes = 4 if backbone.compute_dtype == "float32" else 2
    inputs = length * backbone.hidden_dim * value_bytes
    attention_weights = backbone.num_heads * length**2 * value_bytes
    layer = _KEPT_INPUTS * inputs + _KEPT_WEIGHTS * attention_weights
    # While gradients are computed, the arrays of one layer exist once more.
    if training.gradient_checkpointing:
        row = backbone.num_layers * inputs + 2 * layer
    else:
        row = (backbone.num_layers + 1) * layer
    if hasattr(config, "masking"):
        slots = config.masking.num_slots(length) * len(model.objectives)
        row += slots * backbone.vocabulary_size * 4 * _KEPT_LOGITS
    return round(num_rows * row)


def names_exhaustion(run: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a function of a job and an output, which may exhaust the memory of a device.

    It replaces the errors of TensorFlow and XLA by a `TrainingError` of one line that says what to
    change.
    """

    @functools.wraps(run)
    def named(job: Any, output: str, *args: Any, **options: Any) -> Any:
        try:
            return run(job, output, *args, **options)
        except (MemoryError, RuntimeError, tf.errors.OpError) as error:
            if not is_exhaustion(error):
                raise
            found = _TENSOR.search(str(error))
            place = f"{found[3]} for {found[2]} {found[1]}" if found else "a device"
            advice = _advice(job.config.training)
            raise TrainingError(f"{output}: out of memory on {place}; {advice}") from error

    return named


def is_exhaustion(error: BaseException) -> bool:
    """Whether an error says that a device has too little memory.

    The message decides, because TensorFlow raises the same class for full disks and for too many
    open files.
    """
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def _advice(training: TrainingConfig | FinetuningTrainingConfig) -> str:
    """Lists settings that need less memory, first those that the same run may change."""
    for_run = []
    for_new_run = []
    if not training.gradient_checkpointing:
        for_run.append("training.gradient_checkpointing=true")
    num_parts = training.accumulation_steps
    num_rows = training.batch_size
    for more_parts in range(2 * num_parts, num_rows + 1, num_parts):
        if num_rows % more_parts == 0:
            for_run.append(f"training.accumulation_steps={more_parts}")
            break
    if training.precision == "float32":
        for_new_run.append("training.precision=mixed_bfloat16")
    if num_rows > 1:
        fewer_rows = max(num_rows // 2 // num_parts * num_parts, num_parts)
        for_new_run.append(f"training.batch_size={fewer_rows}")
    choices = []
    if for_run:
        choices.append(_options(for_run))
    if for_new_run:
        choices.append(f"in another --output {_options(for_new_run)}")
    if not choices:
        return "take a smaller encoder or another device"
    return f"try {', or '.join(choices)}"


def _options(changes: list[str]) -> str:
    return " or ".join(f"--set {change}" for change in changes)

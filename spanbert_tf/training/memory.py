"""What a step of training takes of a device's memory, and what to do where that is too much."""

import functools
import math
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

# What a layer keeps for its gradients, in its inputs, [S, H]: itself, keys, values, queries and
# heads twice, the feed-forward network (4 + 4), both norms' inputs, an output, dropout's bits …
_KEPT_INPUTS = 19
_KEPT_WEIGHTS = 1.3  # … and in its attention's weights, [N, S, S]: themselves, dropout's bits
_KEPT_LOGITS = 3  # of each slot: logits, their softmax, and the gradient
# TensorFlow's allocators; XLA, whose error is a `RuntimeError`.
_OUT_OF_MEMORY = re.compile(r"OOM when allocating|out of memory|failed to allocate", re.IGNORECASE)
_TENSOR = re.compile(r"shape(\[[\d,]*\]) and type (\w+) on \S*device:(\w+:\d+)")


def describe_step(model: keras.Model, config: AnyConfig, num_replicas: int) -> str:
    """What a step takes of each device, in a line; of activations an estimate (see `activations`).

    Args:
        model: a task, built with its optimizer.
        config: configuration of the run.
        num_replicas: replicas that share a batch.
    """
    gradients = num_bytes(model.trainable_variables)
    parts = {
        "weights": num_bytes(model.variables),
        "optimizer": num_bytes(model.optimizer.variables),
        "gradients": gradients,
        "activations": activations(model, config, num_replicas),
    }
    sizes = ", ".join(f"{name} {decimal(size)}" for name, size in parts.items())
    return f"about {decimal(sum(parts.values()))} of memory on each device ({sizes})"


def activations(model: keras.Model, config: AnyConfig, num_replicas: int) -> int:
    """About how many bytes a step keeps between a layer and its gradients.

    Those of the encoder and of logits over the vocabulary; a task's own layers are not counted.

    Args:
        model: a task.
        config: configuration of the run, which has the longest row and the rows of a batch.
        num_replicas: replicas that share a batch.
    """
    training, backbone, length = config.training, model.backbone, config.data.sequence_length
    rows = training.batch_size // (num_replicas * training.accumulation_steps)
    rows *= getattr(model, "max_segments", 1)  # of a document
    width = 4 if backbone.compute_dtype == "float32" else 2
    inputs = length * backbone.hidden_dim * width
    weights = backbone.num_heads * length**2 * width
    layer = _KEPT_INPUTS * inputs + _KEPT_WEIGHTS * weights
    kept = (inputs, layer) if training.recompute == "layers" else (layer, 0)
    row = backbone.num_layers * kept[0] + kept[1] + layer  # the last: while gradients are computed
    if hasattr(config, "masking"):
        slots = math.ceil(config.masking.rate * length) * len(model.objectives)
        row += slots * backbone.vocabulary_size * 4 * _KEPT_LOGITS
    return round(rows * row)


def names_exhaustion(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a job and an output that says what to change where a device has no memory.

    Its `TrainingError` is one line in place of TensorFlow's own, or XLA's.
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
            here, anew = (_choices(changes) for changes in _smaller(job.config.training))
            choices = filter(None, [here, anew and f"in another --output {anew}"])
            tried = ", or ".join(choices)
            advice = f"try {tried}" if tried else "take a smaller encoder or another device"
            raise TrainingError(f"{output}: out of memory on {place}; {advice}") from error

    return named


def is_exhaustion(error: BaseException) -> bool:
    """Not so are a full disk and too many open files, which TensorFlow calls by the same name."""
    return isinstance(error, MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def _smaller(
    training: TrainingConfig | FinetuningTrainingConfig,
) -> tuple[list[str], list[str]]:
    """Changes that take less memory: those that a run may go on with, and those of another one."""
    here, anew = [], []
    if training.recompute == "none":
        here.append("training.recompute=layers")
    parts, rows = training.accumulation_steps, training.batch_size
    if more := next((n for n in range(2 * parts, rows + 1, parts) if rows % n == 0), None):
        here.append(f"training.accumulation_steps={more}")
    if training.precision == "float32":
        anew.append("training.precision=mixed_bfloat16")
    if rows > 1:
        anew.append(f"training.batch_size={max(rows // 2 // parts * parts, parts)}")
    return here, anew


def _choices(changes: list[str]) -> str:
    return " or ".join(f"--set {change}" for change in changes)

"""`spanbert-tf plan`: memory and time of a run on chips that are not present.

The training step is compiled for these chips.
"""

import math
from typing import Any, NamedTuple

from spanbert_tf.config import PretrainingConfig, load_config
from spanbert_tf.config.run import check_equal_parts
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.studies.chips import Machine, machine_of
from spanbert_tf.studies.compiled_step import (
    Memory,
    OutOfMemory,
    compile_step,
    count_operations,
    distribute,
    fuses_attention,
    memory_of,
)
from spanbert_tf.studies.described_run import (
    AnyConfig,
    described_pretraining,
    described_task,
    positions_of_row,
)
from spanbert_tf.terminal import print_line
from spanbert_tf.training.checkpoints import num_bytes
from spanbert_tf.training.precision import choose_precision

# The expected share of the highest possible speed. Measured runs (base and large on an H100, the
# paper's on V100) reached 18 % to 37 %.
_SHARE = 0.25
_SHARE_OF_JAX = 0.75  # share of a card's memory that JAX allocates by default
_ROWS = 100_000  # number of records to assume for a task, whose records are not read
_GIB = 2**30


class Plan(NamedTuple):
    """The costs of a training step on each chip.

    Attributes:
        memory: memory in bytes.
        operations: floating-point operations.
        gradients: least bytes of the gradients, which the chips add up.
        fuses_attention: whether attention is one operation of cuDNN.
    """

    memory: Memory
    operations: float
    gradients: int
    fuses_attention: bool


def run_plan(
    config: AnyConfig,
    device: str,
    *,
    encoder: PretrainingConfig | None = None,
    rows: int | None = None,
) -> Plan:
    """Compiles the training step of a configuration for chips, and prints its costs there.

    Args:
        config: configuration of the run.
        device: name of the chips, for `chips.machine_of`.
        encoder: configuration with which the encoder was pre-trained, for a run that fine-tunes an
            encoder or trains it further. By default that of the paper's base model.
        rows: rows of a global batch; by default those of the configuration.

    Raises:
        ConfigurationError: the chips are not known, their compiler is not installed, they cannot
            share the rows equally, or the step does not fit in their memory.
    """
    is_continued = isinstance(config, PretrainingConfig) and config.model.from_preset
    if encoder and isinstance(config, PretrainingConfig) and not is_continued:
        raise ConfigurationError(
            "--encoder: the configuration begins with a new one; leave it away"
        )
    encoder = encoder or load_config("spanbert_base")
    if is_continued:
        config = config.replace(model=encoder.model)
    machine = machine_of(device)
    config = configured(config, machine, rows, encoder)
    try:
        plan = plan_step(config, encoder, machine)
    except OutOfMemory as error:
        raise ConfigurationError(
            f"--device {device}: {config.training.batch_size:,} rows do not fit ({error}); "
            f"{_advice(config)}"
        ) from error
    for line in report(plan, config, machine):
        print_line(line)
    return plan


def configured(
    config: AnyConfig, machine: Machine, rows: int | None, encoder: PretrainingConfig
) -> AnyConfig:
    """Resolves the configuration as a run on these chips does.

    Args:
        config: configuration of the run.
        machine: the chips.
        rows: rows of a global batch; by default those of the configuration.
        encoder: configuration with which the encoder was pre-trained.

    Raises:
        ConfigurationError: the chips cannot share the rows equally.
    """
    training = config.training
    rows = rows or training.batch_size
    check_equal_parts(
        f"--device {machine.name}",
        rows,
        num_devices=len(machine.devices),
        accumulation_steps=training.accumulation_steps,
        advice="try --rows {next}",
    )
    wanted: str = training.precision
    if wanted == "auto":
        wanted = machine.chip.precision
    model = config.model if isinstance(config, PretrainingConfig) else encoder.model
    precision = choose_precision(wanted, model.hidden_dim)
    return config.replace(training=training.replace(batch_size=rows, precision=precision))


def plan_step(config: AnyConfig, encoder: PretrainingConfig, machine: Machine) -> Plan:
    """Compiles the training step for the chips.

    Args:
        config: configuration of the run, from `configured`.
        encoder: configuration with which the encoder was pre-trained.
        machine: the chips.

    Raises:
        OutOfMemory: the step does not fit in a chip's memory.
    """
    in_one_batch = config.replace(training=config.training.replace(accumulation_steps=1))
    operations = count_operations(*described(in_one_batch, encoder))
    distribute(machine)
    model, batch = described(config, encoder)
    compiled = compile_step(model, batch, machine)
    memory = memory_of(model, compiled)
    check_fits(memory, machine)
    gradients = num_bytes(model.trainable_variables)
    if config.training.precision != "float32":
        gradients //= 2  # the chips may add them up in half precision
    return Plan(memory, operations / len(machine.devices), gradients, fuses_attention(compiled))


def described(config: AnyConfig, encoder: PretrainingConfig) -> tuple[Any, tuple]:
    """Describes the model and a batch of a run as shapes."""
    if isinstance(config, PretrainingConfig):
        return described_pretraining(config)
    return described_task(config, encoder)


def check_fits(memory: Memory, machine: Machine) -> None:
    """Raises `OutOfMemory` for a step that is too large. Compilers for cards do not check this."""
    available = machine.chip.memory
    if memory.total > available:
        raise OutOfMemory(f"needs {memory.total / _GIB:.1f} of {available / _GIB:.1f} GiB a chip")


def _advice(config: AnyConfig) -> str:
    training = config.training
    changes = []
    if not training.gradient_checkpointing:
        changes.append("--set training.gradient_checkpointing=true")
    changes.append(f"--set training.accumulation_steps={2 * training.accumulation_steps}")
    return f"try {' or '.join(changes)}, fewer --rows or more chips"


def report(plan: Plan, config: AnyConfig, machine: Machine) -> list[str]:
    """Returns the lines that `plan` prints."""
    training = config.training
    chip = machine.chip
    rows = training.batch_size
    length = positions_of_row(config)
    attention = "fused" if plan.fuses_attention else "in parts"
    checkpointing = "with" if training.gradient_checkpointing else "without"
    title = f"{machine.name}: {rows:,} rows of {length:,}"
    title += f", {rows // len(machine.devices):,} a chip"
    if training.accumulation_steps > 1:
        title += f" in {training.accumulation_steps} micro-batches"
    least = least_seconds(plan, machine)
    bound = max(least, key=lambda name: least[name])
    expected = least[bound] / _SHARE
    times = [f"{1000 * seconds:,.3g} ms of {name}" for name, seconds in least.items()]
    lines = [
        f"{title}; {training.precision}, {checkpointing} gradient checkpointing, attention "
        f"{attention}",
        f"  memory: fits, {plan.memory.total / _GIB:.2f} of {chip.memory / _GIB:.1f} GiB a chip "
        f"({_shares(plan.memory)})",
        f"  a step of a chip: {plan.operations / 1e12:.3g} T operations, "
        f"{machine.sent(plan.gradients) / 1e9:,.3g} GB of gradients sent",
        f"  at least {', '.join(times)}: bound by {bound}",
        f"  at {_SHARE:.0%} of that speed {1000 * expected:,.3g} ms, "
        f"{rows * length / expected:,.0f} tokens/s; {_course(config, expected)}",
    ]
    if training.precision == "float32":
        lines.append("  compute is at the peak of half precision; in float32 it takes longer")
    if chip.description and plan.memory.total > _SHARE_OF_JAX * chip.memory:
        lines.append(
            f"  JAX takes {_SHARE_OF_JAX:.0%} of a card by itself: set "
            "XLA_PYTHON_CLIENT_MEM_FRACTION=0.97"
        )
    return lines


def least_seconds(plan: Plan, machine: Machine) -> dict[str, float]:
    """Returns lower bounds of the time of a step, from the peak figures of the chip.

    In each step, all values in the memory of a chip are written once and read once.
    """
    return {
        "compute": plan.operations / machine.chip.operations,
        "memory": 2 * plan.memory.total / machine.chip.bandwidth,
        "network": machine.seconds_to_add_up(plan.gradients),
    }


def _shares(memory: Memory) -> str:
    parts = {
        "weights": memory.weights,
        "optimizer": memory.optimizer,
        "batch and padding": (
            memory.total - memory.weights - memory.optimizer - memory.activations
        ),
        "activations": memory.activations,
    }
    return ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())


def _course(config: AnyConfig, seconds: float) -> str:
    """Describes the duration of all steps, or of all epochs over `_ROWS` records."""
    batch_size = config.training.batch_size
    if isinstance(config, PretrainingConfig):
        course = _course_of_steps(config.training.steps, batch_size, seconds)
        return f"{course} or more" if config.training.batch_by_length else course
    if config.training.max_steps is not None:
        return _course_of_steps(config.training.max_steps, batch_size, seconds)
    epochs = config.training.epochs
    hours = math.ceil(_ROWS * epochs / batch_size) * seconds / 3600
    return f"{epochs} epochs of each {_ROWS:,} rows in {hours:,.3g} hours"


def _course_of_steps(steps: int, batch_size: int, seconds: float) -> str:
    hours = steps * seconds / 3600
    return f"{steps:,} steps in {hours:,.3g} hours, {steps * batch_size:,} rows read"

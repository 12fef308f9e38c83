"""What a run would take on chips that are not here: its training step is compiled for them."""

import math
from typing import Any, NamedTuple

from spanbert_tf.config import PretrainingConfig, load_config
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

# The share of the least time's speed that a plan expects. The runs that were measured (base and
# large on an H100, the paper's on V100) reached 18 % to 37 %.
_SHARE = 0.25
_SHARE_OF_JAX = 0.75  # of a card's memory, which JAX allocates by default
_ROWS = 100_000  # rows of a task's records, which a plan does not have
_GIB = 2**30


class Plan(NamedTuple):
    """What a training step takes on each chip.

    Attributes:
        memory: bytes of its memory.
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
    """Compiles the training step of a configuration for chips, and prints what it takes there.

    Args:
        config: configuration of the run.
        device: name of the chips, for `chips.machine_of`.
        encoder: configuration by which the encoder was pre-trained, for a run that fine-tunes or
            continues one; by default the paper's base model.
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
    """The configuration as a run on these chips resolves it."""
    training = config.training
    rows = rows or training.batch_size
    parts = len(machine.devices) * training.accumulation_steps
    if rows % parts:
        raise ConfigurationError(
            f"--device {machine.name}: {rows:,} rows cannot be shared equally by "
            f"{len(machine.devices)} chips in {training.accumulation_steps} micro-batches each; "
            f"try --rows {-(-rows // parts) * parts}"
        )
    wanted = training.precision
    if wanted == "auto":
        wanted = machine.chip.precision
    model = config.model if isinstance(config, PretrainingConfig) else encoder.model
    precision = choose_precision(wanted, model.hidden_dim)
    return config.replace(training=training.replace(batch_size=rows, precision=precision))


def plan_step(config: AnyConfig, encoder: PretrainingConfig, machine: Machine) -> Plan:
    """Compiles the training step for the chips.

    Args:
        config: configuration of the run, of `configured`.
        encoder: configuration by which the encoder was pre-trained.
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
        gradients //= 2  # they are computed in half precision, and may be added up in it
    return Plan(memory, operations / len(machine.devices), gradients, fuses_attention(compiled))


def described(config: AnyConfig, encoder: PretrainingConfig) -> tuple[Any, tuple]:
    """The model of a run and its batch, as shapes."""
    if isinstance(config, PretrainingConfig):
        return described_pretraining(config)
    return described_task(config, encoder)


def check_fits(memory: Memory, machine: Machine) -> None:
    """Raises `OutOfMemory` for a step that is too large: compilers for cards do not check."""
    available = machine.chip.memory
    if memory.total > available:
        raise OutOfMemory(f"needs {memory.total / _GIB:.1f} of {available / _GIB:.1f} GiB a chip")


def _advice(config: AnyConfig) -> str:
    training = config.training
    changes = []
    if training.recompute == "none":
        changes.append("--set training.recompute=layers")
    changes.append(f"--set training.accumulation_steps={2 * training.accumulation_steps}")
    return f"try {' or '.join(changes)}, fewer --rows or more chips"


def report(plan: Plan, config: AnyConfig, machine: Machine) -> list[str]:
    """The lines that `plan` prints."""
    training = config.training
    chip = machine.chip
    rows = training.batch_size
    length = positions_of_row(config)
    attention = "fused" if plan.fuses_attention else "in parts"
    title = f"{machine.name}: {rows:,} rows of {length:,}"
    title += f", {rows // len(machine.devices):,} a chip"
    if training.accumulation_steps > 1:
        title += f" in {training.accumulation_steps} micro-batches"
    least = least_seconds(plan, machine)
    bound = max(least, key=least.get)
    expected = least[bound] / _SHARE
    times = [f"{1000 * seconds:,.3g} ms of {name}" for name, seconds in least.items()]
    lines = [
        f"{title}; {training.precision}, recompute {training.recompute}, attention {attention}",
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
    """Lower bounds of the time of a step, by the peaks of the chip.

    All that lies in the memory of a chip is written once and read once in each step.
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
    """The hours of the configuration's steps, or of its epochs over a number of rows."""
    training = config.training
    steps = training.steps if isinstance(config, PretrainingConfig) else training.max_steps
    if steps:
        hours = steps * seconds / 3600
        return f"{steps:,} steps in {hours:,.3g} hours, {steps * training.batch_size:,} rows read"
    hours = math.ceil(_ROWS * training.epochs / training.batch_size) * seconds / 3600
    return f"{training.epochs} epochs of each {_ROWS:,} rows in {hours:,.3g} hours"

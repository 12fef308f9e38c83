"""What a run would take on machines that are not here, by compiling its step for them."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from spanbert_tf.config import PretrainingConfig, load_config
from spanbert_tf.errors import ConfigurationError
from spanbert_tf.studies.chips import Machine, machine_of
from spanbert_tf.studies.compiled_step import (
    CompiledStep,
    OutOfMemory,
    compile_step,
    distribute,
)
from spanbert_tf.studies.described_run import (
    AnyConfig,
    described_pretraining,
    described_task,
    positions_of_row,
)
from spanbert_tf.terminal import print_line
from spanbert_tf.training.precision import choose_precision

_SHARE = 0.4  # of the least time's speed that a run can be expected to reach
_SHARE_OF_JAX = 0.75  # of a card's memory, unless it is told otherwise
_ROWS = 100_000  # of a task's records, which a plan does not have
_GIB, _TERA = 2**30, 1e12
_Way = tuple[str, AnyConfig, PretrainingConfig]  # its name, the run's and its encoder's settings
_Compile = Callable[[AnyConfig, PretrainingConfig], CompiledStep]


def run_plan(
    config: AnyConfig,
    device: str,
    *,
    encoder: PretrainingConfig | None = None,
    rows: int | None = None,
    variants: bool = False,
    largest: bool = False,
) -> CompiledStep:
    """Compiles a configuration's step for a machine, and prints what it takes there.

    Args:
        config: configuration of the run.
        device: chips that `chips.machine_of` knows.
        encoder: configuration that an encoder was pre-trained by, which is fine-tuned or continued;
            the paper's base model by default.
        rows: of a global batch; those of the configuration by default.
        variants: whether to compile the step in other ways, too: recomputed, with fused attention.
        largest: whether to look for the largest batch that fits, too, in each of these ways.

    Raises:
        ConfigurationError: the machine is not known or its compiler not here, its chips cannot
            share the rows, or the step does not fit on it.
    """
    machine = machine_of(device)
    is_continued = isinstance(config, PretrainingConfig) and config.model.from_preset
    if encoder and isinstance(config, PretrainingConfig) and not is_continued:
        raise ConfigurationError(
            "--encoder: the configuration begins with a new one; leave it away"
        )
    encoder = encoder or load_config("spanbert_base")
    if is_continued:
        config = config.replace(model=encoder.model)
    config = configured(config, machine, rows, encoder)
    distribute(machine)

    steps: dict[str, CompiledStep] = {}  # of so many rows, by their settings
    num_rows = config.training.batch_size

    def compiled(config: AnyConfig, encoder: PretrainingConfig) -> CompiledStep:
        key = f"{config.to_yaml()}{encoder.to_yaml()}"
        if key in steps:  # compiling takes minutes
            return steps[key]
        step = fitting(compile_step(*described(config, encoder), machine), machine)
        # A step holds its compiled code; those of a search for the most rows are asked for once.
        if config.training.batch_size == num_rows:
            steps[key] = step
        return step

    for name, *way in ways(config, encoder, machine) if variants or largest else ():
        if largest:
            print_line(f"{device}, {name}: {_largest(compiled, *way, machine)}")
        if variants:
            print_line(f"{device}, {name}: {_in_short(compiled, *way, machine)}")
    try:
        step = compiled(config, encoder)
    except OutOfMemory as error:
        raise ConfigurationError(
            f"--device {device}: {config.training.batch_size:,} rows do not fit ({error}); "
            f"{_advice(config)}"
        ) from error
    for line in report(step, config, machine):
        print_line(line)
    return step


def fitting(step: CompiledStep, machine: Machine) -> CompiledStep:
    """The step; compilers for cards leave it to others to look whether it fits."""
    if step.memory > machine.chip.memory:
        sizes = [f"{size / _GIB:.1f}" for size in (step.memory, machine.chip.memory)]
        raise OutOfMemory(f"needs {sizes[0]} of {sizes[1]} GiB a chip")
    return step


def ways(config: AnyConfig, encoder: PretrainingConfig, machine: Machine) -> Iterator[_Way]:
    """The ways in which a step can be done on a machine."""
    pretraining = _pretraining_of(config, encoder)
    model = pretraining.model
    of_attention = model.dropout if model.attention_dropout is None else model.attention_dropout
    fused = pretraining.replace(model=model.replace(attention_dropout=0.0))
    for recompute in ("none", "layers"):
        way = {"training": config.training.replace(recompute=recompute)}
        name = f"recompute {recompute}"
        yield name, config.replace(**way), encoder
        if machine.chip.fuses_attention and of_attention:
            is_own = config is pretraining
            other = (fused if is_own else config).replace(**way), encoder if is_own else fused
            yield f"{name}, no dropout of attention's weights", *other


def _pretraining_of(config: AnyConfig, encoder: PretrainingConfig) -> PretrainingConfig:
    """The configuration that says the encoder's shape and rates."""
    return config if isinstance(config, PretrainingConfig) else encoder


def _in_short(
    compiled: _Compile, config: AnyConfig, encoder: PretrainingConfig, machine: Machine
) -> str:
    """What a step takes, in words."""
    try:
        step = compiled(config, encoder)
    except OutOfMemory as error:
        return f"{config.training.batch_size:,} rows do not fit ({error})"
    found, _ = (_bounds if machine.chip.operations else _measurement)(step, machine)
    return (
        f"{step.memory / _GIB:.2f} GiB a chip, attention {step.attention}, {found[-2].strip()}, "
        f"{found[-1].strip()}"
    )


def _largest(
    compiled: _Compile, config: AnyConfig, encoder: PretrainingConfig, machine: Machine
) -> str:
    """What is known of the largest batch, in words."""
    parts = len(machine.devices) * config.training.accumulation_steps

    def memory(count: int) -> tuple[int, int] | None:
        """Bytes of a step of so many times `parts` rows, and those that grow with them."""
        training = config.training.replace(batch_size=count * parts)
        try:
            step = compiled(config.replace(training=training), encoder)
        except OutOfMemory:
            return None
        return step.memory, step.activations

    found = largest_count(memory, config.training.batch_size // parts, machine.chip.memory)
    if not found:
        return f"not even {parts:,} rows fit"
    return f"{found * parts:,} rows fit ({found * parts // len(machine.devices):,} a chip)"


def largest_count(memory: Callable[[int], tuple[int, int] | None], first: int, limit: int) -> int:
    """The largest number that fits, to 5 %; 0 where not even 1 does.

    Args:
        memory: number → what it takes, and the part of that which grows with it; `None`: too much.
        first: number to begin with.
        limit: what there is.
    """
    fits, too_many, number = 0, math.inf, first
    while number and number > fits:
        if found := memory(number):
            taken, growing = found
            fits, guess = number, number + int((limit - taken) / max(growing / number, 1))
        else:
            too_many, guess = number, (fits + number) // 2
        if too_many - fits <= max(fits // 20, 1):
            break
        # Strictly between the two, and upwards by 5 % at least.
        least = fits + max(fits // 20, 1)
        number = int(min(max(guess, least), too_many - 1)) if fits else guess
    return fits


def configured(
    config: AnyConfig, machine: Machine, rows: int | None, encoder: PretrainingConfig
) -> AnyConfig:
    """The configuration as a run on that machine resolves it."""
    training = config.training
    rows = rows or training.batch_size
    parts = len(machine.devices) * training.accumulation_steps
    if rows % parts:
        raise ConfigurationError(
            f"--device {machine.name}: {rows:,} rows cannot be shared equally by "
            f"{len(machine.devices)} chips in {training.accumulation_steps} micro-batches each; "
            f"try --rows {-(-rows // parts) * parts}"
        )
    model = _pretraining_of(config, encoder).model
    wanted = machine.chip.precision if training.precision == "auto" else training.precision
    precision = choose_precision(wanted, model.hidden_dim)
    return config.replace(training=training.replace(batch_size=rows, precision=precision))


def described(config: AnyConfig, encoder: PretrainingConfig) -> tuple[Any, tuple]:
    """The model of a run and its batch, as shapes."""
    if isinstance(config, PretrainingConfig):
        return described_pretraining(config)
    return described_task(config, encoder)


def _advice(config: AnyConfig) -> str:
    training, changes = config.training, []
    if training.recompute == "none":
        changes.append("--set training.recompute=layers")
    changes.append(f"--set training.accumulation_steps={2 * training.accumulation_steps}")
    return f"try {' or '.join(changes)}, fewer --rows or more chips"


def report(step: CompiledStep, config: AnyConfig, machine: Machine) -> list[str]:
    """What a plan prints; a step of this machine's processor is measured for it."""
    training, chip, count = config.training, machine.chip, len(machine.devices)
    rows, length = training.batch_size, positions_of_row(config)
    found, seconds = (_bounds if chip.operations else _measurement)(step, machine)
    parts = training.accumulation_steps
    lines = [
        f"{machine.name}: {rows:,} rows of {length:,}, {rows // count:,} a chip"
        + f" in {parts} micro-batches" * (parts > 1)
        + f"; {training.precision}, recompute {training.recompute}, attention {step.attention}",
        f"  memory: fits, {step.memory / _GIB:.2f} of {chip.memory / _GIB:.1f} GiB a chip "
        f"({_shares(step)})",
        *found[:-1],
        f"{found[-1]}, {rows * length / seconds:,.0f} tokens/s; {_course(config, seconds)}",
    ]
    if chip.operations and training.precision == "float32":
        lines.append("  compute is at the peak of half precision; in float32 it takes longer")
    if chip.description and step.memory > _SHARE_OF_JAX * chip.memory:
        lines.append(
            f"  JAX takes {_SHARE_OF_JAX:.0%} of a card by itself: set "
            "XLA_PYTHON_CLIENT_MEM_FRACTION=0.97"
        )
    return lines


def _bounds(step: CompiledStep, machine: Machine) -> tuple[list[str], float]:
    """The least times that a step can take, in lines, and the seconds to expect."""
    chip = machine.chip
    seconds = {
        "compute": step.operations / chip.operations,
        "memory": step.traffic / chip.bandwidth,
        "network": machine.seconds_to_share(step.shared),
    }
    bound = max(seconds, key=seconds.get)
    expected = seconds[bound] / _SHARE
    least = ", ".join(f"{1000 * value:,.3g} ms of {name}" for name, value in seconds.items())
    return [
        f"  a step of a chip: {step.operations / _TERA:.3g} T operations, "
        f"{step.traffic / 1e9:,.3g} GB from and to memory, "
        f"{machine.sent(step.shared) / 1e9:,.3g} GB sent",
        f"  at least {least}: bound by {bound}",
        f"  at {_SHARE:.0%} of that {1000 * expected:,.3g} ms",
    ], expected


def _measurement(step: CompiledStep, machine: Machine) -> tuple[list[str], float]:
    """What a step takes on this machine, in lines, and its seconds."""
    seconds = step.measured()
    return [
        f"  a step: {step.operations / _TERA:.3g} T operations, "
        f"{step.operations / seconds / 1e9:,.3g} G a second",
        f"  measured: {1000 * seconds:,.4g} ms",
    ], seconds


def _shares(step: CompiledStep) -> str:
    rest = step.memory - step.weights - step.optimizer - step.activations
    parts = {
        "weights": step.weights,
        "optimizer": step.optimizer,
        "batch and padding": rest,
        "activations": step.activations,
    }
    return ", ".join(f"{name} {size / _GIB:.2f}" for name, size in parts.items())


def _course(config: AnyConfig, seconds: float) -> str:
    """How long the configuration's steps take, or where records say how many, a number of rows."""
    rows = config.training.batch_size
    if isinstance(config, PretrainingConfig):
        steps = config.training.steps
    else:
        steps = config.training.max_steps or math.ceil(_ROWS * config.training.epochs / rows)
    hours = steps * seconds / 3600
    if isinstance(config, PretrainingConfig) or config.training.max_steps:
        return f"{steps:,} steps in {hours:,.3g} hours, {steps * rows:,} rows read"
    return f"{config.training.epochs} epochs of each {_ROWS:,} rows in {hours:,.3g} hours"

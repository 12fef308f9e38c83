"""Compiles a training step for chips that are not present.

The model's variables have shapes but no values, so compiling a model of any size needs only a few
hundred megabytes of memory.
"""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import keras

from spanbert_tf.errors import TrainingError, reason
from spanbert_tf.studies.chips import Machine
from spanbert_tf.training.checkpoints import num_bytes

_FUSED_ATTENTION = "__cudnn$fmha"  # name of cuDNN's operation in compiled code
# "Used 25.8G of 15.7G hbm", or "… HLO temporaries (74.5G) exceeds available HBM (15.7G)".
_SIZE = r"([\d.]{1,9})([KMGT])"
_SHORTAGE = re.compile(rf"{_SIZE}(?: of |\) exceeds available HBM \(){_SIZE}")
_GIB_OF_UNIT = {"K": 2**-20, "M": 2**-10, "G": 1, "T": 2**10}


class OutOfMemory(TrainingError):
    """The step does not fit in the memory of a chip."""


class Memory(NamedTuple):
    """Bytes that a step needs in the memory of one chip, as its compiler reports them.

    Attributes:
        weights: the model's variables.
        optimizer: the optimizer's variables.
        activations: intermediate values, and the code of the step.
        total: all of these, the batch, and the padding of layouts.
    """

    weights: int
    optimizer: int
    activations: int
    total: int


class _State(NamedTuple):
    """The variables of a step as `jax.ShapeDtypeStruct`, in the order of Keras' JAX trainer."""

    trainable: list[jax.ShapeDtypeStruct]
    non_trainable: list[jax.ShapeDtypeStruct]
    optimizer: list[jax.ShapeDtypeStruct]
    metrics: list[jax.ShapeDtypeStruct]


def distribute(machine: Machine) -> None:
    """Sets Keras' distribution: as in a run, the chips of the machine share each batch."""
    shared = None
    if len(machine.devices) > 1:
        shared = keras.distribution.DataParallel(devices=list(machine.devices))
    keras.distribution.set_distribution(shared)


def undrawn(build: Callable[[], keras.Model]) -> keras.Model:
    """Builds a model whose variables have shapes and no values."""
    built: list[keras.Model] = []
    jax.eval_shape(lambda: built.append(build()))
    return built[0]


def compile_step(model: keras.Model, batch: Any, machine: Machine) -> jax.stages.Compiled:
    """Compiles the training step of a model, as `fit` does.

    Args:
        model: a compiled model from `undrawn`, built after `distribute`.
        batch: arguments of the step in `fit`, a structure of `jax.ShapeDtypeStruct`.
        machine: the chips.

    Raises:
        OutOfMemory: the compiler cannot fit the step into the memory of a chip.
    """
    shared = keras.distribution.distribution()
    state = _state_of(model, machine.devices[0])

    def placed(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        layout = shared.get_data_layout(array.shape) if shared else None
        return _described(array, layout, machine.devices[0])

    batch = jax.tree.map(placed, batch)
    shardings = jax.tree.map(lambda array: array.sharding, tuple(state))
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
    try:
        with machine.described_to_attention():
            return step.lower(tuple(state), batch).compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(shortage(str(error))) from error


def memory_of(model: keras.Model, compiled: jax.stages.Compiled) -> Memory:
    """Returns the memory that a compiled step of a model needs on each chip."""
    sizes = compiled.memory_analysis()
    if sizes is None:
        raise AssertionError("the compilers of `chips` all report the memory of a step")
    kept = sizes.argument_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    activations = sizes.temp_size_in_bytes + sizes.generated_code_size_in_bytes
    return Memory(
        weights=num_bytes([*model.trainable_variables, *model.non_trainable_variables]),
        optimizer=num_bytes(model.optimizer.variables),
        activations=activations,
        total=kept + activations,
    )


def fuses_attention(compiled: jax.stages.Compiled) -> bool:
    """Whether the step computes attention in one operation of cuDNN."""
    text = compiled.as_text()
    return text is not None and _FUSED_ATTENTION in text


def count_operations(model: keras.Model, batch: Any) -> float:
    """Returns the floating-point operations of a step, as XLA counts them before it optimizes.

    XLA counts the body of a loop only once, so the step must not have micro-batches.

    Args:
        model: a compiled model from `undrawn`, built without a distribution.
        batch: as for `compile_step`.
    """
    processor = jax.devices("cpu")[0]
    state = _state_of(model, processor)
    batch = jax.tree.map(lambda array: _described(array, None, processor), batch)
    costs = jax.jit(model.train_step).lower(tuple(state), batch).cost_analysis()
    if costs is None:
        raise AssertionError(
            "XLA reports the costs of every step that is lowered for the processor"
        )
    return costs["flops"]


def _state_of(model: keras.Model, device: jax.Device) -> _State:
    shared = keras.distribution.distribution()

    def described(variables: list[keras.Variable]) -> list[jax.ShapeDtypeStruct]:
        arrays = []
        for variable in variables:
            layout = shared.get_variable_layout(variable) if shared else None
            arrays.append(_described(variable, layout, device))
        return arrays

    return _State(
        described(model.trainable_variables),
        described(model.non_trainable_variables),
        described(model.optimizer.variables),
        described(model.metrics_variables),
    )


def _described(array: Any, layout: Any, device: jax.Device) -> jax.ShapeDtypeStruct:
    sharding = jax.sharding.SingleDeviceSharding(device)
    if layout is not None:
        sharding = layout.backend_layout
    dtype = keras.backend.standardize_dtype(array.dtype)
    return jax.ShapeDtypeStruct(tuple(array.shape), dtype, sharding=sharding)


def shortage(message: str) -> str:
    """Describes how much memory a chip lacks, from the message of its compiler."""
    found = _SHORTAGE.search(message)
    if found is None:
        return reason(RuntimeError(message))
    needed = float(found[1]) * _GIB_OF_UNIT[found[2]]
    available = float(found[3]) * _GIB_OF_UNIT[found[4]]
    return f"needs {needed:.1f} of {available:.1f} GiB a chip"

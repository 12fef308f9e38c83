"""Compiles tiny steps for chips that are not here, in a process of its own; prints what it found.

Arguments: a machine, and names of configurations, each of which is made small. On JAX it compiles
what `plan` compiles; on TensorFlow the code that XLA has of the step's graph, as StableHLO.
"""

import json
import re
import sys

from spanbert_tf.studies.chips import describe_to_compilers

MACHINE, NAMES = sys.argv[1], sys.argv[2:]
describe_to_compilers(MACHINE)  # before JAX is imported

import jax  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from spanbert_tf.config import load_config  # noqa: E402
from spanbert_tf.config.settings import kind_of  # noqa: E402
from spanbert_tf.studies import described_run, plan  # noqa: E402
from spanbert_tf.studies.chips import machine_of  # noqa: E402
from spanbert_tf.studies.compiled_step import compile_step, distribute, memory_of  # noqa: E402
from spanbert_tf.tasks.table import load_task_config  # noqa: E402

LENGTH = 32
ENCODER = [
    "model.num_layers=2",
    "model.num_heads=2",
    "model.hidden_dim=32",
    "model.intermediate_dim=48",
    f"model.max_sequence_length={LENGTH}",  # a gradient has no rows that no position reads
    "data.vocabulary_size=300",
    f"data.sequence_length={LENGTH}",
]


def tiny(name):
    """The configuration of a name, and that of its encoder."""
    if kind_of(name) == "pretrain":
        config = load_config(name, ENCODER)
        return config, config
    overrides = [f"data.sequence_length={LENGTH}"]
    if name.startswith("coreference"):
        overrides += ["data.max_training_segments=2", "resolver.ffnn_dim=16"]
        overrides += ["resolver.max_span_width=4"]
    return load_task_config(name, overrides), load_config("spanbert_base", ENCODER)


def num_bytes(variables):
    return sum(int(np.prod(v.shape)) * np.dtype(v.dtype).itemsize for v in variables)


def made(build):
    """In place of `undrawn`: the model with its variables."""
    return build()


def planned(config, encoder, machine):
    """What `plan` finds, and the bytes of the state of a model that is made."""
    distribute(machine)
    model, batch = plan.described(config, encoder)
    compiled = compile_step(model, batch, machine)
    memory, code = memory_of(model, compiled), compiled.as_text()
    keras.distribution.set_distribution(None)
    described_run.undrawn, before = made, described_run.undrawn
    whole, _ = plan.described(config, encoder)
    described_run.undrawn = before
    of_made = memory_of_made(whole, batch, machine) if len(machine.devices) == 1 else None
    return {
        "memory": memory.total,
        "state": memory.weights + memory.optimizer,
        "made": num_bytes([*whole.variables, *whole.optimizer.variables]),
        "gradients": num_bytes(whole.trainable_variables),
        "gathered_weights": gathered(code, whole.trainable_variables),
        "collectives": collectives(code),
        "aliased": compiled.memory_analysis().alias_size_in_bytes,
        "memory_of_made": of_made,
    }


def collectives(code):
    """The bytes of the results of each kind of collective in a compiled program."""
    kinds = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
    found = {}
    for result, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", code):
        for bits, shape in re.findall(r"\b[a-z]+(\d+)\[([\d,]*)\]", result):
            size = int(np.prod([int(one) for one in shape.split(",") if one])) * int(bits) / 8
            found[kind] = found.get(kind, 0) + size
    return found


def gathered(code, variables):
    """The shapes, of two axes or more, that chips gather and that weights have."""
    found = re.findall(r"= \w+\[([\d,]+)\]\S* all-gather\(", code)
    shapes = {",".join(map(str, v.shape)) for v in variables if len(v.shape) > 1}
    return sorted(shapes.intersection(found))


def memory_of_made(model, batch, machine):
    """What the compiler says of the step of a model that is made, on one chip."""
    chip = jax.sharding.SingleDeviceSharding(machine.devices[0])
    kinds = (model.trainable_variables, model.non_trainable_variables)
    state = [[v.value for v in of_kind] for of_kind in kinds]
    state += [[v.value for v in model.optimizer.variables]]
    state += [[v.value for v in model.metrics_variables]]
    given = jax.tree.map(
        lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=chip), (tuple(state), batch)
    )
    found = jax.jit(model.train_step, donate_argnums=0).lower(*given).compile().memory_analysis()
    kept = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    return kept + found.temp_size_in_bytes + found.generated_code_size_in_bytes


def of_tensorflow(config, encoder, machine):
    """What the compiler says of TensorFlow's step; the state is the graph's variables."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jaxlib import _jax, xla_client

    described_run.undrawn = made
    model, batch = plan.described(config, encoder)
    given = jax.tree.map(lambda one: tf.zeros(one.shape, one.dtype.name), batch)
    step = tf.function(model.train_step, jit_compile=True, autograph=False)
    code = step.experimental_get_compiler_ir(given)(stage="hlo_serialized", platform_name="CPU")
    (device,) = machine.devices
    with mlir.make_ir_context():
        text = str(ir.Module.parse(_jax.mlir.hlo_to_stablehlo(code)))
        # TPUs' compiler knows no copies of MHLO, which change nothing.
        text = re.sub(
            r"mhlo\.copy (%[\w#]+) : (tensor<[^>]*>)", r"stablehlo.reshape \1 : (\2) -> \2", text
        )
        options, devices = xla_client.CompileOptions(), _jax.DeviceList((device,))
        compiled = device.client.compile(ir.Module.parse(text), devices, options)
    found = compiled.get_compiled_memory_stats()
    return {
        "trained": num_bytes([*model.trainable_variables, *model.optimizer.variables]),
        "aliased": found.alias_size_in_bytes,
        "memory": found.argument_size_in_bytes + found.temp_size_in_bytes,
        "limit": machine.chip.memory,
    }


machine = machine_of(MACHINE)
find = planned if keras.backend.backend() == "jax" else of_tensorflow
for name in NAMES:
    config, encoder = tiny(name)
    config = plan.configured(config, machine, 2 * len(machine.devices), encoder)
    found = find(config, encoder, machine)
    print(json.dumps({"name": name, **found}), flush=True)

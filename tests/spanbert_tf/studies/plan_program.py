"""Compiles tiny steps for chips that are not here, in a process of its own; prints what it found.

Arguments: a machine, and names of configurations, each of which is made small.
"""

import json
import sys

from spanbert_tf.studies.chips import describe_to_compilers

MACHINE, NAMES = sys.argv[1], sys.argv[2:]
describe_to_compilers(MACHINE)  # before JAX is imported

from spanbert_tf.lazy import import_keras  # noqa: E402

import_keras()

from spanbert_tf.config import load_config  # noqa: E402
from spanbert_tf.config.settings import kind_of  # noqa: E402
from spanbert_tf.studies.chips import machine_of  # noqa: E402
from spanbert_tf.studies.compiled_step import compile_step, distribute  # noqa: E402
from spanbert_tf.studies.plan import configured, described, report  # noqa: E402
from spanbert_tf.tasks.table import load_task_config  # noqa: E402

ENCODER = [
    "model.num_layers=2",
    "model.num_heads=2",
    "model.hidden_dim=32",
    "model.intermediate_dim=48",
    "data.vocabulary_size=300",
]
LENGTH = 32


def tiny(name: str) -> tuple:
    """The configuration and that of its encoder."""
    if kind_of(name) == "pretrain":
        config = load_config(name, [*ENCODER, f"data.sequence_length={LENGTH}"])
        return config, config
    overrides = [f"data.sequence_length={LENGTH}"]
    if name.startswith("coreference"):
        overrides += ["data.max_training_segments=2", "resolver.ffnn_dim=16"]
    return load_task_config(name, overrides), load_config("spanbert_base", ENCODER)


for name in NAMES:
    config, encoder = tiny(name)
    machine = machine_of(MACHINE)
    config = configured(config, machine, 2 * len(machine.devices))
    distribute(machine)
    step = compile_step(*described(config, encoder), machine)
    found = {
        "name": name,
        "state": step.weights + step.optimizer,
        "memory": step.memory,
        "collectives": step.collectives,
        "operations": step.operations,
        "traffic": step.traffic,
        "aliased": step.compiled.memory_analysis().alias_size_in_bytes,
        "flops": (step.compiled.cost_analysis() or {}).get("flops"),
        "report": report(step, config, machine),
    }
    print(json.dumps(found), flush=True)

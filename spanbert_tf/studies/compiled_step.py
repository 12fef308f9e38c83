"""A step of training, compiled for machines that are not here, and what its code says of it.

The state is described, never made: a model of any size is planned in a few hundred megabytes. Only
a step that this machine measures has values.
"""

import dataclasses
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import keras
import numpy as np

from spanbert_tf.errors import TrainingError, reason
from spanbert_tf.studies.chips import Machine

_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%(\S+) = (.*?) ([a-z][\w-]*)\((.*)")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\](\{[^}]*\})?")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# What moves nothing; of what is done in the meantime its start counts.
_FREE = ("parameter", "tuple", "get-tuple-element", "bitcast", "constant", "partition-id")
_FUSED_CALL = "__cudnn$fmha"
# Matrix products of cuDNN's attention; backwards it computes the scores again.
_FUSED_PRODUCTS = {
    "dot_product_attention_fwd_wrapper": 2,
    "dot_product_attention_bwd_wrapper": 5,
}
# "Used 25.8G of 15.7G hbm", or "… HLO temporaries (74.5G) exceeds available HBM (15.7G)".
_NUMBER = r"([\d.]{1,9})([KMGT])"
_NEEDED = re.compile(rf"{_NUMBER}(?: of |\) exceeds available HBM \(){_NUMBER}")
_UNITS = dict(zip("KMGT", (2**10, 2**20, 2**30, 2**40), strict=True))


class OutOfMemory(TrainingError):
    """The compiler found no way to do the step in a chip's memory."""


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A step as its compiler left it; all figures are of one chip.

    Attributes:
        weights: bytes of the model's variables.
        optimizer: bytes of the optimizer's.
        activations: bytes of what it computes on the way, and of the code.
        memory: bytes of all, with the batch and what layouts are padded with.
        operations: of its matrix products.
        traffic: bytes that go from and to its memory, about.
        collectives: kind → bytes of what chips do together.
        attention: `fused`, where it is one operation of cuDNN, or `in parts`.
        compiled: what JAX has of it.
    """

    weights: int
    optimizer: int
    activations: int
    memory: int
    operations: float
    traffic: float
    collectives: dict[str, float]
    attention: str
    compiled: jax.stages.Compiled = dataclasses.field(repr=False)

    def measured(self, rounds: int = 3) -> float:
        """Seconds that the step takes on the device of this machine that it was compiled for.

        Values are made up: weights of a new model, a batch without padding.

        Args:
            rounds: steps whose middle one counts, after one that does not.
        """
        numbers = np.random.default_rng(0)

        def drawn(one: jax.stages.ArgInfo) -> np.ndarray:
            return numbers.normal(0.0, 0.02, one.shape).astype(one.dtype)

        def filled(value: int) -> Callable[[jax.stages.ArgInfo], np.ndarray]:
            return lambda one: np.full(one.shape, value, one.dtype)

        ((trained, others, *counted), batch), _ = self.compiled.args_info
        state = (jax.tree.map(drawn, trained), *jax.tree.map(filled(0), (others, *counted)))
        batch, seconds = jax.tree.map(filled(1), batch), []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            _, state = jax.block_until_ready(self.compiled(state, batch))
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds[1:])

    @property
    def shared(self) -> float:
        """Bytes that go around a ring (Patarasuk and Yuan, 2009), twice what is all-reduced."""
        times = {"all-reduce": 2}
        return sum(size * times.get(kind, 1) for kind, size in self.collectives.items())


def distribute(machine: Machine) -> None:
    """Has Keras share batches among the machine's chips, as a run on that machine does."""
    shared = keras.distribution.DataParallel(devices=list(machine.devices))
    keras.distribution.set_distribution(shared if len(machine.devices) > 1 else None)


def undrawn(build: Callable[[], keras.Model]) -> keras.Model:
    """A model whose variables have shapes and no values."""
    built: list[keras.Model] = []
    jax.eval_shape(lambda: built.append(build()))
    return built[0]


def compile_step(model: keras.Model, batch: Any, machine: Machine) -> CompiledStep:
    """Compiles the training step of a model, as `fit` does.

    Args:
        model: a compiled model of `undrawn`, made after `distribute`.
        batch: what `fit` gives the step, a structure of `jax.ShapeDtypeStruct`.
        machine: the chips.

    Raises:
        OutOfMemory: a chip has too little memory.
    """
    shared = keras.distribution.distribution()

    def of_variables(variables: list[keras.Variable]) -> list[jax.ShapeDtypeStruct]:
        return [
            _described(variable, shared and shared.get_variable_layout(variable), machine)
            for variable in variables
        ]

    of_model = (model.trainable_variables, model.non_trainable_variables)
    kinds = (*of_model, model.optimizer.variables, model.metrics_variables)
    state = tuple(map(of_variables, kinds))
    batch = jax.tree.map(
        lambda one: _described(one, shared and shared.get_data_layout(one.shape), machine), batch
    )
    shardings = jax.tree.map(lambda one: one.sharding, state)
    step = jax.jit(model.train_step, donate_argnums=0, out_shardings=(None, shardings))
    traced = step.trace(state, batch)
    try:
        compiled = traced.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise OutOfMemory(shortage(str(error))) from error
    found = compiled.memory_analysis()
    kept = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    activations = found.temp_size_in_bytes + found.generated_code_size_in_bytes
    code = compiled.as_text()
    traffic, collectives = read_code(code)
    return CompiledStep(
        weights=sum(map(_num_bytes, (*state[0], *state[1]))),
        optimizer=sum(map(_num_bytes, state[2])),
        activations=activations,
        memory=kept + activations,
        operations=count_operations(traced.jaxpr.jaxpr) / len(machine.devices),
        traffic=traffic,
        collectives=collectives,
        attention="fused" if _FUSED_CALL in code else "in parts",
        compiled=compiled,
    )


def _described(one: Any, layout: Any, machine: Machine) -> jax.ShapeDtypeStruct:
    alone = jax.sharding.SingleDeviceSharding(machine.devices[0])
    sharding = layout.backend_layout if layout else alone
    dtype = keras.backend.standardize_dtype(one.dtype)
    return jax.ShapeDtypeStruct(tuple(one.shape), dtype, sharding=sharding)


def _num_bytes(one: jax.ShapeDtypeStruct) -> int:
    return math.prod(one.shape) * one.dtype.itemsize


def shortage(message: str) -> str:
    """How much a chip lacks, by what its compiler says."""
    found = _NEEDED.search(message)
    if not found:
        return reason(RuntimeError(message))
    used, there = (float(found[n]) * _UNITS[found[n + 1]] / 2**30 for n in (1, 3))
    return f"needs {used:.1f} of {there:.1f} GiB a chip"


def count_operations(jaxpr: Any) -> float:
    """Multiplications and additions of all matrix products, those of loops each time."""
    total = 0.0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            summed = math.prod(shape[axis] for axis in contracted)
            total += 2.0 * summed * math.prod(equation.outvars[0].aval.shape)
        elif (products := _FUSED_PRODUCTS.get(equation.primitive.name)) is not None:
            query, key = (variable.aval.shape for variable in equation.invars[:2])  # [B, S, N, D]
            total += products * 2.0 * math.prod(query) * key[1]
        inner = sum(map(count_operations, _inner(equation.params)))
        total += inner * equation.params.get("length", 1)
    return total


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            one = getattr(one, "jaxpr", one)
            if hasattr(one, "eqns"):
                yield one


def read_code(text: str) -> tuple[float, dict[str, float]]:
    """The traffic with the memory, and the bytes of collectives, of a compiled step.

    An instruction reads its operands and writes its result; what is in a memory on the chip itself
    (`S(1)`, of TPUs) counts nothing. A loop counts as often as it says that it runs.

    Args:
        text: HLO as compilers print it.
    """
    bodies: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in text.splitlines():
        if line.endswith("{") and (found := re.match(r"(ENTRY )?%(\S+) \(", line)):
            lines = bodies[found[2]] = []
            entry = found[2] if found[1] else entry
        else:
            lines.append(line)
    collectives: dict[str, float] = {}
    traffic = _read_body(bodies, entry, 1, collectives)
    return traffic, collectives


def _read_body(
    bodies: Mapping[str, list[str]], name: str, times: int, collectives: dict[str, float]
) -> float:
    found = [match for line in bodies.get(name, ()) if (match := _INSTRUCTION.match(line))]
    shapes = {match[1]: match[2] for match in found}
    traffic = 0.0
    for _, shape, kind, rest in (match.groups() for match in found):
        operands = re.findall(r"%([\w.-]+)", rest.partition(")")[0])
        given = [shapes[one] for one in operands if one in shapes]
        inner = re.findall(r"(?:body|calls|branch_computations)=\{?%([\w.-]+)", rest)
        if kind == "call":
            inner = re.findall(r"to_apply=%([\w.-]+)", rest)
        count = re.search(r'known_trip_count":\{"n":"(\d+)"', rest)
        repeated = times * int(count[1] if count else 1)
        of_inner = sum(_read_body(bodies, body, repeated, collectives) for body in inner)
        begun = kind.removesuffix("-start")
        if begun in _COLLECTIVES:
            size = sum(map(_size, [shape] if begun == "all-gather" else given))
            collectives[begun] = collectives.get(begun, 0.0) + times * size
        if kind in ("while", "call", "conditional"):
            traffic += of_inner
        elif kind != begun:  # a copy that goes on beside other work: it reads what it will have
            traffic += times * _size(shape, first=True)
        elif kind not in _FREE and not kind.endswith(("-done", "-update")):
            traffic += times * sum(_size(one, off_chip=True) for one in (shape, *given))
    return traffic


def _size(shape: str, *, off_chip: bool = False, first: bool = False) -> float:
    """Bytes of an array, or of a tuple of arrays; of those that are off the chip, of the first."""
    total = 0.0
    for dtype, sizes, layout in _ARRAY.findall(shape)[: 1 if first else None]:
        bits = 8 if dtype == "pred" else int((re.search(r"\d+", dtype) or "0")[0])
        if not (off_chip and "S(1)" in layout):
            total += math.prod(int(one) for one in sizes.split(",") if one) * bits / 8
    return total

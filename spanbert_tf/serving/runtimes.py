"""Exports for runtimes other than TensorFlow: ONNX Runtime and LiteRT.

Each takes rows of token ids. A converter writes one file from the graph function of the signature
`token_ids`. The runtime then runs the file on the example, so every export is tested. The README of
an export shows the source of the functions `run_…`.

N rows, S positions.
"""

import importlib.util
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from spanbert_tf.errors import BadInputError

GraphFunction: TypeAlias = Any  # tf.types.experimental.GenericFunction, read without its types
Rows = dict[str, np.ndarray]  # name → int32 [N, S]
_OPSET = 18  # of ONNX; the largest that tf2onnx 1.17 writes


def run_onnx(path: str, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the model on rows: name → int32 [N, S]."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, rows), strict=True))


def run_litert(path: str, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Runs the model on one row: name → int32 [1, S]. The row is padded to the model's width.

    The model takes a fixed number of `mask_positions`; more of them take several runs.
    """
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(path).get_signature_runner()
    widths = {name: detail["shape"][1] for name, detail in run.get_input_details().items()}

    def answer(row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        inputs = {}
        for name, width in widths.items():
            num_missing = width - row[name].shape[1]
            inputs[name] = np.pad(row[name], [(0, 0), (0, num_missing)])
        return run(**inputs)

    if "mask_positions" not in widths:
        return answer(rows)
    positions = rows["mask_positions"]
    at_once = widths["mask_positions"]
    count = positions.shape[1]
    answers = []
    for start in range(0, max(count, 1), at_once):
        answers.append(answer({**rows, "mask_positions": positions[:, start : start + at_once]}))
    joined = {}
    for name in answers[0]:
        parts = [answer[name] for answer in answers]
        joined[name] = np.concatenate(parts, axis=1)[:, :count]
    return joined


def _write_onnx(function: GraphFunction, path: str) -> None:
    import tf2onnx

    from spanbert_tf.models.onnx_operations import register_onnx_operations

    register_onnx_operations()
    tf2onnx.convert.from_function(
        function, input_signature=function.input_signature, opset=_OPSET, output_path=path
    )


def _write_litert(function: GraphFunction, path: str, int8: bool = False) -> None:
    # The converter finds the names of inputs and the values of weights through a module.
    concrete = function.get_concrete_function()
    module = tf.Module()
    module.weights = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], module)
    # Resource variables would be written without their values.
    converter.experimental_enable_resource_variables = False
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    with open(path, "wb") as file:
        file.write(converter.convert())


def largest_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """Computes the largest absolute difference. Equal infinities do not differ; NaN gives NaN."""
    expected = expected.astype("float64")
    found = found.astype("float64")
    differs = expected != found
    return float(np.abs(expected[differs] - found[differs]).max(initial=0.0))


class Runtime(NamedTuple):
    """How a format is written and run.

    Attributes:
        file_name: name of the model's file.
        packages: packages that write and run it; the extra that brings them has the format's name.
        write: `(function, path)`; with `int8`, also weights of 8 bits.
        run: `(path, rows)` → outputs.
        is_fixed: whether the model takes a single row of one width. Only such a model can have
            weights of 8 bits.
    """

    file_name: str
    packages: tuple[str, ...]
    write: Callable[..., None]
    run: Callable[[str, Rows], dict[str, np.ndarray]]
    is_fixed: bool = False


RUNTIMES = {
    "onnx": Runtime("model.onnx", ("tf2onnx", "onnxruntime"), _write_onnx, run_onnx),
    "litert": Runtime("model.tflite", ("ai_edge_litert",), _write_litert, run_litert, True),
}


class RowExport:
    """An export for another runtime.

    Args:
        name: name of the runtime in `RUNTIMES`.
        sequence_length: S, for a runtime whose rows have one width; `None` for others.
        int8: whether weights have 8 bits. Inputs and outputs of layers stay in float32.

    Raises:
        BadInputError: a package is missing, or the options do not go together.
    """

    def __init__(self, name: str, sequence_length: int | None = None, int8: bool = False) -> None:
        self._runtime = runtime = RUNTIMES[name]
        self._sequence_length = sequence_length
        self._int8 = int8
        for package in runtime.packages:
            if importlib.util.find_spec(package) is None:
                raise BadInputError(
                    f"--format {name}: needs {package}; pip install 'spanbert_tf[{name}]'"
                )
        if runtime.is_fixed and sequence_length is None:
            raise BadInputError(f"--format {name}: its rows have one width; give --sequence-length")
        if not runtime.is_fixed and (sequence_length is not None or int8):
            option = "--int8" if int8 else "--sequence-length"
            raise BadInputError(f"--format {name}: {option} is of --format litert; leave it out")

    def program(self) -> str:
        """Returns a Python program, for the README, that runs the packed rows `inputs`."""
        run = self._runtime.run
        rows = '{name: np.array(rows, "int32") for name, rows in inputs.items()}'
        call = f"outputs = {run.__name__}({self._runtime.file_name!r}, {rows})"
        return f"import numpy as np\n\n\n{inspect.getsource(run)}\n\n{call}"

    def write(
        self,
        function: Callable[..., dict[str, tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
        example: Mapping[str, Any],
        directory: str,
    ) -> str:
        """Writes the file, runs it, and describes how much its answer differs from TensorFlow's.

        Args:
            function: takes rows, int32 [N, S] each.
            specs: specs of the function's inputs.
            example: one row: name → ids.
            directory: directory of the file.
        """
        rows = {spec.name: np.array([example[spec.name]], "int32") for spec in specs}
        if self._sequence_length is not None:
            size = rows["token_ids"].shape[1]
            if size > self._sequence_length:
                raise BadInputError(
                    f"--sequence-length {self._sequence_length}: the README's example has {size} "
                    "positions; give as many"
                )
            specs = self.inputs(specs, example)
        graph = tf.function(function, input_signature=specs, autograph=False)
        path = os.path.join(directory, self._runtime.file_name)
        if self._int8:
            self._runtime.write(graph, path, int8=True)
        else:
            self._runtime.write(graph, path)
        found = self._runtime.run(path, rows)
        padded = []
        for spec in specs:
            row = rows[spec.name]
            width = spec.shape[1] or row.shape[1]
            padded.append(np.pad(row, [(0, 0), (0, width - row.shape[1])]))
        differences = [
            largest_difference(values.numpy(), found[name])
            for name, values in graph(*padded).items()
        ]
        difference = np.max(differences)  # unlike `max`, it gives NaN where there is one
        return (
            f"{os.path.getsize(path):,} bytes; what it answers to the README's rows differs by up "
            f"to {difference:.1e} from TensorFlow's answer"
        )

    def inputs(
        self, specs: Sequence[tf.TensorSpec], example: Mapping[str, Any]
    ) -> Sequence[tf.TensorSpec]:
        """Returns the specs of the file's inputs: one row of one width if the runtime needs that.

        Inputs of another width than the example's `token_ids`, such as `mask_positions`, keep the
        width that they have in the example.

        Args:
            specs: specs of the function's inputs.
            example: one row: name → ids.
        """
        if self._sequence_length is None:
            return specs
        num_ids = len(example["token_ids"])
        fixed = []
        for spec in specs:
            width = len(example[spec.name])
            if width == num_ids:
                width = self._sequence_length
            fixed.append(tf.TensorSpec([1, width], spec.dtype, spec.name))
        return fixed

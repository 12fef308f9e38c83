"""Exports for runtimes beside TensorFlow's: ONNX Runtime, OpenVINO and LiteRT.

Each takes rows of ids. Its converter writes a file from the graph function of the signature
`token_ids`, and the runtime answers the example, so that what is written was run. The README shows
the functions `run_…` as they are.

N rows, S positions.
"""

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from spanbert_tf.errors import BadInputError

GraphFunction = tf.types.experimental.GenericFunction
Rows = dict[str, np.ndarray]  # name → int32 [N, S]
_TELEMETRY = "openvino_telemetry"
_OPSET = 18  # of ONNX; the largest that tf2onnx 1.17 writes


def run_onnx(path: str, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a model answers for rows: name → int32 [N, S]."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, rows), strict=True))


def run_openvino(path: str, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a model answers for rows: name → int32 [N, S]."""
    import openvino

    # Processors with AMX would compute in bfloat16.
    model = openvino.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    found = model(rows)
    return {output.get_any_name(): found[output] for output in model.outputs}


def run_litert(path: str, rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a model answers for one row: name → int32 [1, S], which is padded to its width.

    It takes a fixed number of `mask_positions`; of more, each lot has a run of its own.
    """
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    run = Interpreter(path).get_signature_runner()
    widths = {name: detail["shape"][1] for name, detail in run.get_input_details().items()}

    def answer(some: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return run(
            **{
                name: np.pad(some[name], [(0, 0), (0, width - some[name].shape[1])])
                for name, width in widths.items()
            }
        )

    if "mask_positions" not in widths:
        return answer(rows)
    places, at_once = rows["mask_positions"], widths["mask_positions"]
    lots = [
        answer({**rows, "mask_positions": places[:, start : start + at_once]})
        for start in range(0, max(places.shape[1], 1), at_once)
    ]
    return {
        name: np.concatenate([lot[name] for lot in lots], axis=1)[:, : places.shape[1]]
        for name in lots[0]
    }


def _write_onnx(function: GraphFunction, path: str) -> None:
    import tf2onnx

    from spanbert_tf.models.onnx_operations import register_onnx_operations

    register_onnx_operations()
    tf2onnx.convert.from_function(
        function, input_signature=function.input_signature, opset=_OPSET, output_path=path
    )


def _write_openvino(function: GraphFunction, path: str) -> None:
    # Without this package the converter has nothing to tell its makers of the machine's user.
    is_new = _TELEMETRY not in sys.modules
    sys.modules.setdefault(_TELEMETRY, None)
    try:
        import openvino
        import openvino.tools.ovc
        from openvino.frontend.tensorflow import utils
    finally:
        if is_new:
            del sys.modules[_TELEMETRY]
    # It has `exec` import TensorFlow, which is imported, and then delete the name, which on Python
    # 3.13 is not left for a second `exec`.
    utils.exec = lambda statement: None
    converted = openvino.convert_model(function.get_concrete_function())
    for parameter, spec in zip(converted.inputs, function.input_signature, strict=True):
        parameter.set_names({spec.name})
    openvino.save_model(converted, path, compress_to_fp16=False)


def _write_litert(function: GraphFunction, path: str, int8: bool = False) -> None:
    # The converter names inputs and finds the values of weights by a module that holds them.
    concrete, holder = function.get_concrete_function(), tf.Module()
    holder.weights = list(concrete.variables)
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], holder)
    converter.experimental_enable_resource_variables = False  # the file's would have no values
    if int8:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    with open(path, "wb") as file:
        file.write(converter.convert())


def largest_difference(expected: np.ndarray, found: np.ndarray) -> float:
    """How far numbers are from others at most; NaN where there is NaN. Equal infinities agree."""
    expected, found = expected.astype("float64"), found.astype("float64")
    differs = expected != found
    return float(np.abs(expected[differs] - found[differs]).max(initial=0.0))


class Runtime(NamedTuple):
    """How a format is written and run.

    Attributes:
        file_names: of a model; the first is the one that is loaded.
        packages: what writes and runs it, as imported; the extra has the format's name.
        write: `(function, path)`, where weights may have 8 bits `int8`, too.
        run: `(path, rows)` → outputs.
        is_fixed: whether there is one row, of one width; weights may have 8 bits then.
    """

    file_names: tuple[str, ...]
    packages: tuple[str, ...]
    write: Callable[..., None]
    run: Callable[[str, Rows], dict[str, np.ndarray]]
    is_fixed: bool = False


RUNTIMES = {
    "onnx": Runtime(("model.onnx",), ("tf2onnx", "onnxruntime"), _write_onnx, run_onnx),
    "openvino": Runtime(("model.xml", "model.bin"), ("openvino",), _write_openvino, run_openvino),
    "litert": Runtime(("model.tflite",), ("ai_edge_litert",), _write_litert, run_litert, True),
}


class RowExport:
    """An export for another runtime.

    Args:
        name: of the runtime, in `RUNTIMES`.
        sequence_length: S, where the runtime has rows of one width; `None` elsewhere.
        int8: whether weights have 8 bits; what layers take and return stays in float32.

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
        """Python that runs the rows of the README's other program."""
        run, path = self._runtime.run, self._runtime.file_names[0]
        rows = '{name: np.array(rows, "int32") for name, rows in inputs.items()}'
        source = inspect.getsource(run)
        return f"import numpy as np\n\n\n{source}\n\noutputs = {run.__name__}({path!r}, {rows})"

    def write(
        self,
        function: Callable[..., dict[str, tf.Tensor]],
        specs: Sequence[tf.TensorSpec],
        example: Mapping[str, Any],
        directory: str,
    ) -> str:
        """Writes the files, runs them, and says how far the answer is from TensorFlow's.

        Args:
            function: of rows, int32 [N, S] each.
            specs: its inputs.
            example: a row: name → ids.
            directory: where the files go.
        """
        rows = {spec.name: np.array([example[spec.name]], "int32") for spec in specs}
        if self._sequence_length is not None:
            if (size := rows["token_ids"].shape[1]) > self._sequence_length:
                raise BadInputError(
                    f"--sequence-length {self._sequence_length}: the README's example has {size} "
                    "positions; give as many"
                )
            specs = self.inputs(specs, example)
        graph = tf.function(function, input_signature=specs, autograph=False)
        path = os.path.join(directory, self._runtime.file_names[0])
        self._runtime.write(graph, path, **({"int8": True} if self._int8 else {}))
        found = self._runtime.run(path, rows)
        widths = {spec.name: spec.shape[1] or rows[spec.name].shape[1] for spec in specs}
        expected = graph(
            *(np.pad(row, [(0, 0), (0, widths[name] - row.shape[1])]) for name, row in rows.items())
        )
        difference = np.max(  # which, unlike `max`, does not pass over NaN
            [largest_difference(values.numpy(), found[name]) for name, values in expected.items()]
        )
        names = self._runtime.file_names
        size = sum(os.path.getsize(os.path.join(directory, name)) for name in names)
        return (
            f"{size:,} bytes; what it answers to the README's rows differs by up to "
            f"{difference:.1e} from TensorFlow's answer"
        )

    def inputs(
        self, specs: Sequence[tf.TensorSpec], example: Mapping[str, Any]
    ) -> Sequence[tf.TensorSpec]:
        """The inputs of the file: one row of one width, where the runtime has no other.

        What is not as wide as the example's ids, such as places, stays as wide as it is there.

        Args:
            specs: the inputs of the function.
            example: a row: name → ids.
        """
        if self._sequence_length is None:
            return specs
        widths = {spec.name: len(example[spec.name]) for spec in specs}
        ids = len(example["token_ids"])
        return [
            tf.TensorSpec([1, self._sequence_length if width == ids else width], spec.dtype, name)
            for spec, (name, width) in zip(specs, widths.items(), strict=True)
        ]

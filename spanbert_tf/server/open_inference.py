"""The Open Inference Protocol, which is KServe's version 2.

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

import importlib.metadata
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spanbert_tf.server.batching import Work
from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.http import beside, body_of, compute, json_response, models_of, num_bytes_of
from spanbert_tf.server.model import DEFAULT_SIGNATURE
from spanbert_tf.server.tensors import binary_values, output_values, parse_body, typed
from spanbert_tf.server.tf_serving import work_of_columns
from spanbert_tf.server.versions import Version

# The protocol's names of types; `BYTES` is text in JSON.
_DATATYPES = {
    tf.bool: "BOOL",
    tf.int32: "INT32",
    tf.int64: "INT64",
    tf.float32: "FP32",
    tf.float64: "FP64",
    tf.string: "BYTES",
}
# Of the extension for binary tensors: the JSON is followed by the bytes of such tensors.
_HEAD_LENGTH = "inference-header-content-length"
_BINARY_SIZE = "binary_data_size"
_MOST_DIGITS = 20  # Python refuses to read numbers of thousands of digits
_SIGNATURE = "signature_name"  # a parameter of ours: the protocol knows one signature a model


async def live(request: Request) -> Response:
    """Says that the server runs."""
    return json_response({"live": True})


async def ready(request: Request) -> Response:
    """Says that the models are loaded: the server answers only then."""
    return json_response({"ready": True})


async def server_metadata(request: Request) -> Response:
    """Names the server."""
    version = importlib.metadata.version("spanbert_tf")
    return json_response(
        {"name": "spanbert_tf", "version": version, "extensions": ["binary_tensor_data"]}
    )


async def model_ready(request: Request) -> Response:
    """Says that a model is loaded."""
    served = models_of(request).find(
        request.path_params["name"], request.path_params.get("version")
    )
    return json_response({"name": served.source.name, "ready": True})


async def model_metadata(request: Request) -> Response:
    """Describes the inputs and outputs of a model's default signature."""
    served = models_of(request).find(
        request.path_params["name"], request.path_params.get("version")
    )
    model = served.model
    content = {
        "name": model.name,
        "versions": [model.version],
        "platform": "tensorflow_savedmodel",
        "inputs": _described(model.input_specs(DEFAULT_SIGNATURE)),
        "outputs": _described(model.output_specs(DEFAULT_SIGNATURE)),
    }
    return json_response(content)


def _described(specs: Mapping[str, tf.TensorSpec]) -> list[dict[str, Any]]:
    tensors = []
    for name, spec in specs.items():
        shape = [-1 if size is None else size for size in spec.shape.as_list()]
        tensors.append({"name": name, "datatype": _DATATYPES[spec.dtype], "shape": shape})
    return tensors


async def infer(request: Request) -> Response:
    """Computes a signature."""
    models = models_of(request)
    served = models.find(request.path_params["name"], request.path_params.get("version"))
    metrics = models.metrics.request(served.source.name, "infer")
    with metrics, served.version.used() as version:
        async with body_of(request) as body:
            stated = request.headers.get(_HEAD_LENGTH, str(len(body)))
            is_number = stated.isdecimal() and len(stated) <= _MOST_DIGITS
            if not is_number or int(stated) > len(body):
                raise RequestError(400, f"the header {_HEAD_LENGTH} states no length of the JSON")
            head = body[: int(stated)]
            binary = bytes(body[int(stated) :])
            content = await beside(len(body), parse_body, head)
            return await _infer(request, content, binary, len(body), version)


async def _infer(
    request: Request, content: dict[str, Any], binary: bytes, size: int, version: Version
) -> Response:
    model = version.model
    parameters = typed(content, "parameters", dict, {})
    signature = typed(parameters, _SIGNATURE, str, DEFAULT_SIGNATURE)
    specs = model.input_specs(signature)
    wanted = _wanted_outputs(content, model.output_specs(signature))
    identifier = typed(content, "id", str)

    def work() -> Work:
        return work_of_columns(version, signature, _columns(content, binary, specs))

    (outputs,) = await compute(request, version.worker, [await beside(size, work)])

    def written() -> Response:
        answer = {
            "model_name": model.name,
            "model_version": model.version,
            "outputs": [_tensor(name, outputs[name]) for name in wanted],
        }
        if identifier is not None:
            answer["id"] = identifier
        return json_response(answer)

    return await beside(num_bytes_of([outputs]), written)


def _columns(
    content: Mapping[str, Any], binary: bytes, specs: Mapping[str, tf.TensorSpec]
) -> dict[str, Any]:
    """Returns name → data of the input tensors, as nested lists.

    Raises:
        RequestError: a tensor is not one of the signature, or its data are not.
    """
    columns: dict[str, Any] = {}
    for tensor in typed(content, "inputs", list, []):
        if not isinstance(tensor, dict):
            raise RequestError(400, "an item of 'inputs' is no object")
        name = typed(tensor, "name", str, "")
        if name in columns:
            raise RequestError(400, f"input {name!r} is given twice")
        if name not in specs:
            raise RequestError(400, f"no input {name!r}; there are {', '.join(specs)}")
        size = typed(typed(tensor, "parameters", dict, {}), _BINARY_SIZE, int)
        if size is None:
            data = typed(tensor, "data", list)
        elif size < 0:
            raise RequestError(400, f"input {name!r} has {size} bytes")
        else:
            data = _binary_data(name, binary[:size], specs[name])
            binary = binary[size:]
        columns[name] = _nested(name, tensor, data, specs[name])
    if binary:
        raise RequestError(400, "the body has more bytes than its tensors")
    return columns


def _binary_data(name: str, data: bytes, spec: tf.TensorSpec) -> list:
    try:
        return binary_values(spec.dtype, data)
    except ValueError as error:
        raise RequestError(400, f"input {name!r}: its bytes are no {spec.dtype.name}") from error


def _nested(name: str, tensor: dict[str, Any], data: list | None, spec: tf.TensorSpec) -> Any:
    """Returns the data of a tensor as nested lists.

    Raises:
        RequestError: data, shape and type do not fit together, or not to the input.
    """
    shape = typed(tensor, "shape", list)
    if data is None or shape is None:
        raise RequestError(400, f"input {name!r} needs 'shape' and 'data'")
    datatype = typed(tensor, "datatype", str)
    if datatype != _DATATYPES[spec.dtype]:
        raise RequestError(400, f"input {name!r} is of datatype {_DATATYPES[spec.dtype]}")
    if len(shape) != spec.shape.rank or not all(_is_size(size) for size in shape):
        raise RequestError(400, f"input {name!r} has no shape of {spec.shape.rank} sizes")
    if 0 in shape[1:]:
        raise RequestError(400, f"input {name!r} has rows of nothing")
    while any(isinstance(item, list) for item in data):  # data may be nested or flat
        if not all(isinstance(item, list) for item in data):
            raise RequestError(400, f"input {name!r} has data of different depths")
        data = [inner for item in data for inner in item]
    if len(data) != math.prod(shape):
        raise RequestError(400, f"input {name!r} has {len(data)} values; its shape says otherwise")
    return _reshaped(data, shape)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _reshaped(data: list, shape: list[int]) -> list:
    """Nests a flat list, of no empty rows."""
    for size in reversed(shape[1:]):
        data = [data[start : start + size] for start in range(0, len(data), size)]
    return data


def _wanted_outputs(content: Mapping[str, Any], specs: Mapping[str, tf.TensorSpec]) -> list[str]:
    """Returns the names of the outputs that a request asks for; by default all."""
    names = []
    for output in typed(content, "outputs", list, []):
        name = output.get("name") if isinstance(output, dict) else None
        if not isinstance(name, str) or name not in specs:
            raise RequestError(400, f"an item of 'outputs' is none of {', '.join(specs)}")
        names.append(name)
    return names or list(specs)


def _tensor(name: str, values: np.ndarray) -> dict[str, Any]:
    """Describes an output with its data, which is flat."""
    datatype = _DATATYPES[tf.string if values.dtype == object else tf.as_dtype(values.dtype)]
    data = output_values(name, values.reshape(-1))
    return {"name": name, "datatype": datatype, "shape": list(values.shape), "data": data}


def routes() -> list[Route]:
    """Returns the routes."""
    found = [
        Route("/v2", server_metadata, methods=["GET"]),
        Route("/v2/health/live", live, methods=["GET"]),
        Route("/v2/health/ready", ready, methods=["GET"]),
    ]
    for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        found += [
            Route(model, model_metadata, methods=["GET"]),
            Route(f"{model}/ready", model_ready, methods=["GET"]),
            Route(f"{model}/infer", infer, methods=["POST"]),
        ]
    return found

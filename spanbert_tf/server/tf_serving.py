"""TF Serving's REST interface.

https://www.tensorflow.org/tfx/serving/api_rest
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spanbert_tf.server.batching import Arrays, Work
from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.http import (
    beside,
    compute,
    json_of,
    json_response,
    listed,
    models_of,
    num_bytes_of,
)
from spanbert_tf.server.model import DEFAULT_SIGNATURE
from spanbert_tf.server.tensors import check_names, check_sizes, input_array, output_values, typed
from spanbert_tf.server.versions import Version

_ROWS = "instances"
_COLUMNS = "inputs"


async def predict(request: Request) -> Response:
    """Computes a signature for tensors by rows or by columns."""
    models = models_of(request)
    served = models.find(request.path_params["name"], request.path_params.get("version"))
    metrics = models.metrics.request(served.source.name, "predict")
    with metrics, served.version.used() as version:
        async with json_of(request) as (content, size):
            return await _predict(request, content, size, version)


async def _predict(
    request: Request, content: dict[str, Any], size: int, version: Version
) -> Response:
    if (_ROWS in content) == (_COLUMNS in content):
        raise RequestError(400, f"give either {_ROWS!r} or {_COLUMNS!r}")
    signature = typed(content, "signature_name", str, DEFAULT_SIGNATURE)
    specs = version.model.input_specs(signature)
    by_rows = _ROWS in content

    def work() -> Work:
        if by_rows:
            columns: Mapping[str, Any] = _columns_of_rows(content[_ROWS], specs)
        else:
            columns = _columns(content[_COLUMNS], specs)
        return work_of_columns(version, signature, columns)

    (outputs,) = await compute(request, version.worker, [await beside(size, work)])
    return await beside(num_bytes_of([outputs]), _written, outputs, by_rows)


def _written(outputs: Arrays, by_rows: bool) -> Response:
    """Makes the response, by rows or by columns."""
    values = {name: output_values(name, array) for name, array in outputs.items()}
    if by_rows:
        return json_response({"predictions": _rows(values)})
    if len(values) == 1:
        (only,) = values.values()
        return json_response({"outputs": only})
    return json_response({"outputs": values})


def work_of_columns(version: Version, signature: str, columns: Mapping[str, Any]) -> Work:
    """Makes what a worker computes of nested lists by the names of a signature's inputs.

    Raises:
        RequestError: the inputs are not those of the signature, or are more than one batch.
    """
    specs = version.model.input_specs(signature)
    check_names(set(columns), specs)
    arrays = {name: input_array(name, columns[name], spec) for name, spec in specs.items()}
    check_sizes(arrays)
    work = version.model.work(signature, arrays)
    budget = version.worker.max_tokens
    if work.num_rows > 1 and work.cost > budget:
        raise RequestError(
            413,
            f"has {work.num_rows:,} rows of up to {work.tokens:,} tokens; {budget:,} are computed "
            "at once: send several requests",
        )
    return work


def _columns_of_rows(rows: Any, specs: Mapping[str, tf.TensorSpec]) -> dict[str, list]:
    """Converts rows to columns. If there is one input, a row may be its value alone."""
    if not isinstance(rows, list):
        raise RequestError(400, f"{_ROWS!r} is no list")
    names = list(specs)
    columns: dict[str, list] = {name: [] for name in names}
    for row in rows:
        if len(names) == 1 and not (isinstance(row, dict) and names[0] in row):
            row = {names[0]: row}
        if not isinstance(row, dict):
            raise RequestError(400, f"an item of {_ROWS!r} is no object of {', '.join(names)}")
        check_names(set(row), specs)
        for name in names:
            columns[name].append(row[name])
    return columns


def _columns(inputs: Any, specs: Mapping[str, tf.TensorSpec]) -> Mapping[str, Any]:
    """Returns columns by name. If there is one input, they may be its values alone."""
    if isinstance(inputs, dict):
        return inputs
    if len(specs) != 1:
        raise RequestError(400, f"{_COLUMNS!r} is no object of {', '.join(specs)}")
    return dict.fromkeys(specs, inputs)


def _rows(values: Mapping[str, list]) -> list:
    """Converts columns to rows. If there is one output, a row is its value alone."""
    if len(values) == 1:
        (only,) = values.values()
        return only
    rows = zip(*values.values(), strict=True)
    return [dict(zip(values, row, strict=True)) for row in rows]


async def status(request: Request) -> Response:
    """Says which version of a model answers."""
    served = models_of(request).find(
        request.path_params["name"], request.path_params.get("version")
    )
    state = {
        "version": served.model.version,
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    # OpenAI's clients ask at the same path.
    return json_response({**listed(served.source.name), "model_version_status": [state]})


async def metadata(request: Request) -> Response:
    """Returns the signatures of a model."""
    served = models_of(request).find(
        request.path_params["name"], request.path_params.get("version")
    )
    model = served.model
    content = {
        "model_spec": {"name": model.name, "signature_name": "", "version": model.version},
        "metadata": {
            "signature_def": {
                "@type": "type.googleapis.com/tensorflow.serving.SignatureDefMap",
                "signature_def": model.signature_protos,
            }
        },
    }
    return json_response(content)


def routes() -> list[Route]:
    """Returns the routes, each with and without a version."""
    found = []
    for model in ("/v1/models/{name}", "/v1/models/{name}/versions/{version}"):
        found += [
            Route(f"{model}:predict", predict, methods=["POST"]),
            Route(f"{model}/metadata", metadata, methods=["GET"]),
            Route(model, status, methods=["GET"]),
        ]
    return found

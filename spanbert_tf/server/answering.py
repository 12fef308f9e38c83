"""`/answer`: raw inputs in, and out what `predict` writes."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.http import beside, compute, json_of, json_response, models_of, num_bytes_of
from spanbert_tf.server.tensors import typed
from spanbert_tf.server.versions import Models, ServedModel, Version


async def answer(request: Request) -> Response:
    """Answers one input, or a list of inputs.

    The body has `inputs`, and may have `model`, if several are served, and `top_k`.
    """
    models = models_of(request)
    async with json_of(request) as (content, size):
        served = _named_model(models, content)
        with models.metrics.request(served.source.name, "answer"), served.version.used() as version:
            return await _answer(request, content, size, version)


async def _answer(
    request: Request, content: dict[str, Any], size: int, version: Version
) -> Response:
    model = version.model
    if "inputs" not in content:
        raise RequestError(400, "has no 'inputs': a text or an object, or a list of these")
    inputs = content["inputs"]
    is_list = isinstance(inputs, list)
    largest = model.description.top_k
    top_k = typed(content, "top_k", int, min(model.pipeline.top_k, largest))
    if not 1 <= top_k <= largest:
        raise RequestError(400, f"'top_k' is not from 1 to {largest}, as it was exported")
    items, works = await beside(size, model.raw_works, inputs if is_list else [inputs])
    outputs = await compute(request, version.worker, works)

    def written() -> Response:
        answers = model.answers(items, outputs, top_k)
        return json_response(answers if is_list else answers[0])

    return await beside(num_bytes_of(outputs), written)


def _named_model(models: Models, content: dict[str, Any]) -> ServedModel:
    """Returns the model that a request names; if there is only one, it need not."""
    name = typed(content, "model", str)
    if name is None:
        if len(models.by_name) > 1:
            raise RequestError(400, f"name the 'model': {', '.join(models.by_name)}")
        (name,) = models.by_name
    return models.find(name)


def routes() -> list[Route]:
    """Returns the route."""
    return [Route("/answer", answer, methods=["POST"])]

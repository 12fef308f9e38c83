"""`/answer`: raw inputs in, and out what `predict` writes."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.http import (
    Progress,
    beside,
    compute,
    error_response,
    json_of,
    json_response,
    models_of,
    no_progress,
    num_bytes_of,
)
from spanbert_tf.server.tensors import typed
from spanbert_tf.server.versions import Models, ServedModel, Version

NDJSON = "application/x-ndjson"


async def answer(request: Request) -> Response:
    """Answers one input, or a list of inputs.

    The body has `inputs`, and may have `model`, if several are served, and `top_k`. A client that
    accepts `NDJSON` gets lines of progress before the answer.
    """
    if _accepts_lines(request):
        return _Lines(request)
    return await _answered(request, no_progress)


def _accepts_lines(request: Request) -> bool:
    kinds = request.headers.get("accept", "").split(",")
    return any(kind.partition(";")[0].strip().lower() == NDJSON for kind in kinds)


class _Lines(Response):
    """Lines of progress while a request is computed, and its answer as the last line.

    What goes wrong before the first line is answered as without lines. Later it is the last line.

    Args:
        request: the request.
    """

    media_type = NDJSON

    def __init__(self, request: Request) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers()  # without the length of a body
        self._request = request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers the request."""
        is_begun = False

        async def send_line(line: Response, *, is_last: bool = False) -> None:
            nonlocal is_begun
            if not is_begun:
                is_begun = True
                headers = self.raw_headers
                await send({"type": "http.response.start", "status": 200, "headers": headers})
            body = bytes(line.body) + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": not is_last})

        async def show(num_tokens: int, num_all: int) -> None:
            await send_line(json_response({"tokens": num_tokens, "of": num_all}))

        try:
            response = await _answered(self._request, show)
        except Exception as error:
            if not is_begun:
                raise
            failed = RequestError(500, "the server failed")
            refused = error if isinstance(error, RequestError) else failed
            await send_line(error_response(scope["path"], refused), is_last=True)
            if refused is failed:
                raise
        else:
            await send_line(response, is_last=True)


async def _answered(request: Request, show: Progress) -> Response:
    """Answers a request; `show` is called as it is computed."""
    models = models_of(request)
    async with json_of(request) as (content, size):
        served = _named_model(models, content)
        with models.metrics.request(served.source.name, "answer"), served.version.used() as version:
            return await _answer(request, content, size, version, show)


async def _answer(
    request: Request, content: dict[str, Any], size: int, version: Version, show: Progress
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
    asked, works = await beside(size, model.raw_works, inputs if is_list else [inputs])
    outputs = await compute(request, version.worker, works, show)

    def written() -> Response:
        answers = model.answers(asked, outputs, top_k)
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

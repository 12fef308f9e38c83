"""What the protocols share: bodies of requests, responses, and errors in each protocol's layout."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from spanbert_tf.server.errors import CODES, RequestError
from spanbert_tf.server.tensors import parse_body
from spanbert_tf.server.versions import Models

_BODY_SECONDS = 30
_OPENAI = "/v1/embeddings"


def models_of(request: Request) -> Models:
    """Returns the models of the server that got a request."""
    return request.app.state.models


async def read_json(request: Request) -> dict[str, Any]:
    """Reads the body of a request, which is a JSON object.

    Raises:
        RequestError: it is too large, comes too slowly, or is no JSON object.
    """
    limit = request.app.state.max_body_bytes
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated) > limit:
        raise RequestError(413, f"the body has more than {limit:,} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise RequestError(413, f"the body has more than {limit:,} bytes")
    except TimeoutError as error:
        raise RequestError(408, "the body did not come in time") from error
    except ClientDisconnect as error:
        raise RequestError(400, "the body did not come to its end") from error
    return parse_body(bytes(body))


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] = {}) -> Response:
    """Makes a response of JSON. Halves of surrogate pairs become `?`."""
    text = json.dumps(content, ensure_ascii=False)
    body = text.encode("utf-8", "replace")
    return Response(body, status, headers, media_type="application/json")


def error_response(path: str, error: RequestError) -> Response:
    """Makes the response of an error, in the layout of the protocol that a path belongs to."""
    content: Any = {"error": error.message}
    if path == _OPENAI:
        code = CODES[error.status].openai
        content = {"error": {"message": error.message, "type": code, "param": None, "code": None}}
    return json_response(content, error.status, error.headers)

"""What the protocols share: bodies of requests, responses, and errors in each protocol's layout."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spanbert_tf.server.batching import Arrays, Work, Worker
from spanbert_tf.server.errors import CODES, RequestError
from spanbert_tf.server.tensors import parse_body
from spanbert_tf.server.versions import Models

T = TypeVar("T")
Progress = Callable[[int, int], Awaitable[None]]  # tokens that are computed, of how many

BODY_SECONDS = 30
_BODIES_AT_ONCE = 32  # of the largest size; smaller ones are more
_LARGE = 20_000  # bytes; what is larger is read and written beside the event loop
_OPENAI = "/v1/embeddings"


def models_of(request: Request) -> Models:
    """Returns the models of the server that got a request."""
    return request.app.state.models


class Bodies:
    """The bodies of all requests that have no answer yet.

    Args:
        max_bytes: largest size of one.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._free_bytes = _BODIES_AT_ONCE * max_bytes

    @contextlib.asynccontextmanager
    async def body_of(self, request: Request) -> AsyncIterator[bytearray]:
        """Reads the body of a request, and counts it until the answer.

        Raises:
            RequestError: it is too large, compressed, comes too slowly, or too many others are
                held.
        """
        body = bytearray()
        try:
            await self._read(request, body)
            yield body
        finally:
            self._free_bytes += len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Appends what comes to a body. What it holds is counted already."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise RequestError(415, "the body is compressed; send it as it is")
        stated = request.headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > self.max_bytes:
            raise self._too_large()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for chunk in request.stream():
                    if len(body) + len(chunk) > self.max_bytes:
                        raise self._too_large()
                    if len(chunk) > self._free_bytes:
                        raise RequestError(429, "too many requests are waiting; try again")
                    body += chunk
                    self._free_bytes -= len(chunk)
        except TimeoutError as error:
            raise RequestError(408, "the body did not come in time") from error
        except ClientDisconnect as error:
            raise RequestError(400, "the body did not come to its end") from error

    def _too_large(self) -> RequestError:
        return RequestError(413, f"the body has more than {self.max_bytes:,} bytes")


class RestOfBody:
    """Middleware that reads what a request has left of its body before the connection may end.

    A client that is still sending when the connection is closed loses the answer.

    Args:
        app: what answers.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http" or not _has_body(Headers(scope=scope)):
            await self._app(scope, receive, send)
            return
        is_read = False

        async def receive_and_look() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        async def send_and_read(message: Message) -> None:
            is_last = message["type"] == "http.response.body" and not message.get("more_body")
            if is_last and not is_read:
                await send({**message, "more_body": True})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(BODY_SECONDS):
                        while not is_read:
                            await receive_and_look()
                message = {"type": "http.response.body"}
            await send(message)

        await self._app(scope, receive_and_look, send_and_read)


def _has_body(headers: Headers) -> bool:
    """Whether a client sends a body, without waiting for a sign to do so."""
    return "expect" not in headers and (
        "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    )


def body_of(request: Request) -> contextlib.AbstractAsyncContextManager[bytearray]:
    """Reads the body of a request; see `Bodies`."""
    bodies: Bodies = request.app.state.bodies
    return bodies.body_of(request)


@contextlib.asynccontextmanager
async def json_of(request: Request) -> AsyncIterator[tuple[dict[str, Any], int]]:
    """Reads the body of a request, which is a JSON object.

    Yields:
        The object, and the number of its bytes.

    Raises:
        RequestError: see `Bodies.body_of`; or it is no JSON object.
    """
    async with body_of(request) as body:
        yield await beside(len(body), parse_body, body), len(body)


async def beside(num_bytes: int, function: Callable[..., T], *arguments: Any) -> T:
    """Calls a function, in a thread if it has much to do, so that others are served meanwhile.

    Args:
        num_bytes: about how much it reads or writes.
        function: the function.
        arguments: its arguments.
    """
    if num_bytes <= _LARGE:
        return function(*arguments)
    return await asyncio.to_thread(function, *arguments)


async def no_progress(num_tokens: int, num_all: int) -> None:
    """Shows no progress."""


async def compute(
    request: Request, worker: Worker, works: Sequence[Work], show: Progress = no_progress
) -> list[Arrays]:
    """Computes what a request asks for, one turn after the other.

    Other requests are computed between two turns. If the client goes, or the request is cancelled,
    nothing more is begun.

    Args:
        request: the request.
        worker: computes it.
        works: what it asks for.
        show: is called after each turn.

    Returns:
        The outputs of each work.

    Raises:
        RequestError: it is refused, or the client has gone.
    """
    num_all = sum(work.cost for work in works)
    num_done = 0
    found: list[Arrays] = [{}] * len(works)
    watcher = asyncio.create_task(_withdraw_when_gone(request, worker, works))
    try:
        for turn in range(max([work.turn for work in works], default=-1) + 1):
            if watcher.done():
                raise RequestError(499, "the client has gone")
            places = [place for place, work in enumerate(works) if work.turn == turn]
            taken = [works[place] for place in places]
            outputs = await worker.outputs(taken, is_begun=turn > 0)
            for place, arrays in zip(places, outputs, strict=True):
                found[place] = arrays
            num_done += sum(work.cost for work in taken)
            await show(num_done, num_all)
        return found
    finally:
        watcher.cancel()
        worker.withdraw(works)


async def _withdraw_when_gone(request: Request, worker: Worker, works: Sequence[Work]) -> None:
    """Waits for the end of a connection, the only message after a body that was read."""
    await request.receive()
    worker.withdraw(works)


def num_bytes_of(outputs: Sequence[Arrays]) -> int:
    """The size of arrays, which is about that of their JSON."""
    return sum(array.nbytes for arrays in outputs for array in arrays.values())


def listed(name: str) -> dict[str, Any]:
    """Describes a model in OpenAI's format."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "spanbert_tf"}


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

"""The application that answers HTTP requests, and the process that runs it."""

import asyncio
import contextlib
import functools
import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Sequence
from types import FrameType

import jinja2
import uvicorn
import yaml
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.process import register_cleanup
from spanbert_tf.server import answering, embeddings, open_inference, tf_serving
from spanbert_tf.server.connections import IDLE_SECONDS, Connection
from spanbert_tf.server.errors import CODES, RequestError
from spanbert_tf.server.http import (
    Bodies,
    RestOfBody,
    error_response,
    json_response,
    models_of,
)
from spanbert_tf.server.metrics import Metrics
from spanbert_tf.server.security import Guard, is_loopback, read_key
from spanbert_tf.server.versions import Models, find_sources
from spanbert_tf.tasks import report
from spanbert_tf.terminal import print_line

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_FINISHING_SECONDS = 120
_MARKS_FOLDER = os.path.dirname(os.path.abspath(report.__file__))  # marks look as in reports


def create_application(
    models: Models, host: str, key: str | None, max_body_bytes: int
) -> Starlette:
    """Makes the application. It loads the models when it starts.

    Args:
        models: the models.
        host: address that the server listens on.
        key: key that each request must state, or `None`.
        max_body_bytes: largest size of a request's body.
    """

    @contextlib.asynccontextmanager
    async def lifespan(application: Starlette) -> AsyncIterator[None]:
        await models.start()
        yield
        await models.close()

    application = Starlette(
        routes=[
            *answering.routes(),
            *embeddings.routes(),
            *tf_serving.routes(),
            *open_inference.routes(),
            Route("/metrics", metrics, methods=["GET"]),
            Route("/monitoring/prometheus/metrics", metrics, methods=["GET"]),
            Route("/openapi.json", openapi, methods=["GET"]),
            Route("/docs", docs, methods=["GET"]),
            Route("/", page, methods=["GET"]),
        ],
        middleware=[Middleware(RestOfBody), Middleware(Guard, host=host, key=key)],
        exception_handlers={
            RequestError: _refused,
            HTTPException: _not_found,
            Exception: _failed,
        },
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    application.state.models = models
    application.state.bodies = Bodies(max_body_bytes)
    application.state.has_key = key is not None
    return application


async def metrics(request: Request) -> Response:
    """Returns what Prometheus reads."""
    text = models_of(request).metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4")


async def openapi(request: Request) -> Response:
    """Returns the description of the interfaces."""
    return json_response(_read_openapi())


async def docs(request: Request) -> Response:
    """Shows the description of the interfaces."""
    return HTMLResponse(render("docs.html", api=_read_openapi()))


async def page(request: Request) -> Response:
    """Shows a page on which texts are typed and answers are seen.

    Of a model it has what a reader of its answers needs; it needs no network.
    """
    described = {}
    for name, served in models_of(request).by_name.items():
        description = served.model.description
        described[name] = {
            "task": description.task,
            "fields": description.fields,
            "settings": description.settings,
            "example": description.example,
            "top_k": description.top_k,
        }
    nonce = secrets.token_urlsafe()
    text = render("page.html", models=described, nonce=nonce, has_key=request.app.state.has_key)
    policy = (
        f"default-src 'none'; connect-src 'self'; script-src 'nonce-{nonce}'; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    return HTMLResponse(text, headers=headers)


def render(template: str, **values: object) -> str:
    """Renders a page of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([_FOLDER, _MARKS_FOLDER]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(**values)


def _read_openapi() -> dict:
    with open(os.path.join(_FOLDER, "openapi.yaml"), encoding="utf-8") as file:
        return yaml.safe_load(file)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    models_of(request).metrics.refused(error)
    return error_response(request.url.path, error)


async def _not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status = error.status_code if error.status_code in CODES else 400
    return error_response(request.url.path, RequestError(status, f"{error.detail}; see /docs"))


async def _failed(request: Request, error: Exception) -> Response:
    print_line(f"a request failed: {type(error).__name__}")  # nothing of the request
    return error_response(request.url.path, RequestError(500, "the server failed"))


class _Server(uvicorn.Server):
    """A server that ends with status 0 when it is told to end."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Finishes what was begun; uvicorn would then raise the signal again."""
        self.should_exit = True


def run_server(
    paths: Sequence[str],
    *,
    host: str,
    port: int,
    api_key_file: str | None,
    max_batch_tokens: int,
    max_body_bytes: int,
    top_k: int,
) -> None:
    """Serves models until the process gets SIGTERM or Ctrl-C.

    Args:
        paths: exports and presets; see `find_sources`.
        host: address to listen on.
        port: port to listen on; 0 takes a free one.
        api_key_file: file with the key that each request must state.
        max_batch_tokens: budget of a batch.
        max_body_bytes: largest size of a request's body.
        top_k: largest number of answers to an input of a preset.

    Raises:
        BadInputError: a model cannot be served, or the port is taken.
    """
    key = read_key(api_key_file) if api_key_file is not None else None
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(host, port))
        workspace = stack.enter_context(tempfile.TemporaryDirectory(prefix="spanbert_tf-serve-"))
        register_cleanup(functools.partial(shutil.rmtree, workspace, ignore_errors=True))
        sources = find_sources(paths, workspace, top_k)
        models = Models(sources, max_batch_tokens, Metrics())
        application = create_application(models, host, key, max_body_bytes)
        asyncio.run(_serve(application, listener, host, has_key=key is not None))


def _listen(host: str, port: int) -> socket.socket:
    """Binds a port, before models are loaded for minutes.

    Raises:
        BadInputError: it is taken, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadInputError(f"--host {host} --port {port}: {reason(error)}") from error


def make_server(application: Starlette) -> uvicorn.Server:
    """Makes what answers connections. Its `serve` takes sockets that listen."""
    config = uvicorn.Config(
        application,
        http=Connection,
        lifespan="off",  # entered here, so that its errors are not uvicorn's log
        log_config=None,
        log_level="critical",  # nothing of a request is logged
        access_log=False,
        server_header=False,
        ws="none",
        timeout_keep_alive=2 * int(IDLE_SECONDS),  # a `Connection` closes earlier
        timeout_graceful_shutdown=_FINISHING_SECONDS,
    )
    return _Server(config)


async def _serve(
    application: Starlette, listener: socket.socket, host: str, *, has_key: bool
) -> None:
    async with application.router.lifespan_context(application):
        shown = f"[{host}]" if ":" in host else host
        print_line(f"http://{shown}:{listener.getsockname()[1]}/")
        if not is_loopback(host) and not has_key:
            print_line(f"no --api-key-file: whoever reaches {host} can ask")
        await make_server(application).serve([listener])
    print_line("ended")

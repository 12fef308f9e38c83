"""Refuses requests that pages of other sites send, those without the key, and those too many.

A page on the web can make a browser ask a server on the same machine. Such a request names the page
as its `Origin`; or, if the site's name was made to lead to this machine, as its `Host`.
"""

import hmac
import ipaddress
import os
import socket
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from spanbert_tf.errors import BadInputError, reason
from spanbert_tf.server.connections import CONNECTIONS
from spanbert_tf.server.errors import RequestError
from spanbert_tf.server.http import error_response

_MAX_CONNECTIONS = 800  # a process may usually open 1,024 files
_MIN_KEY = 16  # characters
# What watches a server's health has no key, and must not take a busy server for a dead one.
_HEALTH_PATHS = ("/v2/health/live", "/v2/health/ready")
# The page asks for the key itself, and its links to the other two have none.
_OPEN_PATHS = ("/", "/docs", "/openapi.json", *_HEALTH_PATHS)


def read_key(path: str) -> str:
    """Reads an API key, the only line of a file.

    Raises:
        BadInputError: the file cannot be read, or its key is too short or has other characters.
    """
    try:
        with open(path, encoding="ascii") as file:
            key = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: cannot be read as ASCII text ({reason(error)})") from error
    if len(key) < _MIN_KEY or not key.isprintable() or " " in key:
        raise BadInputError(f"{path}: holds no key of {_MIN_KEY} characters or more on one line")
    if os.stat(path).st_mode & 0o044:
        raise BadInputError(
            f"{path}: others can read it; run: chmod 600 {path} (a secret of Kubernetes: "
            "defaultMode: 0400)"
        )
    return key


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware that refuses foreign requests.

    Args:
        app: what answers the others.
        host: address that the server listens on.
        key: key that each request must state, or `None`.
    """

    def __init__(self, app: ASGIApp, host: str, key: str | None) -> None:
        self._app = app
        self._host = host
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] == "http":
            try:
                if scope["path"] not in _HEALTH_PATHS:
                    _check_room(scope)
                self._check(scope["path"], Headers(scope=scope))
            except RequestError as error:
                scope["app"].state.models.metrics.refused(error)
                await error_response(scope["path"], error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, path: str, headers: Headers) -> None:
        """Checks where a request comes from.

        Raises:
            RequestError: it is foreign, or has not the key.
        """
        host = headers.get("host", "")
        if not self._is_own_name(host):
            raise RequestError(403, "the header Host names another server")
        origin = headers.get("origin")
        if origin is not None and _network_place(origin) != host:
            raise RequestError(403, "the header Origin names another site")
        if self._key is None or path in _OPEN_PATHS:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(given.strip().encode(), self._key.encode())
        if scheme.lower() != "bearer" or not is_right:
            raise RequestError(401, "needs the header Authorization: Bearer KEY")

    def _is_own_name(self, host: str) -> bool:
        """Whether a `Host` can mean this server.

        A site whose name leads to this machine would be named here. With a key, it cannot ask. On
        other addresses than loopback without a key, addresses and the machine's name are accepted.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if is_loopback(name):
            return True
        if is_loopback(self._host):
            return False
        return (
            self._key is not None
            or _is_address(name)
            or name
            in (
                self._host,
                socket.gethostname().lower(),
            )
        )


def _check_room(scope: Scope) -> None:
    """Checks that not too many connections are open.

    Raises:
        RequestError: they are.
    """
    if len(scope.get("state", {}).get(CONNECTIONS, ())) > _MAX_CONNECTIONS:
        raise RequestError(503, "too many connections are open; try again")


def _network_place(origin: str) -> str | None:
    """Returns host and port of an origin; `None` if it has none, as `null`."""
    try:
        return urlsplit(origin).netloc or None
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

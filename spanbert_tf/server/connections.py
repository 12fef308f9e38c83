"""Connections that are closed when their clients are too slow.

uvicorn waits without an end for the head of a request, and for a client that reads its answer.
"""

import asyncio
import socket
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_SECONDS = 30.0
CONNECTIONS = "connections"  # the key of the state of a scope


class Connection(H11Protocol):
    """A connection of a client. h11 bounds the size of a head; uvicorn's other parser does not.

    It is closed if for `IDLE_SECONDS` no head of a request is complete, whatever else comes, or if
    nothing of an answer is read.
    """

    _watch: asyncio.TimerHandle | None = None
    _unread_bytes = 0  # of answers, when it was last looked

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for a request."""
        super().connection_made(transport)
        # An answer is written in two pieces. The second would wait until the client has
        # acknowledged the first, which takes 40 ms on Linux.
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state[CONNECTIONS] = self.connections
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing more."""
        super().connection_lost(exc)
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begins to wait for the next request."""
        super().on_response_complete()
        self._wait()

    def _wait(self) -> None:
        self._stop_waiting()
        self._unread_bytes = self.transport.get_write_buffer_size()
        self._watch = self.loop.call_later(IDLE_SECONDS, self._look)

    def _stop_waiting(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    def _look(self) -> None:
        """Closes the connection, unless a request is computed or an answer is being read."""
        unread_bytes = self.transport.get_write_buffer_size()
        is_answered = self.cycle is None or self.cycle.response_complete
        is_computed = not is_answered and not unread_bytes
        if is_computed or unread_bytes < self._unread_bytes:
            self._wait()
        else:
            self.transport.abort()

"""The hub's HTTP server (tornado) with bounds on connections and on the time of request heads.

JupyterHub makes the server without limits, and every local program reaches its port.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)
from tornado.iostream import IOStream

from runai.hub_service.processes.own_process import HEAD_WITHIN_S, max_connections

IDLE_S = 75
"""Longer than clients keep idle connections (aiohttp 15 s), as at the service."""
BODY_S = 60
"""The proxy sends bodies of at most 64 KiB, once they are complete."""


class BoundedServer(HTTPServer):
    """HTTP server that closes connections without a whole request head.

    `HTTPServer.configure(BoundedServer)` makes it the class of each `HTTPServer(…)`.
    """

    def initialize(
        self,
        *args: Any,  # noqa: ANN401 - tornado's own
        most_connections: int = 0,
        head_within_s: float = HEAD_WITHIN_S,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Store the bounds; `most_connections` 0: `max_connections()`."""
        limits = {"idle_connection_timeout": IDLE_S, "body_timeout": BODY_S}
        super().initialize(*args, **limits | kwargs)
        self._max_connections = most_connections or max_connections()
        self._head_within_s = head_within_s
        self._head_timers: dict[IOStream, asyncio.TimerHandle] = {}
        """Timers of the connections that wait for their first head, oldest first."""

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Serve a connection; above the bound close the oldest one without a head."""
        super().handle_stream(stream, address)
        timer = asyncio.get_running_loop().call_later(self._head_within_s, stream.close)
        self._head_timers[stream] = timer
        if len(self._connections) > self._max_connections:
            oldest = next(iter(self._head_timers))
            self._cancel_timer(oldest)
            oldest.close()

    def start_request(
        self,
        server_conn: Any,  # noqa: ANN401 - tornado's own
        request_conn: HTTPConnection,
    ) -> HTTPMessageDelegate:
        """Return the request's delegate, which ends the time limit at the head."""
        delegate = super().start_request(server_conn, request_conn)
        return _HeadObserver(delegate, lambda: self._cancel_timer(server_conn.stream))

    def on_close(self, server_conn: Any) -> None:  # noqa: ANN401
        """Forget a closed connection."""
        self._cancel_timer(server_conn.stream)
        super().on_close(server_conn)

    def _cancel_timer(self, stream: IOStream) -> None:
        if timer := self._head_timers.pop(stream, None):
            timer.cancel()


class _HeadObserver(HTTPMessageDelegate):
    """Delegate that reports a whole head, and passes everything on."""

    def __init__(self, delegate: HTTPMessageDelegate, at_head: Callable[[], None]) -> None:
        self._delegate, self._at_head = delegate, at_head
        self.data_received = delegate.data_received  # type: ignore[method-assign]
        self.finish = delegate.finish  # type: ignore[method-assign]
        self.on_connection_close = delegate.on_connection_close  # type: ignore[method-assign]

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._at_head()
        return self._delegate.headers_received(start_line, headers)

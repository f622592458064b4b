"""The listening socket and the HTTP server (uvicorn) with bounded heads and connections."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runai.hub_service.processes.own_process import HEAD_WITHIN_S, max_connections
from runai.hub_service.wire.errors import Unavailable

PORT_FREE_WITHIN_S = 15.0
"""Time-out for binding: the previous service may still be shutting down."""
STREAMS_END_WITHIN_S = 1
IDLE_CONNECTIONS_END_AFTER_S = 75
"""Longer than the clients' own time-outs (httpx 5 s, aiohttp 15 s, browsers 60 s).

Else the server could close a connection just as a client submits over it, and the client could
not tell whether the request arrived.
"""
MOST_HEAD_BYTES = 64 * 2**10
"""Maximum size of request line and headers. A cookie and a token take a few hundred bytes."""
LINGERS_S = 5.0
"""Time for the client to read a reply that precedes its request's end."""


async def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 selects any free port.

    Raises:
        Unavailable: another program uses the port.
    """
    deadline = asyncio.get_running_loop().time() + PORT_FREE_WITHIN_S
    while True:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # asyncio sets TCP_NODELAY only if the protocol is IPPROTO_TCP; small replies need it.
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as busy:
            listening.close()
            if busy.errno != errno.EADDRINUSE or asyncio.get_running_loop().time() > deadline:
                raise Unavailable(
                    f"{host}:{port} cannot be listened on: {busy.strerror}.",
                    hint="Another program uses the port.",
                ) from busy
            await asyncio.sleep(0.1)
        else:
            listening.listen(1024)
            return listening


@dataclass
class ConnectionBounds:
    """The bounds of one server's connections, and the connections that they may close."""

    most: int = field(default_factory=max_connections)
    head_within_s: float = HEAD_WITHIN_S
    without_head: dict["BoundedHeads", asyncio.TimerHandle] = field(default_factory=dict)
    """Connections that wait for a request's head, oldest first."""


class BoundedHeads(HttpToolsProtocol):
    """HTTP protocol with bounds on request heads and connections, which httptools lacks."""

    _head = 0
    """Bytes received for the current head, including data in the same chunks."""
    _is_in_body = False
    _is_answered = False
    """Whether the connection's last reply is written; later input is discarded."""

    def __init__(self, *args: Any, bounds: ConnectionBounds, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **kwargs)
        self._bounds = bounds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a head; above the bound close the oldest connection without one."""
        super().connection_made(transport)
        self._wait_for_head()
        if len(self.connections) > self._bounds.most:
            oldest = next(iter(self._bounds.without_head))
            oldest.stop_waiting()
            oldest.transport.abort()

    def _wait_for_head(self) -> None:
        """Begin the time limit of a request's head."""
        timer = self.loop.call_later(self._bounds.head_within_s, self.transport.close)
        self._bounds.without_head[self] = timer

    def stop_waiting(self) -> None:
        """End the time limit of the head."""
        if timer := self._bounds.without_head.pop(self, None):
            timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Parse the data; close the connection if the head is too large."""
        if self._is_answered:
            return
        self._head += len(data)
        super().data_received(data)
        # After parsing: a short head and the start of a long body may arrive in one chunk.
        if self._is_in_body or not self._head:
            return
        if self._head > MOST_HEAD_BYTES:
            self.transport.close()
        elif self not in self._bounds.without_head:
            self._wait_for_head()

    def on_headers_complete(self) -> None:
        """Stop counting: a middleware bounds the body."""
        self._is_in_body = True
        self.stop_waiting()
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = _ReplyTransport(self)

    def on_message_complete(self) -> None:
        """Reset the count for the next request's head."""
        self._is_in_body, self._head = False, 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Drop the last `_ReplyTransport`: it forms a reference cycle with the connection."""
        self.stop_waiting()
        super().connection_lost(exc)
        if self.cycle is not None:
            self.cycle.transport = self.transport

    def close(self) -> None:
        """Close the connection; if the client still sends, let it read the reply first.

        Data that arrives at a closed socket resets the connection, and the client loses the unread
        part of the reply (RFC 9112, 9.6).
        """
        if not self._is_in_body or self._is_answered or self.transport.is_closing():
            self.transport.close()
            return
        self._is_answered = True
        self.transport.write_eof()
        self.loop.call_later(LINGERS_S, self.transport.close)


class _ReplyTransport(asyncio.Transport):
    """Transport for one reply; closing it goes through `BoundedHeads.close`."""

    def __init__(self, protocol: BoundedHeads) -> None:
        super().__init__()
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._protocol.transport.write(data)

    def is_closing(self) -> bool:
        return self._protocol.transport.is_closing()

    def close(self) -> None:
        self._protocol.close()


class Server(uvicorn.Server):
    """uvicorn without signal handlers and without an access log, which would reveal queries."""

    def __init__(self, app: FastAPI, bounds: ConnectionBounds | None = None) -> None:
        protocol: Any = partial(BoundedHeads, bounds=bounds or ConnectionBounds())
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_keep_alive=IDLE_CONNECTIONS_END_AFTER_S,
                timeout_graceful_shutdown=STREAMS_END_WITHIN_S,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no handlers; `on_signal` does."""
        yield

    def stop(self) -> None:
        """Make `serve` return soon; it ends streams after a second."""
        self.should_exit = True

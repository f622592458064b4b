"""Listen, and serve an application until told to stop; signals are the process owner's."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from runai.hub_service.wire.errors import Unavailable

PORT_FREE_WITHIN_S = 15.0
"""The service before this one may still be leaving."""
STREAMS_END_WITHIN_S = 1
IDLE_CONNECTIONS_END_AFTER_S = 75
"""Longer than clients keep theirs (httpx 5 s, aiohttp 15 s, browsers a minute): else one is closed
in the instant in which somebody submits over it, who then cannot know whether that came.
"""
MOST_HEAD_BYTES = 64 * 2**10
"""Of a request: its line and headers; a cookie and a token are a few hundred."""
LINGERS_S = 5.0
"""A connection that is closed before its request has come whole: so long its client may read."""


async def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        Unavailable: somebody else keeps the port.
    """
    deadline = asyncio.get_running_loop().time() + PORT_FREE_WITHIN_S
    while True:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # By the protocol's number asyncio knows that a small answer is to be sent at once (Nagle).
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


class BoundedHeads(HttpToolsProtocol):
    """A parser in C, which has no bound of its own for what comes before a body."""

    _head = 0
    """Bytes of the head that is being read, and of what came with them."""
    _is_in_body = False
    _is_answered = False
    """For good: what still comes is discarded."""

    def data_received(self, data: bytes) -> None:
        """Read on, unless a head has no end."""
        if self._is_answered:
            return
        self._head += len(data)
        super().data_received(data)
        # Only now: a short head and the begin of a long body come in one piece.
        if self._head > MOST_HEAD_BYTES and not self._is_in_body:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Let what follows be as long as `bodies` allows."""
        self._is_in_body = True
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.transport = _Answer(self)

    def on_message_complete(self) -> None:
        """Count anew: what comes next is another request's head."""
        self._is_in_body, self._head = False, 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the last answer, which knows the connection: a circle for each."""
        super().connection_lost(exc)
        if self.cycle is not None:
            self.cycle.transport = self.transport

    def close(self) -> None:
        """Close the connection; if the client still sends, let it read the answer first.

        Input that meets a closed socket resets the connection, and what the client has not read by
        then is lost (RFC 9112, 9.6).
        """
        if not self._is_in_body or self._is_answered or self.transport.is_closing():
            self.transport.close()
            return
        self._is_answered = True
        self.transport.write_eof()
        self.loop.call_later(LINGERS_S, self.transport.close)


class _Answer(asyncio.Transport):
    """What a request's answer is written to."""

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
    """uvicorn without signal handlers and without an access log, whose lines would show queries."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedHeads,
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
        """Leave signals alone."""
        yield

    def stop(self) -> None:
        """End `serve` soon: streams are cut after a second."""
        self.should_exit = True

"""Listen, and serve an application until told to stop; signals are the process owner's."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Generator

import uvicorn
from fastapi import FastAPI

from runai.hub_service.errors import Unavailable

__all__ = ["Server", "listen"]

PORT_FREE_WITHIN_S = 15.0
"""The service before this one may still be leaving."""
STREAMS_END_WITHIN_S = 1


async def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        Unavailable: somebody else keeps the port.
    """
    deadline = asyncio.get_running_loop().time() + PORT_FREE_WITHIN_S
    while True:
        listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
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


class Server(uvicorn.Server):
    """uvicorn without signal handlers and without an access log, whose lines would show queries."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
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

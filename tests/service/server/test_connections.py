"""Connections of the service and the hub: bounded in number, and in time without a head."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from fastapi import FastAPI
from tornado import web
from tornado.netutil import bind_sockets

from runai.embedded.hub_server import BoundedServer
from runai.hub_service.processes.log_lines import DESCRIPTORS_EVERY_S, DescriptorShortage
from runai.hub_service.server.listener import ConnectionBounds, Server, listen

HALF_HEAD = b"GET / HTTP/1.1\r\nHost: here\r\nX-"
WHOLE_REQUEST = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
LONG_S = 3600.0
"""A time limit that no test reaches."""

Serve = Callable[..., AbstractAsyncContextManager[int]]


@asynccontextmanager
async def service(max_connections: int, head_within_s: float) -> AsyncIterator[int]:
    """Run the service's server; yield its port."""
    app = FastAPI()
    app.add_api_route("/", lambda: "here")
    server, listening = (
        Server(app, ConnectionBounds(max_connections, head_within_s)),
        await listen("127.0.0.1", 0),
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    yield listening.getsockname()[1]
    server.stop()
    await serving


class PageHandler(web.RequestHandler):
    """A page."""

    def get(self) -> None:
        """Answer."""
        self.write("here")


@asynccontextmanager
async def hub(max_connections: int, head_within_s: float) -> AsyncIterator[int]:
    """Run the hub's server as JupyterHub makes it; yield its port."""
    server = BoundedServer(
        web.Application([("/", PageHandler)]),
        xheaders=True,
        most_connections=max_connections,
        head_within_s=head_within_s,
    )
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    yield sockets[0].getsockname()[1]
    server.stop()
    await server.close_all_connections()


both_servers = pytest.mark.parametrize("serve", [service, hub])


async def open_and_send(
    port: int, sent: bytes
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    return reader, writer


async def read_reply(reader: asyncio.StreamReader) -> bytes:
    """Return a response's status line, and read the response."""
    head = await reader.readuntil(b"\r\n\r\n")
    [length] = [
        int(line.partition(b":")[2])
        for line in head.splitlines()
        if line.lower().startswith(b"content-length")
    ]
    await reader.readexactly(length)
    return head.splitlines()[0]


@both_servers
@pytest.mark.parametrize("sent", [b"", b"G", HALF_HEAD], ids=["nothing", "a letter", "half a head"])
async def test_connection_without_a_whole_request_head_is_closed(serve: Serve, sent: bytes):
    async with asyncio.timeout(60), serve(max_connections=10, head_within_s=0.2) as port:
        reader, writer = await open_and_send(port, sent)

        assert await reader.read() == b""
        writer.close()


@both_servers
async def test_trickled_request_head_does_not_extend_the_head_timeout(serve: Serve):
    async with asyncio.timeout(60), serve(max_connections=10, head_within_s=0.5) as port:
        reader, writer = await open_and_send(port, HALF_HEAD)
        closed = asyncio.ensure_future(reader.read())
        while not closed.done():
            writer.write(b"x")
            await asyncio.wait([closed], timeout=0.05)

        assert closed.exception() is not None or closed.result() == b""
        writer.close()


@both_servers
async def test_connection_after_a_whole_request_head_outlasts_the_head_timeout(serve: Serve):
    async with asyncio.timeout(60), serve(max_connections=10, head_within_s=1.0) as port:
        reader, writer = await open_and_send(port, WHOLE_REQUEST)
        assert b" 200 " in await read_reply(reader)
        late, other = await open_and_send(port, HALF_HEAD)
        assert await late.read() == b""  # the time of a head has passed

        writer.write(WHOLE_REQUEST)

        assert b" 200 " in await read_reply(reader)
        writer.close()
        other.close()


async def test_connection_with_an_incomplete_second_request_head_is_closed():
    """The hub's server closes it at its idle time-out."""
    async with asyncio.timeout(60), service(max_connections=10, head_within_s=0.2) as port:
        reader, writer = await open_and_send(port, WHOLE_REQUEST)
        assert b" 200 " in await read_reply(reader)

        writer.write(HALF_HEAD)

        assert await reader.read() == b""
        writer.close()


@both_servers
async def test_requests_are_served_beside_more_half_request_heads_than_the_bound(serve: Serve):
    async with asyncio.timeout(60), serve(max_connections=5, head_within_s=LONG_S) as port:
        persistent, writer = await open_and_send(port, WHOLE_REQUEST)
        assert b" 200 " in await read_reply(persistent)
        halves = [await open_and_send(port, HALF_HEAD) for _ in range(20)]

        reader, other = await open_and_send(port, WHOLE_REQUEST)

        assert b" 200 " in await read_reply(reader)
        writer.write(WHOLE_REQUEST)  # a connection with a head is none of those that are closed
        assert b" 200 " in await read_reply(persistent)
        # The 20 half heads are above the bound of 5: the oldest 15 are closed.
        oldest = [await reader.read() for reader, _ in halves[:15]]
        assert oldest == [b""] * 15
        for each in (writer, other, *(writer for _, writer in halves)):
            each.close()


@both_servers
async def test_connection_beyond_the_bound_of_served_connections_is_closed(serve: Serve):
    async with asyncio.timeout(60), serve(max_connections=3, head_within_s=LONG_S) as port:
        served = [await open_and_send(port, WHOLE_REQUEST) for _ in range(3)]
        for reader, _ in served:
            assert b" 200 " in await read_reply(reader)

        reader, writer = await open_and_send(port, b"")

        assert await reader.read() == b""
        for each in (writer, *(writer for _, writer in served)):
            each.close()


def test_shortage_of_file_descriptors_is_logged_once_a_minute():
    now = 0.0
    shortage = DescriptorShortage(clock=lambda: now)

    def logged(failed: OSError) -> str:
        record = logging.LogRecord(
            "asyncio", logging.ERROR, "", 0, "accept", (), (OSError, failed, None)
        )
        return logging.Formatter().format(record) if shortage.filter(record) else ""

    full = OSError(errno.EMFILE, "Too many open files")
    line = "No file descriptor is free: connections wait ([Errno 24] Too many open files)."

    assert [logged(full) for _ in range(3)] == [line, "", ""]
    assert "Broken pipe" in logged(OSError(errno.EPIPE, "Broken pipe"))
    now = DESCRIPTORS_EVERY_S
    assert [logged(full), logged(full)] == [line, ""]

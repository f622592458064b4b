"""The head of a request is bounded, as its body is: only a sender that exceeds it is cut off."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

import pytest

from runai.hub_service.api.middleware.request_bodies import MOST_BODY_BYTES
from runai.hub_service.server.listener import MOST_HEAD_BYTES, listen

PIECE = 4096


async def sent_until_cut_off(url: str, begin: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send a request without an end; return its length when the service closes, and the answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    sent = 0
    try:
        writer.write(begin)
        while sent < 100 * MOST_HEAD_BYTES and not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0)
        told = await reader.read()
    except ConnectionError:
        told = b""
    finally:
        writer.close()
    return sent, told


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        pytest.param(b"GET /", b"x" * PIECE, id="a path"),
        pytest.param(b"GET / HTTP/1.1\r\nX-Long: ", b"x" * PIECE, id="one header"),
        pytest.param(b"GET / HTTP/1.1\r\n", b"X-Many: x\r\n" * (PIECE // 11), id="headers"),
    ],
)
async def test_a_head_without_an_end_is_cut_off(simulated, begin, piece):
    async with asyncio.timeout(60):
        sent, told = await sent_until_cut_off(simulated.url, begin, piece)

    assert sent < 100 * MOST_HEAD_BYTES
    assert b" 200 " not in told


async def test_many_requests_over_one_connection_are_counted_each_for_itself(simulated):
    parts = urlsplit(simulated.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    one = (
        f"GET {parts.path}health/live HTTP/1.1\r\n"
        f"Host: {parts.netloc}\r\nX-Long: {'x' * PIECE}\r\n\r\n"
    ).encode()

    async with asyncio.timeout(60):
        for _ in range(2 * MOST_HEAD_BYTES // PIECE):
            writer.write(one)
            assert b" 200 " in await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2])
                for line in head.splitlines()
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
    writer.close()


async def test_an_answer_is_read_whole_by_a_client_that_still_sends(simulated):
    """Discarding the rest of the body prevents a connection reset, which would lose the answer."""
    parts = urlsplit(simulated.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        f"POST {parts.path}api/v1/plan HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: Bearer made-up\r\nContent-Length: {MOST_BODY_BYTES}\r\n\r\n".encode()
    )
    async with asyncio.timeout(60):
        begin = await reader.readexactly(1)
        for _ in range(MOST_BODY_BYTES // PIECE):
            writer.write(b"x" * PIECE)
            await writer.drain()
        writer.write(f"GET {parts.path}health/live HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        told = begin + await reader.read()
    writer.close()

    assert told.startswith(b"HTTP/1.1 401 ")
    assert told.endswith(b"}")
    assert b"\r\nconnection: close\r\n" in told
    assert b" 200 " not in told, "what follows the body is no request"


async def test_a_small_answer_is_sent_at_once():
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    async def meet(_reader, writer):
        kept = writer.get_extra_info("socket")
        told.set_result(kept.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(meet, sock=await listen("127.0.0.1", 0)) as server:
        host, port = server.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(host, port)
        assert await told
        writer.close()

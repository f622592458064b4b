"""The head of a request is bounded, as its body is: only a sender that exceeds it is cut off."""

from __future__ import annotations

import asyncio
import socket
from urllib.parse import urlsplit

import pytest

from runai.hub_service.api.middleware.request_bodies import MOST_BODY_BYTES
from runai.hub_service.server.listener import MOST_HEAD_BYTES, listen

PIECE_BYTES = 4096


async def sent_until_cut_off(url: str, head_start: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send a request without an end; return its length when the service closes, and the answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    sent = 0
    try:
        writer.write(head_start)
        while sent < 100 * MOST_HEAD_BYTES and not reader.at_eof():
            writer.write(piece)
            await writer.drain()
            sent += len(piece)
            await asyncio.sleep(0)
        reply = await reader.read()
    except ConnectionError:
        reply = b""
    finally:
        writer.close()
    return sent, reply


@pytest.mark.parametrize(
    ("head_start", "piece"),
    [
        pytest.param(b"GET /", b"x" * PIECE_BYTES, id="endless path"),
        pytest.param(b"GET / HTTP/1.1\r\nX-Long: ", b"x" * PIECE_BYTES, id="endless header"),
        pytest.param(
            b"GET / HTTP/1.1\r\n",
            b"X-Many: x\r\n" * (PIECE_BYTES // 11),
            id="endless headers",
        ),
    ],
)
async def test_endless_request_head_is_cut_off(simulated, head_start, piece):
    async with asyncio.timeout(60):
        sent, reply = await sent_until_cut_off(simulated.url, head_start, piece)

    assert sent < 100 * MOST_HEAD_BYTES
    assert b" 200 " not in reply


async def test_request_head_limit_applies_to_each_request_of_a_connection(simulated):
    parts = urlsplit(simulated.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    request = (
        f"GET {parts.path}health/live HTTP/1.1\r\n"
        f"Host: {parts.netloc}\r\nX-Long: {'x' * PIECE_BYTES}\r\n\r\n"
    ).encode()

    async with asyncio.timeout(60):
        for _ in range(2 * MOST_HEAD_BYTES // PIECE_BYTES):
            writer.write(request)
            assert b" 200 " in await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.partition(b":")[2])
                for line in head.splitlines()
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
    writer.close()


async def test_refusal_is_read_whole_by_a_client_that_still_sends_its_body(simulated):
    """Discarding the rest of the body prevents a connection reset, which would lose the answer."""
    parts = urlsplit(simulated.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(
        f"POST {parts.path}api/v1/plan HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        f"Authorization: Bearer made-up\r\nContent-Length: {MOST_BODY_BYTES}\r\n\r\n".encode()
    )
    async with asyncio.timeout(60):
        head_start = await reader.readexactly(1)
        for _ in range(MOST_BODY_BYTES // PIECE_BYTES):
            writer.write(b"x" * PIECE_BYTES)
            await writer.drain()
        writer.write(f"GET {parts.path}health/live HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        reply = head_start + await reader.read()
    writer.close()

    assert reply.startswith(b"HTTP/1.1 401 ")
    assert reply.endswith(b"}")
    assert b"\r\nconnection: close\r\n" in reply
    assert b" 200 " not in reply, "what follows the body is no request"


async def test_small_reply_is_sent_without_nagle_delay():
    loop = asyncio.get_running_loop()
    no_delay: asyncio.Future[int] = loop.create_future()

    async def handle_client(_reader, writer):
        connection_socket = writer.get_extra_info("socket")
        no_delay.set_result(connection_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async with await asyncio.start_server(
        handle_client, sock=await listen("127.0.0.1", 0)
    ) as server:
        host, port = server.sockets[0].getsockname()
        _, writer = await asyncio.open_connection(host, port)
        assert await no_delay
        writer.close()

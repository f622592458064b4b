"""Websockets through the proxy: kernels, terminals."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import WSMsgType

from upstream_server import Upstream

KERNEL_PROTOCOL = "v1.kernel.websocket.jupyter.org"
SOCKET_PATH = "/user/ana/ws"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        pytest.param(["other", KERNEL_PROTOCOL], KERNEL_PROTOCOL, id="known protocol"),
        pytest.param(["other"], None, id="unknown protocol"),
        pytest.param([], None, id="no protocol"),
    ],
)
async def test_websocket_subprotocol_is_chosen_by_the_server(
    browser: aiohttp.ClientSession, offered: list[str], chosen: str | None
):
    async with browser.ws_connect(SOCKET_PATH, protocols=offered) as socket:
        assert socket.protocol == chosen


async def test_websocket_messages_pass_the_proxy_in_both_directions_in_order(
    browser: aiohttp.ClientSession,
):
    async with browser.ws_connect(SOCKET_PATH) as socket:
        await socket.send_str("text ü")
        await socket.send_bytes(b"\x00\xff")
        received = [await socket.receive(), await socket.receive()]

    assert [(message.type, message.data) for message in received] == [
        (WSMsgType.TEXT, "text ü"),
        (WSMsgType.BINARY, b"\x00\xff"),
    ]


async def test_websocket_message_of_20_mib_passes_the_proxy(browser: aiohttp.ClientSession):
    large = b"x" * (20 * 1024 * 1024)
    async with browser.ws_connect(SOCKET_PATH, max_msg_size=0) as socket:
        await socket.send_bytes(large)
        received = await socket.receive()

    assert received.data == large


async def test_websocket_ping_is_answered_by_the_server(browser: aiohttp.ClientSession):
    async with browser.ws_connect(SOCKET_PATH, autoping=False) as socket:
        await socket.ping(b"there?")
        received = await socket.receive()

    assert (received.type, received.data) == (WSMsgType.PONG, b"there?")


@pytest.mark.parametrize("code", [1000, 1011, 4001])
async def test_websocket_close_code_of_the_server_reaches_the_browser(
    browser: aiohttp.ClientSession, code: int
):
    async with browser.ws_connect(SOCKET_PATH, autoclose=False) as socket:
        await socket.send_str(f"close {code}")
        received = await socket.receive()

    assert (received.type, received.data) == (WSMsgType.CLOSE, code)
    assert received.extra == "as you wish"  # the reason that the server gives


@pytest.mark.parametrize("code", [1000, 4001])
async def test_websocket_close_code_of_the_browser_reaches_the_server(
    browser: aiohttp.ClientSession, upstream: Upstream, code: int
):
    async with browser.ws_connect(SOCKET_PATH) as socket:
        await socket.close(code=code)
        async with asyncio.timeout(60):
            assert await upstream.close_code == code


async def test_dropped_server_connection_closes_the_browsers_websocket(
    browser: aiohttp.ClientSession,
):
    async with browser.ws_connect(SOCKET_PATH) as socket:
        await socket.send_str("drop")
        async with asyncio.timeout(60):
            received = await socket.receive()

    assert received.type in {WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING}


async def test_dropped_browser_connection_closes_the_servers_websocket(
    browser: aiohttp.ClientSession, upstream: Upstream
):
    async with browser.ws_connect(SOCKET_PATH) as socket:
        await socket.send_str("hello")
        await socket.receive()
        connection = socket._response.connection
        assert connection is not None
        assert connection.transport is not None
        connection.transport.abort()
        async with asyncio.timeout(60):
            assert await upstream.close_code in {1001, 1006}


async def test_refused_websocket_handshake_status_reaches_the_browser(
    browser: aiohttp.ClientSession,
):
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        await browser.ws_connect("/user/ana/ws-refused")

    assert refused.value.status == 403


async def test_websocket_handshake_forwards_origin_and_cookies(
    browser: aiohttp.ClientSession, upstream: Upstream
):
    headers = {"Origin": "http://127.0.0.1:8000", "Cookie": "token=1"}
    async with browser.ws_connect(SOCKET_PATH, headers=headers):
        received = upstream.requests[-1].headers

    assert (received["Origin"], received["Cookie"]) == ("http://127.0.0.1:8000", "token=1")

"""Pass one request on to the server behind a route, and its answer back, neither held in memory.

Knows HTTP and websockets: which headers end at a proxy, streaming in both directions, subprotocols,
close codes, who gave up first. Which server it is, and what to show when it is gone, is up to the
caller (`runai.embedded.proxy`).
"""

import asyncio
from collections.abc import Callable, Iterable

import aiohttp
from aiohttp import WSCloseCode, WSMsgType, hdrs, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

__all__ = [
    "MAX_HEADER_BYTES",
    "TargetGone",
    "forward_request",
    "forward_websocket",
    "is_websocket",
    "new_session",
]

MAX_HEADER_BYTES = 64 * 1024  # tornado's limit: cookies of many servers of one host add up
CONNECT_SECONDS = 10.0
# Less than the 5 s after which uvicorn closes an idle connection: we must let go first, or a POST
# may be sent into a connection that is just being closed.
IDLE_SECONDS = 4.0
CLOSE_SECONDS = 2.0

_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# What a client library adds by itself; the browser's own are passed on, and no others.
_NEVER_INVENTED = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


_End = web.WebSocketResponse | aiohttp.ClientWebSocketResponse
"""One end of a websocket: both have the same methods."""


class TargetGone(Exception):
    """The server behind a route does not answer; nothing was sent to the browser yet."""


def new_session() -> aiohttp.ClientSession:
    """Make the pool of connections to the servers behind: no cookies, no limit, no time limit."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,  # bodies pass as they are
        skip_auto_headers=_NEVER_INVENTED,
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
    )


def is_websocket(request: web.BaseRequest) -> bool:
    """Say whether the browser wants a websocket."""
    return request.headers.get(hdrs.UPGRADE, "").lower() == "websocket"


async def forward_request(
    request: web.BaseRequest, session: aiohttp.ClientSession, target: str
) -> web.StreamResponse:
    """Send the request on, stream the answer back as it comes.

    Raises:
        TargetGone: the server could not be reached, or hung up before it answered.
    """
    if request.headers.get(hdrs.EXPECT, "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # it is no part of the answer
    try:
        answer = await session.request(
            request.method,
            URL(target + request.raw_path, encoded=True),
            headers=_onward_headers(request),
            data=request.content if request.body_exists else None,
            allow_redirects=False,
        )
    except (aiohttp.ClientConnectionError, TimeoutError) as gone:
        raise TargetGone(str(gone)) from gone
    async with answer:
        response = web.StreamResponse(status=answer.status, reason=answer.reason)
        response.headers.extend(_end_to_end(answer.headers))
        await response.prepare(request)
        try:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
        except aiohttp.ClientError:
            # Half an answer must not look like a whole one.
            if request.transport is not None:
                request.transport.abort()
            return response
        await response.write_eof()
    return response


async def forward_websocket(
    request: web.BaseRequest,
    session: aiohttp.ClientSession,
    target: str,
    touch: Callable[[], None],
) -> web.StreamResponse:
    """Open the websocket on the other side first, then let messages, pings and close codes through.

    `touch` is called at each message, not at pings: a forgotten tab is not activity.

    Raises:
        TargetGone: the server could not be reached.
    """
    try:
        upstream = await session.ws_connect(
            URL(target + request.raw_path, encoded=True),
            protocols=_subprotocols(request),
            headers=_without_handshake(_onward_headers(request)),
            max_msg_size=0,
            autoping=False,
            autoclose=False,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
        )
    except aiohttp.WSServerHandshakeError as refused:
        return web.Response(status=refused.status, text=refused.message)
    except (aiohttp.ClientConnectionError, TimeoutError) as gone:
        raise TargetGone(str(gone)) from gone
    try:
        browser = web.WebSocketResponse(
            protocols=[upstream.protocol] if upstream.protocol else [],
            max_msg_size=0,
            autoping=False,
            autoclose=False,
            compress=False,
            timeout=CLOSE_SECONDS,
        )
        await browser.prepare(request)
        await _relay_both_ways(browser, upstream, touch)
    finally:
        await upstream.close(code=WSCloseCode.GOING_AWAY)
    return browser


async def _relay_both_ways(
    browser: web.WebSocketResponse,
    upstream: aiohttp.ClientWebSocketResponse,
    touch: Callable[[], None],
) -> None:
    """Relay until one side closes, then close the other with the same code."""

    async def until_closed(source: _End, sink: _End) -> tuple[int, bytes]:
        while True:
            message = await source.receive()
            match message.type:
                case WSMsgType.TEXT:
                    touch()
                    await sink.send_str(message.data)
                case WSMsgType.BINARY:
                    touch()
                    await sink.send_bytes(message.data)
                case WSMsgType.PING:
                    await sink.ping(message.data)
                case WSMsgType.PONG:
                    await sink.pong(message.data)
                case WSMsgType.CLOSE:
                    return message.data or WSCloseCode.OK, (message.extra or "").encode()
                case _:  # the connection broke: 1006, which may not be sent
                    return WSCloseCode.GOING_AWAY, b""

    outward = asyncio.create_task(until_closed(browser, upstream))
    inward = asyncio.create_task(until_closed(upstream, browser))
    try:
        await asyncio.wait({outward, inward}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        first = _outcome(outward) or _outcome(inward) or (int(WSCloseCode.GOING_AWAY), b"")
        for task in (outward, inward):
            task.cancel()
        await asyncio.gather(outward, inward, return_exceptions=True)
        code, reason = first
        await asyncio.gather(
            upstream.close(code=code, message=reason),
            browser.close(code=code, message=reason),
            return_exceptions=True,
        )


def _outcome(task: "asyncio.Task[tuple[int, bytes]]") -> tuple[int, bytes] | None:
    """Return how a direction ended; None: it has not, or it could not write to the other side."""
    if not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()


def _onward_headers(request: web.BaseRequest) -> CIMultiDict[str]:
    """Drop what ends here and add who asked: appended, for there may be a proxy before us."""
    headers = _end_to_end(request.headers)
    headers.popall(hdrs.EXPECT, None)
    host = request.headers.get(hdrs.HOST, "")
    scheme = "https" if request.secure else "http"
    port = host.rpartition(":")[2] if host.rpartition(":")[2].isdigit() else ""
    for name, value in (
        ("X-Forwarded-For", request.remote or ""),
        ("X-Forwarded-Proto", scheme),
        ("X-Forwarded-Port", port or {"http": "80", "https": "443"}[scheme]),
    ):
        before = headers.popall(name, [])
        headers[name] = ",".join([*before, value])
    headers.setdefault("X-Forwarded-Host", host)
    return headers


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Leave out the headers that concern one connection only (RFC 9110, 7.6.1)."""
    named = {
        name.strip().lower()
        for value in headers.getall(hdrs.CONNECTION, [])
        for name in value.split(",")
    }
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in _HOP_BY_HOP and name.lower() not in named
    )


def _without_handshake(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Leave out what each websocket handshake makes anew."""
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if not name.lower().startswith("sec-websocket-")
    )


def _subprotocols(request: web.BaseRequest) -> Iterable[str]:
    return [
        name.strip()
        for value in request.headers.getall(hdrs.SEC_WEBSOCKET_PROTOCOL, [])
        for name in value.split(",")
        if name.strip()
    ]

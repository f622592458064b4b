"""A server behind the proxy that answers as each test needs: streams, bodies, websockets.

Started by the fixture `upstream` of tests/embedded; a module, so that tests can name its type.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import WSCloseCode, WSMsgType, web

PREFIX = "/user/ana"
MIB = 1024 * 1024


@dataclass
class Upstream:
    """A single-user server, as far as a proxy sees it."""

    url: str = ""
    requests: list[web.Request] = field(default_factory=list)
    may_continue: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a test to let a stream continue."""
    browser_left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once a stream has noticed that the browser left."""
    close_code: asyncio.Future[int] = field(default_factory=asyncio.Future)
    """The close code of a websocket."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=0)
        app.add_routes(
            [
                web.get(PREFIX + "/events", self.events),
                web.get(PREFIX + "/large", self.large),
                web.get(PREFIX + "/broken", self.broken),
                web.post(PREFIX + "/checksum", self.checksum),
                web.get(PREFIX + "/ws", self.websocket),
                web.get(PREFIX + "/ws-refused", self.refused),
                web.route("*", "/{tail:.*}", self.echo),
            ]
        )
        return app

    async def echo(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        answer = {
            "method": request.method,
            "path": request.raw_path,
            "headers": [[name, value] for name, value in request.headers.items()],
            "body": (await request.read()).decode(),
        }
        response = web.json_response(answer, status=int(request.query.get("status", "200")))
        response.headers.add("Set-Cookie", "a=1; Path=/user/ana/")
        response.headers.add("Set-Cookie", "b=2; Path=/user/ana/")
        response.headers["Connection"] = "X-Private, keep-alive"
        response.headers["X-Private"] = "ends here"
        return response

    async def events(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await response.write(b"data: first\n\n")
            await self.may_continue.wait()
            await response.write(b"data: second\n\n")
        except (asyncio.CancelledError, ConnectionResetError):
            self.browser_left.set()
            raise
        return response

    async def large(self, request: web.Request) -> web.StreamResponse:
        size = int(request.query["mib"]) * MIB
        response = web.StreamResponse(headers={"Content-Length": str(size)})
        await response.prepare(request)
        with suppress(ConnectionResetError):
            for number in range(size // MIB if request.method == "GET" else 0):
                await response.write(number.to_bytes(4, "big") * (MIB // 4))
        return response

    async def broken(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half of")
        assert request.transport is not None
        request.transport.abort()
        return response

    async def checksum(self, request: web.Request) -> web.Response:
        self.requests.append(request)
        digest = hashlib.sha256()
        async for chunk in request.content.iter_any():
            digest.update(chunk)
        return web.Response(text=digest.hexdigest())

    async def refused(self, _request: web.Request) -> web.Response:
        return web.Response(status=403, text="not yours")

    async def websocket(self, request: web.Request) -> web.WebSocketResponse:
        self.requests.append(request)
        socket = web.WebSocketResponse(
            protocols=["v1.kernel.websocket.jupyter.org"], autoping=False, max_msg_size=0
        )
        await socket.prepare(request)
        try:
            async for message in socket:
                match message.type:
                    case WSMsgType.TEXT if message.data.startswith("close "):
                        await socket.close(
                            code=int(message.data.split()[1]), message=b"as you wish"
                        )
                    case WSMsgType.TEXT if message.data == "drop":
                        assert request.transport is not None
                        request.transport.abort()
                    case WSMsgType.TEXT:
                        await socket.send_str(message.data)
                    case WSMsgType.BINARY:
                        await socket.send_bytes(message.data)
                    case WSMsgType.PING:
                        await socket.pong(message.data)
        finally:  # cancelled if the connection broke
            if not self.close_code.done():
                self.close_code.set_result(socket.close_code or WSCloseCode.ABNORMAL_CLOSURE)
        return socket

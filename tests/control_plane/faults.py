"""An API server that misbehaves on demand: a proxy before the real one.

    with FaultyServer(kubeconfig) as server:
        Scheduler(server.kubeconfig)
        server.refuse("POST", "/binding", status=409)   # the next such request
        server.cut()                                    # all open connections break

A fault selects requests by method and by a part of their path and query, or of their body.
The proxy speaks plain HTTP to the client and TLS to the server, with the client's own token; it
runs in a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from base64 import b64decode
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import aiohttp
from aiohttp import web

from control_plane.sockets import all_closed

STARTED_WITHIN_S = 90
_HOP_BY_HOP = {"connection", "content-length", "transfer-encoding", "host", "content-encoding"}


@dataclass
class _Fault:
    method: str
    part: str
    times: int
    answer: Callable[[], web.StreamResponse] | None
    """None: the request is carried out, and the connection lost before the answer."""
    gate: asyncio.Event | None = None
    """If set: the request is carried out once the gate opens, without any other fault."""


class FaultyServer:
    """A proxy that injects faults into calls of the API server."""

    def __init__(self, kubeconfig: Path) -> None:
        """Prepare a proxy for the server that a kubeconfig names."""
        self._settings = json.loads(kubeconfig.read_text())
        self._folder = kubeconfig.parent
        cluster = self._settings["clusters"][0]["cluster"]
        self._upstream = cluster["server"]
        trusted = b64decode(cluster["certificate-authority-data"]).decode()
        self._tls = ssl.create_default_context(cadata=trusted)
        self._faults: list[_Fault] = []
        self._open: set[asyncio.Task[object]] = set()
        self._in_flight: set[asyncio.Future[aiohttp.ClientResponse]] = set()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = threading.Event()
        self._killing_request = ("", "", False)
        self.is_down = False
        """Whether every request loses its connection."""
        self.requests: list[tuple[str, str]] = []
        """Requests so far: method and path with its query."""
        self.kubeconfig = Path()

    def __enter__(self) -> Self:
        """Start to listen."""
        self._thread.start()
        assert self._begun.wait(STARTED_WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; connections that are open break."""
        self.cut()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STARTED_WITHIN_S)
        assert not self._thread.is_alive()

    def refuse(
        self, method: str, part: str, *, status: int, times: int = 1, wait: str = ""
    ) -> None:
        """Answer the next requests that contain `part` with an error."""

        def answer() -> web.StreamResponse:
            body = {"kind": "Status", "status": "Failure", "code": status, "message": "on purpose"}
            headers = {"Retry-After": wait} if wait else {}
            return web.json_response(body, status=status, headers=headers)

        self._faults.append(_Fault(method, part, times, answer))

    def lose_answer(self, method: str, part: str, *, times: int = 1) -> None:
        """Carry the next such requests out, and break the connection before the answer."""
        self._faults.append(_Fault(method, part, times, None))

    def hold(self, method: str, part: str) -> Callable[[], None]:
        """Delay the next such request; return a function that lets it continue."""
        gate = asyncio.Event()
        self._faults.append(_Fault(method, part, 1, None, gate))

        def release() -> None:
            self._loop.call_soon_threadsafe(gate.set)

        return release

    def die_at(self, method: str, part: str, *, after: bool = False) -> None:
        """Lose every connection from such a request on; `after`: that one is carried out."""
        self._killing_request = (method, part, after)

    def revive(self) -> None:
        """Forward all requests again."""
        self._killing_request = ("", "", False)
        self.is_down = False

    @property
    def are_over(self) -> bool:
        """Return True if every injected fault has occurred."""
        return not any(fault.times for fault in self._faults)

    def cut(self) -> None:
        """Break all connections that wait for data, such as watches."""

        def cancel() -> None:
            for task in self._open:
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(all_closed())

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        patience = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=patience) as session:
            app = web.Application()

            async def pass_on(request: web.Request) -> web.StreamResponse:
                return await self._pass_on(session, request)

            app.router.add_route("*", "/{path:.*}", pass_on)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._write_kubeconfig(runner.addresses[0][1])
            self._begun.set()
            await self._stop.wait()
            await runner.cleanup()
            while self._in_flight:
                await asyncio.wait(self._in_flight)

    def _write_kubeconfig(self, port: int) -> None:
        self._settings["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
        self.kubeconfig = self._folder / f"faulty-{port}.kubeconfig"
        self.kubeconfig.write_text(json.dumps(self._settings))

    async def _pass_on(
        self, session: aiohttp.ClientSession, request: web.Request
    ) -> web.StreamResponse:
        task = asyncio.current_task()
        assert task is not None
        self.requests.append((request.method, request.path_qs))
        self._open.add(task)
        try:
            body = await request.read()
            request_text = f"{request.path_qs}\n{body.decode(errors='replace')}"
            fault = self._fault(request.method, request_text)
            is_deadly = self._is_deadly(request.method, request_text)
            if self.is_down:
                raise ConnectionResetError
            if is_deadly:
                self.is_down = True
                if not self._killing_request[2]:
                    raise ConnectionResetError
                fault = _Fault(request.method, "", 1, None)
            if fault is not None and fault.gate is not None:
                await fault.gate.wait()
                fault = None
            if fault is not None and fault.answer is not None:
                return fault.answer()
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP_BY_HOP}
            answer = await self._forward(
                session.request(
                    request.method, self._upstream + request.path_qs, headers=headers, data=body
                )
            )
            try:
                if fault is not None:
                    await answer.read()
                    raise ConnectionResetError
                return await _copy_response(request, answer)
            finally:
                _drop(answer)
        except (asyncio.CancelledError, ConnectionError, aiohttp.ClientError):
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)
        finally:
            self._open.discard(task)

    async def _forward(
        self, request: Coroutine[object, object, aiohttp.ClientResponse]
    ) -> aiohttp.ClientResponse:
        """Send a request to the real server; a connection in setup is not dropped half-way."""
        sending = asyncio.ensure_future(request)
        self._in_flight.add(sending)
        sending.add_done_callback(self._in_flight.discard)
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            sending.add_done_callback(_drop_unread)
            raise

    def _is_deadly(self, method: str, request_text: str) -> bool:
        killing_method, part, _after = self._killing_request
        return bool(killing_method) and method == killing_method and part in request_text

    def _fault(self, method: str, request_text: str) -> _Fault | None:
        for fault in self._faults:
            if fault.times and fault.method == method and fault.part in request_text:
                fault.times -= 1
                return fault
        return None


def _drop_unread(sending: asyncio.Future[aiohttp.ClientResponse]) -> None:
    if not sending.cancelled() and sending.exception() is None:
        _drop(sending.result())


def _drop(answer: aiohttp.ClientResponse) -> None:
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()


async def _copy_response(
    request: web.Request, answer: aiohttp.ClientResponse
) -> web.StreamResponse:
    headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP}
    copy = web.StreamResponse(status=answer.status, headers=headers)
    await copy.prepare(request)
    async for chunk in answer.content.iter_any():
        await copy.write(chunk)
    await copy.write_eof()
    return copy

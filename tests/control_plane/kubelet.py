"""The logs of a node's pods, served like a kubelet.

    with Kubelet() as kubelet:
        add_node(plane, "gpu-0", gpus=1, status=kubelet.status)
        kubelet.write("train-0", "epoch 1")
        kubelet.close("train-0")              # its container has ended

The API server asks here for `pods/log`; kwok simulates the rest of the kubelet. Serves TLS, in a
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from control_plane.certificates import Authority
from control_plane.sockets import all_closed

WITHIN_S = 90


class Kubelet:
    """A server of container logs for one or more nodes."""

    def __init__(self) -> None:
        """Create the server; it listens only inside `with`."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._begun = threading.Event()
        self._stop = asyncio.Event()
        self._written: dict[str, list[bytes]] = {}
        self._closed: set[str] = set()
        self._change = asyncio.Event()
        self._port = 0
        self.requests: list[str] = []
        """Requests so far: paths with their queries."""

    def __enter__(self) -> Self:
        """Start to listen."""
        self._thread.start()
        assert self._begun.wait(WITHIN_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop; open log streams break."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()

    @property
    def status(self) -> dict[str, Any]:
        """Return the part of a node's status with the address of its kubelet."""
        return {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }

    def write(self, pod: str, *lines: str, end: str = "\n") -> None:
        """Append lines to a pod's container log."""
        written = [f"{line}{end}".encode() for line in lines]
        self._do(lambda: self._written.setdefault(pod, []).extend(written))

    def close(self, pod: str) -> None:
        """End a pod's container log."""
        self._do(lambda: self._closed.add(pod))

    def _do(self, change: Any) -> None:
        def apply_change() -> None:
            change()
            self._change.set()
            self._change = asyncio.Event()

        self._loop.call_soon_threadsafe(apply_change)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(all_closed())

    async def _serve(self) -> None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        with tempfile.TemporaryDirectory() as folder:
            Authority().server(["localhost"], ["127.0.0.1"]).write(Path(folder), "kubelet")
            tls.load_cert_chain(f"{folder}/kubelet.crt", f"{folder}/kubelet.key")
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._log)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        self._port = runner.addresses[0][1]
        self._begun.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _log(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request.path_qs)
        pod = request.match_info["pod"]
        answer = web.StreamResponse()
        await answer.prepare(request)
        tail = request.query.get("tailLines")
        written = self._written.get(pod, [])
        sent = 0 if tail is None else max(0, len(written) - int(tail))
        while True:
            change = self._change
            lines = self._written.get(pod, [])
            for line in lines[sent:]:
                await answer.write(line)
            sent = len(lines)
            if pod in self._closed or request.query.get("follow") != "true":
                return answer
            await change.wait()

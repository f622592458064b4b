"""A real proxy in front of real servers, and a real platform.

| fixture | value |
|---|---|
| `upstream` | an aiohttp server on a free port with answers set by each test |
| `hub` | another one, in place of JupyterHub |
| `proxies` | creates CaddyProxy objects in front of `hub`, and ends their processes |
| `proxy` | a CaddyProxy listening on a free port, with the route `/user/ana/` to `upstream` |
| `client` | a client session for any address |
| `browser` | a client session that decodes nothing and has no time limit |
| `platform` | the run's `runai up` with one simulated GPU (marker `hub`) |
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from caddy_proxies import CaddyProxies
from hub_platform import HubPlatform
from ports import free_port
from runai.embedded.proxy.caddy import CaddyProxy
from upstream_server import PREFIX, Upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with serving(Upstream()) as server:
        yield server


@pytest.fixture
async def hub() -> AsyncIterator[Upstream]:
    async with serving(Upstream()) as server:
        yield server


@asynccontextmanager
async def serving(upstream: Upstream) -> AsyncIterator[Upstream]:
    runner = web.AppRunner(
        upstream.app(), handler_cancellation=True, shutdown_timeout=0.1, max_field_size=65536
    )
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    upstream.url = f"http://127.0.0.1:{port}"
    yield upstream
    await runner.cleanup()


@pytest.fixture
async def proxies(tmp_path: Path, hub: Upstream) -> AsyncIterator[CaddyProxies]:
    proxies = CaddyProxies(tmp_path, hub.url)
    yield proxies
    await proxies.end()


@pytest.fixture
async def proxy(proxies: CaddyProxies, upstream: Upstream) -> CaddyProxy:
    proxy = await proxies.start(public_url=f"http://127.0.0.1:{free_port()}")
    await proxy.add_route(PREFIX, upstream.url, {"user": "ana", "server_name": ""})
    return proxy


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def browser(proxy: CaddyProxy) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(
        base_url=proxy.public_url,
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        yield session


@pytest.fixture
def platform(one_gpu: HubPlatform) -> HubPlatform:
    return one_gpu

"""The environment's settings for the API server: its proxy is used, passwords are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from kubernetes_asyncio.client.api_client import ApiClient
from kubernetes_asyncio.client.configuration import Configuration

from runai.hub_service.clusters.kubernetes.client.api import Api, ApiError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROXY_VARIABLES = ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY")


class Proxy:
    """Answers every request itself, and records it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None]] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append((request.raw_path, request.headers.get("Authorization")))
        return web.json_response({"kind": "Pod"})


@pytest.fixture
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Proxy, Any]]:
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    recorder, app = Proxy(), web.Application()
    app.router.add_route("*", "/{tail:.*}", recorder.answer)
    async with TestServer(app) as server:
        yield recorder, server


def api_of(host: str) -> Api:
    settings = Configuration()
    settings.host = host
    settings.api_key = {"BearerToken": "Bearer of-ours"}
    return Api(ApiClient(settings))


async def test_api_client_uses_the_proxy_of_the_environment(
    proxy: tuple[Proxy, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, server = proxy
    monkeypatch.setenv("HTTP_PROXY", str(server.make_url("/")))
    host = f"http://127.0.0.1:{unused_port()}"  # no server listens there
    async with api_of(host) as client:
        assert await client.get("/api/v1/pods/a") == {"kind": "Pod"}
    assert recorder.requests == [(f"{host}/api/v1/pods/a", "Bearer of-ours")]


async def test_api_client_bypasses_the_proxy_for_no_proxy_hosts(
    proxy: tuple[Proxy, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, server = proxy
    monkeypatch.setenv("HTTP_PROXY", str(server.make_url("/")))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with api_of(f"http://127.0.0.1:{unused_port()}") as client:
        with pytest.raises(ApiError) as refused:
            await client.get("/api/v1/pods/a")
    assert refused.value.is_unanswered
    assert recorder.requests == []


async def test_api_client_sends_its_token_despite_a_netrc_password(
    proxy: tuple[Proxy, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recorder, server = proxy
    (tmp_path / "netrc").write_text(f"machine {server.host} login ana password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with api_of(str(server.make_url("")).rstrip("/")) as client:
        await client.get("/version")
    assert recorder.requests == [("/version", "Bearer of-ours")]

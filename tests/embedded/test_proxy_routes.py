"""Routes in front of real servers: changes, odd names, patterns, hosts."""

from __future__ import annotations

from urllib.parse import quote

import aiohttp
import pytest
from yarl import URL

from caddy_proxies import (
    CaddyProxies,
    echo,
    is_served,
)
from upstream_server import PREFIX, Upstream

ANA_ROUTE = f"{PREFIX}/"
ROUTE_DATA = {"user": "ana", "server_name": ""}


# -- routes ---------------------------------------------------------------------------------------


async def test_websocket_through_the_proxy_survives_changes_of_other_routes(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream
):
    proxy = await proxies.start()
    await proxy.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    async with client.ws_connect(f"{proxy.public_url}user/ana/ws") as websocket:
        for number in range(10):
            await proxy.add_route(f"/user/{number}/", upstream.url, {})
            assert await echo(websocket, f"with {number}") == f"with {number}"
            assert await is_served(client, proxy, f"/user/{number}/")
        for number in range(10):
            await proxy.delete_route(f"/user/{number}/")
            assert await echo(websocket, f"without {number}") == f"without {number}"
            assert not await is_served(client, proxy, f"/user/{number}/")


ODD_NAMES = (
    *(
        "a b",
        "café",
        "日本",
        "a+b",
        "a%b",
        "a#b",
        "a:b",
        "@a",
        "~a",
        "-a",
        "..",
        ".",
        "$1",
        "x" * 254,
    ),
    *("*", "a*b", "a?b", "[a]", "a\\b", "a'\"b", "a|b", "^", ";", "{x}", "{http.request.host}"),
    *("=a", "a=b", "a=127.0.0.1:1"),
)


async def test_user_names_with_special_characters_are_routed_to_their_server(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream, hub: Upstream
):
    proxy = await proxies.start()
    await proxy.add_route("/", hub.url, {})
    specs = [f"/user/{quote(name, safe='@~')}/" for name in ODD_NAMES]
    for spec in specs:
        await proxy.add_route(spec, upstream.url, {})
        async with client.get(URL(f"{proxy.public_url}{spec[1:]}", encoded=True)):
            pass
        await proxy.delete_route(spec)

    assert [request.raw_path for request in upstream.requests] == specs


@pytest.mark.parametrize(
    "path", ["/user/*/", "/user/%2A/", "/user/%3Fna/", "/user/[a]na/", "/user/ANA/", "/user//ana/"]
)
async def test_pattern_in_a_request_path_matches_no_user_route(
    proxies: CaddyProxies,
    client: aiohttp.ClientSession,
    upstream: Upstream,
    hub: Upstream,
    path: str,
):
    proxy = await proxies.start()
    await proxy.add_route("/", hub.url, {})
    await proxy.add_route(ANA_ROUTE, upstream.url, ROUTE_DATA)
    async with client.get(URL(f"{proxy.public_url}{path[1:]}", encoded=True)):
        pass

    assert [request.raw_path for request in hub.requests] == [path]


@pytest.mark.parametrize("host", ["ana.example.org", "ana.example.org:8000"])
async def test_host_route_matches_its_host_header_with_and_without_port(
    proxies: CaddyProxies, client: aiohttp.ClientSession, upstream: Upstream, host: str
):
    proxy = await proxies.start(host_routing=True)
    await proxy.add_route("Ana.example.org/user/ana/", upstream.url, ROUTE_DATA)
    url = f"{proxy.public_url}user/ana/"
    async with client.get(url, headers={"Host": host}) as matched, client.get(url) as unmatched:
        assert (matched.status, unmatched.status) == (200, 503)

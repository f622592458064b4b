"""Redirects stay on the requested host, whatever `Host` a caller sends."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from authz import ROWS, request_arguments
from runai.hub_service.api.app import create_app

PATHS = sorted({request_arguments(row)["url"] for row in ROWS if row["route"].startswith("GET ")})
HOSTS = {
    "another": {"Host": "evil.example"},
    "another of a proxy": {"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"},
    "a path": {"Host": "evil.example/a?b#c"},
}


@pytest.fixture
async def http(simulated, make_authenticator) -> AsyncIterator[httpx.AsyncClient]:
    login = make_authenticator("http://127.0.0.1:9/hub/api")
    app = httpx.ASGITransport(create_app(simulated.platform, login=login))
    async with httpx.AsyncClient(transport=app, base_url="http://hub.example") as http:
        yield http


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
async def test_redirects_ignore_host_headers_of_the_caller(http, simulated, host):
    locations = {}
    for path in [path + slashes for path in PATHS for slashes in ("", "/", "//")]:
        reply = await http.get(f"{simulated.platform.prefix}{path}", headers=host)
        locations[path] = reply.headers.get("Location")

    assert locations[""] is not None, "the page sends to the login"
    assert {
        path for path, location in locations.items() if location and not is_path(location)
    } == set()


def is_path(location: str) -> bool:
    return location.startswith("/") and location[1:2] not in {"/", "\\"}


@pytest.mark.parametrize("path", ["api/v1/whoami/", "health/", "submit/", "static/live.js/"])
async def test_request_path_with_a_surplus_slash_is_not_found(http, simulated, path):
    reply = await http.get(f"{simulated.platform.prefix}{path}")

    assert (reply.status_code, reply.json()["code"]) == (404, "no_route")


async def test_service_prefix_without_its_last_slash_redirects_to_the_front_page(http, simulated):
    prefix = simulated.platform.prefix
    reply = await http.get(f"{prefix.rstrip('/')}?range=1h", headers={"Host": "evil.example"})

    assert (reply.status_code, reply.headers["Location"]) == (307, f"{prefix}?range=1h")

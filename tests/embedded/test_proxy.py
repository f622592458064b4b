"""The proxy between a real server and a real client: plain requests and streams."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from caddy_proxies import pid_of
from ports import free_port
from runai.embedded.proxy.caddy import CaddyProxy
from upstream_server import PREFIX, Upstream

MIB = 1024 * 1024
LARGE_MIB = 256
MAX_GROWTH_MIB = 64  # buffers of both directions and Go's garbage, far below what passes through


def headers_of(echo: dict[str, Any], name: str) -> list[str]:
    return [value for header, value in echo["headers"] if header.lower() == name.lower()]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "PROPFIND"])
async def test_proxy_forwards_a_request_unchanged(browser: aiohttp.ClientSession, method: str):
    path = "/user/ana/api/contents/caf%C3%A9%20%26%2Fx?type=file&format="
    async with browser.request(method, URL(path, encoded=True), data="text") as reply:
        echo = await reply.json()

    assert (echo["method"], echo["path"], echo["body"]) == (method, path, "text")


@pytest.mark.parametrize("status", [200, 302, 500])
async def test_proxy_forwards_reply_status_and_cookies_unchanged(
    browser: aiohttp.ClientSession, status: int
):
    url = f"/user/ana/?status={status}"
    async with browser.get(url, allow_redirects=False) as reply:
        await reply.read()

    assert reply.status == status
    assert reply.headers.getall("Set-Cookie") == [
        "a=1; Path=/user/ana/",
        "b=2; Path=/user/ana/",
    ]


async def test_proxy_removes_hop_by_hop_headers(browser: aiohttp.ClientSession):
    headers = {"Connection": "X-Mine", "X-Mine": "1", "Keep-Alive": "5", "X-Kept": "yes"}
    async with browser.get("/user/ana/", headers=headers) as reply:
        echo = await reply.json()

    assert "X-Private" not in reply.headers
    assert headers_of(echo, "X-Mine") == []
    assert headers_of(echo, "Keep-Alive") == []
    assert headers_of(echo, "X-Kept") == ["yes"]


async def test_proxy_forwards_host_and_client_address_to_the_server(
    browser: aiohttp.ClientSession, proxy: CaddyProxy
):
    host = proxy.public_url.removeprefix("http://")
    async with browser.get("/user/ana/") as reply:
        echo = await reply.json()

    assert headers_of(echo, "Host") == [host]
    assert headers_of(echo, "X-Forwarded-Host") == [host]
    assert headers_of(echo, "X-Forwarded-For") == ["127.0.0.1"]
    assert headers_of(echo, "X-Forwarded-Proto") == ["http"]
    assert headers_of(echo, "X-Forwarded-Port") == [host.partition(":")[2]]


FORWARDED = {
    "X-Forwarded-For": "10.1.2.3",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "gpu.example.org",
    "X-Forwarded-Port": "443",
}
FORGED = {"X-Real-Ip": "10.9.8.7", "X-Scheme": "https", "Forwarded": "for=10.9.8.7"}


async def test_proxy_overwrites_forwarded_headers_of_a_client(
    browser: aiohttp.ClientSession, proxy: CaddyProxy
):
    host = proxy.public_url.removeprefix("http://")
    async with browser.get("/user/ana/", headers=FORWARDED | FORGED) as reply:
        echo = await reply.json()

    assert [headers_of(echo, name) for name in FORGED] == [[], [], []]
    assert {name: headers_of(echo, name) for name in FORWARDED} == {
        "X-Forwarded-For": ["127.0.0.1"],
        "X-Forwarded-Proto": ["http"],
        "X-Forwarded-Host": [host],
        "X-Forwarded-Port": [host.partition(":")[2]],
    }


async def test_proxy_passes_on_forwarded_headers_of_a_trusted_proxy(
    browser: aiohttp.ClientSession, proxy: CaddyProxy, upstream: Upstream
):
    await proxy.stop()
    proxy.trusted_proxies = ["127.0.0.1/32"]
    await proxy.start()
    await proxy.add_route(PREFIX, upstream.url, {})
    async with browser.get("/user/ana/", headers=FORWARDED | FORGED) as reply:
        echo = await reply.json()

    assert {name: headers_of(echo, name) for name in FORGED} == {
        name: [value] for name, value in FORGED.items()
    }
    assert {name: headers_of(echo, name) for name in FORWARDED} == {
        "X-Forwarded-For": ["10.1.2.3, 127.0.0.1"],
        "X-Forwarded-Proto": ["https"],
        "X-Forwarded-Host": ["gpu.example.org"],
        "X-Forwarded-Port": ["443"],
    }


@pytest.mark.parametrize("port", [pytest.param("", id="no port in Host"), ":81"])
async def test_x_forwarded_port_defaults_to_the_port_of_the_scheme(
    browser: aiohttp.ClientSession, port: str
):
    async with browser.get("/user/ana/", headers={"Host": f"gpu.example.org{port}"}) as reply:
        echo = await reply.json()

    assert headers_of(echo, "X-Forwarded-Port") == [port.strip(":") or "80"]


async def test_proxy_adds_no_via_header(browser: aiohttp.ClientSession):
    async with browser.get("/user/ana/") as reply:
        echo = await reply.json()

    assert headers_of(echo, "Via") == []
    assert "Via" not in reply.headers


async def test_proxy_adds_only_forwarded_headers(browser: aiohttp.ClientSession):
    default_headers = ("User-Agent", "Accept", "Accept-Encoding")
    async with browser.get("/user/ana/", skip_auto_headers=default_headers) as reply:
        echo = await reply.json()

    assert {name for name, _ in echo["headers"] if not name.startswith("X-Forwarded-")} == {"Host"}


async def test_proxy_forwards_a_compressed_body_unchanged(
    browser: aiohttp.ClientSession, upstream: Upstream
):
    compressed_body = gzip.compress(b"x" * 1000)
    headers = {"Content-Encoding": "gzip"}
    async with browser.post("/user/ana/checksum", data=compressed_body, headers=headers) as reply:
        await reply.read()

    assert upstream.requests[-1].headers["Content-Encoding"] == "gzip"
    assert upstream.requests[-1].headers["Content-Length"] == str(len(compressed_body))


async def test_proxy_does_not_share_cookies_between_browsers(browser: aiohttp.ClientSession):
    async with browser.get("/user/ana/"):
        pass
    browser.cookie_jar.clear()
    async with browser.get("/user/ana/") as reply:
        echo = await reply.json()

    assert headers_of(echo, "Cookie") == []


async def test_proxy_forwards_cookies_of_30_kb(browser: aiohttp.ClientSession):
    cookie = "c=" + "x" * 30_000
    async with browser.get("/user/ana/", headers={"Cookie": cookie}) as reply:
        echo = await reply.json()

    assert headers_of(echo, "Cookie") == [cookie]


async def test_server_sent_event_passes_the_proxy_before_the_stream_ends(
    browser: aiohttp.ClientSession, upstream: Upstream
):
    async with browser.get("/user/ana/events") as reply:
        first = await reply.content.readuntil(b"\n\n")
        upstream.may_continue.set()  # the second event is created only after the first was received
        second = await reply.content.readuntil(b"\n\n")

    assert (first, second) == (b"data: first\n\n", b"data: second\n\n")


async def test_closed_browser_connection_ends_the_servers_event_stream(
    browser: aiohttp.ClientSession, upstream: Upstream
):
    async with browser.get("/user/ana/events") as reply:
        await reply.content.readuntil(b"\n\n")
        reply.close()
        async with asyncio.timeout(60):
            await upstream.browser_left.wait()


async def test_aborted_download_through_the_proxy_logs_no_error(
    browser: aiohttp.ClientSession, upstream: Upstream, capfd: pytest.CaptureFixture[str]
):
    async with browser.get("/user/ana/large?mib=64") as reply:
        await reply.content.read(100)
        reply.close()
    async with browser.get("/user/ana/") as reply:
        await reply.read()

    assert capfd.readouterr().err == ""


async def test_large_upload_through_the_proxy_is_complete_and_not_buffered_in_memory(
    browser: aiohttp.ClientSession, proxy: CaddyProxy
):
    expected = hashlib.sha256()

    async def body() -> AsyncIterator[bytes]:
        for number in range(LARGE_MIB):
            chunk = number.to_bytes(4, "big") * (MIB // 4)
            expected.update(chunk)
            yield chunk

    before = peak_mib(proxy)
    async with browser.post("/user/ana/checksum", data=body()) as reply:
        received = await reply.text()

    assert received == expected.hexdigest()
    assert peak_mib(proxy) - before < MAX_GROWTH_MIB


async def test_large_download_through_the_proxy_is_complete_and_not_buffered_in_memory(
    browser: aiohttp.ClientSession, proxy: CaddyProxy
):
    expected, received = hashlib.sha256(), hashlib.sha256()
    for number in range(LARGE_MIB):
        expected.update(number.to_bytes(4, "big") * (MIB // 4))
    before = peak_mib(proxy)
    async with browser.get(f"/user/ana/large?mib={LARGE_MIB}") as reply:
        length = reply.headers["Content-Length"]
        async for chunk in reply.content.iter_any():
            received.update(chunk)

    assert length == str(LARGE_MIB * MIB)
    assert received.hexdigest() == expected.hexdigest()
    assert peak_mib(proxy) - before < MAX_GROWTH_MIB


def peak_mib(proxy: CaddyProxy) -> int:
    """Return the peak memory of the proxy's process."""
    status = Path(f"/proc/{pid_of(proxy)}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) // 1024


async def test_proxy_answers_an_expect_100_continue_request(browser: aiohttp.ClientSession):
    async with browser.post("/user/ana/x", data=b"text", expect100=True) as reply:
        echo = await reply.json()

    assert echo["body"] == "text"


async def test_proxy_forwards_a_small_request_body_only_once_complete(
    browser: aiohttp.ClientSession, proxy: CaddyProxy, upstream: Upstream
):
    host, port = proxy.public_url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /user/ana/slow HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\nhalf")
    await writer.drain()
    async with browser.get("/user/ana/quick") as reply:
        await reply.read()
    before = [request.path for request in upstream.requests]
    writer.write(b"half")
    async with asyncio.timeout(60):
        await reader.readuntil(b"halfhalf")
    writer.close()

    assert before == ["/user/ana/quick"]


async def test_truncated_server_response_is_an_error_for_the_proxys_client(
    browser: aiohttp.ClientSession,
):
    with pytest.raises(aiohttp.ClientError):
        async with browser.get("/user/ana/broken") as reply:
            await reply.read()


async def test_head_reply_has_the_content_length_and_no_body(browser: aiohttp.ClientSession):
    async with browser.head("/user/ana/large?mib=1") as reply:
        body = await reply.read()

    assert (reply.headers["Content-Length"], body) == (str(MIB), b"")


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_unreachable_user_server_is_a_503_with_the_hubs_error_page(
    browser: aiohttp.ClientSession, proxy: CaddyProxy, method: str
):
    await proxy.add_route("/user/bo/", f"http://127.0.0.1:{free_port()}", {})
    async with browser.request(method, "/user/bo/lab?a=1", data="text") as reply:
        page = await reply.json(content_type=None)

    assert (reply.status, reply.headers["Cache-Control"]) == (503, "no-store")
    assert (page["method"], page["path"]) == ("GET", "/hub/error/503?url=%2Fuser%2Fbo%2Flab")
    assert page["body"] == ""


async def test_unreachable_user_server_and_hub_are_a_503_with_a_reloading_page(
    browser: aiohttp.ClientSession, proxy: CaddyProxy
):
    proxy.hub.url = f"http://127.0.0.1:{free_port()}/hub/"
    await proxy.stop()
    await proxy.start()
    await proxy.add_route("/", proxy.hub.url.removesuffix("/hub/"), {})
    async with browser.get("/hub/login") as reply:
        page = await reply.text()

    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert "starting" in page


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/user/bo/%1b]0;owned%07%0a[I", id="escapes"),
        pytest.param("/user/bo/" + "A" * 9000, id="long"),
        pytest.param("/user/bo/?token=secret", id="query"),
    ],
)
async def test_failed_requests_leave_no_url_or_cookie_in_the_proxy_log(
    browser: aiohttp.ClientSession, proxy: CaddyProxy, capfd: pytest.CaptureFixture[str], path: str
):
    await proxy.add_route("/user/bo/", f"http://127.0.0.1:{free_port()}", {})
    async with browser.get(URL(path, encoded=True), headers={"Cookie": "secret"}) as reply:
        assert reply.status == 503
    await proxy.stop()
    written = capfd.readouterr().err

    assert not any(part in written for part in ("secret", "owned", "A" * 201, "\x1b"))


async def test_proxy_without_routes_serves_a_starting_page(
    browser: aiohttp.ClientSession, proxy: CaddyProxy
):
    await proxy.delete_route("/user/ana/")
    async with browser.get("/hub/login") as reply:
        page = await reply.text()

    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
    assert "starting" in page


async def test_host_route_without_host_routing_is_refused(proxy: CaddyProxy):
    with pytest.raises(ValueError, match="not using host-routing"):
        await proxy.add_route("host.name/path/", "http://127.0.0.1:1", {})


async def test_proxy_route_deleted_twice_raises_no_error(proxy: CaddyProxy):
    await proxy.delete_route("/user/ana/")
    await proxy.delete_route("/user/ana/")

    assert await proxy.get_all_routes() == {}

"""Attacks on the proxy alone, between raw servers: idle connections, TLS, paths, hosts."""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from caddy_proxies import CaddyProxies, pid_of
from raw_http import (
    RawServer,
    Received,
    connect,
    is_readable,
    raw_server,
    response,
    send_request,
    wait_for_end,
)
from runai.embedded.proxy import caddy_config
from runai.embedded.proxy.caddy import CaddyProxy
from waiting import eventually

pytestmark = pytest.mark.tier("all")

DESCRIPTOR_LIMIT = 1024
CONNECTION_COUNT = 1100
MAX_LOGGED_BYTES = 100_000


@pytest.fixture(scope="module")
def hub() -> Iterator[RawServer]:
    """Server in place of JupyterHub."""
    with raw_server() as server:
        yield server


@contextmanager
def running_proxy(
    folder: Path, hub: RawServer, routes: dict[str, RawServer], **settings: object
) -> Iterator[CaddyProxy]:
    """Run a proxy for one test, without supervision."""
    proxies = CaddyProxies(folder, hub.url)
    with asyncio.Runner() as loop:
        try:
            proxy = loop.run(proxies.start(**settings))
            for route, server in routes.items():
                loop.run(proxy.add_route(route, server.url, {}))
            yield proxy
        finally:
            loop.run(proxies.end())


def port_of(proxy: CaddyProxy) -> int:
    return urlsplit(proxy.public_url).port or 0


def connect_over_tls(proxy: CaddyProxy) -> ssl.SSLSocket:
    """Connect to a proxy with its own authority, once it has a certificate."""
    roots = caddy_config.authority_file(Path(proxy.certificates))

    def handshake() -> ssl.SSLSocket | None:
        with suppress(OSError):  # no certificate yet, or closed as idle
            context = ssl.create_default_context(cafile=roots)
            return context.wrap_socket(connect(port_of(proxy)), server_hostname="localhost")
        return None

    connected = eventually(handshake)
    assert connected is not None
    return connected


# -- idle connections


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise this process' soft limit of descriptors to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def half_sent_requests(port: int, request_part: bytes) -> Iterator[list[socket.socket]]:
    """Keep connections open that send `request_part` and nothing more."""
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(port)) for _ in range(CONNECTION_COUNT)]
        for connection in connections:
            with suppress(ConnectionError):
                connection.sendall(request_part)
        yield connections


def test_proxy_serves_other_clients_despite_half_sent_requests_above_the_soft_limit(
    hub: RawServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many_descriptors: None
):
    monkeypatch.setattr(caddy_config, "HEADER_S", 600)  # none ends within the test
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTOR_LIMIT, hard))
    with running_proxy(tmp_path, hub, {"/": hub}) as proxy:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        with half_sent_requests(port_of(proxy), b"GET / HT") as attackers:
            reply = send_request(connect(port_of(proxy)), "/victim")
            open_attackers = [attacker for attacker in attackers if not is_readable(attacker)]

    assert reply.body == b"/victim"
    assert len(open_attackers) == CONNECTION_COUNT


@pytest.mark.parametrize(
    "request_part",
    [
        pytest.param(b"GET / HT", id="half a head"),
        pytest.param(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nx", id="half a body"),
    ],
)
def test_half_sent_requests_above_the_hard_limit_only_delay_other_proxy_clients(
    hub: RawServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    many_descriptors: None,
    capfd: pytest.CaptureFixture[str],
    request_part: bytes,
):
    for limit in ("HEADER_S", "UPLOAD_S"):
        monkeypatch.setattr(caddy_config, limit, 2)
    with running_proxy(tmp_path, hub, {"/": hub}) as proxy:
        pid = pid_of(proxy)
        psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE, (DESCRIPTOR_LIMIT, DESCRIPTOR_LIMIT))
        with half_sent_requests(port_of(proxy), request_part) as attackers:
            eventually(lambda: send_request(connect(port_of(proxy)), "/victim").body == b"/victim")
            closed = [attacker for attacker in attackers if is_readable(attacker)]

        # The proxy closed all above the limit before the victim's request.
        assert len(closed) >= CONNECTION_COUNT - DESCRIPTOR_LIMIT
        assert pid_of(proxy) == pid
    assert len(capfd.readouterr().err) < MAX_LOGGED_BYTES


WHOLE_REQUEST = b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"
POST_HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    ("request_part", "is_early", "tls"),
    [
        pytest.param(b"", True, False, id="nothing"),
        pytest.param(b"GET / HT", True, False, id="half a head"),
        pytest.param(WHOLE_REQUEST, True, False, id="keep-alive"),
        pytest.param(WHOLE_REQUEST + b"GET / HT", True, False, id="half of a second head"),
        pytest.param(
            POST_HEAD + b"Content-Length: 9\r\n\r\nx", True, False, id="half a body, answered"
        ),
        pytest.param(POST_HEAD + b"Content-Length: 9\r\n\r\nx", False, False, id="half a body"),
        pytest.param(POST_HEAD + b"Content-Length: 999999\r\n\r\nx", False, False, id="large body"),
        pytest.param(
            POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\nx", False, False, id="chunk"
        ),
        pytest.param(b"", True, True, id="nothing, TLS"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01", True, True, id="half a TLS handshake"),
    ],
)
def test_proxy_closes_idle_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request_part: bytes, is_early: bool, tls: bool
):
    for limit in ("HEADER_S", "IDLE_S", "UPLOAD_S"):
        monkeypatch.setattr(caddy_config, limit, 0.25)
    with (
        raw_server() as server,
        running_proxy(tmp_path, server, {"/": server}, internal_authority=tls) as proxy,
        connect(port_of(proxy)) as attacker,
    ):
        server.is_early = is_early
        attacker.sendall(request_part)
        wait_for_end(attacker)

        def served() -> bool:
            client = connect_over_tls(proxy) if tls else connect(port_of(proxy))
            return send_request(client, "/victim").body == b"/victim"

        eventually(served)


def test_tls_proxy_sets_forwarded_headers_despite_forged_ones(hub: RawServer, tmp_path: Path):
    forged = [f"X-Forwarded-{name}" for name in ("Proto: http", "Port: 80", "Host: evil.example")]
    with running_proxy(tmp_path, hub, {"/": hub}, internal_authority=True) as proxy:
        for headers in ([], forged):
            assert (
                send_request(connect_over_tls(proxy), "/x", *headers, "Host: localhost").status
                == 200
            )

    for request in hub.requests[-2:]:
        assert request.values(b"x-forwarded-proto") == [b"https"]
        assert request.values(b"x-forwarded-port") == [b"443"]
        assert request.values(b"x-forwarded-host") == [b"localhost"]


# -- paths and hosts


def name_responder(name: str) -> Callable[[Received], bytes]:
    return lambda _: response("200 OK", body=name.encode())


@pytest.fixture(scope="module")
def servers_by_name() -> Iterator[dict[str, RawServer]]:
    """Servers that answer with their names."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(raw_server()) for name in ("hub", "ana", "bo")}
        for name, server in servers.items():
            server.respond = name_responder(name)
        yield servers


@pytest.fixture(scope="module")
def port(
    servers_by_name: dict[str, RawServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    routes = {
        "/": servers_by_name["hub"],
        "/user/ana/": servers_by_name["ana"],
        "/user/bo/": servers_by_name["bo"],
    }
    with running_proxy(tmp_path_factory.mktemp("paths"), servers_by_name["hub"], routes) as proxy:
        yield port_of(proxy)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("/user/*/", id="star"),
        pytest.param("/user/%2A/", id="encoded star"),
        pytest.param("/*/ana/", id="star first"),
        pytest.param("/user/%3Fna/", id="question mark"),
        pytest.param("/user/[a]na/", id="class"),
        pytest.param("/user/%5Ba-z%5Dna/", id="encoded class"),
        pytest.param("/user/{{ana,bo}}/", id="braces"),
        pytest.param("/user/{http.request.host}/", id="placeholder"),
        pytest.param("/user/../", id="parent"),
        pytest.param("/user/%2E%2E/", id="encoded parent"),
        pytest.param("/user/..%2f", id="encoded slash"),
        pytest.param("/user/x/../ana/", id="parent, then a name"),
        pytest.param("/user/x/%2e%2e/ana/", id="encoded parent, then a name"),
        pytest.param("/user/..;/user/ana/", id="parameter"),
        pytest.param("/user/./ana/", id="dot"),
        pytest.param("//user/ana/", id="two slashes"),
        pytest.param("/user//ana/", id="two slashes before the name"),
        pytest.param("/user/ana%00/", id="NUL"),
        pytest.param("/user/%00ana/", id="NUL first"),
        pytest.param("/user/ana%0a/", id="line feed"),
        pytest.param("/user/ana%20/", id="space"),
        pytest.param("/user/\\ana/", id="backslash"),
        pytest.param("/user\\ana/", id="backslash for a slash"),
        pytest.param("/user/%ff/", id="no UTF-8"),
        pytest.param("/user/ANA/", id="capitals"),
        pytest.param(f"/user/{'a' * 300}/", id="300 bytes"),
        pytest.param(f"/{'x/' * 10_000}", id="10,000 segments"),
        pytest.param("/user/=127.0.0.1:22/", id="target"),
        pytest.param("/@/-user/-ana/", id="route file"),
        pytest.param("/user/.partial", id="partial file"),
        pytest.param("http://ana/user/*/", id="absolute"),
    ],
)
def test_malformed_user_path_is_routed_to_the_hub(port: int, path: str):
    reply = send_request(connect(port), path)

    assert (reply.status, reply.body) == (200, b"hub")
    assert send_request(connect(port), "/user/ana/").body == b"ana"


@pytest.fixture(scope="module")
def subdomain_port(
    servers_by_name: dict[str, RawServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Port of a proxy that gives each user a host."""
    routes = {"hub.org/": servers_by_name["hub"], "ana.hub.org/user/ana/": servers_by_name["ana"]}
    folder = tmp_path_factory.mktemp("subdomains")
    with running_proxy(folder, servers_by_name["hub"], routes, host_routing=True) as proxy:
        yield port_of(proxy)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        pytest.param("*", 503, id="star"),
        pytest.param("*.hub.org", 503, id="star for a name"),
        pytest.param("[a]na.hub.org", 503, id="class"),
        pytest.param("..", 503, id="parent"),
        pytest.param("%2e%2e", 503, id="encoded parent"),
        pytest.param("ana.hub.org/..", 400, id="slash"),
        pytest.param("ana?hub.org", 400, id="question mark"),
        pytest.param("{http.request.header.X}", 400, id="placeholder"),
        pytest.param("ana.hub.org.evil.example", 503, id="longer"),
        pytest.param("hub.org", 200, id="hub"),
    ],
)
def test_malformed_host_header_reaches_no_user_server(
    subdomain_port: int, servers_by_name: dict[str, RawServer], host: str, status: int
):
    reply = send_request(connect(subdomain_port), "/user/ana/", f"Host: {host}", "X: ana.hub.org")

    assert reply.status == status
    assert reply.body != b"ana"
    assert send_request(connect(subdomain_port), "/user/ana/", "Host: ana.hub.org").body == b"ana"

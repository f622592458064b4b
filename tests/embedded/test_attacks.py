"""Attacks on `runai up` by clients without a login, each followed by another client's request.

Attacks with idle connections and odd paths are in test_attacks_on_the_proxy.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import pytest

from hub_platform import HubPlatform
from raw_http import (
    RawServer,
    answer,
    connect,
    raw_server,
    response,
    send_request,
    upload,
    wait_for_end,
)
from runai.embedded.data_directory import DataDirectory
from runai.embedded.proxy.caddy_config import ROUTES
from runai.embedded.proxy.caddy_process import CaddyProcess
from runai.embedded.proxy.route_files import RouteFiles
from waiting import eventually

pytestmark = pytest.mark.hub

KIB, MIB = 1024, 1024 * 1024
MAX_GROWTH_MIB = 64  # buffers and garbage, far below what the attacks send
PREFIX = "/user/raw"
WHOAMI = "/services/runai/api/v1/whoami"


@pytest.fixture
def recording_server(platform: HubPlatform) -> Iterator[RawServer]:
    """Server behind the platform's own proxy, like a user's server."""
    routes = RouteFiles(DataDirectory(platform.data_dir).proxy / ROUTES, depth=2)
    with raw_server() as server:
        routes.add(PREFIX, server.url, {})
        yield server
        routes.remove(PREFIX)


@pytest.fixture(scope="module")
def token(one_gpu: HubPlatform) -> str:
    return one_gpu.token("bo")


# -- request smuggling


def post(headers: str, body: str = "", line: str = "POST {target} HTTP/1.1") -> str:
    return f"{line}\r\nHost: x\r\n{headers}\r\n\r\n{body}"


def upgrade(to: str, headers: str, body: str = "") -> str:
    headers = f"Connection: Upgrade\r\nUpgrade: {to}{headers}"
    return post(headers, body, "GET {target} HTTP/1.1")


LENGTH, CHUNKED, LAST_CHUNK = "Content-Length: {n}", "Transfer-Encoding: chunked", "0\r\n\r\n"
SMUGGLING = {
    "h2c with a body": upgrade("h2c", f"\r\n{LENGTH}", "{smuggled}"),
    "h2c without its body": upgrade("h2c", f"\r\n{LENGTH}"),
    "h2c with settings": upgrade("h2c", "\r\nHTTP2-Settings: AAMAAABkAAQAAP__", "{smuggled}"),
    "websocket with a body": upgrade("websocket", f"\r\n{LENGTH}", "{smuggled}"),
    "websocket without its body": upgrade("websocket", f"\r\n{LENGTH}"),
    "websocket with chunks": upgrade("websocket", f"\r\n{CHUNKED}", LAST_CHUNK + "{smuggled}"),
    "websocket of no version": upgrade("websocket", "\r\nSec-WebSocket-Version: 777", "{smuggled}"),
    "HTTP/2 at once": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{smuggled}",
    "length, then chunks": post(f"Content-Length: 5\r\n{CHUNKED}", LAST_CHUNK + "{smuggled}"),
    "chunks, then length": post(f"{CHUNKED}\r\n{LENGTH}", LAST_CHUNK + "{smuggled}"),
    "two lengths": post(f"Content-Length: 0\r\n{LENGTH}", "{smuggled}"),
    "the same length twice": post(f"{LENGTH}\r\n{LENGTH}", "{smuggled}"),
    "list of lengths": post("Content-Length: 0, {n}", "{smuggled}"),
    "length with a sign": post("Content-Length: +{n}", "{smuggled}"),
    "negative length": post("Content-Length: -1", "{smuggled}"),
    "length of another base": post("Content-Length: 0x{n:x}", "{smuggled}"),
    "length for this connection": post(f"Connection: Content-Length\r\n{LENGTH}", "{smuggled}"),
    "chunks for this connection": post(
        f"Connection: Transfer-Encoding\r\n{CHUNKED}", "{n:x}\r\n{smuggled}\r\n" + LAST_CHUNK
    ),
    "GET with a length": post(LENGTH, "{smuggled}", "GET {target} HTTP/1.1"),
    "HEAD with a length": post(LENGTH, "{smuggled}", "HEAD {target} HTTP/1.1"),
    "CONNECT": post("X: y", "{smuggled}", "CONNECT {target} HTTP/1.1"),
    "folded header": post(f"X: y\r\n {LENGTH}", "{smuggled}"),
    "folded encoding": post(
        "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5", LAST_CHUNK + "{smuggled}"
    ),
    "chunked, identity": post("Transfer-Encoding: chunked, identity", LAST_CHUNK + "{smuggled}"),
    "xchunked": post("Transfer-Encoding: xchunked\r\nContent-Length: 5", LAST_CHUNK + "{smuggled}"),
    "two encodings": post(f"{CHUNKED}\r\nTransfer-Encoding: identity", LAST_CHUNK + "{smuggled}"),
    "encoding after a tab": post("Transfer-Encoding: \x0bchunked", LAST_CHUNK + "{smuggled}"),
    "space before the colon": post("Transfer-Encoding : chunked", LAST_CHUNK + "{smuggled}"),
    "space before the length's colon": post("Content-Length : {n}", "{smuggled}"),
    "line feed alone": post(f"X: y\n{LENGTH}", "{smuggled}"),
    "line feed ends the head": post("Content-Length: 0\r\n", "").removesuffix("\r\n")
    + "\n{smuggled}",
    "carriage return alone": post(f"X: y\r{LENGTH}", "{smuggled}"),
    "NUL in a value": post(f"X: y\0\r\n{LENGTH}", "{smuggled}"),
    "NUL in a name": post("Content-Length\0: {n}", "{smuggled}"),
    "chunk extension": post(CHUNKED, '3;x="\r\n"\r\nabc\r\n' + LAST_CHUNK + "{smuggled}"),
    "chunk extension and line feed": post(CHUNKED, "3;x\nabc\r\n" + LAST_CHUNK + "{smuggled}"),
    "chunk of size 0x3": post(CHUNKED, "0x3\r\nabc\r\n" + LAST_CHUNK + "{smuggled}"),
    "chunk of negative size": post(CHUNKED, "-1\r\nabc\r\n" + LAST_CHUNK + "{smuggled}"),
    "chunk size of 68 bits": post(
        CHUNKED, "f0000000000000003\r\nabc\r\n" + LAST_CHUNK + "{smuggled}"
    ),
    "chunk longer than its size": post(CHUNKED, "3\r\nabcd\r\n" + LAST_CHUNK + "{smuggled}"),
    "length in a trailer": post(CHUNKED, "0\r\nContent-Length: {n}\r\n\r\n{smuggled}"),
    "chunks in HTTP/1.0": post(CHUNKED, LAST_CHUNK + "{smuggled}", "POST {target} HTTP/1.0"),
    "half a body": post("Content-Length: 100000", "{smuggled}"),
    "half a chunk": post(CHUNKED, "fff\r\n{smuggled}"),
    "body after 100 Continue": post(f"Expect: 100-continue\r\n{LENGTH}", "{smuggled}"),
    "no body after 100 Continue": post(f"Expect: 100-continue\r\n{LENGTH}"),
}
ATTACKS = [pytest.param(attack, id=name) for name, attack in SMUGGLING.items()]


def render_attack(attack: str, target: str) -> bytes:
    smuggled = f"GET {target}/smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    return attack.format(target=target, smuggled=smuggled, n=len(smuggled)).encode("latin-1")


@pytest.mark.parametrize(
    "name",
    [
        *("length, then chunks", "two lengths", "folded header", "xchunked", "line feed alone"),
        *("space before the colon", "NUL in a value", "chunk extension", "length in a trailer"),
    ],
)
def test_recording_server_detects_request_smuggling_without_the_proxy(name: str):
    with raw_server() as server, connect(server.port) as attacker:
        attacker.sendall(render_attack(SMUGGLING[name], PREFIX))
        attacker.shutdown(socket.SHUT_WR)
        wait_for_end(attacker)

    assert server.faults != []


@pytest.mark.parametrize("attack", ATTACKS)
def test_user_server_receives_no_smuggled_request_through_the_proxy(
    platform: HubPlatform, recording_server: RawServer, attack: str
):
    victim = f"{PREFIX}/victim"
    with connect(platform.port) as attacker:
        attacker.sendall(render_attack(attack, f"{PREFIX}/attack"))
        meanwhile = send_request(connect(platform.port), victim)
        attacker.shutdown(socket.SHUT_WR)
        wait_for_end(attacker)
    afterwards = send_request(connect(platform.port), victim)
    forged = [
        request.target
        for request in recording_server.requests
        if request.values(b"x-forwarded-for") != [b"127.0.0.1"]  # the proxy sets it in each request
    ]

    assert [meanwhile.body, afterwards.body] == [victim.encode()] * 2
    assert recording_server.faults == []
    assert forged == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_request_smuggling_does_not_mix_up_replies_of_hub_and_service(
    platform: HubPlatform, token: str, attack: str
):
    for target in (WHOAMI, "/hub/api/user"):
        with connect(platform.port) as attacker:
            attacker.sendall(render_attack(attack, target))
            meanwhile = send_request(
                connect(platform.port), target, f"Authorization: Bearer {token}"
            )
            attacker.shutdown(socket.SHUT_WR)
            wait_for_end(attacker)
        afterwards = send_request(connect(platform.port), target, f"Authorization: Bearer {token}")

        assert [json.loads(reply.body)["name"] for reply in (meanwhile, afterwards)] == ["bo"] * 2


# -- memory


@contextmanager
def bounded_memory(platform: HubPlatform) -> Iterator[None]:
    """Assert that peak memory of hub, service and proxy hardly grows in the block."""
    pids = {
        "hub": platform.running.pid,
        "service": platform.service_process().pid,
        "proxy": CaddyProcess(DataDirectory(platform.data_dir).proxy).pid(),
    }
    before = {name: peak_kib(pid) for name, pid in pids.items()}
    yield
    grown = {name: (peak_kib(pid) - before[name]) // KIB for name, pid in pids.items()}
    assert max(grown.values()) < MAX_GROWTH_MIB, grown


def peak_kib(pid: int | None) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line)


def test_long_websocket_message_is_not_buffered_in_memory(
    platform: HubPlatform, recording_server: RawServer
):
    recording_server.respond = lambda request: (
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        if request.target.endswith(b"/ws")
        else response("200 OK", body=b"another's")
    )
    sent_mib = 256
    frame = b"\x82\xff" + (1024 * MIB).to_bytes(8, "big") + bytes(4)
    with bounded_memory(platform), connect(platform.port) as attacker:
        attacker.sendall(render_attack(upgrade("websocket", ""), f"{PREFIX}/ws"))
        assert answer(attacker).status == 101
        attacker.sendall(frame)
        for _ in range(sent_mib):
            attacker.sendall(bytes(MIB))
        eventually(lambda: recording_server.tunnelled == len(frame) + sent_mib * MIB)

        assert send_request(connect(platform.port), f"{PREFIX}/victim").body == b"another's"


PIECE = bytes(64 * KIB)
CHUNK = b"10000\r\n" + PIECE + b"\r\n"
HUGE_LENGTH = f"Content-Length: {95 * MIB}"
UNKNOWN_TOKEN = "Authorization: Bearer made-up"
AS_WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket"


@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        pytest.param("/hub/login", HUGE_LENGTH, 413, id="login"),
        pytest.param("/hub/login", CHUNKED, 413, id="login in chunks"),
        pytest.param(
            "/hub/login", f"{AS_WEBSOCKET}\r\n{HUGE_LENGTH}", 413, id="login as a websocket"
        ),
        pytest.param(
            "/hub/api/users", f"{UNKNOWN_TOKEN}\r\n{HUGE_LENGTH}", 413, id="API of the hub"
        ),
        pytest.param("/user/cy/api/contents/x", HUGE_LENGTH, 413, id="server that does not run"),
        pytest.param("/services/runai/api/v1/workloads", HUGE_LENGTH, 401, id="service"),
        pytest.param(
            "/services/runai/api/v1/workloads",
            f"{UNKNOWN_TOKEN}\r\n{CHUNKED}",
            401,
            id="service in chunks",
        ),
    ],
)
def test_large_request_bodies_without_a_login_are_refused(
    platform: HubPlatform, token: str, target: str, headers: str, status: int
):
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n"
    piece = CHUNK if CHUNKED in headers else PIECE
    with bounded_memory(platform), ThreadPoolExecutor(10) as attackers:
        uploads = [
            attackers.submit(upload, platform.port, head, piece, 95 * MIB // len(PIECE))
            for _ in range(10)
        ]
        statuses = {attacker.result() for attacker in uploads}

    assert statuses <= {status, 0}  # 0: the connection was closed without a reply
    assert (
        send_request(connect(platform.port), WHOAMI, f"Authorization: Bearer {token}").status == 200
    )


@pytest.mark.parametrize(
    ("target", "body_part"),
    [
        pytest.param("/hub/login", 15 * PIECE, id="hub"),
        pytest.param("/services/runai/api/v1/workloads", 7 * 16 * PIECE, id="service"),
    ],
)
def test_half_sent_request_bodies_without_a_login_do_not_block_other_clients(
    platform: HubPlatform, token: str, target: str, body_part: bytes
):
    head = f"POST {target} HTTP/1.1\r\nHost: x\r\n{UNKNOWN_TOKEN}\r\n{HUGE_LENGTH}\r\n\r\n".encode()
    with bounded_memory(platform), ExitStack() as stack:
        for _ in range(20):
            attacker = stack.enter_context(connect(platform.port))
            with suppress(ConnectionError):
                attacker.sendall(head + body_part)
        reply = send_request(connect(platform.port), WHOAMI, f"Authorization: Bearer {token}")

    assert reply.status == 200


def test_large_request_bodies_reach_a_users_server(
    platform: HubPlatform, recording_server: RawServer
):
    recording_server.is_early = False
    reply = send_request(connect(platform.port), f"{PREFIX}/up", method="POST", body=80 * PIECE)

    assert reply.status == 200
    assert [len(request.body) for request in recording_server.requests] == [5 * MIB]


# -- redirects


def test_proxy_does_not_follow_a_redirected_websocket_handshake(
    platform: HubPlatform, recording_server: RawServer
):
    with raw_server() as internal:
        location = f"Location: {internal.url}/admin"
        recording_server.respond = lambda _: response("302 Found", location)
        headers = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"]
        redirected = send_request(connect(platform.port), f"{PREFIX}/ws", *headers)
        recording_server.respond = lambda _: response("204 No Content")
        afterwards = send_request(connect(platform.port), f"{PREFIX}/victim")

        assert (redirected.status, redirected.headers["Location"]) == (302, f"{internal.url}/admin")
        assert afterwards.status == 204
        assert internal.connections == []


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(["Host: {evil}"], id="Host"),
        pytest.param(["Host: {evil}", "Connection: Upgrade", "Upgrade: websocket"], id="handshake"),
        pytest.param(["X-Forwarded-Host: {evil}"], id="X-Forwarded-Host"),
        pytest.param(
            ["X-Forwarded-Host: {evil}", "X-Forwarded-Proto: https"],
            id="X-Forwarded-Host and -Proto",
        ),
        pytest.param(["Forwarded: host={evil};proto=https"], id="Forwarded"),
        pytest.param(
            ["X-Original-URL: //{evil}/", "X-Rewrite-URL: //{evil}/"], id="X-Original-URL"
        ),
    ],
)
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(f"{WHOAMI}/", id="API of the service"),
        pytest.param("/services/runai", id="service"),
        pytest.param("/services/runai/", id="page of the service"),
        pytest.param("/services/runai//{evil}/", id="host after the service"),
        pytest.param("/", id="root"),
        pytest.param("/hub", id="hub"),
        pytest.param("/hub/login/", id="login"),
        pytest.param("/hub//{evil}/", id="host after the hub"),
        pytest.param("//{evil}/", id="host"),
        pytest.param("//{evil}/hub", id="host before the hub"),
        pytest.param("/\\{evil}/..", id="backslash"),
        pytest.param("/user/cy", id="server that does not run"),
    ],
)
def test_http_redirects_never_lead_to_a_host_chosen_by_the_client(
    platform: HubPlatform, target: str, headers: list[str]
):
    with raw_server() as internal:
        evil = f"127.0.0.1:{internal.port}"
        lines = [header.format(evil=evil) for header in headers]
        reply = send_request(connect(platform.port), target.format(evil=evil), *lines)
        location = reply.headers.get("Location", "/").replace("\\", "/")  # as browsers parse it

        assert urlsplit(urljoin("http://gpu.example.org", location)).netloc == "gpu.example.org"
        assert reply.status < 500
        assert internal.connections == []
    assert send_request(connect(platform.port), "/hub/api").status == 200

"""Memory of a service, run as a separate process, under large requests.

The first large request loads modules; further ones leave the memory at the same level.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from ports import free_port
from runai.hub_service.api.middleware.request_bodies import MOST_BODY_BYTES
from service_process import TOKEN, Service
from waiting import eventually

pytestmark = [pytest.mark.timeout(900)]

MIB = 2**20
TEN_MB = 10_000_000
REQUEST_COUNT, CONCURRENT_REQUESTS = 20, 5
UNKNOWN_CALLERS = 30
MAX_GROWTH_MIB = 64
"""Maximum growth after the requests; five bodies at once are 50 MB."""
MAX_PEAK_GROWTH_MIB = 128
"""Maximum growth during the requests: about 50 were measured."""
JOB = {"kind": "job", "owner": "ana", "name": "large", "command": ["true"]}


def padded(length: int) -> bytes:
    """Return a submission padded with the given amount of space between its fields."""
    body = json.dumps(JOB).encode()
    return body[:-1] + b" " * (length - len(body)) + body[-1:]


def undeclared_body() -> Iterator[bytes]:
    """Yield a body without a declared length."""
    for _ in range(TEN_MB // 100_000):
        yield b" " * 100_000


BODIES: dict[str, tuple[int, Callable[[], bytes | Iterator[bytes]]]] = {
    "10 MB without a declared length": (413, undeclared_body),
    "maximum length": (201, lambda: padded(MOST_BODY_BYTES)),
    "deeply nested": (400, lambda: b'{"a":' * (MOST_BODY_BYTES // 5)),
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run one service for all tests: each test measures its own growth."""
    service = Service(tmp_path_factory.mktemp("service"), free_port())
    service.start()
    yield service
    service.clean()


@pytest.mark.parametrize(("status", "body"), BODIES.values(), ids=BODIES)
def test_large_request_bodies_leave_service_memory_unchanged(service, status, body):
    url = f"{service.client.url}api/v1/workloads?dry_run=true"
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}

    def send(_number: int) -> int:
        # A service that refuses before it reads the whole body may close the connection.
        try:
            return httpx.post(url, content=body(), headers=headers, timeout=120).status_code
        except (httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
            return 413

    with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
        assert set(pool.map(send, range(CONCURRENT_REQUESTS))) == {status}
        before_mib = memory_mib(service)
        reset_peak(service)
        statuses = list(pool.map(send, range(REQUEST_COUNT)))

    assert set(statuses) == {status}
    assert peak_mib(service) < before_mib + MAX_PEAK_GROWTH_MIB, "at no moment, not only afterwards"
    eventually(
        lambda: memory_mib(service) < before_mib + MAX_GROWTH_MIB, what="the memory is given back"
    )


def test_request_bodies_of_unauthenticated_callers_are_not_buffered(service):
    """Send all but a mebibyte of each body; a known caller's body would be received."""
    url = urlsplit(f"{service.client.url}api/v1/nodes/lab/samples")
    before_mib = memory_mib(service)
    reset_peak(service)
    connections = []
    for number in range(UNKNOWN_CALLERS):
        connection = socket.create_connection((url.hostname, url.port), timeout=120)
        connections.append(connection)
        head = (
            f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\n"
            f"Authorization: Bearer made-up-{number}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {MOST_BODY_BYTES}\r\n\r\n"
        )
        with suppress(ConnectionError):  # refused and closed before the body is sent
            connection.sendall(head.encode() + b" " * (MOST_BODY_BYTES - MIB))

    try:
        assert peak_mib(service) < before_mib + MAX_GROWTH_MIB, "at no moment, not only afterwards"
        assert service.client.whoami().kind == "hub"
    finally:
        for connection in connections:
            connection.close()


def test_long_job_output_is_streamed_without_buffering(service):
    lines = 100_000
    service.submit("writes", f"for n in range({lines}): print('line', n)")
    service.until("vision/writes", "succeeded")
    headers = {"Authorization": f"Bearer {TOKEN}"}
    url = f"{service.client.url}api/v1/workloads/vision/writes/logs"

    def read(query: str) -> int:
        newlines = 0
        with httpx.stream("GET", f"{url}{query}", headers=headers, timeout=300) as reply:
            for piece in reply.iter_bytes():
                newlines += piece.count(b"\n")
        return newlines

    assert read("?tail=1000") == 1000
    before_mib = memory_mib(service)
    reset_peak(service)

    assert read("") >= lines
    assert peak_mib(service) < before_mib + MAX_GROWTH_MIB, "at no moment, not only afterwards"
    eventually(
        lambda: memory_mib(service) < before_mib + MAX_GROWTH_MIB, what="the memory is given back"
    )


def memory_mib(service: Service) -> float:
    """Return the service's present memory in MiB."""
    return psutil.Process(_pid(service)).memory_info().rss / MIB


def reset_peak(service: Service) -> None:
    """Reset the service's peak memory to its present memory.

    Without the permission to do so, the earlier peak counts too.
    """
    with suppress(PermissionError):
        Path(f"/proc/{_pid(service)}/clear_refs").write_text("5")


def peak_mib(service: Service) -> float:
    """Return the service's peak memory in MiB since `reset_peak`, however brief."""
    status = Path(f"/proc/{_pid(service)}/status").read_text()
    (peak_kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(peak_kib) / 1024


def _pid(service: Service) -> int:
    assert service.process is not None
    return service.process.pid

"""The processes of a real platform: their log, and their limits of descriptors."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import psutil
import pytest

from hub_platform import SOFT_LIMIT, HubPlatform
from runai.embedded.data_directory import DataDirectory
from runai.embedded.hub_log import LOG_BYTES
from runai.hub_service.client import Client
from runai.hub_service.processes.own_process import max_descriptors
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = pytest.mark.hub

MAX_LOGGED_LENGTH = 200
LONG_PATH = "A" * 60_000
ESCAPES = "%1b]0;owned%07%0a[I%202026-11-26]%9b2J"
RAW_ESCAPES = b"\x1b]0;owned\x07"


@pytest.fixture
def log(platform: HubPlatform) -> Path:
    return DataDirectory(platform.data_dir).hub_log


def test_hub_and_service_raise_their_descriptor_limit_but_servers_and_jobs_do_not(
    platform: HubPlatform,
):
    hub = psutil.Process(platform.running.pid)
    platform.start_server("ana")
    notebook = psutil.Process(platform.pid("ana"))
    limits = {
        "hub": hub.rlimit(psutil.RLIMIT_NOFILE)[0],
        "service": platform.service_process().rlimit(psutil.RLIMIT_NOFILE)[0],
        "notebook": notebook.rlimit(psutil.RLIMIT_NOFILE)[0],
        "job": descriptor_limit_in_job(platform),
    }
    platform.stop_server("ana")

    assert limits == {
        "hub": max_descriptors(),
        "service": max_descriptors(),
        "notebook": SOFT_LIMIT,
        "job": SOFT_LIMIT,
    }


def descriptor_limit_in_job(platform: HubPlatform) -> int:
    """Return what `ulimit -Sn` prints in a job."""
    url = f"{platform.http.base_url}/services/runai/"
    with Client(url, platform.token("bo"), patience_s=60) as client:
        command = ["/bin/sh", "-c", "ulimit -Sn"]
        request = SubmitRequest(name="limit", project="vision", gpus=Decimal(0), command=command)
        (workload,) = client.submit(request).workloads
        eventually(lambda: client.workload(workload.id).state == "succeeded", what="the job ends")
        return int("".join(line.text for line in client.logs(workload.id)))


def test_service_health_names_the_proxy_version_and_its_limits(platform: HubPlatform):
    health = platform.http.get("/services/runai/health").json()

    assert re.fullmatch(r"Caddy 2\.\d+\.\d+: .*body for the hub 64 KiB", health["proxy"])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("GET", "/hub/", id="page of the hub"),
        pytest.param("GET", "/hub/api/", id="API of the hub"),
        pytest.param("GET", "/user/ana/", id="server that does not run"),
        pytest.param("GET", "/user/ana/api/", id="API of a server that does not run"),
        pytest.param("DELETE", "/services/runai/api/v1/", id="service"),
        pytest.param("GET", "/services/none/", id="service that does not exist"),
        pytest.param("GET", "/", id="root"),
    ],
)
def test_request_paths_in_the_hub_log_are_shortened_and_escaped(
    platform: HubPlatform, log: Path, method: str, path: str
):
    begin = log.stat().st_size
    status = platform.http.request(method, path + ESCAPES + LONG_PATH).status_code
    written = eventually(lambda: log.read_bytes()[begin:], what="a line of the request")

    assert status >= 400 or status == 302
    assert LONG_PATH[: MAX_LOGGED_LENGTH + 1].encode() not in written
    assert RAW_ESCAPES not in written
    assert written.decode().replace("\n", "").isprintable()


def test_malformed_http_requests_leave_no_traceback_in_the_log(platform: HubPlatform, log: Path):
    begin = log.stat().st_size
    for nonsense in (b"\x16\x03\x01 nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", platform.port)) as connection:
            connection.sendall(nonsense)
            assert connection.recv(100).startswith(b"HTTP/1.")
    platform.http.get("/hub/after-nonsense")
    eventually(lambda: b"after-nonsense" in log.read_bytes()[begin:])

    assert b"Traceback" not in log.read_bytes()[begin:]


def test_hub_log_is_rotated_in_place_while_writers_continue(platform: HubPlatform, log: Path):
    inode = log.stat().st_ino
    with log.open("ab") as writer:
        writer.write((b"x" * 99 + b"\n") * (LOG_BYTES // 99))
    eventually(lambda: log.stat().st_size < LOG_BYTES, what="the log is put aside")
    platform.http.get("/hub/written-by-the-hub")
    platform.http.delete("/services/runai/api/v1/written-by-the-service")
    eventually(lambda: b"written-by-the-hub" in log.read_bytes())
    eventually(lambda: b"written-by-the-service" in log.read_bytes())

    assert log.stat().st_ino == inode
    assert b"\0" not in log.read_bytes()
    assert log.with_name("hub.log.1").stat().st_size >= LOG_BYTES


def test_every_process_that_writes_the_hub_log_opens_it_in_append_mode(
    platform: HubPlatform, log: Path
):
    """A writer with its own file position would leave a hole of zeros after each truncation."""
    hub = psutil.Process(platform.running.pid)
    flags = {
        process.pid: mode
        for process in [hub, *hub.children(recursive=True)]
        for mode in modes_of(process, log)
    }

    assert {hub.pid, platform.service_process().pid} <= flags.keys()
    assert set(flags.values()) == {"a"}


def modes_of(process: psutil.Process, path: Path) -> Iterator[str]:
    """Return the modes in which a process has a file open: "a" for appending."""
    for number in Path(f"/proc/{process.pid}/fd").iterdir():
        if number.readlink() == path:
            info = Path(f"/proc/{process.pid}/fdinfo/{number.name}").read_text()
            flags = re.search(r"^flags:\s*(\d+)$", info, re.MULTILINE)
            assert flags is not None
            yield "a" if int(flags[1], 8) & 0o2000 else "w"

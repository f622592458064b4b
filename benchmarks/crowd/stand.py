"""The real service as a process, over a stand-in of the hub, filled with sessions and queued jobs.

Knows its settings, its projects and how its memory and processor time are watched. Used by
`benchmarks/load.py`.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import psutil
from crowd.hub import name_of, servers_of

from runai.hub_service.api.program_schemas import ProcessReport
from runai.hub_service.api.schemas import SubmitRequest
from runai.hub_service.client import Client

HERE = Path(__file__).parent
HUB_TOKEN = "token-of-the-hub"
PROJECTS, GPUS = 20, 160  # users of odd projects have three servers: 7.5 of a quota of 8
STARTS_WITHIN_S = 120
AT_ONCE = 8
"""Who fills the service: a hub does so for several users, too."""


def project_of(number: int) -> str:
    """Return the project of a user: ten users in each."""
    return f"project-{number % PROJECTS:02}"


@dataclass
class Stand:
    """A service that runs, and who is there."""

    url: str
    process: psutil.Process
    users: int
    data: Path

    def begin_sessions(self) -> int:
        """Start the servers of all users as rows: a quarter of a GPU each; return how many."""
        here = psutil.Process()
        report = ProcessReport(pid=here.pid, created=here.create_time())

        def begin(hub: Client, number: int) -> int:
            for server in servers_of(number):
                wish = SubmitRequest(
                    kind="session",
                    owner=name_of(number),
                    server=server,
                    project=project_of(number),
                    gpus=0.25,
                )
                (session,) = hub.submit(wish).workloads
                while session.allocated == 0:
                    session = hub.wait(session.id, session.version)
                hub.attach(session.id, report)
            return len(servers_of(number))

        return self._for_each_user(begin)

    def queue_jobs(self, jobs: int) -> int:
        """Queue jobs, as arrays of the same size for each user; return how many.

        Those that start outlive the benchmark: they began together and would end together, and in
        that moment as many others be started, each two processes of Python.
        """
        each = jobs // self.users

        def queue(hub: Client, number: int) -> int:
            name = name_of(number)
            hub.submit(
                SubmitRequest(
                    name=f"queued-{name}",
                    owner=name,
                    project=project_of(number),
                    gpus=1,
                    command=["sleep", "86400"],
                    array=each,
                )
            )
            return each

        return self._for_each_user(queue)

    def _for_each_user(self, act: Callable[[Client, int], int]) -> int:
        """Act as the hub, which submits for anybody, for some users at once; return the sum."""

        def of(numbers: range) -> int:
            with Client(self.url, HUB_TOKEN, patience_s=120) as hub:
                return sum(act(hub, number) for number in numbers)

        with ThreadPoolExecutor(AT_ONCE) as hubs:
            return sum(hubs.map(of, [range(n, self.users, AT_ONCE) for n in range(AT_ONCE)]))

    def stored(self) -> list[str]:
        """Return the ids of everything that is stored."""
        headers = {"Authorization": f"Bearer {HUB_TOKEN}"}
        reply = httpx.get(f"{self.url}api/v1/workloads", headers=headers, timeout=120)
        return [workload["id"] for workload in reply.raise_for_status().json()]


class Watch:
    """What the service needs, looked at twice a second while a `with` lasts."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.memory: list[tuple[float, int]] = []
        """Seconds since the start, and MiB."""
        self.cpu = 0.0
        """Cores kept busy, on average."""

    def __enter__(self) -> Self:
        self._began, self._cpu = time.perf_counter(), self._used()
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.cpu = (self._used() - self._cpu) / (time.perf_counter() - self._began)
        self._over.set()
        self._thread.join()

    def _used(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def _look(self) -> None:
        while True:
            since = round(time.perf_counter() - self._began, 1)
            self.memory.append((since, self._process.memory_info().rss >> 20))
            if self._over.wait(0.5):
                return


@contextmanager
def standing(data: Path, users: int, **settings: str) -> Iterator[Stand]:
    """Run the stand-in and the service while the block runs; nothing of them is left."""
    hub_port, port = _unused_port(), _unused_port()
    members = {
        project_of(n): [name_of(m) for m in range(n, users, PROJECTS)] for n in range(PROJECTS)
    }
    lines = ["projects:"]
    for name, who in members.items():
        lines.append(f"  {name}: {{quota: {GPUS / PROJECTS}, members: [{', '.join(who)}]}}")
    (data / "projects.yaml").write_text("\n".join(lines))
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))},
        "RUNAI_DATA_DIR": str(data / "data"),
        "RUNAI_HUB_TOKEN": HUB_TOKEN,
        "RUNAI_SIMULATE": str(GPUS),
        "RUNAI_PROJECTS": str(data / "projects.yaml"),
        "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        "JUPYTERHUB_API_URL": f"http://127.0.0.1:{hub_port}/hub/api",
        "JUPYTERHUB_API_TOKEN": "token-of-the-service",
        **settings,
    }
    with (data / "service.log").open("wb") as log:
        hub = subprocess.Popen([sys.executable, str(HERE / "hub.py"), str(hub_port), str(users)])
        service = subprocess.Popen(
            [sys.executable, "-P", "-m", "runai.hub_service"], env=environment, stdout=log,
            stderr=log,
        )  # fmt: skip
    url = f"http://127.0.0.1:{port}/services/runai/"
    stand = Stand(url, psutil.Process(service.pid), users, data)
    try:
        _wait_until_ready(url, service, data)
        yield stand
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(60)
        hub.terminate()
        hub.wait(30)
        _end_jobs(data)


def _wait_until_ready(url: str, service: subprocess.Popen[bytes], data: Path) -> None:
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline and service.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(f"{url}health/ready", timeout=5).is_success:
                return
        time.sleep(0.1)
    raise RuntimeError((data / "service.log").read_text()[-4000:])


def _end_jobs(data: Path) -> None:
    """End the jobs that found room: they outlive the service on purpose."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values()]
            if process.pid != os.getpid() and any(str(data) in word for word in words):
                process.kill()


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

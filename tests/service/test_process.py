"""The service as a process: it starts, leaves cleanly, is killed; its jobs never notice.

Started as JupyterHub starts it, but without a JupyterHub: the shared token speaks for every user.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from runai.hub_service.api.schemas import SubmitRequest, WorkloadDetail
from runai.hub_service.client import Client
from runai.hub_service.errors import NotFound
from waiting import eventually

TOKEN = "the-hubs-token"
PROJECTS = "projects: {vision: {quota: 2, members: [ana]}}"


class Service:
    """One data directory and the service that is running on it."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.log = directory / "service.log"
        (directory / "projects.yaml").write_text(PROJECTS)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("JUPYTERHUB", "RUNAI"))},
            "RUNAI_DATA_DIR": str(directory / "data"),
            "RUNAI_HUB_TOKEN": TOKEN,
            "RUNAI_SIMULATE": "2",
            "RUNAI_PROJECTS": str(directory / "projects.yaml"),
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}",
        }
        self.client = Client(f"http://127.0.0.1:{port}/services/runai/", TOKEN, patience_s=60)
        self.process: subprocess.Popen[bytes] | None = None

    def popen(self, *before: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [*before, sys.executable, "-P", "-m", "runai.hub_service"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, env=self.environment | environment, stdout=log, stderr=log
            )

    def start(self) -> None:
        self.process = self.popen()
        self.client.overview()

    def stop(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def agent(self) -> psutil.Process | None:
        assert self.process is not None
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):  # it has just ended
                if "runai.hub_service.agent" in child.cmdline():
                    return child
        return None

    def submit(self, name: str, program: str) -> None:
        self.client.submit(
            SubmitRequest(
                name=name,
                owner="ana",
                gpus=1,
                command=[sys.executable, "-c", program],
                grace_seconds=1,
            )
        )

    def until(self, workload: str, *states: str) -> WorkloadDetail:
        seen = self.client.workload(workload)
        while seen.state not in states:
            seen = self.client.wait(workload, seen.version, 10)
        return seen

    def clean(self) -> None:
        """Leave no process behind: neither jobs nor the service."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        for workload in self.client.workloads():
            self.client.delete(workload.id)
        eventually(lambda: self.client.workloads() == [])
        self.stop(signal.SIGTERM)
        self.client.close()


@pytest.fixture
def service(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Service]:
    service = Service(tmp_path, free_port())
    yield service
    service.clean()


WAIT_FOR_FILE = """
import pathlib, sys, time
while not pathlib.Path({path!r}).exists():
    time.sleep(0.02)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_job_goes_on_without_the_service_and_is_taken_over(service, tmp_path, number):
    go = tmp_path / "go"
    service.start()
    service.submit("exp1", WAIT_FOR_FILE.format(path=str(go)))
    before = service.until("vision/exp1", "running")
    status = service.stop(number)
    service.start()
    after = service.client.workload("vision/exp1")
    go.touch()
    done = service.until("vision/exp1", "succeeded", "failed")

    assert status == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert (after.state, after.started) == ("running", before.started)
    assert (done.state, done.attempts, done.exit_code) == ("succeeded", 1, 0)


def test_a_job_that_ends_while_nobody_watches_is_known_to_have_ended(service, tmp_path):
    go = tmp_path / "go"
    service.start()
    service.submit("exp1", WAIT_FOR_FILE.format(path=str(go)) + "sys.exit(3)")
    service.until("vision/exp1", "running")
    service.stop(signal.SIGKILL)
    go.touch()
    service.start()
    done = service.until("vision/exp1", "succeeded", "failed")

    assert (done.state, done.exit_code, done.attempts) == ("failed", 3, 1)


def test_the_service_leaves_when_its_hub_is_killed(service):
    """The hub here is a shell that starts the service and waits."""
    hub = service.popen("/bin/sh", "-c", '"$@" & echo "pid $!"; wait', "sh")
    service.client.overview()
    line = next(line for line in service.log.read_text().splitlines() if line.startswith("pid "))
    process = psutil.Process(int(line.split()[1]))
    hub.kill()
    hub.wait()

    gone, _ = psutil.wait_procs([process], timeout=30)
    assert gone == [process]


def test_the_service_leaves_when_its_hub_died_before_it_could_look(service):
    """Imports take a second; whoever adopted it meanwhile is not the hub."""
    orphan = service.popen(RUNAI_HUB_PID="4194304")

    assert orphan.wait(30) == -signal.SIGTERM


def test_a_second_service_waits_until_the_first_one_has_left(service):
    service.start()
    second = service.popen()
    pid = service.process.pid
    service.submit("exp1", "pass")
    service.until("vision/exp1", "succeeded")
    assert second.poll() is None
    service.stop(signal.SIGTERM)
    service.process = second

    assert service.until("vision/exp1", "succeeded").attempts == 1
    assert second.pid != pid


def test_a_service_that_waits_for_another_leaves_when_it_is_told_to(service):
    service.start()
    second = service.popen()
    lock = service.directory / "data" / "cluster.lock"

    def waits() -> bool:
        # A process that waits has opened the lock's file and got no further.
        return str(lock) in {file.path for file in psutil.Process(second.pid).open_files()}

    eventually(waits)
    second.send_signal(signal.SIGTERM)

    assert second.wait(20) == 0
    assert service.client.overview().nodes


def test_the_agent_is_started_measures_and_is_started_again(service):
    service.start()
    service.submit("busy", "while True: pass")

    def measured() -> bool:
        return service.client.workload("vision/busy").utilized is not None

    eventually(measured)
    first = service.agent()
    first.kill()
    second = eventually(lambda: service.agent() if service.agent() != first else None)

    eventually(measured)
    assert second is not None
    assert TOKEN not in second.environ().values()


def test_no_secret_is_in_the_log(service):
    service.start()
    with pytest.raises(NotFound):
        service.client.workload("vision/nothing")
    agent = eventually(service.agent)
    assert agent is not None
    secret = agent.environ()["RUNAI_AGENT_TOKEN"]
    service.stop(signal.SIGTERM)

    log = service.log.read_text()
    assert "listening at" in log
    assert TOKEN not in log
    assert secret not in log


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RUNAI_DATA_DIR": ""}, "RUNAI_DATA_DIR is not set."),
        ({"RUNAI_SIMULATE": "many"}, "RUNAI_SIMULATE is 'many'."),
        ({"RUNAI_PROJECTS": "/no/such/file"}, "/no/such/file cannot be read"),
        ({"RUNAI_POLICY": "/no/such/policy"}, "/no/such/policy cannot be read"),
    ],
    ids=["no data directory", "no number", "no file", "no policy"],
)
def test_what_keeps_it_from_starting_is_one_sentence(tmp_path, free_port, environment, said):
    service = Service(tmp_path, free_port())
    status = service.popen(**environment).wait(60)
    log = service.log.read_text().splitlines()

    assert status == 2
    assert len(log) == 1
    assert said in log[0]

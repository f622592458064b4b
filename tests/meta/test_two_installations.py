"""A second installation of the wheel, at another path, takes over the jobs of the first.

An administrator can install a release beside the old one and start it on the same data directory.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from runai.hub_service.wire.schemas import SubmitRequest
from service_process import Service
from waiting import eventually

pytestmark = pytest.mark.tier("test")  # the wheel is built and installed: not before each commit

WAITS = """
import os, pathlib, runai_limits, sys, time
print("process", os.getpid())
print("path", os.environ["PYTHONPATH"])
print("hook", runai_limits.__file__, flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("goes on")
sys.exit(3)
"""


@pytest.fixture
def service(tmp_path: Path, free_port: Callable[[], int]) -> Iterator[Service]:
    service = Service(tmp_path, free_port())
    service.environment.pop("PYTHONPATH", None)  # runai can only come from the wheel
    yield service
    service.clean()


class Job:
    """A job that prints its hook's path, waits for a file, and ends with exit code 3."""

    def __init__(self, service: Service, name: str, until: Path, **env: str) -> None:
        self.service, self.id = service, f"vision/{name}"
        command = [sys.executable, "-c", WAITS, str(until)]
        service.client.submit(
            SubmitRequest(name=name, owner="ana", gpus=1, command=command, env=env)
        )

    def written(self) -> list[str]:
        return [line.text for line in self.service.client.logs(self.id)]

    def printed_facts(self, *, attempts: int = 1) -> dict[str, str]:
        """Return the output of the last attempt, once it is complete."""

        def has_printed() -> bool:
            return sum(line.startswith("hook ") for line in self.written()) == attempts

        eventually(has_printed, what=f"{self.id} has told {attempts} times what it is")
        return dict(line.split(" ", 1) for line in self.written())


def test_second_installation_takes_over_running_jobs(service, installed, install, tmp_path):
    go, old, new = tmp_path / "go", installed.parents[1], tmp_path / "new"
    service.python = installed
    service.start()
    continued, resumed = Job(service, "kept", go), Job(service, "resumed", go)
    began, of_old = continued.printed_facts(), resumed.printed_facts()
    before = service.until(continued.id, "running")
    service.until(resumed.id, "running")
    assert service.stop(signal.SIGTERM) == 0

    service.python = install(new)
    service.start()
    after = service.client.workload(continued.id)
    service.client.suspend(resumed.id)
    service.until(resumed.id, "suspended")
    still_run = [psutil.pid_exists(int(of["process"])) for of in (began, of_old)]
    service.client.resume(resumed.id)
    of_new = resumed.printed_facts(attempts=2)
    go.touch()
    # Submit from a notebook server that the first installation started, with its path.
    made = Job(service, "made-later", go, PYTHONPATH=began["path"])
    ends = [service.until(job.id, "succeeded", "failed") for job in (continued, resumed, made)]

    assert (after.state, after.started, still_run) == ("running", before.started, [True, False])
    assert continued.written() == [*map(" ".join, began.items()), "goes on"]
    assert [(end.exit_code, end.attempts) for end in ends] == [(3, 1), (3, 2), (3, 1)]
    assert Path(began["hook"]).is_relative_to(old)
    assert Path(of_new["hook"]).is_relative_to(new)
    assert made.printed_facts()["path"] == f"{of_new['path']}:{began['path']}"
    assert [line.partition(" ")[0] for line in made.written()] == [*began, "goes"]

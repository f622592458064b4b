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

from runai.hub_service.wire.workload_request import SubmitRequest
from service_process import Service
from waiting import eventually

pytestmark = pytest.mark.tier("test")  # the wheel is built and installed: not before each commit

JOB_PROGRAM = """
import os, pathlib, runai_limits, sys, time
print("process", os.getpid())
print("path", os.environ["PYTHONPATH"])
print("hook", runai_limits.__file__, flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.02)
print("state continued")
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
        command = [sys.executable, "-c", JOB_PROGRAM, str(until)]
        service.client.submit(
            SubmitRequest(name=name, owner="ana", gpus=1, command=command, env=env)
        )

    def log_lines(self) -> list[str]:
        return [line.text for line in self.service.client.logs(self.id)]

    def printed_facts(self, *, attempts: int = 1) -> dict[str, str]:
        """Return the output of the last attempt, once it is complete."""

        def has_printed() -> bool:
            return sum(line.startswith("hook ") for line in self.log_lines()) == attempts

        eventually(has_printed, what=f"{self.id} has printed its facts {attempts} times")
        return dict(line.split(" ", 1) for line in self.log_lines())


def test_second_installation_takes_over_running_jobs(service, installed, install, tmp_path):
    end_file, old_folder, new_folder = tmp_path / "end", installed.parents[1], tmp_path / "new"
    service.python = installed
    service.start()
    continued, resumed = Job(service, "continued", end_file), Job(service, "resumed", end_file)
    continued_facts, resumed_facts = continued.printed_facts(), resumed.printed_facts()
    view_before = service.until(continued.id, "running")
    service.until(resumed.id, "running")
    assert service.stop(signal.SIGTERM) == 0

    service.python = install(new_folder)
    service.start()
    view_after = service.client.workload(continued.id)
    service.client.suspend(resumed.id)
    service.until(resumed.id, "suspended")
    is_running = [
        psutil.pid_exists(int(facts["process"])) for facts in (continued_facts, resumed_facts)
    ]
    service.client.resume(resumed.id)
    new_facts = resumed.printed_facts(attempts=2)
    end_file.touch()
    # Submit from a notebook server that the first installation started, with its path.
    later_job = Job(service, "later", end_file, PYTHONPATH=continued_facts["path"])
    ends = [service.until(job.id, "succeeded", "failed") for job in (continued, resumed, later_job)]

    assert view_after.state == "running"
    assert view_after.started == view_before.started
    assert is_running == [True, False]
    assert continued.log_lines() == [*map(" ".join, continued_facts.items()), "state continued"]
    assert [end.exit_code for end in ends] == [3, 3, 3]
    assert [end.attempts for end in ends] == [1, 2, 1]
    assert Path(continued_facts["hook"]).is_relative_to(old_folder)
    assert Path(new_facts["hook"]).is_relative_to(new_folder)
    assert later_job.printed_facts()["path"] == f"{new_facts['path']}:{continued_facts['path']}"
    printed_names = [line.partition(" ")[0] for line in later_job.log_lines()]
    assert printed_names == [*continued_facts, "state"]

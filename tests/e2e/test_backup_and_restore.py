"""Backup, restore and restart of a whole platform, by an admin's commands.

A training and a notebook server run, and users go on after the backup. Whether the platform was
stopped in good order or killed, everything in the backup is restored.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from hub_platform import HubPlatform
from runai.hub_service.cli.framework.hub_login import HubLogin
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(600)]

COUNTING_PROGRAM = Path(__file__).parents[1] / "crashes/counting_job.py"


def runai(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a separate process."""
    command = [sys.executable, "-m", "runai.hub_service.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class BobsBrowser:
    """HTTP client of the hub that acts as Bob's browser."""

    def __init__(self, platform: HubPlatform) -> None:
        self._hub = HubLogin(f"{platform.url}/")
        self._hub.log_in("bob", platform.password("bob"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hub.__exit__()

    def request(self, method: str, path: str, **content: Any) -> Any:
        self._hub._send("GET", "hub/token")  # renews the token against forged requests
        headers = {"X-XSRFToken": self._hub._xsrf()}
        return self._hub._send(method, f"hub/api/users/bob{path}", headers=headers, **content)

    def start_server(self) -> None:
        """Start Bob's notebook server with half a GPU, and return when it is ready."""
        reply = self.request("POST", "/server", json={"project": "vision", "gpus": "0.5"})
        assert reply.is_success, reply.text
        eventually(lambda: self.server().get("ready"), within=90, what="bob's server is ready")

    def server(self) -> dict[str, Any]:
        model: dict[str, Any] = self.request("GET", "").json()["servers"].get("", {})
        return model


def submit_counting_job(client: Client, name: str, steps: int) -> None:
    command = ["python", str(COUNTING_PROGRAM), str(steps), "0.05"]
    client.submit(SubmitRequest(name=name, gpus=1, command=command, grace_seconds=5))


def wait_for_state(client: Client, workload: str, *states: str) -> WorkloadDetail:
    def reached() -> WorkloadDetail | None:
        view = client.workload(workload)
        return view if view.state in states else None

    found = eventually(reached, within=90, what=f"{workload} is {' or '.join(states)}")
    assert found is not None
    return found


def saved_count(workload: WorkloadDetail) -> int:
    path = Path(workload.checkpoint_dir) / "step"
    return int(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize("platform_end", ["stopped", "killed"])
def test_restore_returns_workloads_sessions_and_usage_of_the_backup(
    platform_end: str, start_platform: Callable[[], HubPlatform]
):
    platform = start_platform()
    data_dir_option = ("--data-dir", str(platform.data_dir))
    bob, patty = platform.client("bob"), platform.client("patty")
    with BobsBrowser(platform) as browser:
        browser.start_server()
    submit_counting_job(bob, "short", 1)
    submit_counting_job(bob, "long", 100_000)
    wait_for_state(bob, "vision/short", "succeeded")
    training = wait_for_state(bob, "vision/long", "running")
    (session,) = [w for w in bob.workloads() if w.kind == "session"]
    assert session.state == "running"

    backup_run = runai("backup", *data_dir_option)
    assert backup_run.returncode == 0, backup_run.stderr
    backup = Path(backup_run.stdout.strip())
    manifest = json.loads((backup / "backup.json").read_text())
    assert manifest["databases"] == ["cluster.sqlite", "ledger.sqlite", "jupyterhub.sqlite"]

    # Users go on after the backup.
    submit_counting_job(patty, "later", 100_000)
    wait_for_state(patty, "nlp/later", "running")
    bob.delete("vision/short")
    restore_run = runai("restore", str(backup), *data_dir_option)
    assert restore_run.returncode == 1
    assert "A platform runs on" in restore_run.stderr

    (worker,) = processes_of(platform, "vision/long")
    if platform_end == "killed":
        platform.kill()
        eventually(lambda: not services(platform), within=60, what="the service has ended too")
    else:
        platform.running.send_signal(signal.SIGINT)
        platform.running.wait(60)
    count_at_stop = saved_count(training)

    restore_run = runai("restore", str(backup), *data_dir_option)
    assert restore_run.returncode == 1
    assert "Workers run that this backup does not know: nlp/later-0." in restore_run.stderr
    restore_run = runai("restore", str(backup), *data_dir_option, "--stop-unknown")
    assert restore_run.returncode == 0, restore_run.stderr
    assert "stopped: nlp/later-0" in restore_run.stdout
    platform.start()

    # The same process goes on with the same training: nothing stopped it.
    bob, patty = platform.client("bob"), platform.client("patty")
    continued = wait_for_state(bob, "vision/long", "running")
    assert continued.attempts == 1
    assert continued.submitted == training.submitted
    assert processes_of(platform, "vision/long") == [worker]
    eventually(lambda: saved_count(continued) > count_at_stop, what="the training goes on")
    # The job deleted later is back, the job submitted later is gone, and its GPU is free.
    assert bob.workload("vision/short").state == "succeeded"
    assert patty.workloads() == []
    # A server that ended with the platform is started again; one that lived on is found again.
    with BobsBrowser(platform) as browser:
        if platform_end == "killed":
            eventually(lambda: browser.server().get("ready"), within=60, what="known")
        else:
            eventually(lambda: not browser.server().get("ready"), within=60)
            browser.start_server()
    wait_for_state(bob, session.id, "running")
    allocated_gpus = sum(d.allocated for n in bob.nodes() for d in n.devices)
    assert allocated_gpus == 1.5  # one of the training, half of the session
    # Usage goes on from the backup's, and a new job inherits nothing from the removed one.
    history = platform.client("admin").history(datetime.now(UTC) - timedelta(days=1))
    assert {"vision/long", session.id} <= {record.id for record in history}
    assert "nlp/later" not in {record.id for record in history}
    submit_counting_job(patty, "later", 1)
    assert wait_for_state(patty, "nlp/later", "succeeded", "failed").state == "succeeded"


def processes_of(platform: HubPlatform, workload: str) -> list[psutil.Process]:
    """Return the processes of a job's program."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            is_ours = str(platform.data_dir) in environment.get("RUNAI_CHECKPOINT_DIR", "")
            if is_ours and environment.get("RUNAI_WORKLOAD") == workload:
                found.append(process)
        except psutil.Error:
            continue
    return found


def services(platform: HubPlatform) -> list[psutil.Process]:
    """Return the service's process, even if its hub has ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RUNAI_DATA_DIR") == str(platform.data_dir):
                found += [process] if "runai.hub_service" in process.cmdline() else []
        except psutil.Error:
            continue
    return found

"""Backup, restore and restart of a whole platform, by an admin's commands.

A training and a notebook server run, and users go on after the backup. Whether the platform was
stopped in good order or killed, everything in the backup is restored.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from e2e.running import Platform
from runai.hub_service.cli.framework.hub_login import HubLogin
from runai.hub_service.client import Client
from runai.hub_service.wire.schemas import SubmitRequest, WorkloadDetail
from waiting import eventually

pytestmark = [pytest.mark.hub, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("counting.py")


def runai(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a separate process."""
    command = [sys.executable, "-m", "runai.hub_service.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Bob:
    """HTTP client of the hub that acts as Bob's browser."""

    def __init__(self, platform: Platform) -> None:
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
        started = self.request("POST", "/server", json={"project": "vision", "gpus": "0.5"})
        assert started.is_success, started.text
        eventually(lambda: self.server().get("ready"), within=90, what="bob's server is ready")

    def server(self) -> dict[str, Any]:
        model: dict[str, Any] = self.request("GET", "").json()["servers"].get("", {})
        return model


def submit(client: Client, name: str, steps: int) -> None:
    command = ["python", str(PROGRAM), str(steps), "0.05"]
    client.submit(SubmitRequest(name=name, gpus=1, command=command, grace_seconds=5))


def until(client: Client, workload: str, *states: str) -> WorkloadDetail:
    def reached() -> WorkloadDetail | None:
        view = client.workload(workload)
        return view if view.state in states else None

    found = eventually(reached, within=90, what=f"{workload} is {' or '.join(states)}")
    assert found is not None
    return found


def saved_count(workload: WorkloadDetail) -> int:
    path = Path(workload.checkpoint_dir) / "place"
    return int(path.read_text()) if path.exists() else 0


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_restore_returns_workloads_sessions_and_usage_of_the_backup(
    how: str, start_platform: Callable[[], Platform]
):
    platform = start_platform()
    data = ("--data-dir", str(platform.data_dir))
    bob, patty = platform.client("bob"), platform.client("patty")
    with Bob(platform) as browser:
        browser.start_server()
    submit(bob, "short", 1)
    submit(bob, "long", 100_000)
    until(bob, "vision/short", "succeeded")
    training = until(bob, "vision/long", "running")
    (session,) = [w for w in bob.workloads() if w.kind == "session"]
    assert session.state == "running"

    completed = runai("backup", *data)
    assert completed.returncode == 0, completed.stderr
    backup = Path(completed.stdout.strip())
    manifest = json.loads((backup / "backup.json").read_text())
    assert manifest["databases"] == ["cluster.sqlite", "ledger.sqlite", "jupyterhub.sqlite"]

    # Users go on after the backup.
    submit(patty, "later", 100_000)
    until(patty, "nlp/later", "running")
    bob.delete("vision/short")
    refused = runai("restore", str(backup), *data)
    assert refused.returncode == 1
    assert "A platform runs on" in refused.stderr

    (worker,) = processes_of(platform, "vision/long")
    if how == "killed":
        platform.kill()
        eventually(lambda: not services(platform), within=60, what="the service has gone with it")
    else:
        platform.running.send_signal(2)
        platform.running.wait(60)
    count_at_stop = saved_count(training)

    refused = runai("restore", str(backup), *data)
    assert refused.returncode == 1
    assert "Workers run that this backup does not know: nlp/later-0." in refused.stderr
    restored = runai("restore", str(backup), *data, "--stop-unknown")
    assert restored.returncode == 0, restored.stderr
    assert "stopped: nlp/later-0" in restored.stdout
    platform.start()

    # The same process of the same training: it was not stopped.
    bob, patty = platform.client("bob"), platform.client("patty")
    found = until(bob, "vision/long", "running")
    assert (found.attempts, found.submitted) == (1, training.submitted)
    assert processes_of(platform, "vision/long") == [worker]
    eventually(lambda: saved_count(found) > count_at_stop, what="it gets on")
    # The job deleted later is back, the job submitted later is gone, and its GPU is free.
    assert bob.workload("vision/short").state == "succeeded"
    assert patty.workloads() == []
    # A server that ended with the platform is started again; one that lived on is found again.
    with Bob(platform) as browser:
        if how == "killed":
            eventually(lambda: browser.server().get("ready"), within=60, what="it is known")
        else:
            eventually(lambda: not browser.server().get("ready"), within=60)
            browser.start_server()
    until(bob, session.id, "running")
    assert sum(d.allocated for n in bob.nodes() for d in n.devices) == 1.5
    # Usage goes on from the backup's, and a new job inherits nothing from the removed one.
    past = platform.client("admin").history(datetime.now(UTC) - timedelta(days=1))
    assert {"vision/long", session.id} <= {one.id for one in past}
    assert "nlp/later" not in {one.id for one in past}
    submit(patty, "later", 1)
    assert until(patty, "nlp/later", "succeeded", "failed").state == "succeeded"


def processes_of(platform: Platform, workload: str) -> list[psutil.Process]:
    """Return the processes of a job's program."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            mine = str(platform.data_dir) in environment.get("RUNAI_CHECKPOINT_DIR", "")
            if mine and environment.get("RUNAI_WORKLOAD") == workload:
                found.append(process)
        except psutil.Error:
            continue
    return found


def services(platform: Platform) -> list[psutil.Process]:
    """Return the service's process, even if its hub has ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RUNAI_DATA_DIR") == str(platform.data_dir):
                found += [process] if "runai.hub_service" in process.cmdline() else []
        except psutil.Error:
            continue
    return found

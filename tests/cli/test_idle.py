"""`runai top --idle`, `keep`, `release` and `regain`, on a real service with a simulated agent.

Rules of idleness, of keeping and of reclaiming: tests/service/controller/test_idle.py. The agent
reports an idle session, as if time went faster.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from in_process_service import NODE, RunningService, running_service
from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.client import Client
from runai.hub_service.model.records import IdleRules, ProjectSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.reports import (
    AgentAllocation,
    AgentReport,
    DeviceSample,
    ProcessSample,
    UsageSample,
)
from runai.hub_service.wire.workload_request import SubmitRequest

ACTORS = [Actor("hub", kind="hub"), Actor(NODE, kind="agent"), Actor("bob")]
PROJECTS = [
    ProjectSpec(
        "vision",
        quota=MilliGpu(1000),
        members=("bob",),
        idle_session=IdleRules(release_s=3600),
    )
]
SESSION = "vision/lab"


class Node:
    """The agent of the only node."""

    def __init__(self, client: Client, device: str) -> None:
        self._client, self._device = client, device
        self._at = time.time()
        self.allocations: list[AgentAllocation] = []

    def report(self, minutes: float = 1, *, kernel: bool = True) -> None:
        """Report `minutes` of idleness for every session's GPU."""
        self._at += 60 * minutes
        gpu_allocations = [a for a in self.allocations if a.shares]
        self.allocations = self._client.report(
            AgentReport(
                node=NODE,
                at=self._at,
                interval=60 * minutes,
                devices=[DeviceSample(device=self._device, utilization=0, memory_mib=10)],
                samples=[
                    UsageSample(
                        workload=a.workload, device=self._device, utilization=0, memory_mib=10
                    )
                    for a in gpu_allocations
                ],
                processes=tuple(
                    ProcessSample(
                        device=self._device, pid=1, workload=a.workload, worker=a.worker,
                        account="bob", name="python3", utilization=0, memory_mib=10,
                    )
                    for a in gpu_allocations
                    if kernel
                ),
            )
        ).allocations  # fmt: skip


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """Run a service for each test: the simulated agents' clocks run ahead."""
    with running_service(tmp_path / "service", ACTORS, PROJECTS, gpus=1) as service:
        yield service


@pytest.fixture
def node(service: RunningService, eventually) -> Iterator[Node]:
    """Run bob's session on half a GPU."""
    sleeping = subprocess.Popen(["/bin/sleep", "3600"])
    with sleeping, Client(service.url, service.tokens["hub"]) as hub:
        (lab,) = hub.submit(
            SubmitRequest.model_validate(
                {"name": "lab", "project": "vision", "kind": "session", "owner": "bob",
                 "gpus": "0.5"}
            )
        ).workloads  # fmt: skip
        eventually(lambda: hub.workload(lab.id).allocated == 0.5)
        created = psutil.Process(sleeping.pid).create_time()
        hub.attach(lab.id, ProcessReport(pid=sleeping.pid, created=created))
        with Client(service.url, service.tokens[NODE]) as agent:
            (device,) = hub.nodes()[0].devices
            node = Node(agent, device.uuid)
            for _ in range(2):  # the first gets the allocations, the second has samples
                node.report()
            yield node
        hub.delete(lab.id)
        sleeping.kill()
        eventually(lambda: SESSION not in {w.id for w in hub.workloads()})


def test_idle_session_is_listed_by_top_and_extended_by_keep(node, as_user):
    bob = as_user("bob")
    early_table = bob("top", "--idle")
    for _ in range(55):  # minutes, of the 60 until the session's GPU is released
        node.report()
    table = bob("top", "--idle").stdout
    (session,) = json.loads(bob("top", "--idle", "-o", "json").stdout)
    keep_result = bob("keep", "lab")

    assert (early_table.stdout, early_table.stderr) == ("", "No GPU that you may see is idle.\n")
    assert "lab" in table
    assert session["idle"]["takes"] == "release"
    assert keep_result.exit_code == 0
    assert keep_result.stdout.startswith("session vision/lab ")
    assert (
        json.loads(bob("top", "--idle", "-o", "json").stdout)[0]["idle"]["keeps_left"] == 1
    )  # of two


def test_release_and_regain_commands_return_and_restore_a_sessions_gpus(node, as_user):
    bob = as_user("bob")
    early_regain = bob("regain", "lab")
    release = bob("release", "lab")
    # 6.4 minutes in all: half a GPU for that long prints as 0.1 GPU-hours.
    for _ in range(32):
        node.report(0.2, kernel=False)
    top = bob("top")
    regain = bob("regain", "lab")

    assert early_regain.exit_code == 1
    assert "still has its GPUs" in early_regain.stderr
    assert (release.exit_code, regain.exit_code) == (0, 0)
    assert release.stdout == "session vision/lab gives its GPUs back\n"
    assert "0.1 GPU-hours would have been idle, had others not had them" in top.stdout
    assert regain.stdout.startswith("session vision/lab ")

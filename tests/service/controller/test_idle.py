"""Idle GPUs on the running service: real processes, the agent's real measurements and actions.

The tests set the time.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psutil
import pytest

from runai.embedded.culler import cull_arbiter
from runai.hub_service.agent import usage
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.agent.enforcement.device_release import DeviceReleaser
from runai.hub_service.wire.errors import Conflict, Forbidden, InvalidRequest
from runai.hub_service.wire.program_schemas import ProcessReport
from runai.hub_service.wire.reports import AgentAllocation, AgentReport
from runai.hub_service.wire.schemas import IdlePut, ProjectPut
from runai.hub_service.wire.workload_request import SubmitRequest
from waiting import eventually_async

# A notebook server with one kernel; it prints a line when it is ready.
NOTEBOOK_SERVER_SCRIPT = """
import subprocess, sys
program = "import signal; print(1, flush=True); signal.pause()"
kernel = subprocess.Popen([sys.executable, "-c", program])
kernel.wait()
print("the server goes on", flush=True)
sys.stdin.read()
"""
MINUTE = 60


@dataclass
class NodeAgent:
    """The agent of the only node: it really polls, and reports as if more time had passed."""

    client: Any
    at: float
    releaser: DeviceReleaser
    source: SimulatedDevices
    allocations: list[AgentAllocation]

    async def report(self, seconds: float = 10) -> AgentReport:
        poll = self.source.poll(self.allocations)
        self.releaser.enforce(poll, self.allocations)
        self.at += seconds
        report = usage.report("lab", poll, self.allocations).model_copy(
            update={"at": self.at, "interval": seconds}
        )
        self.allocations = (await self.client.report(report)).allocations
        return report

    async def idle(self, minutes: float) -> None:
        for _ in range(round(6 * minutes)):
            await self.report()


@pytest.fixture
async def node(served, agent):
    node_agent = NodeAgent(
        agent, served.platform.clock(), DeviceReleaser(), SimulatedDevices(5, node="lab"), []
    )
    yield node_agent
    node_agent.source.close()


def start_server() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", NOTEBOOK_SERVER_SCRIPT]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
async def notebook_server(hub, node):
    """Run ana's session on half a GPU, with an idle kernel; yield the server's process."""
    request = SubmitRequest(
        name="lab", project="vision", kind="session", owner="ana", gpus=Decimal("0.5")
    )
    await hub.submit(request)
    server = start_server()
    assert server.stdout is not None
    server.stdout.readline()
    process = psutil.Process(server.pid)
    processes = [process, *process.children()]
    # A process that has not reached its wait uses some CPU, so its GPU would count as in use.
    await eventually_async(lambda: all(p.status() == psutil.STATUS_SLEEPING for p in processes))
    report = ProcessReport(pid=server.pid, created=process.create_time())
    await hub.attach("vision/lab", report)
    for _ in range(3):  # polls: discover it, read its counters, measure
        await node.report(1)
    yield process
    with suppress(psutil.NoSuchProcess):
        for child in [*process.children(), process]:
            child.kill()
    server.communicate()


async def lab_workload(client):
    return next(w for w in await client.workloads() if w.id == "vision/lab")


async def history_contains(client, text: str) -> bool:
    history = (await client.workload("vision/lab")).history
    return any(text in line.text for line in history)


async def test_idle_session_is_notified_and_retains_its_gpu_by_default(notebook_server, node, ana):
    await node.idle(6)  # a badge is due after 5 minutes, a notification after 20
    badge = (await lab_workload(ana)).idle
    await node.idle(16)
    later = await lab_workload(ana)

    assert (badge.told, badge.takes, badge.keeps_left) == (False, None, 0)
    assert (later.idle.told, later.allocated, later.state) == (True, 0.5, "running")
    assert await history_contains(ana, "less than 1 % busy for 20 min")
    with pytest.raises(Conflict, match="is not about to lose its GPUs"):
        await ana.keep("vision/lab")


async def test_project_idle_rule_releases_session_gpu_while_notebook_server_runs_on(
    notebook_server, node, ana, root, served
):
    await root.put_project("vision", ProjectPut(idle_session=IdlePut(release_s=30 * MINUTE)))
    (kernel,) = notebook_server.children()
    await node.idle(22)
    before_release = (await lab_workload(ana)).idle
    await node.idle(9)  # 31 minutes in all

    async def released() -> bool:
        await node.report()
        return bool((await lab_workload(ana)).released)

    await eventually_async(released)
    after = await lab_workload(ana)

    assert (before_release.takes, before_release.keeps_left, before_release.releasable) == (
        "release",
        2,
        True,
    )
    assert not kernel.is_running() or kernel.status() == psutil.STATUS_ZOMBIE
    assert notebook_server.is_running()
    assert (after.state, after.allocated, after.idle) == ("running", 0, None)
    assert await history_contains(ana, "GPU-hours used so far")
    history = await served.platform.ledger.events("vision/lab")
    assert any("so its GPUs go to others" in event.text for event in history)

    await node.report()
    await node.report()
    reclaimed = (await ana.overview()).idle_gpu_hours_reclaimed
    # Two reports, 10 s each, of half a GPU.
    assert reclaimed >= 2 * 10 * 0.5 / 3600

    await ana.regain("vision/lab")

    async def has_gpu_again() -> bool:
        workload = await lab_workload(ana)
        return bool(workload.state == "running" and workload.allocated == 0.5)

    await eventually_async(has_gpu_again)
    assert notebook_server.is_running()


async def test_session_owner_releases_its_gpu_at_once(notebook_server, node, ana):
    await ana.release("vision/lab")
    with pytest.raises(Conflict, match=r"is still giving its GPUs back\. Ask for them again"):
        await ana.regain("vision/lab")

    async def released() -> bool:
        await node.report()
        return bool((await lab_workload(ana)).released)

    await eventually_async(released)
    assert notebook_server.is_running()
    assert await history_contains(ana, "ana gives its GPUs back")


async def test_session_that_runs_a_command_becomes_idle_but_not_releasable(served, node, ana, root):
    await root.put_project("vision", ProjectPut(idle_session=IdlePut(badge_s=60)))
    sleep_command = [sys.executable, "-c", "import signal; signal.pause()"]
    request = SubmitRequest(
        name="lab", project="vision", kind="session", command=sleep_command, gpus=Decimal(1)
    )
    await ana.submit(request)

    async def idle() -> bool:
        await node.report()
        return bool((await lab_workload(ana)).idle)

    await eventually_async(idle)

    assert not (await lab_workload(ana)).idle.releasable
    with pytest.raises(Conflict, match="no running session with GPUs"):
        await ana.release("vision/lab")


async def test_session_can_be_deleted_while_its_gpu_is_released(notebook_server, node, ana):
    await ana.release("vision/lab")
    for kernel in notebook_server.children():
        kernel.kill()
    notebook_server.suspend()  # the process cannot end at once
    await ana.delete("vision/lab")
    for _ in range(3):
        await node.report()

    assert (await lab_workload(ana)).state == "stopping"


async def test_idle_job_is_suspended_by_the_idle_rule_of_its_project(served, node, ana, root):
    await root.put_project("vision", ProjectPut(idle_job=IdlePut(notify_s=None, stop_s=600)))
    sleep_command = [sys.executable, "-c", "import signal; signal.pause()"]
    await ana.submit(
        SubmitRequest(name="exp", project="vision", command=sleep_command, gpus=Decimal(1))
    )

    async def suspended() -> bool:
        await node.report()
        return bool((await ana.workload("vision/exp")).state == "suspended")

    await eventually_async(suspended)
    texts = [line.text for line in (await ana.workload("vision/exp")).history]
    assert any("so it is stopped" in text for text in texts)
    assert any("the idle rule of project vision" in text for text in texts)


async def test_idle_culler_spares_sessions_in_use_or_extended_at_most_twice(
    notebook_server, node, served, ana, root, monkeypatch
):
    monkeypatch.setenv("RUNAI_API_URL", served.url)
    monkeypatch.setenv("RUNAI_HUB_TOKEN", "hub-token")
    hours = timedelta(hours=2)

    async def is_culled(user: str, limit: float = 3600) -> bool:
        server = {"name": "", "url": f"/hub/user/{user}/"}
        return await cull_arbiter(inactive=hours, inactive_limit=limit, server=server)

    assert not await is_culled("ana"), "ana's GPU is in use"
    assert await is_culled("somebody"), "a user without GPUs"
    await root.put_project("vision", ProjectPut(idle_session=IdlePut(release_s=30 * MINUTE)))
    await node.idle(6)
    assert await is_culled("ana")
    assert not await is_culled("ana", 9000), "2 hours are less than the limit"
    before = (await lab_workload(ana)).idle
    extended = (await ana.keep("vision/lab")).idle
    assert not await is_culled("ana")
    assert (extended.takes_at - before.takes_at).total_seconds() == pytest.approx(1800, abs=5)
    assert extended.keeps_left == 1
    await ana.keep("vision/lab")
    with pytest.raises(Conflict, match="extended 2 times already, by 30 min each"):
        await ana.keep("vision/lab")


async def test_idle_culler_stops_no_notebook_server_while_the_service_is_unreachable(
    monkeypatch, free_port
):
    monkeypatch.setenv("RUNAI_API_URL", f"http://127.0.0.1:{free_port()}/")
    monkeypatch.setenv("RUNAI_HUB_TOKEN", "hub-token")
    server = {"name": "", "url": "/user/ana/"}

    assert not await cull_arbiter(inactive=timedelta(9), inactive_limit=1, server=server)


async def test_idle_rules_are_set_by_hub_admins_and_never_release_jobs(ana, vic, root):
    change = ProjectPut(idle_session=IdlePut(release_s=1800))
    for client in (ana, vic):
        with pytest.raises(Forbidden):
            await client.put_project("vision", change)
    changed = await root.put_project("vision", change)
    again = await root.put_project("vision", ProjectPut(idle_session=IdlePut(stop_s=7200)))

    assert (changed.idle_session.release_s, changed.idle_session.notify_s) == (1800, 1200)
    assert (again.idle_session.release_s, again.idle_session.stop_s) == (1800, 7200)
    with pytest.raises(InvalidRequest, match="a job does not go on without its GPUs"):
        await root.put_project("vision", ProjectPut(idle_job=IdlePut(release_s=1800)))

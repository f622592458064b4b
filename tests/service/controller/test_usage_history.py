"""Recent usage of projects, as the running scheduler receives it."""

from __future__ import annotations

import pytest

from inline_decisions import inline_scheduler
from labs import Clock
from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.controller.controller import Controller
from runai.hub_service.controller.usage_history import HALF_LIFE_S, UsageHistory
from runai.hub_service.ledger import DeviceAllocation, Ledger
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import Policy
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Unavailable

DAY_S = 86400
START = 1_700_000_000.0 // DAY_S * DAY_S


@pytest.fixture
def clock():
    return Clock(START)


@pytest.fixture
def ledger(tmp_path, clock):
    opened = Ledger(tmp_path / "ledger.sqlite", clock=clock)
    yield opened
    opened.close()


@pytest.fixture
async def cluster(clock):
    simulated = simulated_cluster({"lab": SimulatedDevices(5, node="lab").devices()}, clock=clock)
    for name in ("vision", "nlp"):
        await simulated.put_project(ProjectSpec(name, quota=MilliGpu(1000), weight=1))
    return simulated


async def record_allocation(ledger, clock, project, gpus, hours):
    """Record a project's use of whole GPUs in the ledger, each minute for some hours."""
    allocations = [
        DeviceAllocation(project, "ana", f"{project}/old", f"GPU-{n}", 1000) for n in range(gpus)
    ]
    for _ in range(60 * hours):
        ledger.record(clock.at, 0, allocations)
        clock.at += 60
        await ledger.flush()
    ledger.record(clock.at, 0, [])
    await ledger.flush()


@pytest.mark.parametrize(
    ("history_weight", "gpus_by_project"),
    [
        pytest.param(0, {2, 3}, id="past usage ignored"),
        pytest.param(1, {1, 4}, id="past usage counts"),
    ],
)
async def test_project_with_heavy_usage_last_week_yields_surplus_gpus(
    cluster, ledger, clock, history_weight, gpus_by_project
):
    await record_allocation(ledger, clock, "vision", 4, hours=2)
    clock.at = START + 7 * DAY_S
    history = UsageHistory(cluster, ledger, clock)
    await history.read()
    for project in ("vision", "nlp"):
        await cluster.submit(
            [
                WorkloadSpec(project, f"job-{n}", "ana", "job", ("true",), gpus=MilliGpu(1000))
                for n in range(5)
            ]
        )
    policy = Policy(history_weight=history_weight)
    controller = Controller(cluster, inline_scheduler(), policy=policy, history=history.with_usage)
    await controller.cycle()
    allocated = {"vision": 0, "nlp": 0}
    for record in await cluster.workloads():
        allocated[record.spec.project] += record.allocated // 1000

    # Each project has one of the five GPUs as quota; the other three are surplus.
    assert set(allocated.values()) == gpus_by_project
    assert history_weight == 0 or allocated["nlp"] == 4


async def test_project_usage_of_a_week_earlier_has_half_the_weight(cluster, ledger, clock):
    history = UsageHistory(cluster, ledger, clock)
    await record_allocation(ledger, clock, "vision", 4, hours=2)
    clock.at = START + HALF_LIFE_S
    await record_allocation(ledger, clock, "nlp", 4, hours=2)
    await history.read()
    snapshot = history.with_usage(await cluster.observe())
    usage = {project.name: project.usage or 0 for project in snapshot.projects}

    assert usage["vision"] == pytest.approx(usage["nlp"] / 2, abs=1)
    assert usage["nlp"] > 0


async def test_parent_project_has_no_usage_beside_its_children(cluster, ledger, clock):
    await cluster.put_project(ProjectSpec("students", parent="vision"))
    history = UsageHistory(cluster, ledger, clock)
    await history.read()
    usage_by_project = {
        p.name: p.usage for p in history.with_usage(await cluster.observe()).projects
    }

    assert usage_by_project == {"vision": None, "nlp": 0, "students": 0}


async def test_unavailable_usage_history_leaves_the_last_read_usage_unchanged(
    cluster, ledger, clock, monkeypatch
):
    await record_allocation(ledger, clock, "vision", 4, hours=2)
    history = UsageHistory(cluster, ledger, clock)
    await history.begin()
    before = history.with_usage(await cluster.observe()).projects

    async def raise_unavailable(*_args):
        raise Unavailable("The history cannot be read now.", hint="", code="history_away")

    monkeypatch.setattr(ledger, "usage", raise_unavailable)
    await history.begin()

    assert history.with_usage(await cluster.observe()).projects == before
    assert any(project.usage for project in before)

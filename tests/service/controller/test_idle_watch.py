"""Reports that arrive while another one is being processed, as with a slow cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.simulated import MemoryStore, SimulatedCluster, simulated_cluster
from runai.hub_service.controller.idle.idle_watch import IdleWatch
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.records import Process, ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.errors import Conflict
from runai.hub_service.wire.reports import AgentReport, UsageSample

DEVICES = SimulatedDevices(2, node="lab").devices()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


class SlowStore(MemoryStore):
    """A store that runs a callback while its next change is being stored."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def stored(self, workloads: Collection[str]) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()


async def start_two_sessions(cluster: SimulatedCluster) -> list[str]:
    """Run two sessions with a GPU each; return their ids."""
    await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(2000)))
    for name in ("a", "b"):
        spec = WorkloadSpec(
            "vision", name, user="ana", kind="session", command=None, gpus=MilliGpu(1000)
        )
        await cluster.submit([spec])
    await cluster.apply(decide(await cluster.observe()))
    session_ids = ["vision/a", "vision/b"]
    for pid, name in enumerate(session_ids, 100):
        await cluster.attach(name, Process(pid, 1.0))
    return session_ids


async def report_idle(cluster: SimulatedCluster, watch: IdleWatch) -> None:
    """Report idle GPUs of all workloads."""
    samples = [
        UsageSample(workload=w.id, device=DEVICES[0].uuid, utilization=0.0, memory_mib=0)
        for w in await cluster.workloads()
    ]
    await watch.observe(AgentReport(node="lab", at=10.0, interval=1.0, devices=[], samples=samples))


async def test_concurrent_agent_reports_release_each_idle_session_once(ledger: Ledger) -> None:
    store = SlowStore()
    cluster = simulated_cluster({"lab": DEVICES}, clock=lambda: 5.0, store=store)
    watch = IdleWatch(cluster, ledger)
    session_ids = await start_two_sessions(cluster)

    await report_idle(cluster, watch)
    for name in session_ids:
        await watch.release(await cluster.workload(name), by="ana")
    store.meanwhile = partial(report_idle, cluster, watch)
    await report_idle(cluster, watch)

    assert all([(await cluster.workload(name)).released is not None for name in session_ids])
    assert [[e.kind for e in await ledger.events(name)] for name in session_ids] == [
        ["released"]
    ] * 2


async def test_idle_state_of_a_session_does_not_apply_to_its_successor(ledger: Ledger) -> None:
    cluster = simulated_cluster({"lab": DEVICES}, clock=lambda: 5.0)
    watch = IdleWatch(cluster, ledger)
    name, _ = await start_two_sessions(cluster)
    earlier = await cluster.workload(name)
    later = replace(earlier, uid="uid-of-the-later-session")
    await report_idle(cluster, watch)

    with pytest.raises(Conflict, match="is no running session"):
        await watch.release(later, by="ana")
    await watch.release(earlier, by="ana")

    assert (watch.releasing(earlier), watch.releasing(later)) == (True, False)

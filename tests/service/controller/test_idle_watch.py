"""Reports that arrive while another one is being processed, as with a slow cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

from runai.hub_service.agent.devices.simulated import SimulatedDevices
from runai.hub_service.clusters.simulated import SimulatedCluster
from runai.hub_service.controller.idle.watch import IdleWatch
from runai.hub_service.ledger import Ledger
from runai.hub_service.model.records import Process, ProjectSpec, WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.wire.agent_reports import AgentReport, UsageSample


class SlowCluster(SimulatedCluster):
    """A cluster that runs a callback during its first release."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def release(self, workload: str, *, why: str, uid: str = "") -> WorkloadRecord:
        record = await super().release(workload, why=why, uid=uid)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return record


async def test_concurrent_reports_release_each_session_once(tmp_path: Path) -> None:
    devices = SimulatedDevices(2, node="lab").devices()
    cluster = SlowCluster({"lab": devices}, clock=lambda: 5.0)
    ledger = Ledger(tmp_path / "ledger.sqlite")
    watch = IdleWatch(cluster, ledger)
    await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(2000)))
    for name in ("a", "b"):
        spec = WorkloadSpec(
            "vision", name, user="ana", kind="session", command=None, gpus=MilliGpu(1000)
        )
        await cluster.submit([spec])
    await cluster.apply(decide(await cluster.observe()))
    names = ["vision/a", "vision/b"]
    for pid, name in enumerate(names, 100):
        await cluster.attach(name, Process(pid, 1.0))

    async def observe() -> None:
        samples = [
            UsageSample(workload=w.id, device=devices[0].uuid, utilization=0.0, memory_mib=0)
            for w in await cluster.workloads()
        ]
        await watch.observe(
            AgentReport(node="lab", at=10.0, interval=1.0, devices=[], samples=samples)
        )

    await observe()
    for name in names:
        await watch.release(await cluster.workload(name), by="ana")
    cluster.meanwhile = observe
    await observe()

    assert all([(await cluster.workload(name)).released is not None for name in names])
    assert [[e.kind for e in await ledger.events(name)] for name in names] == [["released"]] * 2
    ledger.close()

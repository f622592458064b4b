"""A job that makes room by moving: the core decides, the cluster of this machine does it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from deciding import decided
from labs import NODE, Clock, LocalLab, running
from runai.hub_service.agent.devices import Device
from runai.hub_service.clusters.local.cluster import LocalCluster
from runai.hub_service.clusters.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.quantity import milli_gpus
from waiting import eventually_async

FIVE = [Device(i, f"SIM-{i}", "Simulated GPU", 16_000, simulated=True) for i in range(5)]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncGenerator[LocalLab]:
    clock = Clock()
    (tmp_path / "orders").mkdir()
    async with (
        LocalCluster.open(tmp_path / "data", FIVE, NODE, clock=clock) as cluster,
        running(cluster),
    ):
        for name, user in (("vision", "bob"), ("nlp", "patty")):
            quota = milli_gpus(2.5)
            await cluster.put_project(ProjectSpec(name, quota=quota, members=(user,)))
        lab = LocalLab(cluster, clock, tmp_path / "orders")
        async with decided(cluster):
            try:
                yield lab
            finally:
                for record in await cluster.workloads():
                    await cluster.delete(record.id, by="the test")
                lab.close()
                await eventually_async(lambda: not cluster._rows)


async def test_a_job_that_fits_elsewhere_makes_room_and_goes_on_there(lab):
    # Each device holds 0.6; a job of 0.4 joins the first, and then is alone there.
    big = [lab.job(f"big-{i}", user="bob", gpus=0.6, on_term=143) for i in range(5)]
    small = lab.job("small", user="bob", gpus=0.4, on_term=143)
    for spec in [*big, small]:
        await lab.cluster.submit([spec])
        await lab.until(spec.id, "running")
        await lab.ready(spec)
    assert await _device(lab, small) == await _device(lab, big[0])
    await lab.end(big[0], 0)
    await lab.until(big[0].id, "succeeded")
    before = await _device(lab, small)

    patty = lab.job("patty", project="nlp", user="patty", on_term=143)
    await lab.cluster.submit([patty])

    await lab.until(patty.id, "running")
    assert await _device(lab, patty) == before
    record = await lab.until(small.id, "running")
    assert (record.attempts, await _device(lab, small) != before) == (2, True)


async def _device(lab: LocalLab, spec: WorkloadSpec) -> int:
    record = await lab.cluster.workload(spec.id)
    return record.workers[0].devices[0].device

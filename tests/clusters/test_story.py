"""Bob and Patty with real processes: the core decides, the cluster of this machine does it."""

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


async def _log_in(lab: LocalLab, project: str, user: str) -> WorkloadSpec:
    spec = lab.session(f"lab-{user}", project=project, user=user)
    await lab.cluster.submit([spec])
    await lab.until(spec.id, "starting")
    await lab.cluster.attach(spec.id, await lab.session_process())
    return spec


async def _states(lab: LocalLab) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for record in await lab.cluster.workloads():
        if record.spec.kind == "job":
            found.setdefault(record.state, []).append(record.spec.name)
    return found


async def test_bobs_jobs_over_quota_pause_for_patty_and_resume_after_her(lab):
    sessions = [await _log_in(lab, "vision", "bob"), await _log_in(lab, "nlp", "patty")]
    held = [(await lab.cluster.workload(s.id)).workers[0].devices for s in sessions]
    assert held[0] == held[1]  # two halves share one GPU

    bobs = [lab.job(f"bob-{i}", user="bob", on_term=143) for i in range(6)]
    await lab.cluster.submit(bobs)

    async def bob_runs_four() -> bool:
        states = await _states(lab)
        return len(states.get("running", [])) == 4 and len(states.get("queued", [])) == 2

    await eventually_async(bob_runs_four)
    running = [s for s in bobs if (await lab.cluster.workload(s.id)).state == "running"]
    for spec in running:
        await lab.ready(spec)

    pattys = [lab.job(f"patty-{i}", project="nlp", user="patty", on_term=143) for i in range(2)]
    await lab.cluster.submit(pattys)
    for spec in pattys:
        await lab.until(spec.id, "running")

    # Exactly as many stop as she needs, and say for whom.
    states = await _states(lab)
    assert (
        len(states["running"]),
        len(states["paused"]),
        len(states["queued"]),
    ) == (4, 2, 2)
    paused = [s for s in bobs if (await lab.cluster.workload(s.id)).state == "paused"]
    for spec in paused:
        lines = [
            line.text for line in await lab.cluster.history(spec.id) if line.kind == "stopping"
        ]
        assert len(lines) == 1
        assert "patty" in lines[0] or "nlp" in lines[0]

    for spec in pattys:
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")
    for spec in paused:  # at their old places, so before those who never ran
        record = await lab.until(spec.id, "running")
        assert (record.attempts, len(record.pauses)) == (2, 1)
        assert (await lab.cluster.environment(spec.id)).variables["RUNAI_RESUMED"] == "1"

    for spec in bobs:
        await lab.until(spec.id, "running")
        await lab.end(spec, 0)
        await lab.until(spec.id, "succeeded")
    assert {k: len(v) for k, v in (await _states(lab)).items()} == {"succeeded": 8}
    assert [(await lab.cluster.workload(session.id)).allocated for session in sessions] == [
        500,
        500,
    ]


async def test_the_second_of_two_jobs_on_one_gpu_waits_for_the_first(lab):
    first, second = (lab.job(name, gpus=5, on_term=143) for name in ("first", "second"))
    await lab.cluster.submit([first, second])
    await lab.until(first.id, "running")
    assert (await lab.cluster.workload(second.id)).state == "queued"

    await lab.end(first, 0)

    await lab.until(second.id, "running")


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

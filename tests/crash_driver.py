"""A service reduced to cluster and controller loop, for kills at any instant.

Two users share two devices: Bob's project submits four jobs and uses both devices; when two of
them run, Patty's project submits one, so that one of Bob's pauses. The driver submits only missing
jobs, prints "ready" once it works and "done" once every job has finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

from labs import decision_loop, running
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from runai.hub_service.clusters.local.local_executor import LocalCluster
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

COUNTING_JOB = Path(__file__).parent / "crashes/counting_job.py"
STEPS = 12
DEVICES = [Device(i, f"SIM-{i}", "Simulated GPU", 1000, simulated=True) for i in range(2)]


def job(place: Path, project: str, name: str, user: str) -> WorkloadSpec:
    """Return a job that requests one GPU."""
    command = (sys.executable, "-I", "-S", str(COUNTING_JOB), str(STEPS), "0.05", str(place))
    return WorkloadSpec(project, name, user, "job", command, gpus=MilliGpu(1000), grace_seconds=5)


async def submit_jobs(cluster: LocalCluster, place: Path) -> None:
    """Submit the missing jobs, as two users would; return when all have finished."""
    for name in ("bobs", "pattys"):
        if name not in {project.spec.name for project in await cluster.projects()}:
            await cluster.put_project(ProjectSpec(name, quota=MilliGpu(1000)))
    known = {record.id for record in await cluster.workloads()}
    if "bobs/job-0" not in known:
        await cluster.submit([job(place, "bobs", f"job-{i}", "bob") for i in range(4)])
    if "pattys/job-0" not in known:
        with contextlib.suppress(TimeoutError):  # after a kill some jobs may have finished
            async with asyncio.timeout(1):
                while sum(r.state == "running" for r in await cluster.workloads()) < 2:
                    await cluster.changed()
                    await asyncio.sleep(0.01)
        await cluster.submit([job(place, "pattys", "job-0", "patty")])
    while not all(record.state.finished for record in await cluster.workloads()):
        [first, *_] = [r for r in await cluster.workloads() if not r.state.finished]
        await cluster.wait(first.id, first)


async def main(place: Path) -> None:
    """Run until every job has finished, or until killed."""

    async with open_local_cluster(place / "data", DEVICES, "box") as cluster:
        print("ready", flush=True)
        async with running(cluster), decision_loop(cluster):
            await submit_jobs(cluster, place)
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

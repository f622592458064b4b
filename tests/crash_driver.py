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

from runai.hub_service.clusters.local.local_cluster import LocalCluster
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu

# Counts to `steps` in the checkpoint directory. Kernel locks reveal a job that runs twice, and a
# device that two jobs use.
JOB = """
import fcntl, os, signal, sys, time
place, steps = sys.argv[1], int(sys.argv[2])
def lock_alone(name):
    lock = os.open(f"{place}/{name}.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        open(f"{place}/violations", "a").write(f"{name} twice\\n")
    return lock
workload = os.environ["RUNAI_WORKLOAD"].replace("/", "+")
devices = os.environ["CUDA_VISIBLE_DEVICES"].split(",")
locks = [lock_alone(name) for name in (workload, *devices)]
stop_signals = []
signal.signal(signal.SIGTERM, lambda number, _: stop_signals.append(number))
checkpoint = os.environ["RUNAI_CHECKPOINT_DIR"] + "/count"
count = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
if count and os.environ["RUNAI_RESUMED"] != "1":
    open(f"{place}/violations", "a").write(f"{workload} begins anew after {count}\\n")
while count < steps:
    time.sleep(0.05)
    count += 1
    with open(checkpoint + ".new", "w") as file:
        file.write(str(count))
    os.rename(checkpoint + ".new", checkpoint)
    print("step", count, flush=True)
    if stop_signals and count < steps:
        sys.exit(143)
"""
STEPS = 12
DEVICES = [Device(i, f"SIM-{i}", "Simulated GPU", 1000, simulated=True) for i in range(2)]


def job(place: Path, project: str, name: str, user: str) -> WorkloadSpec:
    """Return a job that requests one GPU."""
    command = (sys.executable, "-I", "-S", "-c", JOB, str(place), str(STEPS))
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


async def control(cluster: LocalCluster) -> None:
    """Execute the scheduler's plan after every change."""
    while True:
        await cluster.apply(decide(await cluster.observe()))
        await cluster.changed()


async def main(place: Path) -> None:
    """Run until every job has finished, or until killed."""

    async with LocalCluster.open(place / "data", DEVICES, "box") as cluster:
        print("ready", flush=True)
        tasks = [
            asyncio.create_task(cluster.run()),
            asyncio.create_task(control(cluster)),
        ]
        await submit_jobs(cluster, place)
        print("done", flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

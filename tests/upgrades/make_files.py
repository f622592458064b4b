"""Make `files/COMMIT/`: a small lab's databases, as the program of an earlier commit writes them.

`python tests/upgrades/make_files.py COMMIT` exports that commit beside the checkout's own packages
and plays the lab with it. Do so for the last commit before a new shape of rows or tables.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import os
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

FILES = Path(__file__).with_name("files")
ROOT = Path(__file__).parents[2]
NAMES = ("cluster.sqlite", "ledger.sqlite")
SRV = "/srv/runai/data"
"""Where the lab says that its directories are."""


def main(commit: str) -> None:
    """Export the commit, have it play the lab, keep what it wrote."""
    with tempfile.TemporaryDirectory() as place:
        program, data = Path(place, "program"), Path(place, "data")
        git = ["git", "-C", str(ROOT), "archive", commit]
        tree = subprocess.run(git, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
            archive.extractall(program, filter="data")
        # `.typing/runai/X` leads to X: first on the path, it is what `runai.X` means.
        environment = os.environ | {"PYTHONPATH": str(program / ".typing")}
        subprocess.run([sys.executable, __file__, "--in", str(data)], check=True, env=environment)
        kept = FILES / commit
        kept.mkdir(parents=True)
        for name in NAMES:
            (kept / f"{name}.gz").write_bytes(gzip.compress((data / name).read_bytes(), mtime=0))


async def play(data: Path) -> None:
    """Play the lab: jobs of every state, a session, two projects."""
    from runai.hub_service.agent.devices import Device
    from runai.hub_service.clusters.local.cluster import LocalCluster
    from runai.hub_service.clusters.records import ProjectSpec, WorkloadSpec
    from runai.hub_service.scheduler import decide
    from runai.hub_service.scheduler.quantity import MilliGpu

    known = {field.name for field in fields(WorkloadSpec)}

    def job(project: str, name: str, *command: str, gpus: int = 1000, **more: Any) -> Any:
        told: dict[str, Any] = {"backoff_limit": 0, "gpus": gpus} | more
        told["min_workers"] = told.get("workers", 1)
        told = {field: value for field, value in told.items() if field in known}
        return WorkloadSpec(project, name, "ana", "job", command, **told)

    devices = [Device(n, f"SIM-{n}", "Simulated GPU", 16_000, simulated=True) for n in range(2)]
    async with LocalCluster.open(data, devices, "box") as cluster:
        running = asyncio.ensure_future(cluster.run())

        async def until(name: str, state: str) -> None:
            while (now := await cluster.workload(name)).state != state:
                await cluster.apply(decide(await cluster.observe()))
                await asyncio.wait_for(cluster.wait(name, now), 30)

        await cluster.put_project(ProjectSpec("vision", quota=MilliGpu(1500), members=("ana",)))
        await cluster.put_project(
            ProjectSpec("nlp", quota=MilliGpu(500), limit=MilliGpu(1000), admins=("patty",))
        )
        await cluster.submit([job("vision", "done", "true"), job("vision", "broken", "false")])
        await until("vision/done", "succeeded")
        await until("vision/broken", "failed")
        await cluster.submit([job("vision", "gang", "true", gpus=500, workers=2)])
        await until("vision/gang", "succeeded")
        session = WorkloadSpec(
            "vision", "lab-ana", "ana", "session", None, gpus=MilliGpu(500), preemptible=False
        )
        sleeps = job("vision", "sleeps", "sleep", "600", grace_seconds=1)
        await cluster.submit([session])
        await cluster.submit([sleeps])
        await until("vision/lab-ana", "starting")
        await until("vision/sleeps", "running")
        await cluster.submit([job("vision", "held", "true", key="asked-once")])
        await cluster.suspend("vision/held", by="ana")
        await cluster.submit([job("nlp", "waits", "true", gpu_types=("simulated",))])
        text = 'print("é")\n'
        await cluster.submit(
            [job("nlp", "memory", "true", gpus=0, gpu_memory_mib=800, source=text, backoff_limit=2)]
        )
        running.cancel()  # before it is decided about who waits
        process = (await cluster.workload("vision/sleeps")).workers[0].process
        assert process is not None
    os.killpg(process.pid, 9)
    with closing(sqlite3.connect(data / "cluster.sqlite")) as connection, connection:
        for column in ("spec", '"row"'):
            connection.execute(
                f"UPDATE workloads SET {column} = replace({column}, ?, ?)", (str(data), SRV)
            )


def use(data: Path) -> None:
    """Hold a GPU of vision's for a minute of a past time."""
    from runai.hub_service.ledger import Ledger
    from runai.hub_service.ledger.integration import Held

    now = [1_760_000_000.0]
    ledger = Ledger(data / "ledger.sqlite", clock=lambda: now[0])
    held = [Held("vision", "ana", "vision/done", "SIM-0", 1000, "box")]
    ledger.record(now[0], 0.0, held)
    ledger.event("vision/done", "running", "", project="vision", user="ana")
    for _ in range(4):
        now[0] += 15
        ledger.record(now[0], 0.0, held)
    ledger.record(now[0], 0.0, [])
    ledger.event("vision/done", "succeeded", "exit code 0", project="vision", user="ana")
    now[0] += 15
    ledger.close()


if __name__ == "__main__":
    if sys.argv[1] == "--in":
        asyncio.run(play(Path(sys.argv[2])))
        use(Path(sys.argv[2]))
    else:
        main(sys.argv[1])

"""A machine with a hostile job, and a counting job that must never be held up."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from labs import LocalLab, local_lab, plan, start
from runai.hub_service.clusters.local.local_cluster import LocalCluster
from runai.hub_service.clusters.local.processes.attempt import Instructions
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from waiting import eventually_async

MOST = 200
MOST_TASKS = 600

COUNTING = """
import os, sys, time
orders, starts, count = sys.argv[1:]
with open(starts, "a") as noted:
    noted.write("started\\n")
if not os.path.exists(orders):
    os.mkfifo(orders)
told = os.open(orders, os.O_RDONLY | os.O_NONBLOCK)
shown = os.open(count, os.O_CREAT | os.O_WRONLY)
number = 0
while True:
    try:
        if said := os.read(told, 100):
            sys.exit(int(said))
    except BlockingIOError:
        pass
    time.sleep(0.05)
    number += 1
    os.pwrite(shown, b"%12d" % number, 0)
"""


class SmallCluster(LocalCluster):
    """A cluster with limits low enough to be exceeded in a test."""

    def prepare_start(self, row, worker):
        instructions, environment = super().prepare_start(row, worker)
        assert isinstance(instructions, Instructions)
        return replace(
            instructions, most_processes=MOST, most_tasks=MOST_TASKS, log_bytes=1_000_000
        ), environment


@dataclass
class Neighbour:
    """A job that counts every 50 ms, and records its starts."""

    place: Path

    @property
    def starts(self) -> Path:
        return self.place / "neighbour-starts"

    @property
    def count(self) -> Path:
        return self.place / "neighbour-count"

    def command(self, orders: Path) -> tuple[str, ...]:
        words = (str(orders), str(self.starts), str(self.count))
        return (sys.executable, "-I", "-S", "-c", COUNTING, *words)

    def progress(self) -> int:
        text = self.count.read_text() if self.count.exists() else ""
        return int(text or 0)


@asynccontextmanager
async def beside_a_neighbour(
    place: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncGenerator[tuple[LocalLab, Neighbour]]:
    """Yield a machine with the neighbour on it; assert at the end that it ran undisturbed."""
    monkeypatch.setattr("labs.LocalCluster", SmallCluster)
    neighbour = Neighbour(place)
    async with local_lab(place, **settings) as made:
        orders = made.place / "vision+neighbour-0"
        job = made.job("neighbour", command=neighbour.command(orders))
        await made.started(job, device=1)
        await eventually_async(neighbour.progress)
        before = neighbour.progress()
        yield made, neighbour
        # Beside any hostile job: it ran all the time, goes on, and ends when ordered to.
        during = neighbour.progress()
        assert during > before
        await eventually_async(lambda: neighbour.progress() > during)
        assert (await made.cluster.workload(job.id)).state == "running"
        await made.end(job, 0)
        assert (await made.until(job.id, "succeeded")).attempts == 1
        assert neighbour.starts.read_text() == "started\n"


async def begin(lab: LocalLab, spec: WorkloadSpec) -> None:
    """Start it without waiting: it may end before a busy machine shows it as running."""
    await lab.cluster.submit([spec])
    assert await lab.cluster.apply(plan(start(spec.id, 0))) == []


async def play(lab: LocalLab, program: str, *until: str, **fields: Any) -> WorkloadRecord:
    """Run a program as a job until it is in one of these states."""
    command = (sys.executable, "-I", "-S", "-c", program)
    spec = lab.job("hostile", command=command, grace_seconds=1, **fields)
    await begin(lab, spec)
    return await lab.until(spec.id, *until)


async def log(lab: LocalLab) -> str:
    """Return the hostile job's output."""
    chunks = [
        chunk.lines
        async for chunk in lab.cluster.logs("vision/hostile", worker=None, tail=None, follow=False)
    ]
    return b"".join(chunks).decode()


def hostile_processes(lab: LocalLab) -> list[psutil.Process]:
    """Return the remaining processes of the hostile job; another test may have one like it."""
    place = str(lab.place.parent)
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            mine = place in environment.get("RUNAI_CHECKPOINT_DIR", "")
            if mine and environment.get("RUNAI_WORKLOAD") == "vision/hostile":
                found.append(process)
        except psutil.Error:
            continue
    return found

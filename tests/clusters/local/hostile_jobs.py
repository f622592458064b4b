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
from runai.hub_service.clusters.local.local_executor import LocalExecutor
from runai.hub_service.clusters.local.processes.attempt import Instructions
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from waiting import eventually_async

MAX_PROCESSES = 200
MAX_TASKS = 600
"""Processes and threads together."""

COUNTING_PROGRAM = """
import os, sys, time
orders, starts, count = sys.argv[1:]
with open(starts, "a") as file:
    file.write("started\\n")
if not os.path.exists(orders):
    os.mkfifo(orders)
orders_fd = os.open(orders, os.O_RDONLY | os.O_NONBLOCK)
count_fd = os.open(count, os.O_CREAT | os.O_WRONLY)
number = 0
while True:
    try:
        if exit_code := os.read(orders_fd, 100):
            sys.exit(int(exit_code))
    except BlockingIOError:
        pass
    time.sleep(0.05)
    number += 1
    os.pwrite(count_fd, b"%12d" % number, 0)
"""


class SmallExecutor(LocalExecutor):
    """An executor with limits low enough to be exceeded in a test."""

    def prepare_start(self, row, worker):
        instructions, environment = super().prepare_start(row, worker)
        assert isinstance(instructions, Instructions)
        return replace(
            instructions, most_processes=MAX_PROCESSES, most_tasks=MAX_TASKS, log_bytes=1_000_000
        ), environment


@dataclass
class Neighbour:
    """A job that counts every 50 ms, and records its starts."""

    folder: Path

    @property
    def starts(self) -> Path:
        return self.folder / "neighbour-starts"

    @property
    def count(self) -> Path:
        return self.folder / "neighbour-count"

    def command(self, orders: Path) -> tuple[str, ...]:
        words = (str(orders), str(self.starts), str(self.count))
        return (sys.executable, "-I", "-S", "-c", COUNTING_PROGRAM, *words)

    def progress(self) -> int:
        text = self.count.read_text() if self.count.exists() else ""
        return int(text or 0)


@asynccontextmanager
async def lab_with_neighbour(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncGenerator[tuple[LocalLab, Neighbour]]:
    """Yield a machine with the neighbour on it; assert at the end that it ran undisturbed."""
    monkeypatch.setattr(
        "runai.hub_service.clusters.local.local_cluster.LocalExecutor", SmallExecutor
    )
    neighbour = Neighbour(folder)
    async with local_lab(folder, **settings) as lab:
        orders = lab.place / "vision+neighbour-0"
        job = lab.job("neighbour", command=neighbour.command(orders))
        await lab.started(job, device=1)
        await eventually_async(neighbour.progress)
        count_before = neighbour.progress()
        yield lab, neighbour
        # Beside any hostile job: it ran all the time, goes on, and ends when ordered to.
        count_beside_it = neighbour.progress()
        assert count_beside_it > count_before
        await eventually_async(lambda: neighbour.progress() > count_beside_it)
        assert (await lab.cluster.workload(job.id)).state == "running"
        await lab.end(job, 0)
        assert (await lab.until(job.id, "succeeded")).attempts == 1
        assert neighbour.starts.read_text() == "started\n"


async def start_job(lab: LocalLab, spec: WorkloadSpec) -> None:
    """Start a job without waiting: it may end before a busy machine shows it as running."""
    await lab.cluster.submit([spec])
    assert await lab.cluster.apply(plan(start(spec.id, 0))) == []


async def run_hostile_job(lab: LocalLab, program: str, *, until: str) -> WorkloadRecord:
    """Run a program as the hostile job until the job is in this state."""
    command = (sys.executable, "-I", "-S", "-c", program)
    spec = lab.job("hostile", command=command, grace_seconds=1)
    await start_job(lab, spec)
    return await lab.until(spec.id, until)


async def read_log(lab: LocalLab) -> str:
    """Return the hostile job's output."""
    chunks = [
        chunk.lines
        async for chunk in lab.cluster.logs("vision/hostile", worker=None, tail=None, follow=False)
    ]
    return b"".join(chunks).decode()


def hostile_processes(lab: LocalLab) -> list[psutil.Process]:
    """Return the remaining processes of the hostile job; another test may have one like it."""
    folder = str(lab.place.parent)
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            is_of_this_lab = folder in environment.get("RUNAI_CHECKPOINT_DIR", "")
            if is_of_this_lab and environment.get("RUNAI_WORKLOAD") == "vision/hostile":
                found.append(process)
        except psutil.Error:
            continue
    return found

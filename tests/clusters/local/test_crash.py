"""Kill the service at random moments: no job is lost, run twice or orphaned, no device leaks."""

from __future__ import annotations

import os
import random
import select
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

import crash_driver
from crash_driver import DEVICES, STEPS
from labs import running
from runai.hub_service.clusters.local.local_cluster import open_local_cluster
from waiting import eventually

DRIVER = Path(crash_driver.__file__)
MAX_KILLS = 6


@contextmanager
def running_service(folder: Path) -> Generator[subprocess.Popen[str]]:
    """Start a service and wait until it works; kill it at the end of the block."""
    process = subprocess.Popen(
        [sys.executable, str(DRIVER), str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def next_line(process: subprocess.Popen[str], seconds: float) -> str:
    """Return the service's next line of output, or "" after so many seconds."""
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], seconds)
    return process.stdout.readline().strip() if readable else ""


def job_processes(folder: Path) -> list[psutil.Process]:
    """Return the processes of a story's jobs."""
    processes = []
    for process in psutil.process_iter():
        try:
            if any(str(folder) in word for word in process.cmdline()):
                processes.append(process)
        except psutil.Error:
            continue
    return [process for process in processes if process.pid != os.getpid()]


def run_with_kills(folder: Path, random_numbers: random.Random) -> int:
    """Play the story with kills in between; return their number."""
    for kills in range(MAX_KILLS):
        with running_service(folder) as service:
            if next_line(service, random_numbers.uniform(0.0, 0.5)) == "done":
                return kills
    with running_service(folder) as service:
        assert next_line(service, seconds=240) == "done"
    return MAX_KILLS


@pytest.mark.timeout(600)  # up to MAX_KILLS + 1 starts of Python, perhaps on a busy machine
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 22))]
)
async def test_platform_service_killed_at_random_loses_and_repeats_no_job(seed, tmp_path):
    run_with_kills(tmp_path, random.Random(seed))

    violations = tmp_path / "violations"
    assert not violations.exists(), violations.read_text()
    async with open_local_cluster(tmp_path / "data", DEVICES, "box") as cluster, running(cluster):
        records = list(await cluster.workloads())
        # Bob's project submits four jobs, Patty's one.
        assert [record.state for record in records] == ["succeeded"] * 5
        for record in records:
            chunks = [
                chunk
                async for chunk in cluster.logs(record.id, worker=None, tail=None, follow=False)
            ]
            lines = b"".join(chunk.lines for chunk in chunks).decode().splitlines()
            # Every step was taken once, over any number of pauses.
            assert [f"counted {n + 1} of {STEPS}" for n in range(STEPS)] == lines
            assert record.attempts == len(record.pauses) + 1
        assert list(await cluster.allocations("box")) == []
    eventually(lambda: job_processes(tmp_path) == [])

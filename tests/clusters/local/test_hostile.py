"""Hostile jobs are contained, or stopped with a sentence; the job beside them goes on counting.

`test_many_files` covers jobs that make millions of files.

Everything here bounds itself: a few hundred processes (3,000 at most, for half a minute, if nothing
stops them), some tens of megabytes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from clusters.local.hostile_jobs import (
    MAX_PROCESSES,
    MAX_TASKS,
    hostile_processes,
    lab_with_neighbour,
    read_log,
    run_hostile_job,
    start_job,
)
from labs import Lab, SimulatedLab, plan, start
from runai.hub_service.model.records import WorkloadSpec
from waiting import eventually_async

MAX_FORKS = 3_000
MIB = 2**20

GROWING_FORK_BOMB = f"""
import os, sys, time
forks = os.open(sys.argv[1], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
begun = time.monotonic()
while time.monotonic() < begun + 30:     # it ends by itself, stopped or not
    time.sleep(0.05)
    # All processes together fork 300 times a second, so the bomb grows for ten seconds.
    if os.fstat(forks).st_size < min({MAX_FORKS}, 50 + 300 * (time.monotonic() - begun)):
        os.write(forks, b"x")
        # The offset includes the own byte, so no fork is beyond the cap.
        if os.lseek(forks, 0, os.SEEK_CUR) <= {MAX_FORKS}:
            os.fork()
"""
THREAD_BOMB = """
import os, threading, time
threading.stack_size(65536)
os.fork()     # two processes of 400 threads each: neither has too many by itself
for _ in range(400):
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
time.sleep(300)
"""
FLOODING_PROGRAM = """
import os
line = b"x" * 99 + b"\\n"
for _ in range(600):     # 60 MB as fast as the supervisor reads
    os.write(1, line * 1000)
print("the end", flush=True)
"""


@pytest.fixture
async def lab_and_neighbour(tmp_path: Path, monkeypatch):
    async with lab_with_neighbour(tmp_path, monkeypatch) as opened:
        yield opened


@pytest.fixture
def lab(lab_and_neighbour):
    return lab_and_neighbour[0]


@pytest.fixture
def neighbour(lab_and_neighbour):
    return lab_and_neighbour[1]


async def test_job_that_starts_too_many_threads_is_ended_with_a_reason(lab):
    record = await run_hostile_job(lab, THREAD_BOMB, until="failed")

    assert record.reason is not None
    assert record.reason.code == "contained"
    assert record.reason.text == (
        f"it had more than {MAX_TASKS} processes and threads at once, so all of them were ended"
    )
    await eventually_async(lambda: hostile_processes(lab) == [])


async def test_fork_bomb_that_grows_during_its_stop_is_ended_with_a_reason(
    lab, neighbour, tmp_path
):
    forks = tmp_path / "forks"
    command = (sys.executable, "-I", "-S", "-c", GROWING_FORK_BOMB, str(forks))
    spec = lab.job("hostile", command=command, grace_seconds=1)
    count_before = neighbour.progress()
    await start_job(lab, spec)
    record = await lab.until(spec.id, "failed")
    count_after = neighbour.progress()

    assert record.reason is not None
    assert record.reason.code == "contained"
    assert record.reason.text == (
        f"it had more than {MAX_PROCESSES} processes at once, so all of them were ended"
    )
    assert await read_log(lab) == f"runai: {record.reason.text}\n"
    await eventually_async(lambda: hostile_processes(lab) == [])
    # All of them were still running: their own cap did not end them.
    assert MAX_PROCESSES <= forks.stat().st_size < MAX_FORKS
    assert count_after > count_before


async def test_job_log_of_an_output_flood_has_a_bounded_size_and_the_last_line(lab, tmp_path):
    await run_hostile_job(lab, FLOODING_PROGRAM, until="succeeded")

    log_files = list((tmp_path / "data/jobs/vision/hostile").rglob("log-*.txt"))
    # The first file stays beside the ten newest; each has 1 MB here.
    assert sum(path.stat().st_size for path in log_files) <= 11 * 1_000_000
    assert (await read_log(lab)).endswith("the end\n")


@pytest.mark.timeout(1200)  # each start is a process of its own
@pytest.mark.parametrize("starts", [8, pytest.param(1000, marks=pytest.mark.slow)])
async def test_job_that_fails_at_once_repeatedly_leaves_no_process_or_memory(lab, tmp_path, starts):
    spec = lab.job(
        "hostile", command=(sys.executable, "-I", "-S", "-c", "raise SystemExit(1)"),
        grace_seconds=1, backoff_limit=starts - 1,
    )  # fmt: skip
    await lab.cluster.submit([spec])
    rss_before = psutil.Process().memory_info().rss
    await fail_repeatedly(lab, spec, starts)

    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.failures) == ("failed", starts)
    assert record.allocated == 0
    assert hostile_processes(lab) == []
    assert await neighbour_state(lab) == "running"
    # A start leaves at most eleven files and folders until the job is deleted.
    assert len([*(tmp_path / "data/jobs/vision/hostile").rglob("*")]) <= 11 * starts + 1
    assert psutil.Process().memory_info().rss - rss_before < 50 * MIB
    await lab.cluster.delete(spec.id, by="ana")
    trash = tmp_path / "data/jobs/.trash"
    await eventually_async(lambda: not any(trash.iterdir()))
    assert not (tmp_path / "data/jobs/vision/hostile").exists()


async def neighbour_state(lab: Lab) -> str:
    return str((await lab.cluster.workload("vision/neighbour")).state)


async def fail_repeatedly(lab: Lab, spec: WorkloadSpec, starts: int) -> list[float]:
    """Start a job that fails, each time as soon as allowed; return the wait after each failure."""
    waits: list[float] = []
    for number in range(1, starts + 1):
        assert await lab.cluster.apply(plan(start(spec.id, 0))) == []
        if isinstance(lab, SimulatedLab):
            await lab.end(spec, 1)
        record = await lab.until(spec.id, "failed" if number == starts else "retrying")
        assert record.allocated == 0
        if record.not_before is not None and number < starts:
            waits.append(record.not_before - lab.clock())
            await lab.pass_time(waits[-1])
            await lab.until(spec.id, "queued")
    return waits


async def test_job_with_a_thousand_failures_backs_off_and_delays_no_neighbour_job():
    """The same rows and rules without processes."""
    lab = SimulatedLab()
    neighbour, spec = lab.job("neighbour"), lab.job("hostile", backoff_limit=999)
    await lab.started(neighbour, device=1)
    await lab.cluster.submit([spec])
    waits = await fail_repeatedly(lab, spec, 1000)

    # The wait doubles up to five minutes; there is none after the last failure.
    assert waits == [10, 20, 40, 80, 160, *[300] * 994]
    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.failures) == ("failed", 1000)
    assert await neighbour_state(lab) == "running"
    assert len(await lab.cluster.workloads()) == 2

"""A job that stops its supervisor or witness does not keep its GPU.

Both processes are woken when the job is over.
"""

from __future__ import annotations

import sys

import psutil
import pytest

from labs import LocalLab, local_lab, plan, start, stop
from runai.hub_service.clusters.local.processes import reconciler
from waiting import eventually_async

FREEZING_PROGRAM = """
import os, pathlib, signal, sys, time
own = pathlib.Path(os.environ["RUNAI_CHECKPOINT_DIR"]).parent
while not list(own.glob("attempt-*/worker-*/process.json")):
    time.sleep(0.01)     # until its supervisor has said that it runs
signal.signal(signal.SIGTERM, signal.SIG_IGN)
targets = {"supervisor": [os.getppid()]}
with open(f"/proc/{os.getppid()}/stat") as file:
    targets["witness"] = [int(file.read().rpartition(")")[2].split()[1])]
targets["both"] = targets["supervisor"] + targets["witness"]
for pid in targets[sys.argv[1]]:
    os.kill(pid, signal.SIGSTOP)
if os.fork() == 0:
    os.setsid()
    os.execve("/bin/sleep", ["sleep", "1000"], {})
print("frozen", flush=True)
if "ends" not in sys.argv:
    time.sleep(1000)
"""


@pytest.fixture
async def lab(tmp_path, monkeypatch):
    monkeypatch.setattr(reconciler, "OVERDUE_S", 0.5)
    async with local_lab(tmp_path) as opened:
        yield opened


async def run_freezing_job(
    lab: LocalLab, frozen: str, *, ends: bool = False
) -> list[psutil.Process]:
    """Run a job that stops its supervisor or witness; return all of its processes."""
    words = (frozen, "ends") if ends else (frozen,)
    command = (sys.executable, "-I", "-S", "-c", FREEZING_PROGRAM, *words)
    spec = lab.job("hostile", command=command, grace_seconds=1)
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0)))
    worker = (await lab.until(spec.id, "running")).workers[0]
    assert worker.process is not None
    process = psutil.Process(worker.process.pid)
    supervisor = process.parent()
    assert supervisor is not None
    witness = supervisor.parent()
    assert witness is not None

    def are_frozen() -> bool:
        stopped = {p.status() == psutil.STATUS_STOPPED for p in (supervisor, witness)}
        below = supervisor.children(recursive=True)
        has_child = any(child.name() == "sleep" for child in below)
        has_ended = not ends or process.status() == psutil.STATUS_ZOMBIE
        return True in stopped and has_child and has_ended

    await eventually_async(are_frozen)
    return [witness, *witness.children(recursive=True)]


@pytest.mark.parametrize("frozen", ["witness", "both"])
async def test_gpu_of_a_job_that_freezes_its_witness_process_is_freed_by_a_pause(frozen, lab):
    processes = await run_freezing_job(lab, frozen)

    await lab.cluster.apply(plan(stop("vision/hostile")))

    record = await lab.until("vision/hostile", "paused")
    assert record.allocated == 0
    assert not any(process.is_running() for process in processes)


async def test_gpu_of_a_job_that_ends_under_a_frozen_supervisor_is_freed(lab):
    processes = await run_freezing_job(lab, "both", ends=True)

    await lab.cluster.suspend("vision/hostile", by="ana")

    record = await lab.until("vision/hostile", "succeeded", "suspended")
    assert record.allocated == 0
    assert record.exit_code == 0
    assert not any(process.is_running() for process in processes)


async def test_gpu_of_a_job_that_freezes_its_supervisor_at_once_is_freed_by_a_pause(lab):
    command = ("/bin/sh", "-c", "kill -STOP $PPID; exec sleep 1000")
    spec = lab.job("hostile", command=command, grace_seconds=1)
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 0)))

    def stopped_processes() -> list[psutil.Process]:
        folder = str(lab.place.parent)
        return [
            process
            for process in psutil.process_iter(["cmdline", "status"])
            if process.info["status"] == psutil.STATUS_STOPPED
            and any(folder in word for word in process.info["cmdline"] or ())
        ]

    # The supervisor may have reported its worker before it was frozen, or not.
    await eventually_async(lambda: stopped_processes() != [])
    await lab.cluster.apply(plan(stop("vision/hostile")))

    assert (await lab.until("vision/hostile", "paused")).allocated == 0
    assert stopped_processes() == []

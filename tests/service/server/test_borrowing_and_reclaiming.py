"""Bob and Patty, over real HTTP and with real processes: Bob borrows GPUs, Patty reclaims them.

Two projects with a quota of 2.5 each share five GPUs; ana is Bob, nel is Patty.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from runai.hub_service.client import AsyncClient
from runai.hub_service.wire.schemas import ProjectPut, WorkloadDetail
from runai.hub_service.wire.workload_request import SubmitRequest

STEPS = 40
SEED = 1

# A training that can be paused: half-way it waits for a signal to continue, also after a resume
# there, so the test needs no clock. Its result depends on every step running exactly once.
TRAINING = f"""
import json, os, pathlib, signal, sys, time

checkpoint = pathlib.Path(os.environ["RUNAI_CHECKPOINT_DIR"]) / "state.json"
state = json.loads(checkpoint.read_text()) if checkpoint.exists() else [0, {SEED}]

def pause(*_):
    checkpoint.write_text(json.dumps(state))
    sys.exit(143)

signal.signal(signal.SIGTERM, pause)
print("resumed" if os.environ["RUNAI_RESUMED"] == "1" else "begun", "at step", state[0], flush=True)
while state[0] < {STEPS}:
    if state[0] == {STEPS} // 2:
        print("half", flush=True)
        while not pathlib.Path(sys.argv[1]).exists():
            time.sleep(0.02)
    state = [state[0] + 1, (state[1] * 1103515245 + 12345) % 2**31]
print("result", state[1], flush=True)
"""


def result_without_a_pause() -> int:
    weight = SEED
    for _ in range(STEPS):
        weight = (weight * 1103515245 + 12345) % 2**31
    return weight


def training(go_on: Path, array: int) -> SubmitRequest:
    command = [sys.executable, "-u", "-c", TRAINING, str(go_on)]
    return SubmitRequest(name="exp", gpus=1, command=command, array=array)


async def jobs_of(client: AsyncClient, user: str) -> dict[str, WorkloadDetail]:
    views = await client.workloads(user=user)
    return {w.id: await client.workload(w.id) for w in views if w.kind == "job" and not w.left}


async def states_of(client: AsyncClient, user: str) -> Counter[str]:
    states = Counter[str]()
    for w in await client.workloads(user=user):
        states[str(w.state)] += w.size if w.kind == "job" else 0
    return +states


async def allocated(client: AsyncClient) -> dict[str, float]:
    return {project.name: float(project.allocated) for project in await client.projects()}


async def output_of(client: AsyncClient, job_id: str) -> list[str]:
    return [line.text async for line in client.logs(job_id)]


@pytest.mark.timeout(300)
async def test_borrowed_gpus_are_reclaimed_and_paused_jobs_resume(
    ana, nel, root, tmp_path, eventually_async
):
    bob_goes_on, patty_goes_on = tmp_path / "bob-goes-on", tmp_path / "patty-goes-on"
    await root.put_project("vision", ProjectPut(limit=None))

    async def has(client: AsyncClient, user: str, **expected: int) -> None:
        async def as_expected() -> bool:
            return await states_of(client, user) == expected

        await eventually_async(as_expected, what=f"{user} has {expected}")

    # Two sessions of half a GPU share one device; four are left.
    for client in (ana, nel):
        await client.submit(
            SubmitRequest(name="lab", kind="session", gpus=0.5, command=["sleep", "600"])
        )
    (node,) = await root.nodes()
    shares = [[allocation.gpus for allocation in device.allocations] for device in node.devices]
    assert shares == [[0.5, 0.5], [], [], [], []]

    # Bob uses all of them, more than his quota; two of his jobs wait.
    submitted = await ana.submit(training(bob_goes_on, 6))
    assert [note.startswith("exp-4 waits: ") for note in submitted.notes] == [True]
    await has(ana, "ana", running=4, queued=2)
    assert await allocated(root) == {"vision": 4.5, "nlp": 0.5}
    running_ids = {
        job_id for job_id, job in (await jobs_of(ana, "ana")).items() if job.state == "running"
    }
    for job_id in running_ids:
        await eventually_async(lambda job_id=job_id: has_reached_half(ana, job_id))

    # Patty reclaims her quota: exactly two of Bob's jobs pause, and hers run.
    await nel.submit(training(patty_goes_on, 2))
    await has(nel, "nel", running=2)
    await has(ana, "ana", running=2, paused=2, queued=2)
    assert await allocated(root) == {"vision": 2.5, "nlp": 2.5}
    jobs = await jobs_of(ana, "ana")
    paused_ids = {job_id for job_id, job in jobs.items() if job.state == "paused"}
    assert paused_ids < running_ids
    for job_id in paused_ids:
        assert any("nlp" in event.text for event in jobs[job_id].history)

    # Her jobs end; his resume from their last step.
    patty_goes_on.touch()
    await has(nel, "nel", succeeded=2)
    await has(ana, "ana", running=4, queued=2)
    for job_id in paused_ids:
        await eventually_async(lambda job_id=job_id: has_resumed_at_half(ana, job_id))

    # All finish with the result of an undisturbed training; no step ran twice.
    bob_goes_on.touch()
    await has(ana, "ana", succeeded=6)
    jobs = await jobs_of(ana, "ana")
    for job_id in jobs:
        assert (await output_of(ana, job_id))[-1] == f"result {result_without_a_pause()}"
    assert {job_id: job.attempts for job_id, job in jobs.items()} == {
        job_id: 2 if job_id in paused_ids else 1 for job_id in jobs
    }
    assert await allocated(root) == {"vision": 0.5, "nlp": 0.5}


async def has_reached_half(client: AsyncClient, job_id: str) -> bool:
    return "half" in await output_of(client, job_id)


async def has_resumed_at_half(client: AsyncClient, job_id: str) -> bool:
    return f"resumed at step {STEPS // 2}" in await output_of(client, job_id)

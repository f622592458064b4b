"""A job that makes room by moving is paused on its device, and goes on on another one."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from contract.observations import observed_workload
from contract.test_arrays import run_cycle, submit_array
from labs import MOVED, Lab, move, plan, start, stop
from runai.hub_service.model.records import ProjectSpec, last_move
from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import SHIPPED
from waiting import eventually_async


async def last_move_text(lab: Lab, workload: str) -> str:
    """Return the last move by the history, without its seconds."""
    return re.sub(r"\d+ s$", "N s", last_move(await lab.cluster.history(workload)))


async def test_history_and_record_of_a_moved_job_report_the_move_until_its_next_stop(lab):
    small, owner = lab.job("small", on_term=143), lab.job("owner", project="nlp")
    await lab.started(small)
    await lab.cluster.submit([owner])

    async def wait_for_move_text(text: str) -> None:
        """Wait until the history has this text: Events of Kubernetes come later."""

        async def has_move_text() -> bool:
            return await last_move_text(lab, small.id) == text

        await eventually_async(has_move_text, what=f"its history has {text!r}")

    assert await lab.cluster.apply(plan(move(small.id, 1))) == []
    moving = await lab.until(small.id, "paused")
    await wait_for_move_text(MOVED)
    assert await lab.cluster.apply(plan(start(owner.id, 0), start(small.id, 1))) == []
    moved = await lab.until(small.id, "running")
    await wait_for_move_text(f"{MOVED}, N s")
    pauses = len((await observed_workload(lab, small.id)).pauses)
    await lab.cluster.apply(plan(stop(small.id)))
    paused = await lab.until(small.id, "paused")
    await wait_for_move_text("")

    assert (moved.submitted, moved.attempts, moved.failures) == (moving.submitted, 2, 0)
    assert [share.device for share in moved.workers[0].devices] == [1]
    assert pauses == 1
    assert [record.moved for record in (moving, moved, paused)] == [MOVED, MOVED, ""]


@pytest.mark.not_on_pods("arrays come later")
async def test_moved_array_element_reports_its_move_until_its_next_stop(lab):
    await submit_array(lab, 2, gpus=2)
    first, second = await run_cycle(lab)
    for name in (first, second):
        await lab.until(name, "running")

    assert await lab.cluster.apply(plan(move(second, 0, 1), stop(first))) == []
    stopped = await lab.until(first, "paused")
    moving = await lab.until(second, "paused")
    assert await lab.cluster.apply(plan(start(second, 0, 1))) == []
    moved = await lab.until(second, "running")
    await lab.cluster.apply(plan(stop(second)))
    paused = await lab.until(second, "paused")

    assert [record.moved for record in (moving, moved, stopped, paused)] == [MOVED, MOVED, "", ""]


async def test_default_policy_moves_a_checkpointing_half_gpu_job_to_free_a_whole_gpu(lab):
    await lab.cluster.put_project(ProjectSpec("vision", quota=MilliGpu(3000)))
    await lab.cluster.put_project(ProjectSpec("nlp", quota=MilliGpu(1000)))
    saver, other = (lab.job(name, gpus=0.5, saves=name == "saver") for name in ("saver", "other"))
    await lab.started(saver)
    await lab.started(other, device=1)
    await lab.started(lab.job("two", gpus=2), device=2)
    owner = lab.job("owner", project="nlp")
    await lab.cluster.submit([owner])

    async def both_run() -> bool:
        await lab.nudge()
        snapshot = replace(await lab.cluster.observe(), policy=SHIPPED)
        await lab.cluster.apply(decide(snapshot))
        records = [await lab.cluster.workload(spec.id) for spec in (owner, saver)]
        return [record.state for record in records] == ["running", "running"]

    await eventually_async(both_run, what="both run")
    records = {record.spec.name: record for record in await lab.cluster.workloads()}
    assert {
        name: [(share.device, share.gpus) for share in record.workers[0].devices]
        for name, record in records.items()
    } == {
        "saver": [(1, 500)],
        "other": [(1, 500)],
        "two": [(2, 1000), (3, 1000)],
        "owner": [(0, 1000)],
    }
    assert {name: len(record.pauses) for name, record in records.items()} == {
        "saver": 1,
        "other": 0,
        "two": 0,
        "owner": 0,
    }
    assert records["saver"].moved == MOVED

"""Waiters are woken once by each change that a snapshot shows, and by nothing else."""

from __future__ import annotations

import asyncio

import pytest

from labs import Lab, plan, start
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.model.snapshot import Reason, Wait
from runai.hub_service.wire.errors import NotFound


async def _is_woken(lab: Lab) -> bool:
    try:
        async with asyncio.timeout(0):
            await lab.cluster.changed()
    except TimeoutError:
        return False
    return True


async def test_cluster_changes_wake_the_controller_until_they_are_observed(lab):
    await lab.cluster.observe()
    assert not await _is_woken(lab)

    await lab.cluster.submit([lab.job()])
    await lab.cluster.put_project(ProjectSpec("vision"))

    assert await _is_woken(lab)
    assert await _is_woken(lab)
    await lab.cluster.observe()
    assert not await _is_woken(lab)


async def test_worker_exit_wakes_the_waiting_controller(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.cluster.observe()
    woken = asyncio.ensure_future(lab.cluster.changed())

    await lab.end(spec, 0)

    async with asyncio.timeout(90):
        await woken


async def test_wait_reason_update_does_not_wake_the_controller(lab):
    await lab.cluster.submit([lab.job()])
    reason = Reason(code="no_room", rule="P1", text="all 4 GPUs are taken")

    # Kubernetes controllers still write to a new Job for a moment; these writes do wake.
    for position in range(1, 100):
        await lab.cluster.observe()
        wait = Wait(workload="vision/exp", reason=reason, position=position)
        await lab.cluster.apply(plan(wait))
        if not await _is_woken(lab):
            return
    pytest.fail("each update of a wait reason wakes")


@pytest.mark.not_on_kubernetes("what a watch tells of is not looked at before")
@pytest.mark.parametrize("change", ["submitted", "resumed", "deleted", "suspended", "project"])
async def test_user_change_to_a_workload_or_project_wakes_the_controller(lab, change):
    running_job, waiting_job = lab.job("runs"), lab.job("waits")
    await lab.started(running_job)
    await lab.cluster.submit([waiting_job])
    await lab.cluster.suspend(waiting_job.id, by="ana")
    await lab.cluster.observe()

    match change:
        case "submitted":
            await lab.cluster.submit([lab.job("more")])
        case "resumed":
            await lab.cluster.resume(waiting_job.id, by="ana")
        case "deleted":
            await lab.cluster.delete(running_job.id, by="ana")
        case "suspended":
            await lab.cluster.suspend(running_job.id, by="ana")
        case "project":
            await lab.cluster.put_project(ProjectSpec("vision"))

    assert await _is_woken(lab)


@pytest.mark.not_on_kubernetes("JupyterHub makes its pods itself")
async def test_waiting_for_one_workload_returns_its_next_state_change(lab):
    spec = lab.session()
    [record] = await lab.cluster.submit([spec])
    waiting = asyncio.ensure_future(lab.cluster.wait(spec.id, record))
    await lab.cluster.put_project(ProjectSpec("unrelated"))

    await lab.cluster.apply(plan(start(spec.id, 0, share=0.5)))

    async with asyncio.timeout(90):
        assert (await waiting).state == "starting"


async def test_wait_for_a_deleted_workload_raises_not_found(lab):
    [record] = await lab.cluster.submit([lab.job()])
    waiting = asyncio.ensure_future(lab.cluster.wait(record.id, record))
    await asyncio.sleep(0)

    await lab.cluster.delete(record.id, by="ana")

    with pytest.raises(NotFound):
        await waiting

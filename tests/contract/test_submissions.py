"""Submissions are stored whole and once, and reach the scheduler."""

from __future__ import annotations

import pytest

from contract.observations import observed_workload
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Wait, WorkerState
from runai.hub_service.wire.errors import Conflict, NotFound


async def test_submitted_job_is_queued_and_reaches_the_snapshot(lab):
    [record] = await lab.cluster.submit([lab.job("exp", workers=2, gpus=2)])
    observed = await observed_workload(lab, "vision/exp")

    assert (record.state, record.allocated) == ("queued", 0)
    assert (observed.project, observed.user, observed.kind) == ("vision", "ana", "job")
    assert observed.minimum == 2
    assert [(f"vision/exp-{i}", 2000, WorkerState.PENDING) for i in range(2)] == [
        (w.name, w.gpus, w.state) for w in observed.workers
    ]


async def test_batch_submission_with_one_taken_name_stores_no_job(lab):
    await lab.cluster.submit([lab.job("exp-1")])

    with pytest.raises(Conflict, match="vision already has a workload named exp-1") as refused:
        await lab.cluster.submit([lab.job("exp-0"), lab.job("exp-1")])

    assert "runai delete exp-1 -p vision" in refused.value.hint
    assert [record.id for record in await lab.cluster.workloads()] == ["vision/exp-1"]


async def test_batch_submission_with_a_duplicate_name_is_refused(lab):
    with pytest.raises(Conflict):
        await lab.cluster.submit([lab.job("exp"), lab.job("exp")])

    assert list(await lab.cluster.workloads()) == []


async def test_name_of_a_finished_job_is_reserved_until_it_is_deleted(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")

    with pytest.raises(Conflict):
        await lab.cluster.submit([spec])
    await lab.cluster.delete(spec.id, by="ana")

    [record] = await lab.cluster.submit([spec])
    assert record.state == "queued"


async def test_unfinished_job_count_is_per_user(lab):
    ended, suspended = lab.job("ended"), lab.job("suspended")
    other_user_job = lab.job("others", user="mia")
    await lab.started(ended)
    await lab.cluster.submit([suspended, other_user_job, lab.job("deleted"), lab.job("waits")])

    async def unfinished_jobs_by_user() -> list[int]:
        return [await lab.cluster.unfinished_jobs(user) for user in ("ana", "mia", "eve")]

    assert await unfinished_jobs_by_user() == [4, 1, 0]  # eve has none
    await lab.cluster.suspend(suspended.id, by="ana")
    assert await unfinished_jobs_by_user() == [4, 1, 0]
    await lab.cluster.delete("vision/deleted", by="ana")
    await lab.end(ended, 0)
    await lab.until(ended.id, "succeeded")
    assert await unfinished_jobs_by_user() == [2, 1, 0]
    await lab.cluster.delete(ended.id, by="ana")
    assert await unfinished_jobs_by_user() == [2, 1, 0]


async def test_unknown_workload_or_project_raises_not_found(lab):
    for call in (
        lab.cluster.workload("vision/no"),
        lab.cluster.history("vision/no"),
        lab.cluster.suspend("vision/no", by="ana"),
        lab.cluster.resume("vision/no", by="ana"),
        lab.cluster.delete("vision/no", by="ana"),
        lab.cluster.environment("vision/no"),
        lab.cluster.delete_project("no"),
    ):
        with pytest.raises(NotFound):
            await call


async def test_job_for_gpu_types_without_a_node_waits_with_that_reason(lab):
    await lab.cluster.put_project(ProjectSpec("vision", quota=MilliGpu(4000)))
    gpu_types = ("K80", "K40")  # in order of preference, which is preserved
    [record, _] = await lab.cluster.submit([lab.job("exp", gpu_types=gpu_types), lab.job("any")])

    assert record.spec.gpu_types == gpu_types
    assert (await lab.cluster.workload("vision/exp")).spec.gpu_types == gpu_types
    assert (await observed_workload(lab, "vision/exp")).workers[0].gpu_types == gpu_types
    waits = {
        decision.workload: decision.reason.text
        for decision in decide(await lab.cluster.observe()).decisions
        if isinstance(decision, Wait)
    }

    assert list(waits) == ["vision/exp"]
    assert waits["vision/exp"].startswith("no node has a GPU of type K80 or K40; ")

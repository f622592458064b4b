"""Submissions are stored whole and once, and reach the scheduler."""

from __future__ import annotations

import pytest

from contract.looking import seen
from runai.hub_service.model.records import ProjectSpec
from runai.hub_service.scheduler.cycle import decide
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Wait, WorkerState
from runai.hub_service.wire.errors import Conflict, NotFound


async def test_a_submitted_job_is_queued_and_the_core_sees_it(lab):
    [record] = await lab.cluster.submit([lab.job("exp", workers=2, gpus=2)])
    drawn = await seen(lab, "vision/exp")

    assert (record.state, record.allocated) == ("queued", 0)
    assert (drawn.project, drawn.user, drawn.kind, drawn.minimum) == ("vision", "ana", "job", 2)
    assert [(f"vision/exp-{i}", 2000, WorkerState.PENDING) for i in range(2)] == [
        (w.name, w.gpus, w.state) for w in drawn.workers
    ]


async def test_an_array_is_stored_whole_or_not_at_all(lab):
    await lab.cluster.submit([lab.job("exp-1")])

    with pytest.raises(Conflict, match="vision already has a workload named exp-1") as refused:
        await lab.cluster.submit([lab.job("exp-0"), lab.job("exp-1")])

    assert "runai delete exp-1 -p vision" in refused.value.hint
    assert [record.id for record in await lab.cluster.workloads()] == ["vision/exp-1"]


async def test_two_of_one_name_in_one_submission_are_refused(lab):
    with pytest.raises(Conflict):
        await lab.cluster.submit([lab.job("exp"), lab.job("exp")])

    assert list(await lab.cluster.workloads()) == []


async def test_a_finished_name_stays_taken_until_it_is_deleted(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")

    with pytest.raises(Conflict):
        await lab.cluster.submit([spec])
    await lab.cluster.delete(spec.id, by="ana")

    [record] = await lab.cluster.submit([spec])
    assert record.state == "queued"


async def test_unfinished_jobs_are_counted_per_user(lab):
    ended, suspended = lab.job("ended"), lab.job("suspended")
    others = lab.job("others", user="mia")
    await lab.started(ended)
    await lab.cluster.submit([suspended, others, lab.job("deleted"), lab.job("waits")])

    async def of_ana_and_mia() -> list[int]:
        return [await lab.cluster.unfinished_jobs(user) for user in ("ana", "mia", "out")]

    assert await of_ana_and_mia() == [4, 1, 0]
    await lab.cluster.suspend(suspended.id, by="ana")
    assert await of_ana_and_mia() == [4, 1, 0]
    await lab.cluster.delete("vision/deleted", by="ana")
    await lab.end(ended, 0)
    await lab.until(ended.id, "succeeded")
    assert await of_ana_and_mia() == [2, 1, 0]
    await lab.cluster.delete(ended.id, by="ana")
    assert await of_ana_and_mia() == [2, 1, 0]


async def test_unknown_workload_or_project_raises_not_found(lab):
    for asked in (
        lab.cluster.workload("vision/no"),
        lab.cluster.history("vision/no"),
        lab.cluster.suspend("vision/no", by="ana"),
        lab.cluster.resume("vision/no", by="ana"),
        lab.cluster.delete("vision/no", by="ana"),
        lab.cluster.environment("vision/no"),
        lab.cluster.delete_project("no"),
    ):
        with pytest.raises(NotFound):
            await asked


async def test_a_job_for_types_of_gpu_that_no_node_has_waits_and_is_told_so(lab):
    await lab.cluster.put_project(ProjectSpec("vision", quota=MilliGpu(4000)))
    asked = ("K80", "K40")  # in order of preference, which is kept
    [record, _] = await lab.cluster.submit([lab.job("exp", gpu_types=asked), lab.job("any")])

    assert record.spec.gpu_types == asked
    assert (await lab.cluster.workload("vision/exp")).spec.gpu_types == asked
    assert (await seen(lab, "vision/exp")).workers[0].gpu_types == asked
    waits = {
        decision.workload: decision.reason.text
        for decision in decide(await lab.cluster.observe()).decisions
        if isinstance(decision, Wait)
    }

    assert list(waits) == ["vision/exp"]
    assert waits["vision/exp"].startswith("no node has a GPU of type K80 or K40; ")

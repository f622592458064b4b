"""Elastic jobs of several workers: ranks, joining and leaving workers, and the job's end."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from contract.looking import kinds, seen
from labs import Lab, plan, start, stop
from runai.hub_service.clusters.states.membership import MAX_WORKER_LOSSES
from runai.hub_service.model.records import ElasticState, WorkloadSpec
from runai.hub_service.wire.elastic_messages import Reason, Target
from waiting import eventually_async


def elastic(lab: Lab, workers: int = 3, **fields) -> WorkloadSpec:
    return lab.job("e", workers=workers, **{"min_workers": 1, "elastic": True} | fields)


async def state(lab: Lab) -> ElasticState:
    found = (await lab.cluster.workload("vision/e")).elastic
    assert found is not None
    return found


async def target(lab: Lab) -> Target:
    found = (await state(lab)).target
    assert found is not None
    return found


async def ranks(lab: Lab) -> list[int]:
    return [int(name[-1]) for name in (await target(lab)).ranks]


async def training(lab: Lab, *workers: int, of: int = 3, **fields) -> WorkloadSpec:
    """Start workers of a job that speaks the elastic protocol, worker N on device N."""
    spec = elastic(lab, of, **fields)
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(*(start(spec.id, i, worker=i) for i in workers)))
    await lab.until(spec.id, "running")
    await eventually_async(lambda: _trains(lab, len(workers)))
    await lab.tell(spec, "running", *workers)
    return spec


async def joined(lab: Lab, spec: WorkloadSpec, worker: int) -> None:
    await lab.cluster.apply(plan(start(spec.id, worker, worker=worker)))
    await eventually_async(lambda: _runs(lab, worker))


async def _trains(lab: Lab, count: int) -> bool:
    await lab.nudge()
    told = (await state(lab)).target
    return told is not None and len(told.ranks) == count


async def _runs(lab: Lab, worker: int) -> bool:
    return bool((await lab.cluster.workload("vision/e")).workers[worker].state == "running")


async def _waits(lab: Lab, worker: int) -> bool:
    await lab.nudge()
    return bool((await lab.cluster.workload("vision/e")).workers[worker].state == "pending")


async def test_workers_started_together_are_the_ranks_of_generation_one(lab):
    await training(lab, 0, 1)
    told = await target(lab)

    assert replace(told, store="") == Target(
        gen=1,
        ranks=("vision/e-0", "vision/e-1"),
        store="",
        gpus=2,
        least=1,
        most=3,
        reason=Reason.START,
    )
    host, _, port = told.store.rpartition(":")
    ip_address(host)
    assert port.isdecimal()


async def test_a_joiner_counts_when_it_is_ready(lab):
    spec = await training(lab, 0)
    await joined(lab, spec, 2)
    await lab.tell(spec, "starting", 2)
    before = await ranks(lab)
    await lab.tell(spec, "ready", 2)

    assert (before, await ranks(lab)) == ([0], [0, 2])
    told = await target(lab)
    assert (told.gen, told.reason, told.gpus, told.deadline) == (2, Reason.EXPAND, 2, "")
    assert "resized" in await kinds(lab, spec.id)


async def test_leaving_worker_loses_its_rank_at_once(lab):
    spec = await training(lab, 0, 1, 2)
    await lab.cluster.apply(plan(stop(spec.id, 0)))
    told = await target(lab)

    assert (await ranks(lab), told.reason) == ([1, 2], Reason.RECLAIM)
    assert told.deadline != ""
    await eventually_async(lambda: _waits(lab, 0))
    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.allocated, record.pauses) == ("running", 2000, ())
    assert (await target(lab)).gen == told.gen


async def test_a_lost_worker_is_left_out_and_may_join_again(lab):
    spec = await training(lab, 0, 1)
    await lab.end(spec, 1, worker=0)
    await eventually_async(lambda: _waits(lab, 0))
    record = await lab.cluster.workload(spec.id)

    assert (record.state, record.failures, await ranks(lab)) == ("running", 0, [1])
    await joined(lab, spec, 0)
    await lab.tell(spec, "ready", 0)
    assert await ranks(lab) == [1, 0]


@pytest.mark.not_on_kubernetes("its pod is made again after 10 s, then after twice as long")
async def test_a_worker_that_is_lost_again_and_again_stays_away(lab):
    spec = await training(lab, 0, 1)
    for _ in range(MAX_WORKER_LOSSES):
        await lab.end(spec, 1, worker=1)
        await eventually_async(lambda: _waits(lab, 1))
        await joined(lab, spec, 1)
    await lab.end(spec, 1, worker=1)

    async def is_out() -> bool:
        return bool((await lab.cluster.workload(spec.id)).workers[1].state == "finished")

    await eventually_async(is_out)
    await lab.end(spec, 0, worker=0)
    await lab.until(spec.id, "succeeded")


async def test_a_loss_below_the_least_number_of_workers_is_a_failure(lab):
    spec = await training(lab, 0, 1, min_workers=2)
    await lab.end(spec, 3, worker=1)
    record = await lab.until(spec.id, "failed")

    assert record.failures == 1


async def test_job_without_worker_reports_fails_as_a_whole(lab):
    spec = elastic(lab)
    await lab.started(spec)
    await lab.end(spec, 3, worker=1)

    await lab.until(spec.id, "failed")


async def test_the_job_is_finished_when_all_of_its_ranks_are(lab):
    spec = await training(lab, 0, 1)
    await joined(lab, spec, 2)  # the joiner never gets ready
    await lab.end(spec, 0, worker=0)
    await lab.end(spec, 0, worker=1)
    record = await lab.until(spec.id, "succeeded")

    assert (record.failures, record.pauses) == (0, ())


async def test_job_succeeds_without_waiting_for_a_joiner(lab):
    spec = await training(lab, 0)
    await joined(lab, spec, 1)
    await lab.tell(spec, "ready", 1)
    assert await ranks(lab) == [0, 1]
    told = await target(lab)
    await lab.end(spec, 0, worker=0)
    record = await lab.until(spec.id, "succeeded")

    assert (record.failures, record.exit_code) == (0, 0)
    assert await target(lab) == told  # one generation has one target, so all workers read the same


async def test_pause_removes_all_ranks_and_resume_starts_a_new_generation(lab):
    spec = await training(lab, 0, 1)
    await lab.cluster.apply(plan(stop(spec.id, 0), stop(spec.id, 1)))
    pause = await target(lab)
    await lab.until(spec.id, "paused")

    assert (pause.ranks, pause.reason, pause.store) == ((), Reason.PAUSE, "")
    await lab.cluster.apply(plan(start(spec.id, 3, worker=0)))
    await lab.until(spec.id, "running")
    await eventually_async(lambda: _trains(lab, 1))
    told = await target(lab)
    assert (told.gen, told.ranks, told.reason) == (3, ("vision/e-0",), Reason.START)


async def test_job_whose_worker_once_reported_saves_over_a_pause_and_a_restart(lab):
    spec = elastic(lab)
    await lab.cluster.submit([spec])
    before = await seen(lab, spec.id)
    await lab.cluster.apply(plan(start(spec.id, 0, worker=0)))
    await lab.until(spec.id, "running")
    await eventually_async(lambda: _trains(lab, 1))
    await lab.tell(spec, "running", 0)
    told = await seen(lab, spec.id)
    await lab.cluster.apply(plan(stop(spec.id, 0)))
    await lab.until(spec.id, "paused")
    paused = await seen(lab, spec.id)
    await lab.cluster.apply(plan(start(spec.id, 1, worker=0)))
    await lab.until(spec.id, "running")
    again = await seen(lab, spec.id)

    assert [drawn.saves for drawn in (before, told, paused, again)] == [False, True, True, True]


async def test_guaranteed_workers_reach_the_core_as_many_as_there_are(lab):
    spec = elastic(lab, guaranteed_workers=3)
    await lab.cluster.submit([spec])
    before = await seen(lab, spec.id)
    await lab.cluster.scale(spec.id, workers=2, min_workers=None, by="ana")
    after = await seen(lab, spec.id)

    assert (before.guaranteed_workers, after.guaranteed_workers) == (3, 2)


async def test_a_joiner_waits_for_the_checkpoint_of_the_last_rank(lab):
    spec = await training(lab, 1)
    await joined(lab, spec, 0)
    await lab.cluster.apply(plan(stop(spec.id, 1)))
    pause = await target(lab)
    await eventually_async(lambda: _waits(lab, 1))
    # On Kubernetes the pod is gone first; the remaining workers' target is written afterwards.
    await eventually_async(lambda: _trains(lab, 1))

    assert pause.reason is Reason.PAUSE
    assert (await ranks(lab), (await target(lab)).reason) == ([0], Reason.START)


async def test_speeds_by_size_reach_the_core(lab):
    spec = await training(lab, 0)
    await lab.tell(spec, "running", 0, gpus=1, speed=10.0)

    drawn = await seen(lab, spec.id)
    assert drawn.throughput == {"1": 10_000, "3": 30_000}


@pytest.mark.parametrize(
    ("seconds", "shown"), [(29, ["vision/e-0"]), (30, ["vision/e-0", "vision/e-1", "vision/e-2"])]
)
async def test_a_job_that_has_just_been_sized_does_not_grow(lab, seconds, shown):
    spec = await training(lab, 0)
    # On Kubernetes real seconds pass too between sizing the job and observing it.
    lab.clock.at += seconds if lab.kind != "kubernetes" or seconds >= 30 else 0

    assert [worker.name for worker in (await seen(lab, spec.id)).workers] == shown


async def test_no_worker_is_offered_for_growth_while_another_one_joins(lab):
    spec = await training(lab, 0)
    await joined(lab, spec, 1)
    lab.clock.at += 100

    assert len((await seen(lab, spec.id)).workers) == 2
    await lab.tell(spec, "ready", 1)
    assert len((await seen(lab, spec.id)).workers) == 3

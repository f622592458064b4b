"""Elastic jobs of several workers: ranks, joining and leaving workers, and the job's end."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from contract.observations import event_kinds, observed_workload
from labs import Lab, plan, start, stop
from runai.hub_service.clusters.states.membership import MAX_WORKER_LOSSES
from runai.hub_service.model.records import ElasticState, WorkloadSpec
from runai.hub_service.wire.elastic_messages import Reason, Target
from waiting import eventually_async

pytestmark = pytest.mark.not_on_pods("elastic jobs come later")


def elastic_spec(lab: Lab, workers: int = 3, **fields) -> WorkloadSpec:
    return lab.job("e", workers=workers, **{"min_workers": 1, "elastic": True} | fields)


async def elastic_state(lab: Lab) -> ElasticState:
    found = (await lab.cluster.workload("vision/e")).elastic
    assert found is not None
    return found


async def target(lab: Lab) -> Target:
    found = (await elastic_state(lab)).target
    assert found is not None
    return found


async def ranks(lab: Lab) -> list[int]:
    return [int(name[-1]) for name in (await target(lab)).ranks]


async def start_training(lab: Lab, *workers: int, of: int = 3, **fields) -> WorkloadSpec:
    """Start workers of a job that speaks the elastic protocol, worker N on device N."""
    spec = elastic_spec(lab, of, **fields)
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(*(start(spec.id, i, worker=i) for i in workers)))
    await lab.until(spec.id, "running")
    await eventually_async(lambda: _has_ranks(lab, len(workers)))
    await lab.report_status(spec, "running", *workers)
    return spec


async def start_joiner(lab: Lab, spec: WorkloadSpec, worker: int) -> None:
    await lab.cluster.apply(plan(start(spec.id, worker, worker=worker)))
    await eventually_async(lambda: _is_running(lab, worker))


async def _has_ranks(lab: Lab, count: int) -> bool:
    await lab.nudge()
    current_target = (await elastic_state(lab)).target
    return current_target is not None and len(current_target.ranks) == count


async def _is_running(lab: Lab, worker: int) -> bool:
    return bool((await lab.cluster.workload("vision/e")).workers[worker].state == "running")


async def _is_pending(lab: Lab, worker: int) -> bool:
    await lab.nudge()
    return bool((await lab.cluster.workload("vision/e")).workers[worker].state == "pending")


async def test_elastic_workers_started_together_are_the_ranks_of_generation_one(lab):
    await start_training(lab, 0, 1)
    current_target = await target(lab)

    assert replace(current_target, store="") == Target(
        gen=1,
        ranks=("vision/e-0", "vision/e-1"),
        store="",
        gpus=2,
        least=1,
        most=3,
        reason=Reason.START,
    )
    host, _, port = current_target.store.rpartition(":")
    ip_address(host)
    assert port.isdecimal()


async def test_joining_elastic_worker_gets_a_rank_once_it_is_ready(lab):
    spec = await start_training(lab, 0)
    await start_joiner(lab, spec, 2)
    await lab.report_status(spec, "starting", 2)
    before = await ranks(lab)
    await lab.report_status(spec, "ready", 2)

    assert before == [0]
    assert await ranks(lab) == [0, 2]
    current_target = await target(lab)
    assert (current_target.gen, current_target.reason) == (2, Reason.EXPAND)
    assert (current_target.gpus, current_target.deadline) == (2, "")
    assert "resized" in await event_kinds(lab, spec.id)


async def test_stopping_elastic_worker_loses_its_rank_at_once(lab):
    spec = await start_training(lab, 0, 1, 2)
    await lab.cluster.apply(plan(stop(spec.id, 0)))
    current_target = await target(lab)

    assert await ranks(lab) == [1, 2]
    assert current_target.reason is Reason.RECLAIM
    assert current_target.deadline != ""
    await eventually_async(lambda: _is_pending(lab, 0))
    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.allocated, record.pauses) == ("running", 2000, ())
    assert (await target(lab)).gen == current_target.gen


async def test_failed_elastic_worker_loses_its_rank_and_may_rejoin(lab):
    spec = await start_training(lab, 0, 1)
    await lab.end(spec, 1, worker=0)
    await eventually_async(lambda: _is_pending(lab, 0))
    record = await lab.cluster.workload(spec.id)

    assert (record.state, record.failures) == ("running", 0)
    assert await ranks(lab) == [1]
    await start_joiner(lab, spec, 0)
    await lab.report_status(spec, "ready", 0)
    assert await ranks(lab) == [1, 0]


@pytest.mark.not_on_kubernetes("its pod is made again after 10 s, then after twice as long")
async def test_elastic_worker_that_fails_too_often_does_not_rejoin(lab):
    spec = await start_training(lab, 0, 1)
    for _ in range(MAX_WORKER_LOSSES):
        await lab.end(spec, 1, worker=1)
        await eventually_async(lambda: _is_pending(lab, 1))
        await start_joiner(lab, spec, 1)
    await lab.end(spec, 1, worker=1)

    async def is_finished() -> bool:
        return bool((await lab.cluster.workload(spec.id)).workers[1].state == "finished")

    await eventually_async(is_finished)
    await lab.end(spec, 0, worker=0)
    await lab.until(spec.id, "succeeded")


async def test_elastic_job_fails_when_fewer_than_min_workers_remain(lab):
    spec = await start_training(lab, 0, 1, min_workers=2)
    await lab.end(spec, 3, worker=1)
    record = await lab.until(spec.id, "failed")

    assert record.failures == 1


async def test_elastic_job_without_worker_reports_fails_when_a_worker_fails(lab):
    spec = elastic_spec(lab)
    await lab.started(spec)
    await lab.end(spec, 3, worker=1)

    await lab.until(spec.id, "failed")


async def test_elastic_job_succeeds_when_all_of_its_ranks_have_finished(lab):
    spec = await start_training(lab, 0, 1)
    await start_joiner(lab, spec, 2)  # the joiner never gets ready
    await lab.end(spec, 0, worker=0)
    await lab.end(spec, 0, worker=1)
    record = await lab.until(spec.id, "succeeded")

    assert (record.failures, record.pauses) == (0, ())


async def test_elastic_job_succeeds_without_waiting_for_a_joining_worker(lab):
    spec = await start_training(lab, 0)
    await start_joiner(lab, spec, 1)
    await lab.report_status(spec, "ready", 1)
    assert await ranks(lab) == [0, 1]
    target_of_both = await target(lab)
    await lab.end(spec, 0, worker=0)
    record = await lab.until(spec.id, "succeeded")

    assert (record.failures, record.exit_code) == (0, 0)
    # One generation has one target, so that all workers read the same.
    assert await target(lab) == target_of_both


async def test_elastic_job_pause_removes_all_ranks_and_resume_starts_a_new_generation(lab):
    spec = await start_training(lab, 0, 1)
    await lab.cluster.apply(plan(stop(spec.id, 0), stop(spec.id, 1)))
    pause = await target(lab)
    await lab.until(spec.id, "paused")

    assert (pause.ranks, pause.reason, pause.store) == ((), Reason.PAUSE, "")
    await lab.cluster.apply(plan(start(spec.id, 3, worker=0)))
    await lab.until(spec.id, "running")
    await eventually_async(lambda: _has_ranks(lab, 1))
    resumed_target = await target(lab)
    assert (resumed_target.gen, resumed_target.ranks, resumed_target.reason) == (
        3,
        ("vision/e-0",),
        Reason.START,
    )


async def test_elastic_job_that_reported_saves_checkpoints_after_pause_and_restart(lab):
    spec = elastic_spec(lab)
    await lab.cluster.submit([spec])
    before = await observed_workload(lab, spec.id)
    await lab.cluster.apply(plan(start(spec.id, 0, worker=0)))
    await lab.until(spec.id, "running")
    await eventually_async(lambda: _has_ranks(lab, 1))
    await lab.report_status(spec, "running", 0)
    reported = await observed_workload(lab, spec.id)
    await lab.cluster.apply(plan(stop(spec.id, 0)))
    await lab.until(spec.id, "paused")
    paused = await observed_workload(lab, spec.id)
    await lab.cluster.apply(plan(start(spec.id, 1, worker=0)))
    await lab.until(spec.id, "running")
    restarted = await observed_workload(lab, spec.id)

    assert before.saves is False
    assert [workload.saves for workload in (reported, paused, restarted)] == [True] * 3


async def test_guaranteed_workers_in_the_snapshot_are_capped_by_the_number_of_workers(lab):
    spec = elastic_spec(lab, guaranteed_workers=3)
    await lab.cluster.submit([spec])
    before = await observed_workload(lab, spec.id)
    await lab.cluster.scale(spec.id, workers=2, min_workers=None, by="ana")
    after = await observed_workload(lab, spec.id)

    assert (before.guaranteed_workers, after.guaranteed_workers) == (3, 2)


async def test_joining_elastic_worker_waits_for_the_checkpoint_of_the_last_rank(lab):
    spec = await start_training(lab, 1)
    await start_joiner(lab, spec, 0)
    await lab.cluster.apply(plan(stop(spec.id, 1)))
    pause = await target(lab)
    await eventually_async(lambda: _is_pending(lab, 1))
    # On Kubernetes the pod is gone first; the remaining workers' target is written afterwards.
    await eventually_async(lambda: _has_ranks(lab, 1))

    assert pause.reason is Reason.PAUSE
    assert await ranks(lab) == [0]
    assert (await target(lab)).reason is Reason.START


async def test_reported_training_speeds_reach_the_snapshot_as_throughput(lab):
    spec = await start_training(lab, 0)
    await lab.report_status(spec, "running", 0, gpus=1, speed=10.0)

    workload = await observed_workload(lab, spec.id)
    assert workload.throughput == {"1": 10_000, "3": 30_000}


@pytest.mark.parametrize(
    ("seconds", "worker_names"),
    [(29, ["vision/e-0"]), (30, ["vision/e-0", "vision/e-1", "vision/e-2"])],
    ids=["within 30 s", "after 30 s"],
)
async def test_recently_resized_elastic_job_does_not_grow(lab, seconds, worker_names):
    spec = await start_training(lab, 0)
    # On Kubernetes real seconds pass too between sizing the job and observing it.
    lab.clock.at += seconds if lab.kind != "kubernetes" or seconds >= 30 else 0

    assert [
        worker.name for worker in (await observed_workload(lab, spec.id)).workers
    ] == worker_names


async def test_no_worker_is_offered_for_growth_while_a_worker_joins(lab):
    spec = await start_training(lab, 0)
    await start_joiner(lab, spec, 1)
    lab.clock.at += 100  # longer than the 30 s between two sizes

    assert len((await observed_workload(lab, spec.id)).workers) == 2
    await lab.report_status(spec, "ready", 1)
    assert len((await observed_workload(lab, spec.id)).workers) == 3

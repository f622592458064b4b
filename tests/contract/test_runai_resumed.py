"""`RUNAI_RESUMED`: 1 at every start of a job but the first, whatever ended the one before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from labs import Lab, move, plan, resize, start, stop
from runai.hub_service.model.records import WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu

Change = Callable[[Lab, WorkloadSpec], Awaitable[None]]


async def _crash(lab: Lab, spec: WorkloadSpec) -> None:
    await lab.end(spec, 1, worker=spec.workers - 1)


async def _pause(lab: Lab, spec: WorkloadSpec) -> None:
    await lab.cluster.apply(plan(*(stop(spec.id, worker) for worker in range(spec.workers))))
    await lab.until(spec.id, "paused")


async def _suspend(lab: Lab, spec: WorkloadSpec) -> None:
    await lab.cluster.suspend(spec.id, by="ana")
    await lab.until(spec.id, "suspended")
    await lab.cluster.resume(spec.id, by="ana")


async def _move(lab: Lab, spec: WorkloadSpec) -> None:
    await lab.cluster.apply(plan(move(spec.id, 3)))
    await lab.until(spec.id, "paused")


async def _start_again(lab: Lab, spec: WorkloadSpec) -> None:
    """Start a job's workers when they wait, until all of them run in a second attempt."""
    starts = plan(*(start(spec.id, worker, worker=worker) for worker in range(spec.workers)))
    record = await lab.until(spec.id, "retrying", "queued", "paused")
    if record.not_before is not None:
        await lab.pass_time(record.not_before - lab.clock())
    await lab.cluster.apply(starts)
    await lab.until(spec.id, "running")


@pytest.mark.not_on_kubernetes("its Job gives a pod its environment")
@pytest.mark.parametrize(
    ("end_start", "fields"),
    [
        (_pause, {}),
        (_suspend, {}),
        (_move, {"saves": True}),
        (_pause, {"workers": 2}),
    ],
    ids=["pause", "suspension", "move", "pause of a gang"],
)
async def test_job_restart_after_a_stop_sets_runai_resumed(lab, end_start, fields):
    spec = lab.job(on_term=143, **fields)
    await lab.started(spec)
    _, resumed_at_first = await lab.sees(spec)
    await end_start(lab, spec)

    await _start_again(lab, spec)

    _, resumed_at_second = await lab.sees(spec)
    assert not resumed_at_first
    assert resumed_at_second


@pytest.mark.not_on_kubernetes("the Job controller times retries")
@pytest.mark.parametrize("workers", [1, 2], ids=["job", "member of a gang"])
@pytest.mark.parametrize("on_term", [143, "ignore"], ids=["obeys SIGTERM", "is killed"])
async def test_every_job_retry_after_a_crash_sets_runai_resumed(lab, workers, on_term):
    spec = lab.job(workers=workers, backoff_limit=3, on_term=on_term, grace_seconds=1)
    await lab.started(spec)
    resumed_flags = [(await lab.sees(spec))[1]]
    for _ in range(2):
        await _crash(lab, spec)
        await _start_again(lab, spec)
        await lab.ready(spec)
        resumed_flags.append((await lab.sees(spec))[1])

    assert resumed_flags == [False, True, True]


@pytest.mark.not_on_kubernetes("the Job controller times retries")
async def test_suspended_job_retry_sets_runai_resumed_when_it_restarts(lab):
    spec = lab.job(backoff_limit=1)
    await lab.started(spec)
    await _crash(lab, spec)
    await lab.until(spec.id, "retrying")
    await _suspend(lab, spec)

    await _start_again(lab, spec)

    _, is_resumed = await lab.sees(spec)
    assert is_resumed


async def test_worker_restart_on_different_devices_sets_runai_resumed(lab):
    spec = lab.job("e", on_term=143, elastic=True, gpus_max=MilliGpu(4000))
    await lab.started(spec)
    assert list(await lab.cluster.apply(plan(resize(spec.id, 0, 1)))) == []
    await lab.until(spec.id, "stopping")
    await lab.until(spec.id, "running")

    _, is_resumed = await lab.sees(spec)
    assert is_resumed


@pytest.mark.not_on_kubernetes("its Job gives a pod its environment")
async def test_worker_joining_a_running_job_sets_runai_resumed(lab):
    spec = lab.job("e", workers=2, min_workers=1, elastic=True)
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(start(spec.id, 1, worker=1)))
    await lab.until(spec.id, "running")

    await lab.cluster.apply(plan(start(spec.id, 0, worker=0)))

    _, is_resumed = await lab.sees(spec)
    assert is_resumed

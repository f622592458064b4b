"""Exits of workers, and the state of their workload afterwards."""

from __future__ import annotations

import pytest

from contract.observations import observed_workload
from labs import plan, start, stop
from runai.hub_service.scheduler.model.snapshot import WorkerState


@pytest.mark.parametrize(
    ("exit_code", "backoff_limit", "state", "failures"),
    [
        (0, 0, "succeeded", 0),
        (3, 0, "failed", 1),
        (143, 0, "failed", 1),
        (3, 1, "retrying", 1),
    ],
    ids=["success", "failure", "143 without a stop is a failure", "failure with a retry left"],
)
async def test_exit_code_determines_state_and_failures_of_a_job(
    lab, exit_code, backoff_limit, state, failures
):
    spec = lab.job(backoff_limit=backoff_limit)
    await lab.started(spec)

    await lab.end(spec, exit_code)

    record = await lab.until(spec.id, state)
    assert record.allocated == 0
    assert record.failures == failures
    assert record.workers[0].exit_code == exit_code
    assert None is await observed_workload(lab, spec.id)


@pytest.mark.parametrize("on_term", [None, 143, 1], ids=["signal", "exit code 143", "exit code 1"])
async def test_stopped_job_is_paused_without_a_failure(lab, on_term):
    spec = lab.job(on_term=on_term, backoff_limit=0)
    await lab.started(spec)

    await lab.cluster.apply(plan(stop(spec.id)))

    record = await lab.until(spec.id, "paused")
    assert (record.allocated, record.failures, len(record.pauses)) == (0, 0, 1)


@pytest.mark.not_on_kubernetes("the Job controller does not count the pods of a suspended Job")
async def test_stopped_job_that_exits_with_0_succeeds(lab):
    spec = lab.job(on_term=0, backoff_limit=0)
    await lab.started(spec)

    await lab.cluster.apply(plan(stop(spec.id)))

    record = await lab.until(spec.id, "succeeded")
    assert (record.allocated, record.failures, record.pauses) == (0, 0, ())


async def test_stopping_worker_occupies_its_devices_until_it_exits(lab):
    spec, next_job = lab.job(on_term="ignore", grace_seconds=6), lab.job("next")
    await lab.started(spec)
    await lab.cluster.submit([next_job])

    await lab.cluster.apply(plan(stop(spec.id)))

    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.allocated) == ("stopping", 1000)
    assert (record.reason.code, record.reason.gains) == ("reclaimed", "nlp/pat-1")
    [worker] = (await observed_workload(lab, spec.id)).workers
    assert WorkerState.STOPPING is worker.state
    [refused] = await lab.cluster.apply(plan(start(next_job.id, 0)))
    assert next_job.id == refused.workload

    await lab.until(spec.id, "paused")
    assert list(await lab.cluster.apply(plan(start(next_job.id, 0)))) == []


@pytest.mark.not_on_kubernetes("its Job gives a pod its environment")
@pytest.mark.not_on_pods("their manifest has their environment")
async def test_paused_job_resumes_with_its_age_and_checkpoint_directory(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)
    first = await lab.cluster.workload(spec.id)
    before = (await lab.cluster.environment(spec.id)).variables
    await lab.pass_time(100)
    await lab.cluster.apply(plan(stop(spec.id)))
    paused = await lab.until(spec.id, "paused")
    observed = await observed_workload(lab, spec.id)

    await lab.cluster.apply(plan(start(spec.id, 3)))
    resumed = await lab.until(spec.id, "running")
    after = (await lab.cluster.environment(spec.id)).variables

    assert observed.submitted == int(first.submitted)
    assert observed.pauses == (int(paused.pauses[0]),)
    assert (resumed.submitted, resumed.started) == (first.submitted, first.started)
    assert resumed.attempts == 2
    assert resumed.checkpoint_dir == first.checkpoint_dir
    assert (before["RUNAI_RESUMED"], after["RUNAI_RESUMED"]) == ("0", "1")
    assert before["RUNAI_CHECKPOINT_DIR"] == after["RUNAI_CHECKPOINT_DIR"]
    assert after["CUDA_VISIBLE_DEVICES"] == "SIM-3"


@pytest.mark.not_on_kubernetes("the Job controller times retries")
@pytest.mark.not_on_pods("their clock is the real one: the delays are not exact")
async def test_failed_job_is_retried_with_growing_delays_up_to_its_limit(lab):
    spec = lab.job(backoff_limit=2)
    await lab.started(spec)
    waits = []
    for _ in range(2):
        await lab.end(spec, 1)
        record = await lab.until(spec.id, "retrying")
        waits.append(record.not_before - lab.clock())
        await lab.pass_time(waits[-1] - 1)
        assert (await lab.cluster.workload(spec.id)).state == "retrying"
        await lab.pass_time(1)
        assert (await lab.cluster.workload(spec.id)).state == "queued"
        await lab.cluster.apply(plan(start(spec.id, 0)))
        await lab.until(spec.id, "running")
    await lab.end(spec, 1)

    record = await lab.until(spec.id, "failed")
    assert waits == [10.0, 20.0]
    assert (record.failures, record.attempts) == (3, 3)
    assert (record.reason.code, record.reason.text) == ("exit_code", "ended with exit code 1")


@pytest.mark.not_on_kubernetes("the Job controller times retries")
async def test_clock_set_back_does_not_delay_a_retry(lab):
    spec = lab.job(backoff_limit=1)
    await lab.started(spec)
    await lab.end(spec, 1)
    await lab.until(spec.id, "retrying")

    await lab.pass_time(-3600)

    assert (await lab.cluster.workload(spec.id)).state == "queued"


async def test_failed_worker_fails_its_whole_gang(lab):
    spec = lab.job("gang", workers=3)
    await lab.started(spec)

    await lab.end(spec, 7, worker=1)

    record = await lab.until(spec.id, "failed")
    assert record.workers[1].exit_code == 7
    assert (record.allocated, record.failures) == (0, 1)
    assert record.reason.text == "worker 1 ended with exit code 7"


async def test_gang_succeeds_when_all_its_workers_have_finished(lab):
    spec = lab.job("gang", workers=2)
    await lab.started(spec)

    await lab.end(spec, 0, worker=0)
    record = await lab.cluster.workload(spec.id)
    while record.workers[0].state != "finished":
        record = await lab.cluster.wait(spec.id, record)
    assert (record.state, record.allocated) == ("running", 1000)
    assert (await observed_workload(lab, spec.id)).minimum == 1

    await lab.end(spec, 0, worker=1)
    await lab.until(spec.id, "succeeded")


async def test_whole_gang_is_paused_and_resumed(lab):
    spec = lab.job("gang", workers=2)
    await lab.started(spec)

    await lab.cluster.apply(plan(stop(spec.id, 0), stop(spec.id, 1)))
    record = await lab.until(spec.id, "paused")
    assert [(w.state, w.devices) for w in record.workers] == [("pending", ())] * 2

    await lab.cluster.apply(plan(start(spec.id, 2, worker=0), start(spec.id, 3, worker=1)))
    record = await lab.until(spec.id, "running")
    assert record.attempts == 2

"""Time limits on every kind of cluster: running counts, pauses do not, and the end is for good."""

from __future__ import annotations

import pytest

from contract.observations import event_kinds, observed_workload
from contract.test_arrays import run_cycle, submit_array
from labs import Lab, plan, start, stop
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.model.time_limits import ends_at

pytestmark = pytest.mark.not_on_pods("time limits come later")

LIMIT_S = 3600


async def exhaust_time_limit(lab: Lab, workload: str) -> WorkloadRecord:
    """Let the limit pass, and return the record once it has timed out."""
    lab.clock.at += LIMIT_S
    await lab.pass_time(0)
    record = await lab.until(workload, "timed_out")
    if lab.kind == "kubernetes":  # the API server dates the next start
        lab.clock.at -= LIMIT_S
    return record


@pytest.mark.parametrize("on_term", [None, 143], ids=["killed by the signal", "exit code 143"])
async def test_job_that_reached_its_time_limit_is_not_restarted(lab, on_term):
    spec = lab.job(on_term=on_term, max_runtime=LIMIT_S, backoff_limit=3)
    await lab.started(spec)

    record = await exhaust_time_limit(lab, spec.id)
    assert record.reason is not None
    assert (record.allocated, record.reason.code) == (0, "timed_out")
    assert record.finished is not None
    assert record.ran_s >= LIMIT_S
    assert "--time" in record.reason.text
    assert await observed_workload(lab, spec.id) is None


async def test_pause_does_not_count_against_the_jobs_time_limit(lab):
    spec = lab.job(max_runtime=LIMIT_S)
    await lab.started(spec)
    first = await lab.cluster.workload(spec.id)
    await lab.pass_time(100)

    await lab.cluster.apply(plan(stop(spec.id)))
    paused = await lab.until(spec.id, "paused")
    await lab.pass_time(1000)
    waiting = await observed_workload(lab, spec.id)
    await lab.cluster.apply(plan(start(spec.id, 3)))
    resumed = await lab.until(spec.id, "running")

    assert first.runs_since is not None
    assert paused.runs_since is None
    assert paused.ran_s < 1000
    remaining_s = LIMIT_S - paused.ran_s
    assert remaining_s <= waiting.max_runtime < remaining_s + 1  # rounded up to a second
    assert resumed.ran_s == paused.ran_s
    assert ends_at(resumed) == resumed.runs_since + remaining_s


async def test_snapshot_contains_the_remaining_time_of_a_running_job(lab):
    spec = lab.job(max_runtime=LIMIT_S)
    await lab.started(spec)
    await lab.pass_time(100)

    record, observed = await lab.cluster.workload(spec.id), await observed_workload(lab, spec.id)

    end = ends_at(record)
    assert end is not None
    # The snapshot rounds to seconds.
    assert end <= observed.workers[0].started + observed.max_runtime < end + 2


@pytest.mark.parametrize(
    "fields", [{}, {"elastic": True, "min_workers": 1}], ids=["gang", "elastic"]
)
async def test_time_limit_ends_all_workers_of_a_job(lab, fields):
    spec = lab.job(workers=2, max_runtime=LIMIT_S, **fields)
    await lab.started(spec)

    record = await exhaust_time_limit(lab, spec.id)
    assert {worker.state for worker in record.workers} == {"finished"}


async def test_array_elements_have_the_full_time_limit_separately(lab):
    await submit_array(lab, 2, max_runtime=LIMIT_S, gpus=4)
    assert await run_cycle(lab) == ["vision/sweep-0"]
    await lab.until("vision/sweep-0", "running")

    await exhaust_time_limit(lab, "vision/sweep-0")
    observed = await observed_workload(lab, "vision/sweep-1")

    assert observed.max_runtime == LIMIT_S
    assert await run_cycle(lab) == ["vision/sweep-1"]
    second = await lab.cluster.workload("vision/sweep-1")
    assert (second.ran_s, second.spec.max_runtime) == (0, LIMIT_S)


async def test_history_of_a_job_ends_with_the_time_limit_event(lab):
    spec = lab.job(max_runtime=LIMIT_S)
    await lab.started(spec)

    await exhaust_time_limit(lab, spec.id)

    assert (await event_kinds(lab, spec.id))[-1] == "timed_out"

"""Time limits on every kind of cluster: running counts, pauses do not, and the end is for good."""

from __future__ import annotations

import pytest

from contract.looking import kinds, seen
from contract.test_arrays import array, decided
from labs import Lab, plan, start, stop
from runai.hub_service.model.records import WorkloadRecord
from runai.hub_service.model.time_limits import ends_at

LIMIT_S = 3600


async def run_out(lab: Lab, workload: str) -> WorkloadRecord:
    """Let the limit pass, and return the record once it has timed out."""
    lab.clock.at += LIMIT_S
    await lab.pass_time(0)
    record = await lab.until(workload, "timed_out")
    if lab.kind == "kubernetes":  # the API server dates the next start
        lab.clock.at -= LIMIT_S
    return record


@pytest.mark.parametrize("on_term", [None, 143], ids=["signal", "143"])
async def test_a_job_that_ran_its_time_out_is_not_started_again(lab, on_term):
    spec = lab.job(on_term=on_term, max_runtime=LIMIT_S, backoff_limit=3)
    await lab.started(spec)

    record = await run_out(lab, spec.id)
    assert record.reason is not None
    assert (record.allocated, record.reason.code) == (0, "timed_out")
    assert record.finished is not None
    assert record.ran_s >= LIMIT_S
    assert "--time" in record.reason.text
    assert await seen(lab, spec.id) is None


async def test_a_pause_does_not_count(lab):
    spec = lab.job(max_runtime=3600)
    await lab.started(spec)
    first = await lab.cluster.workload(spec.id)
    await lab.pass_time(100)

    await lab.cluster.apply(plan(stop(spec.id)))
    paused = await lab.until(spec.id, "paused")
    await lab.pass_time(1000)
    waits = await seen(lab, spec.id)
    await lab.cluster.apply(plan(start(spec.id, 3)))
    resumed = await lab.until(spec.id, "running")

    assert first.runs_since is not None
    assert paused.runs_since is None
    assert paused.ran_s < 1000
    assert 3600 - paused.ran_s <= waits.max_runtime < 3601 - paused.ran_s
    assert resumed.ran_s == paused.ran_s
    assert ends_at(resumed) == resumed.runs_since + 3600 - paused.ran_s


async def test_the_core_is_shown_what_is_left_and_what_has_passed(lab):
    spec = lab.job(max_runtime=3600)
    await lab.started(spec)
    await lab.pass_time(100)

    record, shown = await lab.cluster.workload(spec.id), await seen(lab, spec.id)

    end = ends_at(record)
    assert end is not None
    assert end <= shown.workers[0].started + shown.max_runtime < end + 2


@pytest.mark.parametrize(
    "fields", [{}, {"elastic": True, "min_workers": 1}], ids=["gang", "elastic"]
)
async def test_all_workers_end_together(lab, fields):
    spec = lab.job(workers=2, max_runtime=LIMIT_S, **fields)
    await lab.started(spec)

    record = await run_out(lab, spec.id)
    assert {worker.state for worker in record.workers} == {"finished"}


async def test_each_element_of_an_array_has_the_whole_limit(lab):
    await array(lab, 2, max_runtime=LIMIT_S, gpus=4)
    assert await decided(lab) == ["vision/sweep-0"]
    await lab.until("vision/sweep-0", "running")

    await run_out(lab, "vision/sweep-0")
    shown = await seen(lab, "vision/sweep-1")

    assert shown.max_runtime == LIMIT_S
    assert await decided(lab) == ["vision/sweep-1"]
    second = await lab.cluster.workload("vision/sweep-1")
    assert (second.ran_s, second.spec.max_runtime) == (0, LIMIT_S)


async def test_the_history_ends_with_it(lab):
    spec = lab.job(max_runtime=LIMIT_S)
    await lab.started(spec)

    await run_out(lab, spec.id)

    assert (await kinds(lab, spec.id))[-1] == "timed_out"

"""Change an elastic job's number of workers while it waits or runs."""

from __future__ import annotations

import pytest

from contract.observations import event_kinds
from labs import Lab, plan, start
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from runai.hub_service.wire.errors import Conflict, InvalidRequest
from waiting import eventually_async

pytestmark = pytest.mark.not_on_pods("elastic jobs come later")


def elastic_spec(lab: Lab, workers: int = 2, **fields) -> WorkloadSpec:
    return lab.job("e", workers=workers, **{"min_workers": 1, "elastic": True} | fields)


async def scale(lab: Lab, spec: WorkloadSpec, workers=None, min_workers=None) -> WorkloadRecord:
    return await lab.cluster.scale(spec.id, workers=workers, min_workers=min_workers, by="ana")


async def requested_and_minimum_workers(lab: Lab) -> tuple[int, int]:
    [workload] = (await lab.cluster.observe()).workloads
    return len(workload.workers), workload.minimum


async def start_training(lab: Lab, *workers: int, of: int) -> WorkloadSpec:
    spec = elastic_spec(lab, of)
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(*(start(spec.id, i, worker=i) for i in workers)))
    await lab.until(spec.id, "running")
    await lab.report_status(spec, "running", *workers)
    return spec


async def test_scaled_waiting_job_requests_its_new_worker_counts_at_once(lab: Lab):
    spec = elastic_spec(lab)
    await lab.cluster.submit([spec])
    await scale(lab, spec, workers=4, min_workers=2)
    assert await requested_and_minimum_workers(lab) == (4, 2)

    await scale(lab, spec, workers=3)
    assert await requested_and_minimum_workers(lab) == (3, 2)
    assert "ana set its workers to 2 to 4" in [
        event.text for event in await lab.cluster.history(spec.id)
    ]


async def test_running_elastic_job_gets_pending_workers_when_scaled_up(lab: Lab):
    spec = await start_training(lab, 0, 1, of=2)
    record = await scale(lab, spec, workers=3)

    assert record.state == "running"
    assert [w.state for w in record.workers] == ["running", "running", "pending"]
    await lab.cluster.apply(plan(start(spec.id, 2, worker=2)))
    await eventually_async(lambda: _has_states(lab, spec, ["running"] * 3))


async def test_surplus_workers_stop_and_are_removed_while_the_job_runs(lab: Lab):
    spec = await start_training(lab, 0, 1, 2, of=4)
    record = await scale(lab, spec, workers=2)

    states = [worker.state for worker in record.workers[:3]]
    # The surplus worker may have stopped already.
    assert states in (["running", "running", "stopping"], ["running", "running"])
    assert record.elastic is not None
    assert record.elastic.target is not None
    assert record.elastic.target.ranks == (f"{spec.id}-0", f"{spec.id}-1")
    await lab.nudge()
    await eventually_async(lambda: _has_states(lab, spec, ["running", "running"]))
    assert (await lab.cluster.workload(spec.id)).state == "running"


async def test_repeated_scale_request_changes_nothing(lab: Lab):
    spec = elastic_spec(lab)
    await lab.cluster.submit([spec])
    first = await scale(lab, spec, workers=4)
    events = await event_kinds(lab, spec.id)

    assert await scale(lab, spec, workers=4) == first
    assert await event_kinds(lab, spec.id) == events


@pytest.mark.parametrize(
    ("fields", "sizes", "error", "sentence"),
    [
        ({"elastic": False, "min_workers": 2}, (4, None), Conflict, "is not elastic"),
        ({"workers": 1, "gpus_max": 4000}, (4, None), Conflict, "is one process"),
        ({}, (1, None), InvalidRequest, "--workers must be at least 2"),
        ({}, (2, 3), InvalidRequest, "--min-workers 3 is more than --workers 2"),
    ],
    ids=["job that is not elastic", "one process", "one worker", "minimum above maximum"],
)
async def test_invalid_scale_request_is_rejected(lab: Lab, fields, sizes, error, sentence):
    spec = elastic_spec(lab, **fields)
    await lab.cluster.submit([spec])
    with pytest.raises(error, match=sentence):
        await scale(lab, spec, *sizes)


async def _has_states(lab: Lab, spec: WorkloadSpec, states: list[str]) -> bool:
    await lab.nudge()
    return [w.state for w in (await lab.cluster.workload(spec.id)).workers] == states

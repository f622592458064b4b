"""Suspend, resume and delete a workload in any of its states."""

from __future__ import annotations

import pytest

from contract.observations import event_kinds, observed_workload
from labs import plan, reserve, start, stop
from runai.hub_service.wire.errors import Conflict

# The one file of the contract that `make test` also runs on Kubernetes.
pytestmark = pytest.mark.tier("test")


async def test_suspended_job_leaves_the_queue_and_resumes_at_its_old_queue_position(lab):
    spec = lab.job()
    [record] = await lab.cluster.submit([spec])

    assert (await lab.cluster.suspend(spec.id, by="ana")).state == "suspended"
    assert None is await observed_workload(lab, spec.id)
    [refused] = await lab.cluster.apply(plan(start(spec.id, 0)))
    assert refused.text == "vision/exp is suspended"
    assert (await lab.cluster.suspend(spec.id, by="ana")).state == "suspended"

    resumed = await lab.cluster.resume(spec.id, by="ana")
    assert ("queued", record.submitted) == (resumed.state, resumed.submitted)
    assert resumed == await lab.cluster.resume(spec.id, by="ana")
    assert await event_kinds(lab, spec.id) == ["queued", "suspended", "queued"]


async def test_suspending_a_job_releases_its_gpu_reservation(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(reserve(spec.id, 0)))

    assert (await lab.cluster.suspend(spec.id, by="ana")).allocated == 0


async def test_suspending_a_running_job_stops_it(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)

    assert (await lab.cluster.suspend(spec.id, by="ana")).state == "stopping"
    record = await lab.until(spec.id, "suspended")
    assert (record.pauses, record.allocated) == ((), 0)

    assert (await lab.cluster.resume(spec.id, by="ana")).state == "paused"


async def test_suspended_job_can_be_resumed_while_its_worker_stops(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)

    await lab.cluster.suspend(spec.id, by="ana")
    await lab.cluster.resume(spec.id, by="ana")

    await lab.until(spec.id, "paused")


async def test_job_can_be_suspended_while_the_scheduler_pauses_it(lab):
    spec = lab.job(on_term=143)
    await lab.started(spec)

    await lab.cluster.apply(plan(stop(spec.id)))
    await lab.cluster.suspend(spec.id, by="ana")

    await lab.until(spec.id, "suspended")


@pytest.mark.not_on_kubernetes("JupyterHub makes its pods itself")
async def test_session_can_be_neither_suspended_nor_resumed(lab):
    await lab.cluster.submit([lab.session()])

    for change in (lab.cluster.suspend, lab.cluster.resume):
        with pytest.raises(Conflict, match="is a session"):
            await change("vision/lab-ana", by="ana")


async def test_finished_job_can_be_neither_suspended_nor_resumed(lab):
    spec = lab.job()
    await lab.started(spec)
    await lab.end(spec, 0)
    await lab.until(spec.id, "succeeded")

    for change in (lab.cluster.suspend, lab.cluster.resume):
        with pytest.raises(Conflict, match="is finished"):
            await change(spec.id, by="ana")


async def test_deleting_a_queued_job_removes_its_record(lab):
    await lab.cluster.submit([lab.job()])

    await lab.cluster.delete("vision/exp", by="ana")

    assert list(await lab.cluster.workloads()) == []


async def test_deleting_a_running_job_stops_it_first(lab):
    spec = lab.job(on_term=0)
    await lab.started(spec)

    await lab.cluster.delete(spec.id, by="ana")
    assert (await lab.cluster.workload(spec.id)).state == "stopping"
    await lab.cluster.delete(spec.id, by="ana")

    await lab.until_deleted(spec.id)

"""A one-process elastic job restarts on more or fewer devices of its node (E2)."""

from __future__ import annotations

import pytest

from contract.observations import observed_workload
from labs import Lab, plan, reserve, resize, start, stop
from runai.hub_service.model.records import WorkloadRecord, WorkloadSpec
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import WorkerState

pytestmark = pytest.mark.not_on_pods("elastic jobs come later")


async def start_elastic(lab: Lab, device: int = 0, **fields) -> WorkloadSpec:
    fields = {"on_term": 143, "elastic": True, "gpus_max": MilliGpu(4000)} | fields
    spec = lab.job("e", **fields)
    await lab.started(spec, device=device)
    return spec


async def devices(lab: Lab, workload: str) -> tuple[int, ...]:
    [worker] = (await lab.cluster.workload(workload)).workers
    return tuple(share.device for share in worker.devices)


async def wait_for_restart(lab: Lab, workload: str) -> WorkloadRecord:
    record = await lab.until(workload, "stopping")
    assert record.state == "stopping"
    return await lab.until(workload, "running")


@pytest.mark.parametrize("new_devices", [(0, 1, 3), (0,)], ids=["more", "fewer"])
async def test_resized_elastic_worker_restarts_on_its_new_devices(lab, new_devices):
    spec = await start_elastic(lab, gpus=2)
    assert list(await lab.cluster.apply(plan(resize(spec.id, *new_devices)))) == []
    record = await wait_for_restart(lab, spec.id)

    assert await devices(lab, spec.id) == new_devices
    assert record.elastic is not None
    assert (record.pauses, record.failures) == ((), 0)
    assert record.elastic.resizes == 1
    devices_seen, is_resumed = await lab.sees(spec)
    assert len(devices_seen) == len(new_devices)
    assert is_resumed


async def test_repeated_worker_resize_changes_nothing(lab):
    spec = await start_elastic(lab)
    resize_plan = plan(resize(spec.id, 0, 1))
    await lab.cluster.apply(resize_plan)
    before = await lab.cluster.workload(spec.id)
    assert list(await lab.cluster.apply(resize_plan)) == []
    assert before == await lab.cluster.workload(spec.id)

    after = await wait_for_restart(lab, spec.id)
    assert list(await lab.cluster.apply(resize_plan)) == []
    assert after == await lab.cluster.workload(spec.id)


async def test_device_of_a_pending_worker_resize_is_refused_to_a_second_job(lab):
    spec = await start_elastic(lab, on_term="ignore", grace_seconds=3600)
    other = lab.job("other")
    await lab.cluster.submit([other])
    await lab.cluster.apply(plan(resize(spec.id, 0, 1)))

    [worker] = (await observed_workload(lab, spec.id)).workers
    assert (worker.state, worker.devices) == (WorkerState.RUNNING, (0, 1))
    [refused] = await lab.cluster.apply(plan(start(other.id, 1)))
    assert refused.text == "device 1 of box has no room for it"


async def test_device_released_by_a_resize_is_allocated_until_the_worker_stops(lab):
    spec = await start_elastic(lab, gpus=2, on_term="ignore", grace_seconds=3600)
    owner = lab.job("owner", project="nlp")
    await lab.cluster.submit([owner])
    await lab.cluster.apply(
        plan(resize(spec.id, 1), reserve(owner.id, 0, waits_for=[f"{spec.id}-0"]))
    )

    new_place, old_place = (await observed_workload(lab, spec.id)).workers
    assert (new_place.state, new_place.devices) == (WorkerState.RUNNING, (1,))
    assert (old_place.state, old_place.devices) == (WorkerState.STOPPING, (0,))
    [refused] = await lab.cluster.apply(plan(start(owner.id, 0)))
    assert refused.text == "device 0 of box has no room for it"


async def test_latest_worker_resize_during_a_restart_takes_effect(lab):
    spec = await start_elastic(lab, gpus=2)
    await lab.cluster.apply(plan(resize(spec.id, 0, 1, 2)))
    assert list(await lab.cluster.apply(plan(resize(spec.id, 1)))) == []
    await wait_for_restart(lab, spec.id)

    assert await devices(lab, spec.id) == (1,)


@pytest.mark.not_on_kubernetes("the Job controller does not count the pods of a suspended Job")
async def test_worker_exit_with_0_during_a_resize_finishes_the_job(lab):
    spec = await start_elastic(lab, on_term=0)
    await lab.cluster.apply(plan(resize(spec.id, 0, 1)))

    assert (await lab.until(spec.id, "succeeded")).exit_code == 0


async def test_worker_stop_during_a_resize_pauses_the_job(lab):
    spec = await start_elastic(lab)
    await lab.cluster.apply(plan(resize(spec.id, 0, 1)))
    await lab.cluster.apply(plan(stop(spec.id)))
    record = await lab.until(spec.id, "paused")

    assert (len(record.pauses), record.allocated) == (1, 0)


@pytest.mark.parametrize("is_resumed", [False, True], ids=["stays suspended", "resumed at once"])
async def test_job_suspension_during_a_resize_suspends_the_job(lab, is_resumed):
    spec = await start_elastic(lab)
    await lab.cluster.apply(plan(resize(spec.id, 0, 1)))
    await lab.cluster.suspend(spec.id, by="ana")
    if is_resumed:
        await lab.cluster.resume(spec.id, by="ana")
    record = await lab.until(spec.id, "suspended", "paused")

    assert record.state == ("paused" if is_resumed else "suspended")
    assert record.allocated == 0


async def test_job_deletion_during_a_resize_removes_the_job(lab):
    spec = await start_elastic(lab)
    await lab.cluster.apply(plan(resize(spec.id, 0, 1)))
    await lab.cluster.delete(spec.id, by="ana")

    await lab.until_deleted(spec.id)


async def test_impossible_worker_resize_is_refused_without_side_effects(lab):
    await start_elastic(lab)
    await lab.started(lab.job("rigid"), device=3)
    await lab.cluster.submit([lab.job("waits", elastic=True, gpus_max=MilliGpu(4000))])

    for decision, text in (
        (resize("vision/e", 0, 3), "device 3 of box has no room for it"),
        (resize("vision/e", 0, 9), "node box has no device 9"),
        (resize("vision/e", 0, 1, node="mars"), "vision/e-0 runs on box, not on mars"),
        (resize("vision/e", 0, worker=1), "vision/e-1 cannot be resized"),
        (resize("vision/rigid", 2, 3), "vision/rigid-0 cannot be resized"),
        (resize("vision/waits", 1), "vision/waits-0 does not run"),
    ):
        assert [text] == [r.text for r in await lab.cluster.apply(plan(decision))]
        assert (await lab.cluster.workload("vision/e")).state == "running"

"""A plan is executed decision by decision, however often it is applied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contract.observations import event_kinds, observed_workload
from labs import NODE, plan, reserve, start
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import Reason, Unreserve, Wait, WorkerState


@pytest.mark.not_on_kubernetes("processes are the kubelet's")
async def test_job_start_allocates_devices_and_runs_the_worker(lab):
    spec = lab.job(gpus=2)
    await lab.started(spec, device=1)
    record = await lab.cluster.workload(spec.id)
    [worker] = record.workers

    assert (record.allocated, record.attempts) == (2000, 1)
    assert (worker.state, worker.node) == ("running", NODE)
    assert [share.device for share in worker.devices] == [1, 2]
    assert worker.process is not None
    [observed] = (await observed_workload(lab, spec.id)).workers
    assert (observed.state, observed.node, observed.devices) == (WorkerState.RUNNING, NODE, (1, 2))


async def test_plan_applied_twice_does_not_change_the_workload(lab):
    spec = lab.job()
    await lab.started(spec)
    before = await lab.cluster.workload(spec.id)

    assert list(await lab.cluster.apply(plan(start(spec.id, 0)))) == []

    assert before == await lab.cluster.workload(spec.id)


async def test_job_start_on_an_allocated_device_is_refused(lab):
    first, second = lab.job("first"), lab.job("second")
    await lab.started(first)
    await lab.cluster.submit([second])

    [refused] = await lab.cluster.apply(plan(start(second.id, 0)))

    assert refused.workload == second.id
    assert refused.text == f"device 0 of {NODE} has no room for it"
    assert (await lab.cluster.workload(second.id)).state == "queued"


async def test_two_half_gpu_jobs_share_a_device_and_a_third_is_refused(lab):
    halves = [lab.job(f"half-{i}", gpus=0.5) for i in range(3)]
    await lab.cluster.submit(halves)

    refused = await lab.cluster.apply(plan(*(start(spec.id, 0, share=0.5) for spec in halves)))

    assert [r.workload for r in refused] == ["vision/half-2"]
    await lab.until("vision/half-0", "running")
    await lab.until("vision/half-1", "running")


async def test_gpu_memory_requests_share_a_device_until_its_memory_is_allocated(lab):
    # Three requests of 5,333 MiB fit into 16,000; each counts 334 milli-GPU, rounded up (P3).
    thirds = [
        replace(lab.job(f"third-{i}", gpus=0), gpu_memory_mib=5333, gpus=MilliGpu(0))
        for i in range(4)
    ]
    await lab.cluster.submit(thirds)

    refused = await lab.cluster.apply(plan(*(start(spec.id, 0, share=0.334) for spec in thirds)))

    assert [r.workload for r in refused] == ["vision/third-3"]


MISSING_OBJECTS = {
    "exp-device": (start("vision/exp-device", 9), f"node {NODE} has no device 9"),
    "exp-node": (replace(start("vision/exp-node", 0), node="mars"), "there is no node mars"),
    "exp-worker": (
        start("vision/exp-worker", 0, worker=7),
        "vision/exp-worker has no worker vision/exp-worker-7",
    ),
    "exp-reserved": (reserve("vision/exp-reserved", 9), f"node {NODE} has no device 9"),
}


async def test_decision_about_a_missing_object_is_refused_and_the_rest_of_the_plan_applied(lab):
    await lab.cluster.submit([lab.job(name) for name in (*MISSING_OBJECTS, "other")])
    decisions = [decision for decision, _ in MISSING_OBJECTS.values()]

    refused = await lab.cluster.apply(
        plan(*decisions, start("vision/no", 0), start("vision/other", 1))
    )

    assert {r.workload: r.text for r in refused} == {
        **{f"vision/{name}": text for name, (_, text) in MISSING_OBJECTS.items()},
        "vision/no": "there is no workload vision/no",
    }
    await lab.until("vision/other", "running")


@pytest.mark.not_on_kubernetes("its Job gives a pod its environment")
@pytest.mark.not_on_pods("their manifest has their environment")
async def test_gang_workers_start_together_and_have_ranks(lab):
    spec = lab.job("gang", workers=3)
    await lab.started(spec)
    environments = [(await lab.cluster.environment(spec.id, index)).variables for index in range(3)]

    assert [(e["RANK"], e["WORLD_SIZE"]) for e in environments] == [
        ("0", "3"),
        ("1", "3"),
        ("2", "3"),
    ]
    assert len({(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in environments}) == 1
    assert {"0"} == {e["LOCAL_RANK"] for e in environments}
    assert [e["CUDA_VISIBLE_DEVICES"] for e in environments] == ["SIM-0", "SIM-1", "SIM-2"]


async def test_part_of_a_gang_is_not_started(lab):
    spec = lab.job("gang", workers=3)
    await lab.cluster.submit([spec])

    refused = await lab.cluster.apply(
        plan(start(spec.id, 0, worker=0), start(spec.id, 1, worker=1))
    )

    assert [r.text for r in refused] == [
        "vision/gang needs 3 workers at once, the plan starts 2"
    ] * 2
    assert (await lab.cluster.workload(spec.id)).allocated == 0


async def test_gpu_reservation_is_stored_observed_and_released(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])
    decision = reserve(spec.id, 2, waits_for=["vision/eve-0"])

    assert list(await lab.cluster.apply(plan(decision))) == []
    assert list(await lab.cluster.apply(plan(decision))) == []
    [reserved] = (await observed_workload(lab, spec.id)).workers
    assert (reserved.state, reserved.node, reserved.devices) == (WorkerState.RESERVED, NODE, (2,))
    assert (await lab.cluster.workload(spec.id)).allocated == 1000

    unreserve = Unreserve(workload=spec.id, worker=f"{spec.id}-0")
    assert list(await lab.cluster.apply(plan(unreserve, unreserve))) == []
    [free] = (await observed_workload(lab, spec.id)).workers
    assert (free.state, free.devices) == (WorkerState.PENDING, ())


async def test_reserved_worker_starts_on_its_reserved_device(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])
    await lab.cluster.apply(plan(reserve(spec.id, 2)))

    assert list(await lab.cluster.apply(plan(start(spec.id, 2)))) == []

    await lab.until(spec.id, "running")


async def test_repeated_wait_decision_updates_the_reason_with_one_event(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])

    for used in (1, 2):
        text = f"vision uses {used} of its 2 GPUs"
        reason = Reason(code="over_share", rule="S4", text=text)
        await lab.cluster.apply(plan(Wait(workload=spec.id, reason=reason, position=3)))

    record = await lab.cluster.workload(spec.id)
    assert record.reason.code == "over_share"
    assert record.reason.text == "vision uses 2 of its 2 GPUs"
    assert record.position == 3
    assert await event_kinds(lab, spec.id) == ["queued", "waiting"]

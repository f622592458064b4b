"""A broken device gets no new worker; its workers keep running and are notified."""

from __future__ import annotations

import asyncio

import pytest

from contract.observations import event_kinds, observed_workload
from labs import DEVICES, NODE, plan, reserve, start
from runai.hub_service.scheduler.model.snapshot import WorkerState

pytestmark = pytest.mark.not_on_pods("devices have UUIDs when agents report them")

FELL_OFF = "XID 79: GPU has fallen off the bus"
DEVICE_0_BROKEN = {DEVICES[0].uuid: FELL_OFF}
DEVICE_0_MENDED = {DEVICES[0].uuid: ""}

not_with_device_plugin = pytest.mark.not_on_kubernetes(
    "the device plugin takes broken devices away"
)


async def broken_devices(lab) -> tuple[int, ...]:
    (node,) = (await lab.cluster.observe()).nodes
    numbers: tuple[int, ...] = node.broken_devices
    return numbers


@not_with_device_plugin
async def test_snapshot_contains_the_broken_devices(lab):
    assert await broken_devices(lab) == ()

    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)

    assert await broken_devices(lab) == (0,)
    assert [d.fault for d in (await lab.cluster.devices())[NODE]] == [FELL_OFF, "", "", ""]


async def test_mended_device_is_used_again(lab):
    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)
    await lab.cluster.note_faults(NODE, DEVICE_0_MENDED)

    assert await broken_devices(lab) == ()
    await lab.started(lab.job(), device=0)


@not_with_device_plugin
async def test_fault_of_a_device_missing_from_a_fault_report_is_unchanged(lab):
    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)
    await lab.cluster.note_faults(NODE, {DEVICES[1].uuid: "", "unknown": "gone"})

    assert await broken_devices(lab) == (0,)


@not_with_device_plugin
async def test_job_start_on_a_broken_device_is_refused(lab):
    spec = lab.job()
    await lab.cluster.submit([spec])
    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)

    [refused] = await lab.cluster.apply(plan(start(spec.id, 0)))

    assert refused.text == f"device 0 of {NODE} is broken: {FELL_OFF}"
    assert (await lab.cluster.workload(spec.id)).state == "queued"


@not_with_device_plugin
async def test_running_job_on_a_broken_device_continues_and_gets_one_fault_event(lab):
    spec, neighbour = lab.job("exp"), lab.job("neighbour")
    await lab.started(spec, neighbour)
    before = await event_kinds(lab, neighbour.id)

    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)
    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)

    record = await lab.cluster.workload(spec.id)
    assert (record.state, record.allocated) == ("running", 1000)
    assert [line.text for line in await lab.cluster.history(spec.id) if line.kind == "fault"] == [
        f"device 0 of {NODE} is broken ({FELL_OFF}): nothing new is placed on it"
    ]
    assert await event_kinds(lab, neighbour.id) == before

    await lab.cluster.note_faults(NODE, DEVICE_0_MENDED)
    assert (await event_kinds(lab, spec.id))[-1] == "mended"


@not_with_device_plugin
async def test_gpu_reservation_on_a_broken_device_is_released(lab):
    first, second = lab.job("first"), lab.job("second")
    await lab.started(first)
    await lab.cluster.submit([second])
    await lab.cluster.apply(plan(reserve(second.id, 0, waits_for=[f"{first.id}-0"])))

    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)

    (worker,) = (await observed_workload(lab, second.id)).workers
    assert (worker.state, worker.devices) == (WorkerState.PENDING, ())
    assert "fault" in await event_kinds(lab, second.id)


async def test_new_device_fault_wakes_the_controller_and_a_repeat_does_not(lab):
    await lab.cluster.observe()
    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)
    async with asyncio.timeout(90):
        await lab.cluster.changed()
    await lab.cluster.observe()

    await lab.cluster.note_faults(NODE, DEVICE_0_BROKEN)
    waiting = asyncio.ensure_future(lab.cluster.changed())
    await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()

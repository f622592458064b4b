"""A job that makes room by moving is paused on its device, and resumed on another one."""

from __future__ import annotations

from labs import NODE, SimulatedLab, plan, start
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Move, Reason


async def test_a_job_that_fits_elsewhere_makes_room_and_goes_on_there():
    lab = SimulatedLab()
    small, owner = lab.job("small", on_term=143), lab.job("owner", project="nlp")
    await lab.started(small)
    await lab.cluster.submit([owner])
    move = Move(
        workload=small.id,
        worker=f"{small.id}-0",
        node=NODE,
        devices=(DeviceShare(1, WHOLE_GPU),),
        reason=Reason(code="consolidated", rule="P6", text="makes room", for_=owner.id),
    )

    assert await lab.cluster.apply(plan(move)) == []
    paused = await lab.until(small.id, "paused")
    assert await lab.cluster.apply(plan(start(owner.id, 0), start(small.id, 1))) == []

    moved = await lab.cluster.workload(small.id)
    assert (moved.submitted, moved.attempts, moved.failures) == (paused.submitted, 2, 0)
    assert moved.workers[0].devices == move.devices

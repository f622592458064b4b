"""A job that makes room by moving is paused on its device, and resumed on another one."""

from __future__ import annotations

import pytest

from labs import NODE, Clock, SimulatedLab, local_lab, plan, start
from runai.hub_service.model.records import HistoryEvent, WorkloadSpec, last_move
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Move, Reason

WHY = "moved to box to make room for nlp/owner"


def _move(job: WorkloadSpec, gains: str) -> Move:
    return Move(
        workload=job.id,
        worker=f"{job.id}-0",
        node=NODE,
        devices=(DeviceShare(1, WHOLE_GPU),),
        reason=Reason(code="consolidated", rule="R10", text=WHY, for_=gains),
    )


async def test_a_job_that_fits_elsewhere_makes_room_and_goes_on_there():
    lab = SimulatedLab()
    small, owner = lab.job("small", on_term=143), lab.job("owner", project="nlp")
    await lab.started(small)
    await lab.cluster.submit([owner])
    move = _move(small, owner.id)

    assert await lab.cluster.apply(plan(move)) == []
    paused = await lab.until(small.id, "paused")
    assert last_move(await lab.cluster.history(small.id)) == WHY
    assert paused.moved == WHY
    await lab.pass_time(40)
    assert await lab.cluster.apply(plan(start(owner.id, 0), start(small.id, 1))) == []

    moved = await lab.cluster.workload(small.id)
    assert (moved.submitted, moved.attempts, moved.failures) == (paused.submitted, 2, 0)
    assert moved.workers[0].devices == move.devices
    assert moved.moved == WHY
    shown = {workload.name: workload for workload in (await lab.cluster.observe()).workloads}
    assert len(shown[small.id].pauses) == 1


async def test_a_move_is_told_after_a_restart_of_the_service(tmp_path):
    clock = Clock()
    async with local_lab(tmp_path, clock, forget=False) as lab:
        small = lab.job("small", on_term=143)
        await lab.started(small)
        assert await lab.cluster.apply(plan(_move(small, "nlp/owner"))) == []
        await lab.until(small.id, "paused")
        await lab.pass_time(40)
        assert await lab.cluster.apply(plan(start(small.id, 1))) == []
        await lab.until(small.id, "running")

    async with local_lab(tmp_path, clock) as lab:
        [listed] = await lab.cluster.workloads()
        history = await lab.cluster.history(small.id)

    assert (listed.state, listed.moved) == ("running", WHY)
    assert last_move(history) == f"{WHY}, 40 s"


@pytest.mark.parametrize(
    ("events", "told"),
    [
        pytest.param([(9, "running", "")], "", id="it never stopped"),
        pytest.param([(9, "stopping", WHY)], WHY, id="it has not run again"),
        pytest.param([(9, "stopping", WHY), (49, "running", "")], f"{WHY}, 40 s", id="it runs"),
        pytest.param(
            [(9, "stopping", WHY), (49, "running", ""), (60, "running", "")],
            f"{WHY}, 40 s",
            id="its second worker runs later",
        ),
        pytest.param(
            [(9, "stopping", WHY), (49, "running", ""), (60, "stopping", "reclaimed")],
            "",
            id="its last stop was no move",
        ),
        pytest.param([(1, "running", ""), (9, "stopping", WHY)], WHY, id="it ran before its stop"),
    ],
)
def test_the_last_stop_is_told_as_a_move_with_its_duration(events, told):
    assert last_move([HistoryEvent(*event) for event in events]) == told

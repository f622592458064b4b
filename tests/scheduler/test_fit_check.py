"""The quick fit check agrees with really placing the unit (R5)."""

from __future__ import annotations

from hypothesis import given

from runai.hub_service.scheduler import Snapshot
from runai.hub_service.scheduler.placement.fit_check import FitCheck
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.state.planned_workloads import (
    ACTIVE,
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of
from strategies import snapshots


def asking(state: PlanningState) -> list[tuple[PlannedWorkload, list[PlannedWorker]]]:
    found = []
    for item in state.by_name.values():
        pending = [m for m in item.members if m.phase is Phase.PENDING]
        if pending and pending[0].shape.nodes:
            found.append((item, pending))
    return found


def really_fits(state: PlanningState, members: list[PlannedWorker]) -> bool:
    mark = state.mark()
    placed = place(state, members, Phase.RESERVED)
    state.roll_back(mark)
    return placed


@given(snapshots())
def test_fit_check_tracks_workers_that_are_released_and_restored(world: Snapshot) -> None:
    state = PlanningState(world, tree_of(world))
    for item, members in asking(state):
        fit = FitCheck(state, members)

        assert fit.fits() == really_fits(state, members)
        gone = []
        for other in state.by_name.values():
            victims = [m for m in other.members if m.phase in ACTIVE]
            if other is item or not victims:
                continue
            held = [(m, m.phase, m.booking) for m in victims]
            for member in victims:
                state.release(member)
            nodes = [booking.node for _, _, booking in held if booking]
            fit.freed(nodes)
            gone.append((held, nodes))

            assert fit.fits() == really_fits(state, members)
        for held, nodes in reversed(gone):
            for member, standing, booking in held:
                state.set(member, standing, booking)
            fit.recheck(nodes)

            assert fit.fits() == really_fits(state, members)


@given(snapshots())
def test_fit_check_detects_each_worker_that_would_free_a_slot(world: Snapshot) -> None:
    state = PlanningState(world, tree_of(world))
    running = [m for i in state.by_name.values() for m in i.members if m.phase is Phase.RUNNING]
    for _, members in asking(state):
        fit, kind = FitCheck(state, members), members[0].shape
        if len({member.shape for member in members}) > 1:
            continue
        for victim in running:
            booking = victim.booking
            assert booking is not None
            gains = fit.gains_from(booking)
            if booking.node not in kind.nodes:
                assert not gains
                continue
            before = state.later.slots(booking.node, kind)
            mark = state.mark()
            state.release(victim)
            after = state.later.slots(booking.node, kind)
            state.roll_back(mark)

            assert gains or after == before

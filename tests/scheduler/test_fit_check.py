"""The quick fit check agrees with really placing the pod set (R5)."""

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


def pending_workloads(state: PlanningState) -> list[tuple[PlannedWorkload, list[PlannedWorker]]]:
    pending_workers = []
    for planned in state.by_name.values():
        pending = [m for m in planned.members if m.phase is Phase.PENDING]
        if pending and pending[0].shape.nodes:
            pending_workers.append((planned, pending))
    return pending_workers


def can_be_placed(state: PlanningState, members: list[PlannedWorker]) -> bool:
    mark = state.mark()
    placed = place(state, members, Phase.RESERVED)
    state.roll_back(mark)
    return placed


@given(snapshots())
def test_fit_check_is_exact_after_workers_are_released_and_restored(snapshot: Snapshot) -> None:
    state = PlanningState(snapshot, tree_of(snapshot))
    for planned, members in pending_workloads(state):
        fit = FitCheck(state, members)

        assert fit.fits() == can_be_placed(state, members)
        released = []
        for other in state.by_name.values():
            victims = [m for m in other.members if m.phase in ACTIVE]
            if other is planned or not victims:
                continue
            saved = [(m, m.phase, m.booking) for m in victims]
            for member in victims:
                state.release(member)
            nodes = [booking.node for _, _, booking in saved if booking]
            fit.recount_freed(nodes)
            released.append((saved, nodes))

            assert fit.fits() == can_be_placed(state, members)
        for saved, nodes in reversed(released):
            for member, phase, booking in saved:
                state.set(member, phase, booking)
            fit.recount_restored(nodes)

            assert fit.fits() == can_be_placed(state, members)


@given(snapshots())
def test_fit_check_detects_each_worker_that_would_free_a_slot_by_stopping(
    snapshot: Snapshot,
) -> None:
    state = PlanningState(snapshot, tree_of(snapshot))
    running = [m for i in state.by_name.values() for m in i.members if m.phase is Phase.RUNNING]
    for _, members in pending_workloads(state):
        fit, shape = FitCheck(state, members), members[0].shape
        if len({member.shape for member in members}) > 1:
            continue
        for victim in running:
            booking = victim.booking
            assert booking is not None
            gains = fit.gains_from(booking)
            if booking.node not in shape.nodes:
                assert not gains
                continue
            before = state.later.slots(booking.node, shape)
            mark = state.mark()
            state.release(victim)
            after = state.later.slots(booking.node, shape)
            state.roll_back(mark)

            assert gains or after == before

"""The state of a cycle: sums match the workers' phases, and a rollback restores all of it."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given

from runai.hub_service.scheduler import Snapshot
from runai.hub_service.scheduler.cycle import run
from runai.hub_service.scheduler.state.free_capacity import FreeCapacity
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of
from runai.hub_service.scheduler.state.request_shape import Booking
from strategies import snapshots


def state_of(snapshot: Snapshot) -> PlanningState:
    return PlanningState(snapshot, tree_of(snapshot))


def members(state: PlanningState) -> list[PlannedWorker]:
    return [member for planned in state.by_name.values() for member in planned.members]


def bookings_now(member: PlannedWorker) -> list[Booking | None]:
    match member.phase:
        case Phase.TERMINATING:
            return [member.origin]
        case Phase.MOVED:
            return [member.origin, member.booking]
        case _:
            return [member.booking]


def bookings_later(member: PlannedWorker) -> list[Booking | None]:
    return [] if member.phase in {Phase.PENDING, Phase.TERMINATING} else [member.booking]


def capacity_with(state: PlanningState, bookings: list[Booking | None]) -> FreeCapacity:
    capacity = FreeCapacity(state.nodes, spread=False)
    for booking in bookings:
        if booking is not None:
            capacity.book(booking)
    return capacity


def contents(capacity: FreeCapacity) -> dict[str, object]:
    return {
        "milli": capacity.milli,
        "mib": capacity.mib,
        "cpu": capacity.cpu,
        "memory": capacity.memory,
        "idle": capacity.idle,
        "idle_total": capacity.idle_total,
        "free_milli": capacity.free_milli,
    }


def project_sums(state: PlanningState) -> dict[str, tuple[int, int, int]]:
    return {
        name: (project.allocated, project.build, project.requested)
        for name, project in state.tree.projects.items()
    }


def recounted_sums(state: PlanningState) -> dict[str, tuple[int, int, int]]:
    totals: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for member in members(state):
        planned = member.planned
        for project in planned.project.path:
            for booking in bookings_later(member):
                if booking is not None:
                    totals[project.name][0] += booking.quota
                    totals[project.name][1] += booking.quota if planned.is_fixed else 0
            if member.snapshot_phase is not Phase.TERMINATING:
                totals[project.name][2] += (member.origin or member.shape).quota
    names = state.tree.projects
    return {name: (totals[name][0], totals[name][1], totals[name][2]) for name in names}


@given(snapshots())
def test_free_capacity_and_project_sums_match_a_recount_of_the_workers(snapshot: Snapshot) -> None:
    state = state_of(snapshot)
    for after_cycle in (False, True):
        if after_cycle:
            run(state)
        all_workers = members(state)
        now = [booking for member in all_workers for booking in bookings_now(member)]
        later = [booking for member in all_workers for booking in bookings_later(member)]

        assert contents(state.now) == contents(capacity_with(state, now))
        assert contents(state.later) == contents(capacity_with(state, later))
        assert project_sums(state) == recounted_sums(state)


@given(snapshots())
def test_rolled_back_cycle_restores_the_planning_state(snapshot: Snapshot) -> None:
    state, fresh = state_of(snapshot), state_of(snapshot)
    plan = run(state)
    state.roll_back(0)

    assert contents(state.now) == contents(fresh.now)
    assert contents(state.later) == contents(fresh.later)
    assert project_sums(state) == project_sums(fresh)
    assert [(m.phase, m.booking) for m in members(state)] == [
        (m.phase, m.booking) for m in members(fresh)
    ]
    assert run(state) == plan


@given(snapshots())
def test_workloads_removed_and_added_again_restore_the_planning_state(snapshot: Snapshot) -> None:
    state, fresh = state_of(snapshot), state_of(snapshot)
    for workload in snapshot.workloads:
        state.remove(workload.name)

    empty = FreeCapacity(state.nodes, spread=False)
    assert contents(state.now) == contents(empty)
    assert contents(state.later) == contents(empty)
    assert set(project_sums(state).values()) <= {(0, 0, 0)}

    for workload in snapshot.workloads:
        state.add(workload)
    assert contents(state.now) == contents(fresh.now)
    assert project_sums(state) == project_sums(fresh)
    assert run(state) == run(fresh)


@given(snapshots())
def test_gpu_reservation_waits_for_the_workers_that_stop_on_its_devices(snapshot: Snapshot) -> None:
    state = state_of(snapshot)
    run(state)
    terminating = [
        m for m in members(state) if m.origin and m.phase in {Phase.TERMINATING, Phase.MOVED}
    ]
    for member in members(state):
        booking = member.booking
        if member.phase is not Phase.RESERVED or booking is None:
            continue
        on_its_devices = {
            m.worker.name
            for m in terminating
            if m.origin is not None
            and m.origin.node == booking.node
            and set(m.origin.devices) & set(booking.devices)
        }
        waited_for = {m.worker.name for m in state.terminating_workers(booking)}

        assert on_its_devices <= waited_for
        assert waited_for <= {
            m.worker.name for m in terminating if m.origin and m.origin.node == booking.node
        }
        if on_its_devices:
            assert waited_for == on_its_devices

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


def state_of(world: Snapshot) -> PlanningState:
    return PlanningState(world, tree_of(world))


def members(state: PlanningState) -> list[PlannedWorker]:
    return [member for item in state.by_name.values() for member in item.members]


def on_devices_now(member: PlannedWorker) -> list[Booking | None]:
    match member.phase:
        case Phase.TERMINATING:
            return [member.origin]
        case Phase.MOVED:
            return [member.origin, member.booking]
        case _:
            return [member.booking]


def on_devices_later(member: PlannedWorker) -> list[Booking | None]:
    return [] if member.phase in {Phase.PENDING, Phase.TERMINATING} else [member.booking]


def filled(state: PlanningState, bookings: list[Booking | None]) -> FreeCapacity:
    room = FreeCapacity(state.nodes, spread=False)
    for booking in bookings:
        if booking is not None:
            room.book(booking)
    return room


def contents(room: FreeCapacity) -> dict[str, object]:
    return {
        "milli": room.milli,
        "mib": room.mib,
        "cpu": room.cpu,
        "memory": room.memory,
        "idle": room.idle,
        "idle_total": room.idle_total,
        "free_milli": room.free_milli,
    }


def sums(state: PlanningState) -> dict[str, tuple[int, int, int]]:
    return {
        name: (account.allocated, account.build, account.requested)
        for name, account in state.tree.projects.items()
    }


def summed(state: PlanningState) -> dict[str, tuple[int, int, int]]:
    found: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for member in members(state):
        item = member.planned
        for account in item.project.path:
            for booking in on_devices_later(member):
                if booking is not None:
                    found[account.name][0] += booking.quota
                    found[account.name][1] += booking.quota if item.is_fixed else 0
            if member.snapshot_phase is not Phase.TERMINATING:
                found[account.name][2] += (member.origin or member.shape).quota
    names = state.tree.projects
    return {name: (found[name][0], found[name][1], found[name][2]) for name in names}


@given(snapshots())
def test_rooms_and_accounts_are_the_sums_of_the_standings(world: Snapshot) -> None:
    state = state_of(world)
    for after_a_cycle in (False, True):
        if after_a_cycle:
            run(state)
        everybody = members(state)
        now = [booking for member in everybody for booking in on_devices_now(member)]
        later = [booking for member in everybody for booking in on_devices_later(member)]

        assert contents(state.now) == contents(filled(state, now))
        assert contents(state.later) == contents(filled(state, later))
        assert sums(state) == summed(state)


@given(snapshots())
def test_a_cycle_that_is_rolled_back_leaves_no_trace(world: Snapshot) -> None:
    state, fresh = state_of(world), state_of(world)
    plan = run(state)
    state.roll_back(0)

    assert contents(state.now) == contents(fresh.now)
    assert contents(state.later) == contents(fresh.later)
    assert sums(state) == sums(fresh)
    assert [(m.phase, m.booking) for m in members(state)] == [
        (m.phase, m.booking) for m in members(fresh)
    ]
    assert run(state) == plan


@given(snapshots())
def test_workloads_removed_and_added_again_restore_the_state(world: Snapshot) -> None:
    state, fresh = state_of(world), state_of(world)
    for workload in world.workloads:
        state.remove(workload.name)

    empty = FreeCapacity(state.nodes, spread=False)
    assert contents(state.now) == contents(empty)
    assert contents(state.later) == contents(empty)
    assert set(sums(state).values()) <= {(0, 0, 0)}

    for workload in world.workloads:
        state.add(workload)
    assert contents(state.now) == contents(fresh.now)
    assert sums(state) == sums(fresh)
    assert run(state) == run(fresh)


@given(snapshots())
def test_reservation_waits_for_the_workers_that_leave_its_devices(world: Snapshot) -> None:
    state = state_of(world)
    run(state)
    leaving = [
        m for m in members(state) if m.origin and m.phase in {Phase.TERMINATING, Phase.MOVED}
    ]
    for member in members(state):
        booking = member.booking
        if member.phase is not Phase.RESERVED or booking is None:
            continue
        on_its_devices = {
            m.worker.name
            for m in leaving
            if m.origin is not None
            and m.origin.node == booking.node
            and set(m.origin.devices) & set(booking.devices)
        }
        told = {m.worker.name for m in state.terminating_workers(booking)}

        assert on_its_devices <= told
        assert told <= {
            m.worker.name for m in leaving if m.origin and m.origin.node == booking.node
        }
        if on_its_devices:
            assert told == on_its_devices

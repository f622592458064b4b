"""Consolidation: move running workers so that a blocked unit fits (R10).

Each moved worker must get another place. Counting proves early that moving cannot help. It runs
before any worker is paused (R6), only if the policy has `consolidate`.
"""

from __future__ import annotations

from runai.hub_service.scheduler.placement.queue_order import FairOrder
from runai.hub_service.scheduler.placement.quota_check import (
    cap_in_the_way,
    leaves_what_is_never_lent,
)
from runai.hub_service.scheduler.state.equivalence import PodSet
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import RequestShape
from runai.hub_service.scheduler.steps.allocate import Allocation
from runai.hub_service.scheduler.steps.reclaim import Eviction, Reclaim
from runai.hub_service.scheduler.steps.vacate_node import Leaving, Vacancies

_TRIES = 24
"""Maximum number of failed moves per claimant; beyond it the result is "not proven"."""

_PLACED = (Phase.RESERVED, Phase.STARTED, Phase.MOVED)


class Consolidation:
    """One pass of consolidation; moves are recorded as losses of the reclaim."""

    def __init__(self, state: State, allocation: Allocation, reclaim: Reclaim) -> None:
        """Start without moves."""
        self._state = state
        self._allocation = allocation
        self._reclaim = reclaim
        self._room = state.later
        self._vacancies: Vacancies | None = None
        self._open_holds: tuple[bool, ...] = ()
        """Holds (O4) open to the current claimant: it sees more idle capacity than other units."""
        self._infeasible: dict[tuple[object, ...], int] = {}
        """Smallest number of workers that failed, by kind of claim."""
        self._moved_for: dict[PlannedWorker, PodSet] = {}
        self._changed_nodes: set[int] = set()
        """Nodes changed while the current claimant was tried."""

    def make_room(self) -> None:
        """Try every waiting preemptible minimum, the most deprived project first (O1)."""
        unkept = [unit for unit in self._allocation.unkept_units() if not unit.is_surplus]
        order = FairOrder(self._state, unkept, surplus=False)
        while (unit := order.pop()) is not None:
            if unit.falls_short():
                continue
            if unit.item.is_fixed or not self._try_unit(unit):
                order.set_aside()

    def _try_unit(self, unit: PodSet) -> bool:
        with self._allocation.holds.open_to(unit) as may_pass:
            if may_pass != self._open_holds:
                self._open_holds, self._vacancies = may_pass, None
            return self._may_help(unit) and self._serve(unit)

    def settle(self) -> None:
        """Undo moves whose claimant lost its place again, or record the new claimant.

        Reclaim runs after consolidation and may give the place to a unit that is entitled to it.
        """
        losses = self._reclaim.losses
        for member, unit in self._moved_for.items():
            if all(claimant.standing in _PLACED for claimant in unit.members):
                continue
            if _stays(self._state, member):
                del losses[member]
            else:
                losses[member] = losses[member]._replace(
                    claimant=_new_claimant(self._state, member)
                )

    # ---- proofs by counting

    def _may_help(self, unit: PodSet) -> bool:
        """Return True if moving could help: moved workers stay in the cluster."""
        members = unit.members
        if any(not member.kind.nodes for member in members):
            return False
        if cap_in_the_way(unit.item, unit.demand) is not None:
            return False
        if sum(m.kind.devices * m.kind.milli for m in members) > self._room.free_milli:
            return False
        return len(members) < self._infeasible.get(self._claim_kind(unit), len(members) + 1)

    def _claim_kind(self, unit: PodSet) -> tuple[object, ...]:
        # If two workers with equal requests do not fit, three do not either. Capacity that is never
        # lent (Q2) differs between projects.
        kinds = {member.kind.order for member in unit.members}
        like = tuple(kinds) if len(kinds) == 1 else unit.signature
        return (like, self._open_holds, unit.item.account if self._state.tree.holders else None)

    # ---- one claimant

    def _serve(self, unit: PodSet) -> bool:
        state = self._state
        if self._vacancies is None:
            self._vacancies = Vacancies(state)
        mark = state.mark()
        displaced = self._place_all(unit, self._vacancies) or []
        starts = [member for member in displaced if member.standing is Phase.STARTED]
        moved = [m for m in displaced if m.standing is Phase.MOVED and not _stays(state, m)]
        is_served = bool(moved or starts) and self._is_allowed(unit, moved)
        if is_served:
            self._record(unit, moved)
        else:
            state.roll_back(mark)
            self._infeasible[self._claim_kind(unit)] = len(unit.members)
        self._vacancies.forget(self._changed_nodes)
        self._changed_nodes.clear()
        return is_served

    def _is_allowed(self, unit: PodSet, moved: list[PlannedWorker]) -> bool:
        may_stop = self._reclaim.may_stop
        within = may_stop is None or len(moved) <= may_stop
        return within and leaves_what_is_never_lent(self._state, unit.item)

    def _record(self, unit: PodSet, moved: list[PlannedWorker]) -> None:
        account = unit.item.account
        for member in moved:
            self._moved_for[member] = unit
            self._reclaim.losses[member] = Eviction(unit.item, "R10", account, is_surplus=False)
        self._reclaim.took_something = True  # other units may use what moves leave over
        self._allocation.placed += [*moved, *unit.members]
        self._infeasible.clear()

    def _place_all(self, unit: PodSet, vacancies: Vacancies) -> list[PlannedWorker] | None:
        """Place every worker, moving running ones if necessary; return these, None on failure."""
        state, displaced = self._state, list[PlannedWorker]()
        tries = _TRIES
        for claimant in sorted(unit.members, key=_size):
            found = self._room.find(claimant.kind)
            if found is not None:
                state.set(claimant, Phase.RESERVED, state.book(claimant.kind, *found))
                self._mark_changed(vacancies, [found[0]])
                continue
            has_place: dict[RequestShape, bool] = {}
            for leaving in vacancies.cheapest_first(claimant.kind):
                if not all(self._has_place(member.kind, has_place) for member in leaving.members):
                    continue
                if any(
                    not m.item.has_minimum() and m.item is not unit.item for m in leaving.members
                ):
                    continue  # P4: a gang is moved whole or not at all
                if self._move(claimant, leaving, vacancies):
                    displaced += leaving.members
                    break
                tries -= 1
                if not tries:
                    self._reclaim.not_proven.add(state.lanes.lane_of(unit))
                    return None
            else:
                return None
        return displaced

    def _has_place(self, kind: RequestShape, known: dict[RequestShape, bool]) -> bool:
        """Return True if a kind fits elsewhere. Check before placing the claimant takes room."""
        if kind not in known:
            known[kind] = self._room.find(kind) is not None
        return known[kind]

    def _move(self, claimant: PlannedWorker, leaving: Leaving, vacancies: Vacancies) -> bool:
        """Place a claimant where workers leave, and each leaving worker elsewhere."""
        state, room = self._state, self._room
        mark = state.mark()
        starts = {m for m in leaving.members if m.standing is Phase.STARTED}
        for member in leaving.members:
            state.set(member, Phase.PENDING if member in starts else Phase.GOING, None)
        devices = room.devices_on(leaving.node, claimant.kind)
        assert devices is not None, "the claimant fits once these workers left"
        booking = state.book(claimant.kind, leaving.node, devices)
        state.set(claimant, Phase.RESERVED, booking)
        changed = [leaving.node]
        for member in sorted(leaving.members, key=_size):
            # A worker that starts with this plan must still start now, only elsewhere.
            found = (state.now if member in starts else room).find(member.kind)
            if found is None:
                state.roll_back(mark)
                return False
            standing = Phase.STARTED if member in starts else Phase.MOVED
            state.set(member, standing, state.book(member.kind, *found))
            changed.append(found[0])
        self._mark_changed(vacancies, changed)
        return True

    def _mark_changed(self, vacancies: Vacancies, nodes: list[int]) -> None:
        vacancies.forget(nodes)
        self._changed_nodes.update(nodes)


def _size(member: PlannedWorker) -> tuple[int, int, int]:
    return -member.kind.devices, -member.kind.milli, member.index


def _stays(state: State, member: PlannedWorker) -> bool:
    """Leave a worker where it is, if its place is still free. Return True if so."""
    new, old, room, kind = member.booking, member.origin, state.later, member.kind
    assert old is not None, "moved workers have an original booking"
    state.set(member, Phase.GOING, None)
    if room.has_base(old.node, kind) and all(
        room.fits_device(old.node, device, kind) for device in old.devices
    ):
        state.set(member, Phase.RUNNING, old)
        return True
    state.set(member, Phase.MOVED, new)
    return False


def _new_claimant(state: State, moved: PlannedWorker) -> PlannedWorkload | None:
    """Return the workload that gets the place of a moved worker."""
    old = moved.origin
    assert old is not None, "moved workers have an original booking"
    on_node = [
        member
        for member in sorted(state.on_node[old.node], key=lambda m: (m.item.age, m.index))
        if member.standing in _PLACED
    ]
    devices = set(old.devices)
    gains = [m for m in on_node if m.booking and devices.intersection(m.booking.devices)]
    return next((member.item for member in gains or on_node if member is not moved), None)

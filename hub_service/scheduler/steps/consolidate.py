"""Making room by moving: blocked work fits because others go on elsewhere (R10).

Knows that nobody may end without a place, and how to prove by counting that moving cannot help.
Leaves who could leave a node to `vacate`, and the order of claimants to `order`. Called by `cycle`
before anything is paused (R6), only where the policy names `consolidate`.
"""

from __future__ import annotations

from runai.hub_service.scheduler.placement.queue_order import FairOrder
from runai.hub_service.scheduler.placement.quota_check import (
    cap_in_the_way,
    leaves_what_is_never_lent,
)
from runai.hub_service.scheduler.state.equivalence import Unit
from runai.hub_service.scheduler.state.planned_workloads import Item, Member, Standing
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import Kind
from runai.hub_service.scheduler.steps.allocate import Allocation
from runai.hub_service.scheduler.steps.reclaim import Loss, Reclaim
from runai.hub_service.scheduler.steps.vacate_node import Leaving, Vacancies

_TRIES = 24
"""So many ways to make room may fail for a claimant before it gives up, not proven."""

_PLACED = (Standing.RESERVED, Standing.STARTED, Standing.MOVED)


class Consolidation:
    """One pass of moving; what it moves is written into the reclaim's losses."""

    def __init__(self, state: State, allocation: Allocation, reclaim: Reclaim) -> None:
        """Look at nobody yet."""
        self._state = state
        self._allocation = allocation
        self._reclaim = reclaim
        self._room = state.later
        self._vacancies: Vacancies | None = None
        self._sight: tuple[bool, ...] = ()
        """Which holds (O4) the present claimant may pass: others see less that is idle."""
        self._hopeless: dict[tuple[object, ...], int] = {}
        """How many workers that ask for the same were already too many."""
        self._moved_for: dict[Member, Unit] = {}
        self._touched: set[int] = set()
        """Nodes where somebody came or went while the present claimant was tried."""

    def make_room(self) -> None:
        """Let every waiting preemptible minimum try, the most deprived project first (O1)."""
        unkept = [unit for unit in self._allocation.unkept_units() if not unit.is_surplus]
        order = FairOrder(self._state, unkept, surplus=False)
        while (unit := order.pop()) is not None:
            if unit.falls_short():
                continue
            if unit.item.is_fixed or not self._tries(unit):
                order.set_aside()

    def _tries(self, unit: Unit) -> bool:
        with self._allocation.holds.open_to(unit) as may_pass:
            if may_pass != self._sight:
                self._sight, self._vacancies = may_pass, None
            return self._may_help(unit) and self._serve(unit)

    def settle(self) -> None:
        """Undo moves whose claimant lost its place again, or name who has that place now.

        Whoever is owed may take it: reclaiming comes after consolidating.
        """
        losses = self._reclaim.losses
        for member, unit in self._moved_for.items():
            if all(claimant.standing in _PLACED for claimant in unit.members):
                continue
            if _returns(self._state, member):
                del losses[member]
            else:
                losses[member] = losses[member]._replace(claimant=_successor(self._state, member))

    # ---- proofs by counting

    def _may_help(self, unit: Unit) -> bool:
        """Tell whether moving could help at all: nothing that moves leaves the cluster."""
        members = unit.members
        if any(not member.kind.nodes for member in members):
            return False
        if cap_in_the_way(unit.item, unit.demand) is not None:
            return False
        if sum(m.kind.devices * m.kind.milli for m in members) > self._room.free_milli:
            return False
        return len(members) < self._hopeless.get(self._like(unit), len(members) + 1)

    def _like(self, unit: Unit) -> tuple[object, ...]:
        # Where workers ask for the same, and two are too many, so are three. What is never lent
        # (Q2) makes a difference between projects.
        kinds = {member.kind.order for member in unit.members}
        like = tuple(kinds) if len(kinds) == 1 else unit.signature
        return (like, self._sight, unit.item.account if self._state.tree.holders else None)

    # ---- one claimant

    def _serve(self, unit: Unit) -> bool:
        state = self._state
        if self._vacancies is None:
            self._vacancies = Vacancies(state)
        mark = state.mark()
        displaced = self._place_all(unit, self._vacancies) or []
        starts = [member for member in displaced if member.standing is Standing.STARTED]
        moved = [m for m in displaced if m.standing is Standing.MOVED and not _returns(state, m)]
        is_served = bool(moved or starts) and self._is_allowed(unit, moved)
        if is_served:
            self._record(unit, moved)
        else:
            state.roll_back(mark)
            self._hopeless[self._like(unit)] = len(unit.members)
        self._vacancies.forget(self._touched)
        self._touched.clear()
        return is_served

    def _is_allowed(self, unit: Unit, moved: list[Member]) -> bool:
        may_stop = self._reclaim.may_stop
        within = may_stop is None or len(moved) <= may_stop
        return within and leaves_what_is_never_lent(self._state, unit.item)

    def _record(self, unit: Unit, moved: list[Member]) -> None:
        account = unit.item.account
        for member in moved:
            self._moved_for[member] = unit
            self._reclaim.losses[member] = Loss(unit.item, "R10", account, is_surplus=False)
        self._reclaim.took_something = True  # what those who moved leave over is others' to use
        self._allocation.placed += [*moved, *unit.members]
        self._hopeless.clear()

    def _place_all(self, unit: Unit, vacancies: Vacancies) -> list[Member] | None:
        """Place every worker, moving others where none has room; give those, None if stuck."""
        state, displaced = self._state, list[Member]()
        tries = _TRIES
        for claimant in sorted(unit.members, key=_size):
            found = self._room.find(claimant.kind)
            if found is not None:
                state.set(claimant, Standing.RESERVED, state.book(claimant.kind, *found))
                self._touch(vacancies, [found[0]])
                continue
            has_place: dict[Kind, bool] = {}
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

    def _has_place(self, kind: Kind, known: dict[Kind, bool]) -> bool:
        """Tell whether one of a kind has a place before room is made: afterwards there is less."""
        if kind not in known:
            known[kind] = self._room.find(kind) is not None
        return known[kind]

    def _move(self, claimant: Member, leaving: Leaving, vacancies: Vacancies) -> bool:
        """Give a claimant the place of those who leave, and each of them another one."""
        state, room = self._state, self._room
        mark = state.mark()
        starts = {m for m in leaving.members if m.standing is Standing.STARTED}
        for member in leaving.members:
            state.set(member, Standing.PENDING if member in starts else Standing.GOING, None)
        devices = room.devices_on(leaving.node, claimant.kind)
        assert devices is not None, "it fits when these have left"
        booking = state.book(claimant.kind, leaving.node, devices)
        state.set(claimant, Standing.RESERVED, booking)
        changed = [leaving.node]
        for member in sorted(leaving.members, key=_size):
            # Whoever starts by this plan starts elsewhere: no less now than it would have.
            found = (state.now if member in starts else room).find(member.kind)
            if found is None:
                state.roll_back(mark)
                return False
            standing = Standing.STARTED if member in starts else Standing.MOVED
            state.set(member, standing, state.book(member.kind, *found))
            changed.append(found[0])
        self._touch(vacancies, changed)
        return True

    def _touch(self, vacancies: Vacancies, nodes: list[int]) -> None:
        vacancies.forget(nodes)
        self._touched.update(nodes)


def _size(member: Member) -> tuple[int, int, int]:
    return -member.kind.devices, -member.kind.milli, member.index


def _returns(state: State, member: Member) -> bool:
    """Let a worker stay where it is after all, if nobody took that place."""
    new, old, room, kind = member.booking, member.origin, state.later, member.kind
    assert old is not None, "who moves has been somewhere"
    state.set(member, Standing.GOING, None)
    if room.has_base(old.node, kind) and all(
        room.fits_device(old.node, device, kind) for device in old.devices
    ):
        state.set(member, Standing.RUNNING, old)
        return True
    state.set(member, Standing.MOVED, new)
    return False


def _successor(state: State, moved: Member) -> Item | None:
    """Find who gets the place that a worker moved away from."""
    old = moved.origin
    assert old is not None, "who moves has been somewhere"
    on_node = [
        member
        for member in sorted(state.on_node[old.node], key=lambda m: (m.item.age, m.index))
        if member.standing in _PLACED
    ]
    devices = set(old.devices)
    gains = [m for m in on_node if m.booking and devices.intersection(m.booking.devices)]
    return next((member.item for member in gains or on_node if member is not moved), None)

"""Consolidation: move running workers so that a blocked unit fits (R10).

Each moved worker must get another place. Counting proves early that moving cannot help. A policy
with `consolidate` moves before any worker is paused (R6). A claim within its quota moves others
where reclaim and preemption leave it without a place.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.queue_order import FairOrder
from runai.hub_service.scheduler.placement.quota_check import (
    cap_in_the_way,
    leaves_what_is_never_lent,
    quota_path,
)
from runai.hub_service.scheduler.state.equivalence import PodSet
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import RequestShape
from runai.hub_service.scheduler.steps.allocate import AllocateStep, is_place_free
from runai.hub_service.scheduler.steps.quota_choice import serve_elsewhere
from runai.hub_service.scheduler.steps.reclaim import Eviction, Reclaim
from runai.hub_service.scheduler.steps.vacate_node import Leaving, Vacancies, WorkerGroup

_TRIES = 24
"""Maximum number of failed moves per claimant; beyond it the result is "not proven"."""

_PLACED = (Phase.RESERVED, Phase.STARTED, Phase.MOVED)


class Consolidation:
    """One pass of consolidation; moves are recorded as losses of the reclaim."""

    def __init__(self, state: State, allocation: AllocateStep, reclaim: Reclaim) -> None:
        """Start without moves."""
        self._state = state
        self._allocation = allocation
        self._reclaim = reclaim
        self._room = state.later
        self._for_quota = False
        """True while claims within their quota are tried."""
        self._vacancies: Vacancies | None = None
        self._open_holds: tuple[bool, ...] = ()
        """Holds (O4) open to the current claimant: it sees more idle capacity than other units."""
        self._infeasible: dict[tuple[object, ...], int] = {}
        """Smallest number of workers that failed, by kind of claim."""
        self._moved_for: dict[PlannedWorker, PodSet] = {}
        self._moved: set[PlannedWorkload] = set()
        """Workloads moved for claims of any kind, which the policy bounds."""
        self._displaced: list[PlannedWorker] = []
        """Workers that the last attempt displaced, while victims are searched for."""
        self._trials = 0
        """Number of attempts that the current search for victims may still make."""
        self._tries = 0
        """Number of moves of the current claimant that may still fail."""
        self._changed_nodes: set[int] = set()
        """Nodes changed while the current claimant was tried."""

    def make_room(self) -> None:
        """Try every waiting preemptible minimum, the most deprived project first (O1)."""
        self._serve_all(for_quota=False)

    def place_within_quota(self) -> bool:
        """Try every waiting minimum within its quota; return True if any got a place."""
        return self._serve_all(for_quota=True)

    def _serve_all(self, *, for_quota: bool) -> bool:
        self._for_quota, self._vacancies = for_quota, None
        self._reclaim.is_stale = True
        self._infeasible.clear()
        unkept = [unit for unit in self._allocation.unkept_units() if not unit.is_surplus]
        order = FairOrder(self._state, unkept, surplus=False)
        has_served = False
        while self._may_move != 0 and (unit := order.pop()) is not None:
            if unit.falls_short():
                continue
            if self._attempt(unit):
                has_served = True
            else:
                order.set_aside()
        if self._state.undecided and serve_elsewhere(self._state, self._attempt):
            has_served = True
        return has_served

    def _attempt(self, unit: PodSet) -> bool:
        may_try = self._may_move != 0 and not unit.falls_short() and self._is_entitled(unit)
        return may_try and self._try_unit(unit)

    def _is_entitled(self, unit: PodSet) -> bool:
        """Return True if workloads may move for a unit."""
        if not self._for_quota:
            return not unit.item.is_fixed and not unit.is_growth
        judged = quota_path(unit.item)
        return unit.demand > 0 and all(a.allocated + unit.demand <= a.quota for a in judged)

    @property
    def _may_move(self) -> int | None:
        """Number of workloads that this plan may still move for claims of any kind."""
        most = self._state.policy.max_moves
        return None if most is None or self._for_quota else max(0, most - len(self._moved))

    def _try_unit(self, unit: PodSet) -> bool:
        with self._allocation.holds.open_to(unit) as may_pass:
            if may_pass != self._open_holds:
                self._open_holds, self._vacancies = may_pass, None
            if any(not member.kind.nodes for member in unit.members):
                return False
            if cap_in_the_way(unit) is not None:
                return False
            if self._for_quota and not self._state.policy.quota_moves:
                return self._serve_for_cpu(unit)
            if self._may_help(unit) and self._serve(unit):
                return True
            return self._for_quota and (self._serve_by_taking(unit) or self._serve_for_cpu(unit))

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
                loss = losses[member]
                claimant = _new_claimant(self._state, member) or loss.claimant
                losses[member] = loss._replace(claimant=claimant)

    # ---- proofs by counting

    def _may_help(self, unit: PodSet) -> bool:
        """Return True if moving could help: moved workers stay in the cluster."""
        members = unit.members
        if sum(m.kind.devices * m.kind.milli for m in members) > self._room.free_milli:
            return False
        return len(members) < self._infeasible.get(self._claim_kind(unit), len(members) + 1)

    def _claim_kind(self, unit: PodSet) -> tuple[object, ...]:
        # If two workers with equal requests do not fit, three do not either. Capacity that is never
        # lent (Q2) differs between projects.
        kinds = {member.kind.order for member in unit.members}
        like = tuple(kinds) if len(kinds) == 1 else unit.signature
        vacancies = self._current_vacancies
        mine = unit.item.account if self._state.tree.holders else None
        return (like, self._open_holds, vacancies.privilege(unit.item), mine)

    @property
    def _current_vacancies(self) -> Vacancies:
        if self._vacancies is None:
            self._vacancies = Vacancies(self._state, for_quota=self._for_quota)
        return self._vacancies

    # ---- one claimant

    def _serve(self, unit: PodSet) -> bool:
        state, vacancies = self._state, self._current_vacancies
        mark = state.mark()
        displaced = self._place_all(unit, vacancies) or []
        starts = [member for member in displaced if member.standing is Phase.STARTED]
        moved = [m for m in displaced if m.standing is Phase.MOVED and not _stays(state, m)]
        is_served = bool(moved or starts) and self._is_allowed(unit, moved)
        if is_served:
            self._record(unit, moved)
        else:
            state.roll_back(mark)
            self._infeasible[self._claim_kind(unit)] = len(unit.members)
        vacancies.forget(self._changed_nodes)
        self._changed_nodes.clear()
        return is_served

    def _serve_by_taking(self, unit: PodSet) -> bool:
        """Take victims (R1, R2) that suffice only together with moves."""
        state = self._state
        mark = state.mark()
        for search in self._reclaim.searches(unit, moves=self):
            self._trials = _TRIES
            if search.run():
                moved = [m for m in self._displaced if m.standing is Phase.MOVED]
                self._reclaim.record(unit, search)
                if self._is_allowed(unit, moved):
                    self._record(unit, moved)
                    self._vacancies = None
                    return True
                self._reclaim.forget(search)
                state.roll_back(mark)
        return False

    def _serve_for_cpu(self, unit: PodSet) -> bool:
        """Take what holds the CPU or memory that a unit lacks (Q6)."""
        for search in self._reclaim.searches(unit, for_cpu=True):
            if search.run():
                self._reclaim.record(unit, search)
                self._allocation.placed += unit.members
                self._infeasible.clear()
                self._vacancies = None
                return True
        return False

    def could_fit(self, unit: PodSet) -> bool:
        """Return True if a unit fits by moves, now that victims have left."""
        mark = self._state.mark()
        fits = self.make_fit(unit)
        self._state.roll_back(mark)
        return fits

    def make_fit(self, unit: PodSet) -> bool:
        """Move workers and reserve the unit's place, now that victims have left."""
        lacking = sum(m.kind.devices * m.kind.milli for m in unit.members)
        if lacking > self._room.free_milli or not self._trials:
            return False
        self._trials -= 1
        displaced = self._place_all(unit, Vacancies(self._state, for_quota=True))
        self._changed_nodes.clear()
        self._displaced = displaced or []
        return displaced is not None

    def _is_allowed(self, unit: PodSet, moved: list[PlannedWorker]) -> bool:
        may_stop, may_move = self._reclaim.may_stop, self._may_move
        if may_stop is not None and len(moved) > may_stop:
            return False
        if may_move is not None and len({m.item for m in moved} - self._moved) > may_move:
            return False
        return leaves_what_is_never_lent(self._state, unit.item)

    def _record(self, unit: PodSet, moved: list[PlannedWorker]) -> None:
        account = unit.item.account
        was_within = account.allocated - unit.demand <= account.quota
        for member in moved:
            self._moved_for[member] = unit
            self._reclaim.losses[member] = Eviction(unit.item, "R10", account, is_surplus=False)
        if not self._for_quota:
            self._moved.update(member.item for member in moved)
            if was_within and account.allocated > account.quota:
                self._vacancies = None  # from now on, its workloads may move for any claim
        self._reclaim.is_stale = True
        self._reclaim.took_something = True  # other units may use what moves leave over
        self._allocation.placed += [*moved, *unit.members]
        self._infeasible.clear()

    def _place_all(self, unit: PodSet, vacancies: Vacancies) -> list[PlannedWorker] | None:
        """Place every worker, moving running ones if necessary; return these, None on failure."""
        displaced = list[PlannedWorker]()
        privilege = vacancies.privilege(unit.item)
        self._tries = _TRIES
        for claimant in sorted(unit.members, key=_size):
            found = self._room.find(claimant.kind)
            if found is not None:
                booking = self._state.book(claimant.kind, *found)
                self._state.set(claimant, Phase.RESERVED, booking)
                self._mark_changed(vacancies, [found[0]])
                continue
            with closing(vacancies.cheapest_first(claimant.kind, privilege)) as ways:
                leaving = self._first_that_works(claimant, ways, vacancies)
            if leaving is None:
                if not self._tries:
                    self._reclaim.not_proven.add(self._state.lanes.lane_of(unit))
                return None
            displaced += leaving.members
        return displaced

    def _first_that_works(
        self, claimant: PlannedWorker, ways: Iterable[Leaving], vacancies: Vacancies
    ) -> Leaving | None:
        may_move = self._may_move
        has_place: dict[RequestShape, bool] = {}
        for leaving in ways:
            if may_move is not None and leaving.moves > may_move:
                return None
            if not all(
                self._has_place(member.kind, has_place)
                for member in leaving.members
                if member.item.sizes is None or not member.index
            ):
                continue
            if any(
                not m.item.has_minimum() and m.item is not claimant.item for m in leaving.members
            ):
                continue  # P4: a gang is moved whole or not at all
            if self._move(claimant, leaving, vacancies):
                return leaving
            self._tries -= 1
            if not self._tries:
                return None
        return None

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
        for member in sorted(leaving.members, key=_size):
            if member.item.sizes is not None and member.index:
                continue  # a part of an elastic worker, placed with it (E2)
            # A worker that starts with this plan must still start now, only elsewhere.
            standing = Phase.STARTED if member in starts else Phase.MOVED
            if not self._place_elsewhere(member, standing, leaving.members):
                state.roll_back(mark)
                return False
        places = [member.booking.node for member in leaving.members if member.booking]
        self._mark_changed(vacancies, [leaving.node, *places])
        return True

    def _place_elsewhere(
        self, member: PlannedWorker, standing: Phase, leaving: WorkerGroup
    ) -> bool:
        item = member.item
        if item.sizes is None:
            return place(self._state, [member], standing)
        # E2: with as many of its GPUs as one node has, at least its minimum.
        base, *parts = sorted((m for m in leaving if m.item is item), key=lambda m: m.index)
        return any(
            place(self._state, [base, *parts[:count]], standing)
            for count in range(len(parts), -1, -1)
        )

    def _mark_changed(self, vacancies: Vacancies, nodes: list[int]) -> None:
        vacancies.forget(nodes)
        self._changed_nodes.update(nodes)


def _size(member: PlannedWorker) -> tuple[int, int, int]:
    return -member.kind.devices, -member.kind.milli, member.index


def _stays(state: State, member: PlannedWorker) -> bool:
    """Leave a worker where it is, if its place is still free. Return True if so."""
    mark = state.mark()
    together = [member]
    if member.item.sizes is not None:
        # E2: all its GPUs stay, or none.
        parts = member.item.members
        if any(m.standing is Phase.GOING for m in parts):
            return False
        together = [m for m in parts if m.standing is Phase.MOVED]
    for each in together:
        state.set(each, Phase.GOING, None)
    for each in together:
        old = each.origin
        assert old is not None, "moved workers have an original booking"
        if not is_place_free(state.later, each, old):
            state.roll_back(mark)
            return False
        state.set(each, Phase.RUNNING, old)
    return True


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

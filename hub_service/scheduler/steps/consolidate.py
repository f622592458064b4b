"""Consolidation: move running workers so that a blocked pod set fits (R10).

Each moved worker must get another place. Counting proves early that moving cannot help. A policy
with `consolidate` moves before any worker is paused (R6). A claim within its quota moves others
where reclaim and preemption leave it without a place.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.queue_order import QueueOrder
from runai.hub_service.scheduler.placement.quota_check import (
    first_cap_exceeded,
    quota_path,
    respects_never_lent,
)
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.request_shape import RequestShape
from runai.hub_service.scheduler.steps.allocate import AllocateStep, is_place_free
from runai.hub_service.scheduler.steps.quota_choice import serve_by_other_charge
from runai.hub_service.scheduler.steps.reclaim import Eviction, ReclaimStep
from runai.hub_service.scheduler.steps.vacancies import Vacancies, Vacancy, WorkerGroup

_MAX_FAILURES = 24
"""Maximum number of failed moves per claimant; beyond it the result is "not proven"."""

_PLACED = (Phase.RESERVED, Phase.STARTED, Phase.MOVED)


class ConsolidateStep:
    """One pass of consolidation; moves are recorded as evictions of the reclaim."""

    def __init__(
        self, state: PlanningState, allocation: AllocateStep, reclaim: ReclaimStep
    ) -> None:
        """Start without moves."""
        self._state = state
        self._allocation = allocation
        self._reclaim = reclaim
        self._capacity = state.later
        self._for_quota = False
        """True while claims within their quota are tried."""
        self._vacancies: Vacancies | None = None
        self._open_holds: tuple[bool, ...] = ()
        """Holds (O4) open to the current claimant: it sees more idle capacity than others."""
        self._infeasible: dict[tuple[object, ...], int] = {}
        """Smallest number of workers that failed, by claim key."""
        self._moved_for: dict[PlannedWorker, PodSet] = {}
        self._moved: set[PlannedWorkload] = set()
        """Workloads moved for claims of any kind, which the policy bounds."""
        self._displaced: list[PlannedWorker] = []
        """Workers that the last attempt displaced, while victims are searched for."""
        self._attempts_left = 0
        """Number of attempts that the current search for victims may still make."""
        self._failures_left = 0
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
        """Try every waiting minimum of one kind; return True if any got a place."""
        self._for_quota, self._vacancies = for_quota, None
        self._reclaim.is_stale = True
        self._infeasible.clear()
        unreserved = [s for s in self._allocation.unreserved_pod_sets() if not s.is_surplus]
        order = QueueOrder(self._state, unreserved, surplus=False)
        has_served = False
        while self._moves_left != 0 and (pod_set := order.pop()) is not None:
            if pod_set.falls_short():
                continue
            if self._try_if_entitled(pod_set):
                has_served = True
            else:
                order.skip_class()
        if self._state.undecided and serve_by_other_charge(self._state, self._try_if_entitled):
            has_served = True
        return has_served

    def _try_if_entitled(self, pod_set: PodSet) -> bool:
        """Move workers for a pod set, if they may move for it; return True if it got a place."""
        may_try = self._moves_left != 0 and not pod_set.falls_short() and self._is_entitled(pod_set)
        return may_try and self._try_pod_set(pod_set)

    def _is_entitled(self, pod_set: PodSet) -> bool:
        """Return True if the policy lets workloads move for a pod set."""
        if not self._for_quota:
            return not pod_set.planned.is_fixed and not pod_set.is_growth
        path = quota_path(pod_set.planned)
        return pod_set.demand > 0 and all(p.allocated + pod_set.demand <= p.quota for p in path)

    @property
    def _moves_left(self) -> int | None:
        """Number of workloads that this plan may still move; None is no limit."""
        limit = self._state.policy.max_moves
        return None if limit is None or self._for_quota else max(0, limit - len(self._moved))

    def _try_pod_set(self, pod_set: PodSet) -> bool:
        """Try moves, then victims and moves, then CPU; return True if the pod set got a place."""
        with self._allocation.holds.open_to(pod_set) as may_pass:
            if may_pass != self._open_holds:
                self._open_holds, self._vacancies = may_pass, None
            if any(not member.shape.nodes for member in pod_set.members):
                return False
            if first_cap_exceeded(pod_set) is not None:
                return False
            if self._for_quota and not self._state.policy.quota_moves:
                return self._serve_for_cpu(pod_set)
            if self._may_help(pod_set) and self._serve(pod_set):
                return True
            return self._for_quota and (
                self._serve_by_taking(pod_set) or self._serve_for_cpu(pod_set)
            )

    def settle(self) -> None:
        """Undo moves whose claimant lost its place again, or record the new claimant.

        Reclaim runs after consolidation and may give the place to a pod set that is entitled to it.
        """
        evictions = self._reclaim.evictions
        for member, pod_set in self._moved_for.items():
            if all(claimant_member.phase in _PLACED for claimant_member in pod_set.members):
                continue
            if _put_back(self._state, member):
                del evictions[member]
            else:
                eviction = evictions[member]
                claimant = _new_claimant(self._state, member) or eviction.claimant
                evictions[member] = eviction._replace(claimant=claimant)

    # ---- proofs by counting

    def _may_help(self, pod_set: PodSet) -> bool:
        """Return True if moving could help: moved workers stay in the cluster."""
        members = pod_set.members
        if sum(m.shape.devices * m.shape.milli for m in members) > self._capacity.free_milli:
            return False
        return len(members) < self._infeasible.get(self._claim_key(pod_set), len(members) + 1)

    def _claim_key(self, pod_set: PodSet) -> tuple[object, ...]:
        """Return what equal claims have in common: if one fails, they all do."""
        # If two workers with equal requests do not fit, three do not either. Capacity that is never
        # lent (Q2) differs between projects.
        orders = {member.shape.order for member in pod_set.members}
        request_key = tuple(orders) if len(orders) == 1 else pod_set.signature
        vacancies = self._current_vacancies
        own_project = pod_set.planned.project if self._state.tree.holders else None
        return (
            request_key,
            self._open_holds,
            vacancies.exempt_project(pod_set.planned),
            own_project,
        )

    @property
    def _current_vacancies(self) -> Vacancies:
        if self._vacancies is None:
            self._vacancies = Vacancies(self._state, for_quota=self._for_quota)
        return self._vacancies

    # ---- one claimant

    def _serve(self, pod_set: PodSet) -> bool:
        """Place a pod set by moves alone; on False the state is unchanged."""
        state, vacancies = self._state, self._current_vacancies
        mark = state.mark()
        displaced = self._place_all(pod_set, vacancies) or []
        starts = [member for member in displaced if member.phase is Phase.STARTED]
        moved = [m for m in displaced if m.phase is Phase.MOVED and not _put_back(state, m)]
        is_served = bool(moved or starts) and self._is_allowed(pod_set, moved)
        if is_served:
            self._record(pod_set, moved)
        else:
            state.roll_back(mark)
            self._infeasible[self._claim_key(pod_set)] = len(pod_set.members)
        vacancies.mark_stale(self._changed_nodes)
        self._changed_nodes.clear()
        return is_served

    def _serve_by_taking(self, pod_set: PodSet) -> bool:
        """Take victims (R1, R2) that suffice only together with moves."""
        state = self._state
        mark = state.mark()
        for search in self._reclaim.searches(pod_set, moves=self):
            self._attempts_left = _MAX_FAILURES
            if search.run():
                moved = [m for m in self._displaced if m.phase is Phase.MOVED]
                self._reclaim.record(pod_set, search)
                if self._is_allowed(pod_set, moved):
                    self._record(pod_set, moved)
                    self._vacancies = None
                    return True
                self._reclaim.forget(search)
                state.roll_back(mark)
        return False

    def _serve_for_cpu(self, pod_set: PodSet) -> bool:
        """Take workloads with the CPU or memory that a pod set lacks (Q6)."""
        for search in self._reclaim.searches(pod_set, for_cpu=True):
            if search.run():
                self._reclaim.record(pod_set, search)
                self._allocation.placed += pod_set.members
                self._infeasible.clear()
                self._vacancies = None
                return True
        return False

    def could_fit(self, pod_set: PodSet) -> bool:
        """Return True if a pod set fits by moves, now that victims have left."""
        mark = self._state.mark()
        fits = self.make_fit(pod_set)
        self._state.roll_back(mark)
        return fits

    def make_fit(self, pod_set: PodSet) -> bool:
        """Move workers and reserve the pod set's place; on False, the caller rolls back."""
        requested_milli = sum(m.shape.devices * m.shape.milli for m in pod_set.members)
        if requested_milli > self._capacity.free_milli or not self._attempts_left:
            return False
        self._attempts_left -= 1
        displaced = self._place_all(pod_set, Vacancies(self._state, for_quota=True))
        self._changed_nodes.clear()
        self._displaced = displaced or []
        return displaced is not None

    def _is_allowed(self, pod_set: PodSet, moved: list[PlannedWorker]) -> bool:
        """Return True if the policy's limits allow these moves, and never lent GPUs stay idle."""
        stops_left, moves_left = self._reclaim.stops_left, self._moves_left
        if stops_left is not None and len(moved) > stops_left:
            return False
        if moves_left is not None and len({m.planned for m in moved} - self._moved) > moves_left:
            return False
        return respects_never_lent(self._state, pod_set.planned)

    def _record(self, pod_set: PodSet, moved: list[PlannedWorker]) -> None:
        """Record the moves for a pod set as its evictions, and what they invalidate."""
        project = pod_set.planned.project
        was_within = project.allocated - pod_set.demand <= project.quota
        for member in moved:
            self._moved_for[member] = pod_set
            eviction = Eviction(pod_set.planned, "R10", project, is_surplus=False)
            self._reclaim.evictions[member] = eviction
        if not self._for_quota:
            self._moved.update(member.planned for member in moved)
            if was_within and project.allocated > project.quota:
                self._vacancies = None  # from now on, its workloads may move for any claim
        self._reclaim.is_stale = True
        self._reclaim.has_freed_devices = True  # other pod sets may use it
        self._allocation.placed += [*moved, *pod_set.members]
        self._infeasible.clear()

    def _place_all(self, pod_set: PodSet, vacancies: Vacancies) -> list[PlannedWorker] | None:
        """Place every worker, moving running ones if necessary; return these, None on failure."""
        displaced = list[PlannedWorker]()
        exempt_project = vacancies.exempt_project(pod_set.planned)
        self._failures_left = _MAX_FAILURES
        for claimant_member in sorted(pod_set.members, key=_largest_first):
            free_place = self._capacity.find(claimant_member.shape)
            if free_place is not None:
                booking = self._state.book(claimant_member.shape, *free_place)
                self._state.set(claimant_member, Phase.RESERVED, booking)
                self._mark_changed(vacancies, [free_place[0]])
                continue
            with closing(vacancies.cheapest_first(claimant_member.shape, exempt_project)) as ranked:
                vacancy = self._move_cheapest(claimant_member, ranked, vacancies)
            if vacancy is None:
                if not self._failures_left:
                    self._reclaim.not_proven.add(self._state.equivalence_classes.class_of(pod_set))
                return None
            displaced += vacancy.members
        return displaced

    def _move_cheapest(
        self, claimant_member: PlannedWorker, ranked: Iterable[Vacancy], vacancies: Vacancies
    ) -> Vacancy | None:
        """Move the workers of the first vacancy that allows it; return it, None if none does."""
        moves_left = self._moves_left
        cache: dict[RequestShape, bool] = {}
        for vacancy in ranked:
            if moves_left is not None and vacancy.moves > moves_left:
                return None
            if not all(
                self._fits_elsewhere(member.shape, cache)
                for member in vacancy.members
                if member.planned.sizes is None or not member.index
            ):
                continue
            if any(
                not m.planned.has_minimum() and m.planned is not claimant_member.planned
                for m in vacancy.members
            ):
                continue  # P4: a gang is moved whole or not at all
            if self._move(claimant_member, vacancy, vacancies):
                return vacancy
            self._failures_left -= 1
            if not self._failures_left:
                return None
        return None

    def _fits_elsewhere(self, shape: RequestShape, cache: dict[RequestShape, bool]) -> bool:
        """Return True if a shape fits elsewhere. Check before placing the claimant takes room."""
        if shape not in cache:
            cache[shape] = self._capacity.find(shape) is not None
        return cache[shape]

    def _move(self, claimant_member: PlannedWorker, vacancy: Vacancy, vacancies: Vacancies) -> bool:
        """Place a claimant where workers are moved away, and each of these elsewhere."""
        state, capacity = self._state, self._capacity
        mark = state.mark()
        starts = {m for m in vacancy.members if m.phase is Phase.STARTED}
        for member in vacancy.members:
            state.set(member, Phase.PENDING if member in starts else Phase.TERMINATING, None)
        devices = capacity.devices_on(vacancy.node, claimant_member.shape)
        assert devices is not None, "the claimant fits once these workers left"
        booking = state.book(claimant_member.shape, vacancy.node, devices)
        state.set(claimant_member, Phase.RESERVED, booking)
        for member in sorted(vacancy.members, key=_largest_first):
            if member.planned.sizes is not None and member.index:
                continue  # a part of an elastic worker, placed with it (E2)
            # A worker that starts with this plan must still start now, only elsewhere.
            phase = Phase.STARTED if member in starts else Phase.MOVED
            if not self._place_elsewhere(member, phase, vacancy.members):
                state.roll_back(mark)
                return False
        places = [member.booking.node for member in vacancy.members if member.booking]
        self._mark_changed(vacancies, [vacancy.node, *places])
        return True

    def _place_elsewhere(self, member: PlannedWorker, phase: Phase, group: WorkerGroup) -> bool:
        """Place a worker that left, an elastic one with its parts; return True on success."""
        planned = member.planned
        if planned.sizes is None:
            return place(self._state, [member], phase)
        # E2: with as many of its GPUs as one node has, at least its minimum.
        base, *parts = sorted((m for m in group if m.planned is planned), key=lambda m: m.index)
        return any(
            place(self._state, [base, *parts[:count]], phase) for count in range(len(parts), -1, -1)
        )

    def _mark_changed(self, vacancies: Vacancies, nodes: list[int]) -> None:
        vacancies.mark_stale(nodes)
        self._changed_nodes.update(nodes)


def _largest_first(member: PlannedWorker) -> tuple[int, int, int]:
    return -member.shape.devices, -member.shape.milli, member.index


def _put_back(state: PlanningState, member: PlannedWorker) -> bool:
    """Put a moved worker back where it was, if its place is free; return True if so."""
    mark = state.mark()
    together = [member]
    if member.planned.sizes is not None:
        # E2: all its GPUs stay, or none.
        parts = member.planned.members
        if any(m.phase is Phase.TERMINATING for m in parts):
            return False
        together = [m for m in parts if m.phase is Phase.MOVED]
    for moving_worker in together:
        state.set(moving_worker, Phase.TERMINATING, None)
    for moving_worker in together:
        old = moving_worker.origin
        assert old is not None, "moved workers have an original booking"
        if not is_place_free(state.later, moving_worker, old):
            state.roll_back(mark)
            return False
        state.set(moving_worker, Phase.RUNNING, old)
    return True


def _new_claimant(state: PlanningState, moved_member: PlannedWorker) -> PlannedWorkload | None:
    """Return the workload that gets the place of a moved worker."""
    old = moved_member.origin
    assert old is not None, "moved workers have an original booking"
    on_node = [
        member
        for member in sorted(state.on_node[old.node], key=lambda m: (m.planned.age, m.index))
        if member.phase in _PLACED
    ]
    devices = set(old.devices)
    on_devices = [m for m in on_node if m.booking and devices.intersection(m.booking.devices)]
    claimants = on_devices or on_node
    return next((member.planned for member in claimants if member is not moved_member), None)

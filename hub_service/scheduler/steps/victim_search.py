"""Search for a minimal set of victims of one pod set (R5).

A result is proven by placing the claimant, and no victim can be left out. A failed search rolls
back its changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from runai.hub_service.scheduler.placement.fit_check import FitCheck
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.quota_check import (
    first_cap_exceeded,
    projects_over_limit,
    respects_never_lent,
)
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.request_shape import Booking
from runai.hub_service.scheduler.state.victims import Victim
from runai.hub_service.scheduler.steps.victim_iterator import (
    Candidate,
    CandidateSet,
    PreemptionScope,
    VictimIterator,
)

_RESERVED = Phase.RESERVED


class StoppedVictim(NamedTuple):
    """A victim with its previous phases and bookings, for the undo."""

    candidate: Candidate
    members: tuple[PlannedWorker, ...]
    phases: tuple[Phase, ...]
    bookings: tuple[Booking | None, ...]

    @property
    def is_surplus(self) -> bool:
        """Return True if the workload continues without it."""
        return self.candidate.victim.is_surplus

    @property
    def nodes(self) -> list[int]:
        """Nodes where capacity is freed."""
        return [booking.node for booking in self.bookings if booking]


class Moves(Protocol):
    """Placement of a pod set by moving other workers."""

    def could_fit(self, pod_set: PodSet) -> bool:
        """Return True if the pod set fits by moves; the state stays unchanged."""
        ...

    def make_fit(self, pod_set: PodSet) -> bool:
        """Move workers and reserve the pod set's place."""
        ...


class VictimSearch:
    """Search for the workers to stop so that one waiting pod set fits.

    A pod set is a group of workers that start together; `scope` limits the victims. It
    changes the state only on success.
    """

    def __init__(
        self,
        state: PlanningState,
        pod_set: PodSet,
        scope: PreemptionScope,
        candidates: CandidateSet,
        max_stops: int | None = None,
        moves: Moves | None = None,
    ) -> None:
        """Start without victims; `max_stops` limits the stopped workers, None is no limit.

        With `moves`, victims only have to suffice together with moves of other workers.
        """
        self._moves = moves
        self._state = state
        self._pod_set = pod_set
        self._max_stops = max_stops
        self._fit = FitCheck(state, pod_set.members)
        self.victim_iterator = VictimIterator(state, pod_set, scope, candidates, self._fit)
        """Source of victims, which also records why there are no more."""
        self._resume_mark: int | None = None
        """Mark of the journal after success, if the class's next pod set can continue from it."""
        self.stopped_victims: list[StoppedVictim] = []
        self.blocked_by_never_lent = False
        """True if only capacity that is never lent (Q2) prevents the placement."""
        self.stops_too_many = False
        """True if it would stop more workers than one plan may (R8)."""

    def run(self) -> bool:
        """Take victims until the pod set fits, restore unnecessary ones, and place it."""
        state = self._state
        mark = state.mark()
        is_served = self._is_served()
        if is_served and "allocate" not in state.policy.phases:
            return False
        while not is_served:
            candidate = self.victim_iterator.next()
            if candidate is None:
                state.roll_back(mark)
                return False
            self._add_victim(candidate)
            is_served = self._is_served()
        stopped_count = len(self.stopped_victims)
        if stopped_count > 1:  # a single victim is necessary: without it the pod set did not fit
            self._minimise()
        has_replaced = self._prefer_movable_victims()
        if self._max_stops is not None and self._stop_count > self._max_stops:
            self.stops_too_many = True
            state.roll_back(mark)
            return False
        # If only a cap was in the way, or no victim runs yet, it may start now; else it waits for
        # its victims to end (R7).
        allocates = "allocate" in state.policy.phases
        is_free = self.victim_iterator.relieves_caps or not self._stop_count or not allocates
        may_start = is_free and not self._pod_set.falls_short(now=True)
        placed_from = state.mark()
        for phase in (Phase.STARTED, Phase.RESERVED) if may_start else (_RESERVED,):
            if self._place(phase):
                if phase is Phase.STARTED and projects_over_limit(self._pod_set.planned):
                    state.roll_back(placed_from)
                    continue
                if respects_never_lent(state, self._pod_set.planned):
                    # Restored and replaced victims may be of use to the next pod set.
                    if not has_replaced and len(self.stopped_victims) == stopped_count:
                        self._resume_mark = state.mark()
                    return True
                self.blocked_by_never_lent = True
                break
        state.roll_back(mark)
        return False

    @property
    def _stop_count(self) -> int:
        return sum(stopped.phases.count(Phase.RUNNING) for stopped in self.stopped_victims)

    def _place(self, phase: Phase) -> bool:
        """Place the pod set, by moves if needed and allowed; return True on success."""
        members, free_place = self._pod_set.members, self._fit.free_place
        if self._moves is not None and phase is _RESERVED and not self._fit.fits():
            return self._moves.make_fit(self._pod_set)
        if free_place is None or phase is not _RESERVED or self._pod_set.planned.sizes is not None:
            return place(self._state, members, phase)
        (member,) = members
        self._state.set(member, phase, self._state.book(member.shape, *free_place))
        return True

    def resume(self, pod_set: PodSet, max_stops: int | None) -> bool:
        """Serve the class's next pod set, continuing from the result of the previous one.

        Victims that were useless then are useless now, so that the claims of a class iterate over
        the victims only once. False means that the pod set needs a search of its own: the state
        changed since, a cap is in the way, or no victim is left.
        """
        if (
            self._resume_mark != self._state.mark()
            or self.victim_iterator.scope.own_project
            or self.victim_iterator.relieves_caps
            or self._fit.counts_base
        ):
            return False
        fits = False if self._used_freed_devices() else None
        self._pod_set = self.victim_iterator.pod_set = pod_set
        self._max_stops, self._resume_mark = max_stops, None
        if first_cap_exceeded(pod_set) or not self.victim_iterator.stays_within_share(0):
            return False
        self._fit.reset(pod_set.members, fits=fits)
        self.stopped_victims = []
        return self.run()

    def _used_freed_devices(self) -> bool:
        """Return True if the pod set took exactly its only victim's place, adding no free room."""
        freed = [_devices_of(b) for stopped in self.stopped_victims for b in stopped.bookings]
        return freed == [_devices_of(member.booking) for member in self._pod_set.members]

    def _is_served(self) -> bool:
        """Return True if the pod set fits without the victims so far."""
        if self.victim_iterator.relieves_caps and first_cap_exceeded(self._pod_set) is not None:
            return False
        if self._fit.fits():
            return self._respects_never_lent()
        return self._moves is not None and self._moves.could_fit(self._pod_set)

    def _respects_never_lent(self) -> bool:
        """Return True if enough stays idle for others (Q2); note it if that prevents the place."""
        state = self._state
        if not state.tree.holders:
            return True
        mark = state.mark()
        respects = self._place(_RESERVED) and respects_never_lent(state, self._pod_set.planned)
        state.roll_back(mark)
        self.blocked_by_never_lent = self.blocked_by_never_lent or not respects
        return respects

    # ---- take and restore victims (R5)

    def _add_victim(self, candidate: Candidate) -> None:
        stopped = _stopped_victim(candidate)
        self.stopped_victims.append(stopped)
        self._release(stopped)
        self.victim_iterator.rerank(candidate.victim_project)
        if self._fit.counts_base:
            self.victim_iterator.restart()

    def _release(self, stopped: StoppedVictim) -> None:
        for member in stopped.members:
            self._state.release(member)
        self._fit.recount_freed(stopped.nodes)

    def _restore(self, stopped: StoppedVictim) -> None:
        for member, phase, booking in zip(
            stopped.members, stopped.phases, stopped.bookings, strict=True
        ):
            self._state.set(member, phase, booking)
        self._fit.recount_restored(stopped.nodes)

    def _minimise(self) -> None:
        """Restore each victim, the last chosen first, while the pod set still fits."""
        quota_checks = Counter(_quota_check(stopped.candidate) for stopped in self.stopped_victims)
        without_surplus = [s for s in self.stopped_victims if not s.is_surplus]
        fully_stopped = {s.candidate.victim.planned for s in without_surplus}
        needed: list[StoppedVictim] = []
        for stopped in reversed(self.stopped_victims):
            if stopped.is_surplus and stopped.candidate.victim.planned in fully_stopped:
                needed.append(stopped)  # a surplus worker cannot run without its minimum
                continue
            self._restore(stopped)
            quota_checks[_quota_check(stopped.candidate)] -= 1
            if self._is_served() and self._allows_victims(quota_checks):
                fully_stopped.discard(stopped.candidate.victim.planned)
                continue
            quota_checks[_quota_check(stopped.candidate)] += 1
            self._release(stopped)
            needed.append(stopped)
        self.stopped_victims = needed[::-1]

    def _prefer_movable_victims(self) -> bool:
        """Replace victims that would wait by equal ones that can go on elsewhere (R5).

        Return True if any was replaced.
        """
        requested_milli = sum(m.shape.devices * m.shape.milli for m in self._pod_set.members)
        if self._moves is not None or self._state.later.free_milli <= requested_milli:
            return False  # nothing is left for the victims
        tried: set[Victim] = set()
        replaced = False
        while (replacement := self._movable_replacement(tried)) is not None:
            index, victim = replacement
            tried.add(self.stopped_victims[index].candidate.victim)
            replaced = self._try_replacement(index, victim) or replaced
        return replaced

    def _movable_replacement(self, tried: AbstractSet[Victim]) -> tuple[int, Victim] | None:
        """Return a victim that can go on elsewhere, and the index of the one that it replaces."""
        state, mark = self._state, self._state.mark()
        replacement = None
        if self._place(_RESERVED):
            immovable = [
                index
                for index, s in enumerate(self.stopped_victims)
                if not (_is_job(s.candidate.victim) and place(state, s.members, _RESERVED))
                and s.candidate.victim not in tried
            ]
            stopped_workloads = {s.candidate.victim.planned for s in self.stopped_victims}
            replacement = next(
                (
                    (index, equivalent)
                    for index in reversed(immovable)
                    for equivalent in self._equivalent_victims(self.stopped_victims[index])
                    if equivalent.planned not in stopped_workloads
                    and _is_job(equivalent)
                    and FitCheck(state, equivalent.workers()).fits()
                ),
                None,
            )
        state.roll_back(mark)
        return replacement

    def _equivalent_victims(self, stopped: StoppedVictim) -> list[Victim]:
        rule, victim = stopped.candidate.rule, stopped.candidate.victim
        if stopped.is_surplus or rule == "Q6" or victim.planned.sizes is not None:
            return []
        bookings = [booking for booking in stopped.bookings if booking]
        return self.victim_iterator.equivalent_victims(victim, bookings)

    def _try_replacement(self, index: int, victim: Victim) -> bool:
        """Let another victim go instead; return False if the pod set needs the one taken before."""
        stopped = self.stopped_victims[index]
        replacement = _stopped_victim(stopped.candidate._replace(victim=victim))
        self._restore(stopped)
        self._release(replacement)
        if self._is_served():
            self.stopped_victims[index] = replacement
            return True
        self._restore(replacement)
        self._release(stopped)
        return False

    def _allows_victims(self, quota_checks: Counter[tuple[int, bool]]) -> bool:
        """Return True if R2 still allows all remaining victims, with one restored."""
        remaining = [quota_check for quota_check, count in quota_checks.items() if count]
        highest = max((level for level, _ in remaining), default=-1)
        iterator = self.victim_iterator
        quota_levels = [level for level, within_quota in remaining if within_quota]
        within_share = all(iterator.stays_within_share(level) for level in range(highest + 1))
        return within_share and all(iterator.stays_within_quota(level) for level in quota_levels)


def _stopped_victim(candidate: Candidate) -> StoppedVictim:
    members = candidate.victim.workers()
    phases = tuple([member.phase for member in members])
    return StoppedVictim(candidate, members, phases, tuple([m.booking for m in members]))


def _is_job(victim: Victim) -> bool:
    """Return True if it queues again once it is stopped; a session ends (Q5)."""
    return victim.planned.workload.kind == "job"


def _quota_check(candidate: Candidate) -> tuple[int, bool]:
    """Return the level at which R2 allows a victim, and if only within its quota."""
    return candidate.level, candidate.within_quota


def _devices_of(booking: Booking | None) -> tuple[object, ...] | None:
    return booking[:4] if booking else None

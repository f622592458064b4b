"""Search for a minimal set of victims of one unit (R5).

A result is proven by placing the claimant, and no victim can be left out. A failed search rolls
back its changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

from runai.hub_service.scheduler.placement.fit_check import Fit
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.quota_check import (
    cap_in_the_way,
    leaves_what_is_never_lent,
    still_over,
)
from runai.hub_service.scheduler.state.equivalence import PodSet
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import Booking
from runai.hub_service.scheduler.state.victim_order import Victim
from runai.hub_service.scheduler.steps.victim_selection import (
    Candidate,
    CandidateSet,
    PreemptionScope,
    VictimIterator,
)

_RESERVED = Phase.RESERVED


class StoppedVictim(NamedTuple):
    """A victim with its previous standings and bookings, for the undo."""

    giver: Candidate
    members: tuple[PlannedWorker, ...]
    standings: tuple[Phase, ...]
    bookings: tuple[Booking | None, ...]

    @property
    def is_surplus(self) -> bool:
        """Return True if the workload continues without it."""
        return self.giver.victim.is_surplus

    @property
    def nodes(self) -> list[int]:
        """Nodes where capacity is freed."""
        return [booking.node for booking in self.bookings if booking]


class Moves(Protocol):
    """Placement of a unit by moving other workers."""

    def could_fit(self, unit: PodSet) -> bool:
        """Return True if the unit fits by moves; the state stays unchanged."""
        ...

    def make_fit(self, unit: PodSet) -> bool:
        """Move workers and reserve the unit's place."""
        ...


class VictimSearch:
    """Search for the workers to stop so that one waiting unit fits.

    A unit is a group of workers that start together; `way` says whose workers may be stopped. It
    changes the state only on success.
    """

    def __init__(
        self,
        state: State,
        unit: PodSet,
        way: PreemptionScope,
        choice: CandidateSet,
        may_stop: int | None = None,
        moves: Moves | None = None,
    ) -> None:
        """Start without victims; `may_stop` limits the stopped workers, None is no limit.

        With `moves`, victims only have to suffice together with moves of other workers.
        """
        self._moves = moves
        self._state = state
        self._unit = unit
        self._may_stop = may_stop
        self._fit = Fit(state, unit.members)
        self.givers = VictimIterator(state, unit, way, choice, self._fit)
        """Source of victims, which also records why there are no more."""
        self._end: int | None = None
        """Mark of the journal after success, if the lane's next unit can continue from it."""
        self.taken: list[StoppedVictim] = []
        self.is_held = False
        """True if only capacity that is never lent (Q2) prevents the placement."""
        self.stops_too_many = False
        """True if it would stop more workers than one plan may (R8)."""

    def run(self) -> bool:
        """Take victims until the unit fits, restore unnecessary ones, and place the unit."""
        state = self._state
        mark = state.mark()
        is_served = self._is_served()
        if is_served and "allocate" not in state.policy.phases:
            return False
        while not is_served:
            found = self.givers.next()
            if found is None:
                state.roll_back(mark)
                return False
            self._add_victim(found)
            is_served = self._is_served()
        taken = len(self.taken)
        if taken > 1:  # a single victim is necessary: without it the unit did not fit
            self._minimise()
        is_as_chosen = not self._let_go_what_moves()
        if self._may_stop is not None and self._stops > self._may_stop:
            self.stops_too_many = True
            state.roll_back(mark)
            return False
        # If only a cap was in the way, or no victim runs yet, it may start now; else it waits for
        # its victims to end (R7).
        is_free = (
            self.givers.relieves_caps or not self._stops or "allocate" not in state.policy.phases
        )
        may_start = is_free and not self._unit.falls_short(now=True)
        placed_from = state.mark()
        for standing in (Phase.STARTED, Phase.RESERVED) if may_start else (_RESERVED,):
            if self._place(standing):
                if standing is Phase.STARTED and still_over(self._unit.item):
                    state.roll_back(placed_from)
                    continue
                if leaves_what_is_never_lent(state, self._unit.item):
                    if is_as_chosen and len(self.taken) == taken:
                        self._end = state.mark()
                    return True
                self.is_held = True
                break
        state.roll_back(mark)
        return False

    @property
    def _stops(self) -> int:
        return sum(taken.standings.count(Phase.RUNNING) for taken in self.taken)

    def _place(self, standing: Phase) -> bool:
        members, found = self._unit.members, self._fit.place
        if self._moves is not None and standing is _RESERVED and not self._fit.fits():
            return self._moves.make_fit(self._unit)
        if found is None or standing is not _RESERVED or self._unit.item.sizes is not None:
            return place(self._state, members, standing)
        (member,) = members
        self._state.set(member, standing, self._state.book(member.kind, *found))
        return True

    def resume(self, unit: PodSet, may_stop: int | None) -> bool:
        """Serve the lane's next unit, continuing from the result of the previous one.

        Victims that were useless then are useless now, so that the claims of a lane iterate over
        the victims only once. False means that the unit needs a search of its own: the state
        changed since, a cap is in the way, or no victim is left.
        """
        if (
            self._end != self._state.mark()
            or self.givers.way.own
            or self.givers.relieves_caps
            or self._fit.counts_base
        ):
            return False
        fits = False if self._used_freed_devices() else None
        self._unit = self.givers.unit = unit
        self._may_stop, self._end = may_stop, None
        if cap_in_the_way(unit) or not self.givers.stays_within_share(0):
            return False
        self._fit.check(unit.members, fits=fits)
        self.taken = []
        return self.run()

    def _used_freed_devices(self) -> bool:
        """Return True if the unit took exactly its only victim's place, adding no free room."""
        freed = [_devices_of(booking) for taken in self.taken for booking in taken.bookings]
        return freed == [_devices_of(member.booking) for member in self._unit.members]

    def _is_served(self) -> bool:
        if self.givers.relieves_caps and cap_in_the_way(self._unit) is not None:
            return False
        if self._fit.fits():
            return self._leaves_what_is_never_lent()
        return self._moves is not None and self._moves.could_fit(self._unit)

    def _leaves_what_is_never_lent(self) -> bool:
        state = self._state
        if not state.tree.holders:
            return True
        mark = state.mark()
        leaves = self._place(_RESERVED) and leaves_what_is_never_lent(state, self._unit.item)
        state.roll_back(mark)
        self.is_held = self.is_held or not leaves
        return leaves

    # ---- take and restore victims (R5)

    def _add_victim(self, giver: Candidate) -> None:
        taken = _with_standings(giver)
        self.taken.append(taken)
        self._release(taken)
        self.givers.rank_again(giver.account)
        if self._fit.counts_base:
            self.givers.restart()

    def _release(self, taken: StoppedVictim) -> None:
        for member in taken.members:
            self._state.release(member)
        self._fit.freed(taken.nodes)

    def _restore(self, taken: StoppedVictim) -> None:
        for member, standing, booking in zip(
            taken.members, taken.standings, taken.bookings, strict=True
        ):
            self._state.set(member, standing, booking)
        self._fit.recheck(taken.nodes)

    def _minimise(self) -> None:
        """Restore each victim, the last chosen first, while the unit still fits."""
        judged = Counter(_judged(taken.giver) for taken in self.taken)
        gone_whole = {taken.giver.victim.item for taken in self.taken if not taken.is_surplus}
        needed: list[StoppedVictim] = []
        for taken in reversed(self.taken):
            if taken.is_surplus and taken.giver.victim.item in gone_whole:
                needed.append(taken)  # a surplus worker cannot run without its minimum
                continue
            self._restore(taken)
            judged[_judged(taken.giver)] -= 1
            if self._is_served() and self._allows_victims(judged):
                gone_whole.discard(taken.giver.victim.item)
                continue
            judged[_judged(taken.giver)] += 1
            self._release(taken)
            needed.append(taken)
        self.taken = needed[::-1]

    def _let_go_what_moves(self) -> bool:
        """Replace victims that would wait by equal ones that can go on elsewhere (R5).

        Return True if any was replaced.
        """
        wanted = sum(member.kind.devices * member.kind.milli for member in self._unit.members)
        if self._moves is not None or self._state.later.free_milli <= wanted:
            return False  # nothing is left for the victims
        tried: set[Victim] = set()
        replaced = False
        while (better := self._movable_instead(tried)) is not None:
            index, victim = better
            tried.add(self.taken[index].giver.victim)
            replaced = self._replace(index, victim) or replaced
        return replaced

    def _movable_instead(self, tried: AbstractSet[Victim]) -> tuple[int, Victim] | None:
        """Return a victim that can go on elsewhere, and the index of the one that it replaces."""
        state, mark = self._state, self._state.mark()
        found = None
        if self._place(_RESERVED):
            stay_behind = [
                index
                for index, taken in enumerate(self.taken)
                if not (_is_job(taken.giver.victim) and place(state, taken.members, _RESERVED))
                and taken.giver.victim not in tried
            ]
            gone = {taken.giver.victim.item for taken in self.taken}
            found = next(
                (
                    (index, other)
                    for index in reversed(stay_behind)
                    for other in self._equals_of(self.taken[index])
                    if other.item not in gone
                    and _is_job(other)
                    and Fit(state, other.workers()).fits()
                ),
                None,
            )
        state.roll_back(mark)
        return found

    def _equals_of(self, taken: StoppedVictim) -> list[Victim]:
        giver, held = taken.giver, [booking for booking in taken.bookings if booking]
        if taken.is_surplus or giver.rule == "Q6" or giver.victim.item.sizes is not None:
            return []
        return self.givers.equals_of(giver.victim, held)

    def _replace(self, index: int, victim: Victim) -> bool:
        """Let another victim go instead, unless the unit needs the one that was taken."""
        taken = self.taken[index]
        other = _with_standings(taken.giver._replace(victim=victim))
        self._restore(taken)
        self._release(other)
        if self._is_served():
            self.taken[index] = other
            return True
        self._restore(other)
        self._release(taken)
        return False

    def _allows_victims(self, judged: Counter[tuple[int, bool]]) -> bool:
        """Return True if R2 still allows all remaining victims, with one restored."""
        left = [judgement for judgement, count in judged.items() if count]
        highest = max((level for level, _ in left), default=-1)
        return all(self.givers.stays_within_share(level) for level in range(highest + 1)) and all(
            self.givers.stays_within_quota(level) for level, within_quota in left if within_quota
        )


def _with_standings(giver: Candidate) -> StoppedVictim:
    members = giver.victim.workers()
    standings = tuple([member.standing for member in members])
    return StoppedVictim(giver, members, standings, tuple([m.booking for m in members]))


def _is_job(victim: Victim) -> bool:
    """Return True if it queues again once it is stopped; a session ends (Q5)."""
    return victim.item.workload.kind == "job"


def _judged(giver: Candidate) -> tuple[int, bool]:
    return giver.level, giver.within_quota


def _devices_of(booking: Booking | None) -> tuple[object, ...] | None:
    return booking[:4] if booking else None

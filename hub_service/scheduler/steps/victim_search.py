"""The search for victims of one unit: how few suffice, and that they do.

Knows R5 (proven by placing the claimant, and minimal) and gives everything back where it fails.
Who may be taken and in which order is `givers`'; the order of claimants and ways is `reclaim`'s,
its caller; places are `placement`'s.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from runai.hub_service.scheduler.placement.fit_check import Fit
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.quota_check import (
    cap_in_the_way,
    leaves_what_is_never_lent,
    still_over,
)
from runai.hub_service.scheduler.state.equivalence import Unit
from runai.hub_service.scheduler.state.planned_workloads import Member, Standing
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import Booking
from runai.hub_service.scheduler.steps.victim_selection import Choice, Giver, Givers, Way

_RESERVED = Standing.RESERVED


class Taken(NamedTuple):
    """A victim with what it had, so that it can be given back."""

    giver: Giver
    members: tuple[Member, ...]
    standings: tuple[Standing, ...]
    bookings: tuple[Booking | None, ...]

    @property
    def is_surplus(self) -> bool:
        """Tell whether the workload goes on without it."""
        return self.giver.victim.is_surplus

    @property
    def nodes(self) -> list[int]:
        """Where something is freed."""
        return [booking.node for booking in self.bookings if booking]


class Search:
    """The search of one unit along one way. Leaves the state changed only if it succeeds."""

    def __init__(
        self,
        state: State,
        unit: Unit,
        way: Way,
        choice: Choice,
        may_stop: int | None = None,
    ) -> None:
        """Look at nobody yet; `may_stop` is how many workers it may stop, None is any."""
        self._state = state
        self._unit = unit
        self._may_stop = may_stop
        self._fit = Fit(state, unit.members)
        self.givers = Givers(state, unit, way, choice, self._fit)
        """Whom it asks, and what kept it from more."""
        self._end: int | None = None
        """Where its success left the state, if the next claimant may go on from there."""
        self.taken: list[Taken] = []
        self.is_held = False
        """Whether it would fit but for what is never lent (Q2)."""
        self.stops_too_many = False
        """Whether it would stop more workers than one plan may (R8)."""

    def run(self) -> bool:
        """Take victims until the unit fits, give back what is not needed, and place it."""
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
            self._take(found)
            is_served = self._is_served()
        taken = len(self.taken)
        if taken > 1:  # without its only victim it did not fit
            self._minimise()
        if self._may_stop is not None and self._stops > self._may_stop:
            self.stops_too_many = True
            state.roll_back(mark)
            return False
        # Where only a cap was in the way it may start at once; else it waits for its victims (R7).
        is_free = self.givers.relieves_caps or "allocate" not in state.policy.phases
        may_start = is_free and not self._unit.falls_short(now=True)
        placed_from = state.mark()
        for standing in (Standing.STARTED, Standing.RESERVED) if may_start else (_RESERVED,):
            if self._place(standing):
                if standing is Standing.STARTED and still_over(self._unit.item):
                    state.roll_back(placed_from)
                    continue
                if leaves_what_is_never_lent(state, self._unit.item):
                    if len(self.taken) == taken:
                        self._end = state.mark()
                    return True
                self.is_held = True
                break
        state.roll_back(mark)
        return False

    @property
    def _stops(self) -> int:
        return sum(taken.standings.count(Standing.RUNNING) for taken in self.taken)

    def _place(self, standing: Standing) -> bool:
        members, found = self._unit.members, self._fit.place
        if found is None or standing is not _RESERVED or self._unit.item.sizes is not None:
            return place(self._state, members, standing)
        (member,) = members
        self._state.set(member, standing, self._state.book(member.kind, *found))
        return True

    def go_on(self, unit: Unit, may_stop: int | None) -> bool:
        """Serve the next that asks for the same, from where the one before it was served.

        Who was of no use then is of none now, so that the claims of a lane go through the victims
        once together. False says nothing but that it takes a search of its own: something else
        happened since, or a cap is in the way, or nobody is left to take.
        """
        if (
            self._end != self._state.mark()
            or self.givers.way.own
            or self.givers.relieves_caps
            or self._fit.counts_base
        ):
            return False
        fits = False if self._took_what_was_freed() else None
        self._unit = self.givers.unit = unit
        self._may_stop, self._end = may_stop, None
        if cap_in_the_way(unit.item, unit.demand) or not self.givers.stays_within_share(0):
            return False
        self._fit.ask_for(unit.members, fits=fits)
        self.taken = []
        return self.run()

    def _took_what_was_freed(self) -> bool:
        """Tell whether the unit is where its only victim was, so that nobody has more room now."""
        freed = [_devices_of(booking) for taken in self.taken for booking in taken.bookings]
        return freed == [_devices_of(member.booking) for member in self._unit.members]

    def _is_served(self) -> bool:
        if (
            self.givers.relieves_caps
            and cap_in_the_way(self._unit.item, self._unit.demand) is not None
        ):
            return False
        return self._fit.fits()

    # ---- taking and giving back (R5)

    def _take(self, giver: Giver) -> None:
        members = giver.victim.workers()
        standings = tuple([member.standing for member in members])
        bookings = tuple([member.booking for member in members])
        taken = Taken(giver, members, standings, bookings)
        self.taken.append(taken)
        self._release(taken)
        self.givers.rank_again(giver.account)
        if self._fit.counts_base:
            self.givers.look_again()

    def _release(self, taken: Taken) -> None:
        for member in taken.members:
            self._state.release(member)
        self._fit.freed(taken.nodes)

    def _restore(self, taken: Taken) -> None:
        for member, standing, booking in zip(
            taken.members, taken.standings, taken.bookings, strict=True
        ):
            self._state.set(member, standing, booking)
        self._fit.given_back(taken.nodes)

    def _minimise(self) -> None:
        """Give back each victim, the last chosen first, while the unit still fits."""
        judged = Counter(_judged(taken.giver) for taken in self.taken)
        gone_whole = {taken.giver.victim.item for taken in self.taken if not taken.is_surplus}
        needed: list[Taken] = []
        for taken in reversed(self.taken):
            if taken.is_surplus and taken.giver.victim.item in gone_whole:
                needed.append(taken)  # a surplus worker cannot run without its minimum
                continue
            self._restore(taken)
            judged[_judged(taken.giver)] -= 1
            if self._is_served() and self._may_keep(judged):
                gone_whole.discard(taken.giver.victim.item)
                continue
            judged[_judged(taken.giver)] += 1
            self._release(taken)
            needed.append(taken)
        self.taken = needed[::-1]

    def _may_keep(self, judged: Counter[tuple[int, bool]]) -> bool:
        """Tell whether R2 still allows all that is taken, with what was given back."""
        left = [judgement for judgement, count in judged.items() if count]
        highest = max((level for level, _ in left), default=-1)
        return all(self.givers.stays_within_share(level) for level in range(highest + 1)) and all(
            self.givers.stays_within_quota(level) for level, within_quota in left if within_quota
        )


def _judged(giver: Giver) -> tuple[int, bool]:
    return giver.level, giver.within_quota


def _devices_of(booking: Booking | None) -> tuple[object, ...] | None:
    return booking[:4] if booking else None

"""The search for victims of one unit: who may be taken, in which order, and how few suffice.

Knows R1, R2 and R8 (who may be taken), R4 (in which order) and R5 (proven and minimal). Leaves
the order of claimants and ways to `reclaim`, its caller, and places to `placement`.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import NamedTuple

from runai.hub_service.scheduler.fit import Fit
from runai.hub_service.scheduler.items import Member, Standing
from runai.hub_service.scheduler.kinds import Booking
from runai.hub_service.scheduler.lanes import Unit
from runai.hub_service.scheduler.placement import place
from runai.hub_service.scheduler.protection import protected_until
from runai.hub_service.scheduler.quotas import cap_in_the_way, leaves_what_is_never_lent
from runai.hub_service.scheduler.state import State
from runai.hub_service.scheduler.tree import Account, Age
from runai.hub_service.scheduler.victims import Protected, Victim

Overage = tuple[int, Age]
"""How far a project is over what it is entitled to, and its age: who is greatest gives first."""

_RESERVED = Standing.RESERVED


class Way(NamedTuple):
    """From whom a unit tries to take: other projects (R2), its own (R1), surplus only (R6)."""

    others: bool
    own: bool
    surplus_only: bool
    lent: bool
    """Whether its own project has surplus that only uses what is idle (E1)."""


class Choice(NamedTuple):
    """Whom a search may take from: everybody that its way allows, or those on one node."""

    victims: Callable[[Account], list[Victim]]
    """Gives an account's victims, the best last."""
    among: AbstractSet[Account] | None = None
    """The accounts that have any of them, or somebody below has; None is any."""
    protected: Callable[[Account], list[Protected]] | None = None
    """Gives those that earlier searches found to be protected and took out of the victims."""


class Taken(NamedTuple):
    """A victim with what it had, so that it can be given back, and why it could be taken."""

    victim: Victim
    members: tuple[Member, ...]
    standings: tuple[Standing, ...]
    bookings: tuple[Booking | None, ...]
    rule: str
    giver: Account
    level: int
    """How far up the claimant's path R2 judged it; -1 for a preemption."""

    @property
    def is_surplus(self) -> bool:
        """Tell whether the workload goes on without it."""
        return self.victim.is_surplus

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
        self._way = way
        self._choice = choice
        self._may_stop = may_stop
        self._path = unit.item.account.path
        # Q4: of a project whose quota is a table the part that the unit is on is judged.
        self._judged = [self._path[0] if a.parts else a for a in self._path]
        self._fit = Fit(state, unit.members)
        self._cursors: dict[Account, int] = {}
        self._begun: set[Account] = set()
        self._rivals: dict[tuple[int, bool], list[tuple[Overage, Account]]] = {}
        self._relieves_caps = cap_in_the_way(unit.item, unit.demand) is not None
        self._end: int | None = None
        """Where its success left the state, if the next claimant may go on from there."""
        self.taken: list[Taken] = []
        self.exceeds_share = False
        """Whether R2 forbade it to take from others."""
        self.is_held = False
        """Whether it would fit but for what is never lent (Q2)."""
        self.stops_too_many = False
        """Whether it would stop more workers than one plan may (R8)."""
        self._protected: list[Protected] = []
        """Whom it met and may not take yet, but for those that every search would meet (R8)."""

    def run(self) -> bool:
        """Take victims until the unit fits, give back what is not needed, and place it."""
        state = self._state
        mark = state.mark()
        is_served = self._is_served()
        if is_served and "allocate" not in state.policy.phases:
            return False
        while not is_served:
            found = self._next()
            if found is None:
                state.roll_back(mark)
                return False
            self._take(*found)
            is_served = self._is_served()
        taken = len(self.taken)
        if taken > 1:  # without its only victim it did not fit
            self._minimise()
        if self._may_stop is not None and self._stops > self._may_stop:
            self.stops_too_many = True
            state.roll_back(mark)
            return False
        # Where only a cap was in the way it may start at once; else it waits for its victims (R7).
        may_start = self._relieves_caps or "allocate" not in state.policy.phases
        for standing in (Standing.STARTED, Standing.RESERVED) if may_start else (_RESERVED,):
            if self._place(standing):
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
        if found is None or standing is not _RESERVED or members[0].item.sizes is not None:
            return place(self._state, members, standing)
        self._state.set(members[0], standing, self._state.book(members[0].kind, *found))
        return True

    def go_on(self, unit: Unit, may_stop: int | None) -> bool:
        """Serve the next that asks for the same, from where the one before it was served.

        Who was of no use then is of none now, so that the claims of a lane go through the victims
        once together. False says nothing but that it takes a search of its own: something else
        happened since, or a cap is in the way, or nobody is left to take.
        """
        is_as_left = self._end is not None and self._end == self._state.mark()
        if not is_as_left or self._way.own or self._relieves_caps or self._fit.counts_base:
            return False
        fits = False if self._took_what_was_freed() else None
        self._unit, self._may_stop, self._end = unit, may_stop, None
        if cap_in_the_way(unit.item, unit.demand) or not self._stays_within_share(0):
            return False
        self._fit.ask_for(unit.members, fits=fits)
        self.taken = []
        return self.run()

    def _took_what_was_freed(self) -> bool:
        """Tell whether the unit is where its only victim was, so that nobody has more room now."""
        if len(self.taken) != 1 or len(self._unit.members) != 1:
            return False
        freed, took = self.taken[0].bookings, self._unit.members[0].booking
        return len(freed) == 1 and _devices_of(freed[0]) == _devices_of(took)

    def _is_served(self) -> bool:
        if self._relieves_caps and cap_in_the_way(self._unit.item, self._unit.demand) is not None:
            return False
        return self._fit.fits()

    # ---- who is next to give (R4)

    def _next(self) -> tuple[Victim, str, Account, int] | None:
        if self._way.others:
            found = self._next_of_others()
            if found is not None:
                return found
        if self._way.own:
            victim = self._peek(self._path[0], own=True)
            if victim is not None:
                return victim, self._rule_for(victim), self._path[0], -1
        return None

    def _next_of_others(self) -> tuple[Victim, str, Account, int] | None:
        best: tuple[Overage, Victim, Account, int] | None = None
        demand = self._unit.demand
        for level, mine in enumerate(self._path):
            if not self._stays_within_share(level):
                self.exceeds_share = True
                break
            judged = self._judged[level]
            is_within_quota = judged.allocated + demand <= judged.quota
            rivals = self._rivals_at(level, mine, is_within_quota=is_within_quota)
            while rivals:
                overage, rival = rivals[-1]
                if best is not None and overage < best[0]:
                    break
                victim = None
                if _may_take(rival, is_within_quota=is_within_quota):
                    victim = self._pick(rival)
                if victim is not None:
                    best = (overage, victim, rival, level)
                    break
                rivals.pop()
        return None if best is None else (best[1], "R2", best[2], best[3])

    def _rivals_at(
        self, level: int, mine: Account, *, is_within_quota: bool
    ) -> list[tuple[Overage, Account]]:
        """Rank who may lose something at a level, the furthest over last (R4)."""
        key, among = (level, is_within_quota), self._choice.among
        rivals = self._rivals.get(key)
        if rivals is None:
            siblings = mine.parent.children if mine.parent else self._state.tree.roots
            rivals = self._rivals[key] = [
                ((rival.overage, rival.age), rival)
                for sibling in siblings
                if sibling is not mine
                for rival in sibling.parts or (sibling,)
                if (among is None or rival in among)
                and _may_take(rival, is_within_quota=is_within_quota)
            ]
            rivals.sort(key=itemgetter(0))
        return rivals

    def _rank_again(self, giver: Account) -> None:
        """Note that somebody lost something."""
        for rivals in self._rivals.values():
            for index in range(len(rivals) - 1, -1, -1):
                if rivals[index][1] is giver:
                    del rivals[index]
                    insort(rivals, ((giver.overage, giver.age), giver), key=itemgetter(0))
                    break

    def _stays_within_share(self, level: int) -> bool:
        mine = self._judged[level]
        return mine.allocated + self._unit.demand <= mine.fair_share

    def _pick(self, account: Account) -> Victim | None:
        if not account.children:
            return self._peek(account, own=False)
        # A child is not protected by its quota while its ancestor is over (R2).
        ranked = sorted(account.children, key=lambda a: (a.overage, a.age), reverse=True)
        for child in ranked:
            victim = self._pick(child)
            if victim is not None:
                return victim
        return None

    def _peek(self, account: Account, *, own: bool) -> Victim | None:
        victims = self._choice.victims(account)
        cursor = self._cursors.get(account)
        if cursor is None:
            if account not in self._begun:
                self._begun.add(account)
                while victims and not victims[-1].is_active:
                    victims.pop()  # gone for good: this search has not taken from here yet
            cursor = len(victims) - 1
        claimant = self._unit.item
        while cursor >= 0:
            self._state.victim_looks += 1
            victim = victims[cursor]
            may_go = not own or self._goes_before(victim) or victim.is_lent
            if not may_go and not self._way.lent:
                cursor = -1  # from here on everybody's priority is as high (R1)
                break
            is_there = may_go and victim.is_active and victim.item is not claimant
            if is_there and self._is_useful(victim):
                until = self._protected_until(victim)
                if until is None:
                    break
                self._set_apart(Protected(victim, until), account, cursor)
            cursor -= 1
        self._cursors[account] = cursor
        return victims[cursor] if cursor >= 0 else None

    def _goes_before(self, victim: Victim) -> bool:
        """Tell whether the claimant preempts a victim of its own project (R1)."""
        claimant = self._unit.item
        return claimant.is_fixed or victim.item.rank < claimant.rank

    def _rule_for(self, victim: Victim) -> str:
        """Name the rule by which a victim of the own project gives way."""
        if victim.is_extra:
            return "E2"
        return "R1" if self._goes_before(victim) else "E1"

    def _is_useful(self, victim: Victim) -> bool:
        if self._relieves_caps:
            return True
        for member in victim.workers():
            if member.booking is not None and self._fit.gains_from(member.booking):
                return True
        return False

    # ---- who may not be taken yet (R8)

    def _protected_until(self, victim: Victim) -> int | None:
        state = self._state
        if not state.protects or victim.is_surplus:
            return None
        return protected_until(victim.item, victim.workers(), state.policy, state.time)

    def _set_apart(self, protected: Protected, account: Account, cursor: int) -> None:
        if self._choice.protected is not None and protected.victim.is_settled:
            del self._choice.victims(account)[cursor]
            insort(self._choice.protected(account), protected, key=lambda p: p.victim.key)
        else:
            self._protected.append(protected)

    def protected_until(self) -> int | None:
        """Give when the first that would be of use may be taken; None if nobody was protected."""
        known = self._protected
        if self._choice.protected is not None:
            known = known + [p for a in self._begun for p in self._choice.protected(a)]
            self._state.victim_looks += len(known)
        mine = self._path[0]
        untils = [
            until
            for victim, until in known
            if victim.item is not self._unit.item
            and (victim.item.account is not mine or self._goes_before(victim))
            and self._is_useful(victim)
        ]
        return min(untils, default=None)

    # ---- taking and giving back (R5)

    def _take(self, victim: Victim, rule: str, giver: Account, level: int) -> None:
        members = victim.workers()
        standings = tuple([member.standing for member in members])
        bookings = tuple([member.booking for member in members])
        taken = Taken(victim, members, standings, bookings, rule, giver, level)
        self.taken.append(taken)
        self._release(taken)
        self._rank_again(giver)
        if self._fit.counts_base:
            self._cursors.clear()  # who was of no use may be now, with another thing missing
            self._rivals.clear()

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
        levels = Counter(taken.level for taken in self.taken)
        gone_whole = {taken.victim.item for taken in self.taken if not taken.is_surplus}
        needed: list[Taken] = []
        for taken in reversed(self.taken):
            if taken.is_surplus and taken.victim.item in gone_whole:
                needed.append(taken)  # a surplus worker cannot run without its minimum
                continue
            self._restore(taken)
            levels[taken.level] -= 1
            if self._is_served() and self._stays_within_shares(levels):
                gone_whole.discard(taken.victim.item)
                continue
            levels[taken.level] += 1
            self._release(taken)
            needed.append(taken)
        self.taken = needed[::-1]

    def _stays_within_shares(self, levels: Counter[int]) -> bool:
        highest = max((level for level, count in levels.items() if count), default=-1)
        return all(self._stays_within_share(level) for level in range(highest + 1))


def _devices_of(booking: Booking | None) -> tuple[object, ...] | None:
    return booking and booking[:4]


def _may_take(rival: Account, *, is_within_quota: bool) -> bool:
    """Tell whether a project may lose something (R2), judged before it does."""
    return rival.overage > 0 or (is_within_quota and rival.allocated > rival.quota)

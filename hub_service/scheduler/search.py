"""The search for victims of one unit: who may be taken, in which order, and how few suffice.

Knows R1, R2 and R8 (who may be taken), R4 (in which order) and R5 (proven and minimal). Leaves
the order of claimants and ways to `reclaim`, its caller, and places to `placement`.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import NamedTuple

from runai.hub_service.scheduler.fit import Fit
from runai.hub_service.scheduler.items import Item, Member, Standing
from runai.hub_service.scheduler.kinds import Booking
from runai.hub_service.scheduler.lanes import Unit
from runai.hub_service.scheduler.placement import place
from runai.hub_service.scheduler.protection import protected_until
from runai.hub_service.scheduler.quotas import cap_in_the_way, leaves_what_is_never_lent
from runai.hub_service.scheduler.state import State
from runai.hub_service.scheduler.tree import Account, Age
from runai.hub_service.scheduler.victims import Victim

Victims = Callable[[Account], list[Victim] | None]
"""Who may be asked: gives an account's victims that a way allows, the best last."""

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
        victims: Victims,
        among: AbstractSet[Account] | None = None,
        may_stop: int | None = None,
    ) -> None:
        """Look at nobody yet.

        `among` are the accounts that have any of these victims, or somebody below has them;
        `may_stop` is how many workers it may stop. None is any.
        """
        self._state = state
        self._unit = unit
        self._way = way
        self._victims = victims
        self._among = among
        self._may_stop = may_stop
        self._path = unit.item.account.path
        # Q4: of a project whose quota is a table the part that the unit is on is judged.
        self._judged = [self._path[0] if a.parts else a for a in self._path]
        self._fit = Fit(state, unit.members)
        self._cursors: dict[Account, int] = {}
        self._begun: set[Account] = set()
        self._rivals: dict[tuple[int, bool], list[tuple[Overage, Account]]] = {}
        self._relieves_caps = cap_in_the_way(unit.item, unit.demand) is not None
        self.taken: list[Taken] = []
        self.exceeds_share = False
        """Whether R2 forbade it to take from others."""
        self.is_held = False
        """Whether it would fit but for what is never lent (Q2)."""
        self.stops_too_many = False
        """Whether it would stop more workers than one plan may (R8)."""
        self.protected_until: int | None = None
        """When the first victim that R8 protected may be taken."""

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
        if len(self.taken) > 1:  # without its only victim it did not fit
            self._minimise()
        stops = sum(taken.standings.count(Standing.RUNNING) for taken in self.taken)
        if self._may_stop is not None and stops > self._may_stop:
            self.stops_too_many = True
            state.roll_back(mark)
            return False
        # Where only a cap was in the way it may start at once; else it waits for its victims (R7).
        may_start = self._relieves_caps or "allocate" not in state.policy.phases
        for standing in (Standing.STARTED, Standing.RESERVED) if may_start else (_RESERVED,):
            if place(state, self._unit.members, standing):
                if leaves_what_is_never_lent(state, self._unit.item):
                    return True
                self.is_held = True
                break
        state.roll_back(mark)
        return False

    def _is_served(self) -> bool:
        return cap_in_the_way(self._unit.item, self._unit.demand) is None and self._fit.fits()

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
        key = (level, is_within_quota)
        rivals = self._rivals.get(key)
        if rivals is None:
            siblings = mine.parent.children if mine.parent else self._state.tree.roots
            rivals = self._rivals[key] = [
                ((rival.overage, rival.age), rival)
                for sibling in siblings
                if sibling is not mine
                for rival in sibling.parts or (sibling,)
                if (self._among is None or rival in self._among)
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
        victims = self._victims(account)
        if not victims:
            return None
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
                break
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
        members = victim.workers()
        if not self._relieves_caps and not any(
            member.booking is not None and self._fit.gains_from(member.booking)
            for member in members
        ):
            return False
        return victim.is_surplus or not self._is_protected(victim.item, members)

    def _is_protected(self, item: Item, members: Sequence[Member]) -> bool:
        """Tell whether it may not be paused yet, and remember until when (R8)."""
        state = self._state
        if not state.protects:
            return False
        until = protected_until(item, members, state.policy, state.time)
        if until is None:
            return False
        if self.protected_until is None or until < self.protected_until:
            self.protected_until = until
        return True

    # ---- taking and giving back (R5)

    def _take(self, victim: Victim, rule: str, giver: Account, level: int) -> None:
        members = victim.workers()
        taken = Taken(
            victim,
            members,
            tuple(member.standing for member in members),
            tuple(member.booking for member in members),
            rule,
            giver,
            level,
        )
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


def _may_take(rival: Account, *, is_within_quota: bool) -> bool:
    """Tell whether a project may lose something (R2), judged before it does."""
    return rival.overage > 0 or (is_within_quota and rival.allocated > rival.quota)

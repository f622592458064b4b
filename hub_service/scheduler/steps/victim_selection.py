"""Who gives next: the victim that a claimant may take and that is of use to it (R1, R2, R4).

Knows which projects are over what they are entitled to, the furthest first, which of their
victims would help, and whom R8 protects. Takes nobody: that is `search`'s, its caller.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import NamedTuple

from runai.hub_service.scheduler.placement.fit_check import Fit
from runai.hub_service.scheduler.placement.quota_check import cap_in_the_way
from runai.hub_service.scheduler.state.equivalence import Unit
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import Account, Age
from runai.hub_service.scheduler.state.victim_order import Protected, Victim, protected_until

Overage = tuple[int, Age]
"""How far a project is over what it is entitled to, and its age: who is greatest gives first."""


class Way(NamedTuple):
    """From whom a unit tries to take: other projects (R2), its own (R1), surplus only (R6)."""

    others: bool
    own: bool
    surplus_only: bool
    lent: bool = False
    """Whether surplus of its own project, which only uses what is idle, is among it (E1)."""


class Choice(NamedTuple):
    """Whom a search may take from: everybody that its way allows, or those on one node."""

    victims: Callable[[Account], list[Victim]]
    """Gives an account's victims, the best last."""
    among: AbstractSet[Account] | None = None
    """The accounts that have any of them, or somebody below has; None is any."""
    protected: Callable[[Account], list[Protected]] | None = None
    """Gives those that earlier searches found to be protected and took out of the victims."""


class Giver(NamedTuple):
    """A victim, by which rule it may be taken, and who was judged for it."""

    victim: Victim
    rule: str
    account: Account
    """The project, at R2's level, that is over; the own one for a preemption."""
    level: int
    """How far up the claimant's path R2 judged it; -1 for a preemption."""
    within_quota: bool = False
    """Whether it may be taken only by who stays within the quota there (R2)."""


class Givers:
    """Everybody who may give to one claimant along one way, asked one after another."""

    def __init__(self, state: State, unit: Unit, way: Way, choice: Choice, fit: Fit) -> None:
        """Look at nobody yet."""
        self._state = state
        self.unit = unit
        """The claimant; others that ask for the same may take its place."""
        self.way = way
        self._choice = choice
        self._fit = fit
        self._path = unit.item.account.path
        # Q4: of a project whose quota is a table the part that the unit is on is judged.
        self._judged = [self._path[0] if a.parts else a for a in self._path]
        self._cursors: dict[Account, int] = {}
        self._begun: set[Account] = set()
        self._rivals: dict[tuple[int, bool], list[tuple[Overage, Account]]] = {}
        self._protected: list[Protected] = []
        """Whom it met and may not take yet, but for those that every search would meet (R8)."""
        self.relieves_caps = cap_in_the_way(unit.item, unit.demand) is not None
        """Whether the claimant is in want of less held by its project, rather than of room."""
        self.exceeds_share = False
        """Whether R2 forbade it to take from others."""

    def next(self) -> Giver | None:
        """Choose who loses something next; None where nobody else may or would help."""
        if self.way.others:
            found = self._next_of_others()
            if found is not None:
                return found
        if self.way.own:
            victim = self._peek(self._path[0], own=True)
            if victim is not None:
                return Giver(victim, self._rule_for(victim), self._path[0], -1)
        return None

    def _next_of_others(self) -> Giver | None:
        best: Giver | None = None
        furthest: Overage | None = None
        for level, mine in enumerate(self._path):
            if not self.stays_within_share(level):
                self.exceeds_share = True
                break
            is_within_quota = self.stays_within_quota(level)
            rivals = self._rivals_at(level, mine, is_within_quota=is_within_quota)
            while rivals:
                overage, rival = rivals[-1]
                if furthest is not None and overage < furthest:
                    break
                victim = None
                if _may_take(rival, is_within_quota=is_within_quota):
                    victim = self._pick(rival)
                if victim is not None:
                    best = Giver(victim, "R2", rival, level, rival.overage <= 0)
                    furthest = overage
                    break
                rivals.pop()
        return best

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

    def rank_again(self, giver: Account) -> None:
        """Note that somebody lost something."""
        for rivals in self._rivals.values():
            for index in range(len(rivals) - 1, -1, -1):
                if rivals[index][1] is giver:
                    del rivals[index]
                    insort(rivals, ((giver.overage, giver.age), giver), key=itemgetter(0))
                    break

    def look_again(self) -> None:
        """Look at everybody anew: who was of no use may be, with another thing missing."""
        self._cursors.clear()
        self._rivals.clear()

    def stays_within_share(self, level: int) -> bool:
        """Tell whether a level of the claimant's path keeps to its fair share with it (R2)."""
        mine = self._judged[level]
        return mine.allocated + self.unit.demand <= mine.fair_share

    def stays_within_quota(self, level: int) -> bool:
        """Tell whether a level of the claimant's path keeps to its quota with it (R2)."""
        mine = self._judged[level]
        return mine.allocated + self.unit.demand <= mine.quota

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
        claimant = self.unit.item
        while cursor >= 0:
            self._state.victim_looks += 1
            victim = victims[cursor]
            may_go = not own or self._goes_before(victim) or (self.way.lent and victim.is_lent)
            if not may_go and not self.way.lent and not victim.is_extra:
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
        claimant = self.unit.item
        return claimant.is_fixed or victim.item.rank < claimant.rank

    def _rule_for(self, victim: Victim) -> str:
        """Name the rule by which a victim of the own project gives way."""
        if victim.is_extra:
            return "E2"
        return "R1" if self._goes_before(victim) else "E1"

    def _is_useful(self, victim: Victim) -> bool:
        if self.relieves_caps:
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
            if victim.item is not self.unit.item
            and (victim.item.account is not mine or self._goes_before(victim))
            and self._is_useful(victim)
        ]
        return min(untils, default=None)


def _may_take(rival: Account, *, is_within_quota: bool) -> bool:
    """Tell whether a project may lose something (R2), judged before it does."""
    return rival.overage > 0 or (is_within_quota and rival.allocated > rival.quota)

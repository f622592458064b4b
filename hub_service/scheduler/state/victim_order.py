"""What could be taken from whom, and in which order (R4).

Knows how a preemptible workload is cut into victims and keeps each account's sorted, the best
last. Who may be taken, and whether it helps, is `search`'s; kept by `state` from cycle to cycle.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import NamedTuple

from runai.hub_service.scheduler.model.snapshot import Policy
from runai.hub_service.scheduler.state.planned_workloads import ACTIVE, Item, Member, Standing
from runai.hub_service.scheduler.state.project_tree import Account

VictimKey = tuple[bool, int, bool, bool, int, int, str, int]
_key = attrgetter("key")


class Victim:
    """Workers that are taken together: one surplus worker, or what an item needs to run."""

    __slots__ = ("alone", "is_extra", "is_lent", "is_surplus", "item", "key", "member")

    def __init__(self, item: Item, member: Member, *, is_surplus: bool) -> None:
        self.item = item
        self.member = member
        self.is_surplus = is_surplus
        self.alone = (member,) if is_surplus or len(item.members) == 1 else None
        """What goes, where that is always one worker."""
        safe = item.workload.checkpointed
        self.is_extra = is_surplus and item.is_extra(member)
        """Whether it is beyond what its workload asks for: given back before all else (E2)."""
        self.is_lent = self.is_extra or (is_surplus and item.sizes is None)
        """Whether it only uses what is idle: whoever waits in its project may take it (E1, E2)."""
        # R4 (2) to (5), the best victim greatest: what is only lent (E2), lowest priority, surplus,
        # least work lost where that is known (who never told of a checkpoint may lose everything),
        # latest, last by name.
        self.key: VictimKey = (
            self.is_extra,
            -item.rank,
            is_surplus,
            safe is not None,
            0 if safe is None else safe,
            *item.age,
            member.index,
        )

    @property
    def is_active(self) -> bool:
        """Tell whether there still is something to take."""
        return self.member.standing in ACTIVE

    def workers(self) -> tuple[Member, ...]:
        """Give the workers that go: with its minimum, an item loses all that it still has."""
        return self.alone or tuple(
            [member for member in self.item.members if member.standing in ACTIVE]
        )

    @property
    def is_settled(self) -> bool:
        """Tell whether nothing of its workload goes before it: how long it has run stays so.

        Asked of what may be protected, which surplus never is (R8).
        """
        return self.alone is not None or self.item.count(*ACTIVE) <= self.item.minimum


class Protected(NamedTuple):
    """A victim that may not be taken yet (R8)."""

    victim: Victim
    until: int


def victims_of(item: Item) -> tuple[Victim, ...]:
    """Cut a preemptible workload into victims: each surplus worker, then the rest together."""
    if item.is_fixed:
        return ()  # Q1: sessions within the build quota are never victims
    active = [member for member in item.members if member.standing in ACTIVE]
    if not active or item.count(Standing.MOVED):
        return ()  # whoever makes room by moving is not taken as well (R10)
    if len(active) > item.minimum:
        active.sort(key=_waits)  # P4: the minimum runs on, whichever surplus goes
    surplus = [
        Victim(item, member, is_surplus=True)
        for member in active[item.minimum :]
        # E2: what is reserved for a worker starts as it is, or not at all.
        if item.sizes is None or member.standing is not Standing.RESERVED
    ]
    return (*surplus, Victim(item, active[0], is_surplus=False))


def _waits(member: Member) -> bool:
    return member.standing is Standing.RESERVED


class Victims:
    """Every account's victims, as the snapshot has them."""

    def __init__(self) -> None:
        """Start with nobody."""
        self._victims: dict[Account, list[Victim]] = {}
        self._surplus: dict[Account, int] = {}
        self._cut: dict[Item, tuple[Victim, ...]] = {}

    def add(self, item: Item) -> None:
        """Sort in what a workload could lose."""
        victims = victims_of(item)
        if victims:
            self._cut[item] = victims
        for victim in victims:
            account = victim.item.account
            listed = self._victims.setdefault(account, [])
            if not listed or listed[-1].key < victim.key:
                listed.append(victim)
            else:
                insort(listed, victim, key=_key)
            if victim.is_surplus:
                self._surplus[account] = self._surplus.get(account, 0) + 1

    def remove(self, item: Item) -> None:
        """Take a workload out again."""
        for victim in self._cut.pop(item, ()):
            account = victim.item.account
            listed = self._victims[account]
            index = bisect_left(listed, victim.key, key=_key)
            assert listed[index] is victim, "its place follows from its key"
            del listed[index]
            if victim.is_surplus:
                self._surplus[account] -= 1

    def view(self, changed: Iterable[Item]) -> VictimsView:
        """Give what a pass may take from, after this cycle changed these items."""
        return VictimsView(self._victims, self._cut, self._surplus, changed)


class VictimsView:
    """One pass's own lists: copied when they are first asked for, and free to be shortened."""

    def __init__(
        self,
        kept: dict[Account, list[Victim]],
        cut: dict[Item, tuple[Victim, ...]],
        surplus: dict[Account, int],
        changed: Iterable[Item],
    ) -> None:
        """Cut the changed items anew."""
        self._kept = kept
        self._cut = cut
        self._changed: dict[Account, set[Item]] = {}
        self._fresh: dict[Account, list[Victim]] = {}
        for item in changed:
            self._changed.setdefault(item.account, set()).add(item)
            self._fresh.setdefault(item.account, []).extend(victims_of(item))
        self._lists: dict[tuple[Account, bool], list[Victim]] = {}
        self._protected: dict[Account, list[Protected]] = {}
        self._kept_surplus = surplus
        self.has_surplus = any(surplus.values()) or any(
            victim.is_surplus for fresh in self._fresh.values() for victim in fresh
        )

    def of(self, account: Account, *, surplus_only: bool) -> list[Victim]:
        """Give an account's victims, the best last."""
        known = self._lists.get((account, surplus_only))
        if known is not None:
            return known
        if surplus_only:
            listed = []
            if self._kept_surplus.get(account) or account in self._fresh:
                listed = [v for v in self.of(account, surplus_only=False) if v.is_surplus]
        else:
            kept, changed = self._kept.get(account, []), self._changed.get(account)
            if changed is None:
                listed = kept[:]
            else:
                listed = [victim for victim in kept if victim.item not in changed]
                listed += self._fresh[account]
                listed.sort(key=_key)
        self._lists[account, surplus_only] = listed
        return listed

    def protected(self, account: Account) -> list[Protected]:
        """Give those of an account's victims that are known to be protected, the best last.

        Searches set them apart, so that each is met once in a pass and not once a search.
        """
        return self._protected.setdefault(account, [])

    def on(self, members: Collection[Member]) -> dict[Account, list[Victim]]:
        """Give the victims that hold anything of what these members hold, by account."""
        there: defaultdict[Account, list[Victim]] = defaultdict(list)
        present = set(members)
        for item in dict.fromkeys(member.item for member in members):
            account = item.account
            is_kept = item not in self._changed.get(account, ())
            for victim in self._cut.get(item, ()) if is_kept else victims_of(item):
                if not present.isdisjoint(victim.workers()):
                    there[account].append(victim)
        for listed in there.values():
            listed.sort(key=_key)
        return there


HOUR = 3600


def protected_until(item: Item, members: Iterable[Member], policy: Policy, now: int) -> int | None:
    """Give when a workload may be paused; None where it may be now.

    Elastic surplus is never protected: its workload goes on, so nothing is paused (R8).
    """
    until = max(_has_run(item, members, now), _has_rested(item, policy, now))
    return until if until > now else None


def _has_run(item: Item, members: Iterable[Member], now: int) -> int:
    """Give when the minimum run time of its project, or of one above, is over; now at least."""
    least = max(account.min_runtime for account in item.account.path)
    if not least:
        return now
    starts = [
        member.worker.started
        for member in members
        if member.standing is Standing.RUNNING and member.worker.started is not None
    ]
    return max(starts) + least if starts else now


def _has_rested(item: Item, policy: Policy, now: int) -> int:
    """Give when less than the permitted number of its pauses are younger than an hour."""
    most = policy.max_pauses_per_hour
    if most is None:
        return now
    if not most:
        return now + HOUR
    recent = sorted(time for time in item.workload.pauses if now - HOUR < time <= now)
    return recent[-most] + HOUR if len(recent) >= most else now

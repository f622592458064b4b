"""Preemptible workloads as victims, in the order of reclaiming (R4).

Each account's victims are sorted, the best last.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import NamedTuple

from runai.hub_service.scheduler.model.snapshot import Policy, Workload
from runai.hub_service.scheduler.state.planned_workloads import (
    ACTIVE,
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.project_tree import ProjectNode

VictimKey = tuple[bool, int, bool, bool, int, int, int, int, str, int]
TIES = 6
"""Index of a rank's tie breakers; what is before them is a reason to go (R4)."""

_LATEST = 1 << 62
_key = attrgetter("key")


def victim_key(
    workload: Workload,
    *,
    since: int,
    index: int = 0,
    is_surplus: bool = False,
    is_extra: bool = False,
) -> VictimKey:
    """Return the rank of a victim inside its project, the best victim greatest (R4).

    In this order: on idle GPUs only (E2), lowest priority, surplus, known to save its work. Of
    those that save, the one that has run longest goes first (`since`), so that GPUs go round; of
    the others the one that loses least work, if that is known, then the latest started. Then the
    latest submitted, by name.
    """
    saves = workload.saves and not is_surplus
    known = workload.checkpointed
    return (
        is_extra,
        -workload.rank,
        is_surplus,
        saves,
        not saves and known is not None,
        -since if saves else known or 0,
        0 if saves or is_surplus else since,
        workload.submitted,
        workload.name,
        index,
    )


def last_start(workload: Workload, starts: Iterable[int | None], now: int) -> int:
    """Return when the youngest worker started; one without a known start counts as started now.

    For a workload that does not save, "now" is a constant, so that its rank does not change.
    """
    unknown = now if workload.saves else _LATEST
    last = None
    for start in starts:
        if start is None:
            return unknown
        if last is None or start > last:
            last = start
    return unknown if last is None else last


def running_since(item: PlannedWorkload, now: int) -> int:
    """Return since when a workload runs as a whole, as the snapshot shows it (R4).

    Workers that this plan starts, reserves or moves count as started now.
    """
    members = item.members
    if len(members) > 1:
        members = [member for member in members if member.standing.holds_later]
    starts = [m.worker.started if m.standing is Phase.RUNNING else None for m in members]
    return last_start(item.workload, starts, now)


class Victim:
    """Workers that are stopped together: one surplus worker, or a workload's minimum."""

    __slots__ = (
        "alone",
        "is_extra",
        "is_guaranteed",
        "is_lent",
        "is_surplus",
        "item",
        "key",
        "member",
    )

    def __init__(
        self,
        item: PlannedWorkload,
        member: PlannedWorker,
        *,
        is_surplus: bool,
        is_guaranteed: bool = False,
        since: int = 0,
    ) -> None:
        """Rank a victim; `since` is when its workload last started."""
        self.item = item
        self.member = member
        self.is_surplus = is_surplus
        self.alone = (member,) if is_surplus or len(item.members) == 1 else None
        """The single worker that goes; None if several may go."""
        self.is_extra = is_surplus and item.is_extra(member)
        """True if it exceeds its workload's request: reclaimed before all other victims (E2)."""
        self.is_guaranteed = is_guaranteed
        """True if only its own project may take it (E4)."""
        self.is_lent = not is_guaranteed and (self.is_extra or (is_surplus and item.sizes is None))
        """True if it only uses idle GPUs. Any waiting workload of its project may take it (E1,
        E2)."""
        self.key = victim_key(
            item.workload,
            since=since,
            index=member.index,
            is_surplus=is_surplus,
            is_extra=self.is_extra,
        )

    @property
    def is_active(self) -> bool:
        """Return True if it still has devices to reclaim."""
        return self.member.standing in ACTIVE

    def workers(self) -> tuple[PlannedWorker, ...]:
        """Return the workers that stop: without its minimum, a workload loses all its workers."""
        return self.alone or tuple(
            [member for member in self.item.members if member.standing in ACTIVE]
        )

    @property
    def is_settled(self) -> bool:
        """Return True if no part of its workload goes first: its run time is final.

        Only relevant for victims that may be protected, which surplus never is (R8).
        """
        return self.alone is not None or self.item.count(*ACTIVE) <= self.item.minimum


class Protected(NamedTuple):
    """A victim that must not be stopped yet (R8)."""

    victim: Victim
    until: int


def victims_of(item: PlannedWorkload, now: int) -> tuple[Victim, ...]:
    """Split a preemptible workload into victims: each surplus worker, then the rest together."""
    if item.is_fixed:
        return ()  # Q1: sessions within the build quota are never victims
    active = [member for member in item.members if member.standing in ACTIVE]
    if not active or item.count(Phase.MOVED):
        return ()  # R10: a workload that moves to make room is not reclaimed as well
    if len(active) > item.minimum:
        active.sort(key=_has_reservation)  # P4: the minimum runs on, whichever surplus goes
    surplus = [
        Victim(item, member, is_surplus=True, is_guaranteed=count < item.guaranteed)
        for count, member in enumerate(active[item.minimum :], item.minimum)
        # E2: a reserved worker starts with all its parts, or not at all.
        if item.sizes is None or member.standing is not Phase.RESERVED
    ]
    since = running_since(item, now)
    is_guaranteed = item.guaranteed > 0
    least = Victim(item, active[0], is_surplus=False, is_guaranteed=is_guaranteed, since=since)
    return (*surplus, least)


def _has_reservation(member: PlannedWorker) -> bool:
    return member.standing is Phase.RESERVED


class Victims:
    """Victims of every account, as in the snapshot."""

    def __init__(self) -> None:
        """Start without victims."""
        self._victims: dict[ProjectNode, list[Victim]] = {}
        self._surplus: dict[ProjectNode, int] = {}
        self._cut: dict[PlannedWorkload, tuple[Victim, ...]] = {}
        self._undated: dict[PlannedWorkload, None] = {}
        """Workloads that save and run since an unknown time: their ranks change with time (R4)."""

    def add(self, item: PlannedWorkload, now: int) -> None:
        """Insert a workload's victims in order."""
        victims = victims_of(item, now)
        if item.workload.saves and any(
            member.standing is Phase.RUNNING and member.worker.started is None
            for member in item.members
        ):
            self._undated[item] = None
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

    def remove(self, item: PlannedWorkload) -> None:
        """Remove a workload's victims."""
        self._undated.pop(item, None)
        for victim in self._cut.pop(item, ()):
            account = victim.item.account
            listed = self._victims[account]
            index = bisect_left(listed, victim.key, key=_key)
            assert listed[index] is victim, "its place follows from its key"
            del listed[index]
            if victim.is_surplus:
                self._surplus[account] -= 1

    def view(self, changed: Iterable[PlannedWorkload], now: int) -> VictimsView:
        """Return the victims for one pass, with the changed workloads split again."""
        again = {**dict.fromkeys(changed), **self._undated}
        return VictimsView(self._victims, self._cut, self._surplus, again, now)


class VictimsView:
    """Workers that one reclaim pass may stop, sorted, by project.

    Each list is copied on first access, so that the pass may modify it.
    """

    def __init__(
        self,
        kept: dict[ProjectNode, list[Victim]],
        cut: dict[PlannedWorkload, tuple[Victim, ...]],
        surplus: dict[ProjectNode, int],
        changed: Iterable[PlannedWorkload],
        now: int,
    ) -> None:
        """Split the changed workloads into victims again."""
        self._now = now
        self._base = kept
        self._cut = cut
        self._changed: dict[ProjectNode, set[PlannedWorkload]] = {}
        self._fresh: dict[ProjectNode, list[Victim]] = {}
        for item in changed:
            self._changed.setdefault(item.account, set()).add(item)
            self._fresh.setdefault(item.account, []).extend(victims_of(item, now))
        self._lists: dict[tuple[ProjectNode, bool], list[Victim]] = {}
        self._protected: dict[ProjectNode, list[Protected]] = {}
        self._base_surplus = surplus
        self.has_surplus = any(surplus.values()) or any(
            victim.is_surplus for fresh in self._fresh.values() for victim in fresh
        )

    def of(self, account: ProjectNode, *, surplus_only: bool) -> list[Victim]:
        """Return an account's victims, the best last."""
        known = self._lists.get((account, surplus_only))
        if known is not None:
            return known
        if surplus_only:
            listed = []
            if self._base_surplus.get(account) or account in self._fresh:
                listed = [v for v in self.of(account, surplus_only=False) if v.is_surplus]
        else:
            kept, changed = self._base.get(account, []), self._changed.get(account)
            if changed is None:
                listed = kept[:]
            else:
                listed = [victim for victim in kept if victim.item not in changed]
                listed += self._fresh[account]
                listed.sort(key=_key)
        self._lists[account, surplus_only] = listed
        return listed

    def protected(self, account: ProjectNode) -> list[Protected]:
        """Return an account's victims that are known to be protected, the best last.

        Searches move them here, so that a pass checks each only once and not once per search.
        """
        return self._protected.setdefault(account, [])

    def on(self, members: Collection[PlannedWorker]) -> dict[ProjectNode, list[Victim]]:
        """Return the victims that include any of these workers, by account."""
        there: defaultdict[ProjectNode, list[Victim]] = defaultdict(list)
        present = set(members)
        for item in dict.fromkeys(member.item for member in members):
            account = item.account
            is_kept = item not in self._changed.get(account, ())
            for victim in self._cut.get(item, ()) if is_kept else victims_of(item, self._now):
                if not present.isdisjoint(victim.workers()):
                    there[account].append(victim)
        for listed in there.values():
            listed.sort(key=_key)
        return there


HOUR = 3600


def protected_until(
    item: PlannedWorkload, members: Iterable[PlannedWorker], policy: Policy, now: int
) -> int | None:
    """Return the time until which a workload must not be paused. None if it may be now.

    Elastic surplus is never protected: its workload runs on, so nothing is paused (R8).
    """
    until = max(
        _min_runtime_end(item, members, now),
        pauses_expire(item, policy.max_pauses_per_hour, now),
    )
    return until if until > now else None


def _min_runtime_end(item: PlannedWorkload, members: Iterable[PlannedWorker], now: int) -> int:
    """Return the minimum run time's end for its project and ancestors, at least `now`."""
    least = max(account.min_runtime for account in item.account.path)
    if not least:
        return now
    starts = [
        member.worker.started
        for member in members
        if member.standing is Phase.RUNNING and member.worker.started is not None
    ]
    return max(starts) + least if starts else now


def pauses_expire(item: PlannedWorkload, most: int | None, now: int) -> int:
    """Return when it has fewer than `most` pauses and moves in the last hour; `now` if it has."""
    if most is None:
        return now
    if not most:
        return now + HOUR
    recent = sorted(time for time in item.workload.pauses if now - HOUR < time <= now)
    return recent[-most] + HOUR if len(recent) >= most else now

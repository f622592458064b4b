"""Preemptible workloads as victims, in the order of reclaiming (R4).

Each project's victims are sorted, the best last.
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
FIRST_TIE_BREAKER = 6
"""Index of a rank's first tie breaker; what is before it is a reason to go (R4)."""

_LATEST = 1 << 62
_key = attrgetter("key")


def victim_key(
    workload: Workload,
    *,
    since: int,
    index: int = 0,
    is_surplus: bool = False,
    exceeds_request: bool = False,
) -> VictimKey:
    """Return the rank of a victim inside its project, the best victim greatest (R4).

    In this order: on idle GPUs only (E2), lowest priority, surplus, known to save its work. Of
    those that save, the one that has run longest goes first (`since`), so that GPUs go round; of
    the others the one that loses least work, if that is known, then the latest started. Then the
    latest submitted, by name.
    """
    saves = workload.saves and not is_surplus
    checkpointed = workload.checkpointed
    return (
        exceeds_request,
        -workload.rank,
        is_surplus,
        saves,
        not saves and checkpointed is not None,
        -since if saves else checkpointed or 0,
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


def running_since(planned: PlannedWorkload, now: int) -> int:
    """Return since when a workload runs as a whole, as the snapshot shows it (R4).

    Workers that this plan starts, reserves or moves count as started now.
    """
    members = planned.members
    if len(members) > 1:
        members = [member for member in members if member.phase.holds_later]
    starts = [m.worker.started if m.phase is Phase.RUNNING else None for m in members]
    return last_start(planned.workload, starts, now)


class Victim:
    """Workers that are stopped together: one surplus worker, or a workload's minimum."""

    __slots__ = (
        "alone",
        "exceeds_request",
        "is_guaranteed",
        "is_lent",
        "is_surplus",
        "key",
        "member",
        "planned",
    )

    def __init__(
        self,
        planned: PlannedWorkload,
        member: PlannedWorker,
        *,
        is_surplus: bool,
        is_guaranteed: bool = False,
        since: int = 0,
    ) -> None:
        """Rank a victim; `since` is when its workload last started."""
        self.planned = planned
        self.member = member
        self.is_surplus = is_surplus
        self.alone = (member,) if is_surplus or len(planned.members) == 1 else None
        """The single worker that goes; None if several may go."""
        self.exceeds_request = is_surplus and planned.exceeds_request(member)
        """True if it exceeds its workload's request: reclaimed before all other victims (E2)."""
        self.is_guaranteed = is_guaranteed
        """True if only its own project may take it (E4)."""
        uses_idle_gpus = self.exceeds_request or (is_surplus and planned.sizes is None)
        self.is_lent = uses_idle_gpus and not is_guaranteed
        """True if it only uses idle GPUs. Any waiting workload of its project may take it (E1,
        E2)."""
        self.key = victim_key(
            planned.workload,
            since=since,
            index=member.index,
            is_surplus=is_surplus,
            exceeds_request=self.exceeds_request,
        )

    @property
    def is_active(self) -> bool:
        """Return True if it still has devices to reclaim."""
        return self.member.phase in ACTIVE

    def workers(self) -> tuple[PlannedWorker, ...]:
        """Return the workers that stop: without its minimum, a workload loses all its workers."""
        return self.alone or tuple(
            [member for member in self.planned.members if member.phase in ACTIVE]
        )

    @property
    def is_settled(self) -> bool:
        """Return True if no part of its workload goes first: its run time is final.

        Only relevant for victims that may be protected, which surplus never is (R8).
        """
        return self.alone is not None or self.planned.count(*ACTIVE) <= self.planned.minimum


class Protected(NamedTuple):
    """A victim that must not be stopped yet (R8)."""

    victim: Victim
    until: int


def victims_of(planned: PlannedWorkload, now: int) -> tuple[Victim, ...]:
    """Split a preemptible workload into victims: each surplus worker, then the rest together."""
    if planned.is_fixed:
        return ()  # Q1: sessions within the build quota are never victims
    active = [member for member in planned.members if member.phase in ACTIVE]
    if not active or planned.count(Phase.MOVED):
        return ()  # R10: a workload that moves to make room is not reclaimed as well
    if len(active) > planned.minimum:
        active.sort(key=_has_reservation)  # P4: the minimum runs on, whichever surplus goes
    surplus = [
        Victim(planned, member, is_surplus=True, is_guaranteed=count < planned.guaranteed)
        for count, member in enumerate(active[planned.minimum :], planned.minimum)
        # E2: a reserved worker starts with all its parts, or not at all.
        if planned.sizes is None or member.phase is not Phase.RESERVED
    ]
    since = running_since(planned, now)
    is_guaranteed = planned.guaranteed > 0
    minimum = Victim(planned, active[0], is_surplus=False, is_guaranteed=is_guaranteed, since=since)
    return (*surplus, minimum)


def _has_reservation(member: PlannedWorker) -> bool:
    return member.phase is Phase.RESERVED


class Victims:
    """Victims of every project, as in the snapshot."""

    def __init__(self) -> None:
        """Start without victims."""
        self._victims: dict[ProjectNode, list[Victim]] = {}
        self._surplus_counts: dict[ProjectNode, int] = {}
        self._by_workload: dict[PlannedWorkload, tuple[Victim, ...]] = {}
        self._unknown_start: dict[PlannedWorkload, None] = {}
        """Workloads that save and run since an unknown time: their ranks change with time (R4)."""

    def add(self, planned: PlannedWorkload, now: int) -> None:
        """Insert a workload's victims in order."""
        victims = victims_of(planned, now)
        if planned.workload.saves and any(
            member.phase is Phase.RUNNING and member.worker.started is None
            for member in planned.members
        ):
            self._unknown_start[planned] = None
        if victims:
            self._by_workload[planned] = victims
        for victim in victims:
            project = victim.planned.project
            listed = self._victims.setdefault(project, [])
            if not listed or listed[-1].key < victim.key:
                listed.append(victim)
            else:
                insort(listed, victim, key=_key)
            if victim.is_surplus:
                self._surplus_counts[project] = self._surplus_counts.get(project, 0) + 1

    def remove(self, planned: PlannedWorkload) -> None:
        """Remove a workload's victims."""
        self._unknown_start.pop(planned, None)
        for victim in self._by_workload.pop(planned, ()):
            project = victim.planned.project
            listed = self._victims[project]
            index = bisect_left(listed, victim.key, key=_key)
            assert listed[index] is victim, "its place follows from its key"
            del listed[index]
            if victim.is_surplus:
                self._surplus_counts[project] -= 1

    def view(self, changed: Iterable[PlannedWorkload], now: int) -> VictimsView:
        """Return the victims for one pass, with the changed workloads split again."""
        changed_workloads = {**dict.fromkeys(changed), **self._unknown_start}
        return VictimsView(
            self._victims, self._by_workload, self._surplus_counts, changed_workloads, now
        )


class VictimsView:
    """Workers that one reclaim pass may stop, sorted, by project.

    Each list is copied on first access, so that the pass may modify it.
    """

    def __init__(
        self,
        snapshot_victims: dict[ProjectNode, list[Victim]],
        by_workload: dict[PlannedWorkload, tuple[Victim, ...]],
        surplus_counts: dict[ProjectNode, int],
        changed: Iterable[PlannedWorkload],
        now: int,
    ) -> None:
        """Split the changed workloads into victims again."""
        self._now = now
        self._snapshot_victims = snapshot_victims
        self._by_workload = by_workload
        self._changed: dict[ProjectNode, set[PlannedWorkload]] = {}
        self._changed_victims: dict[ProjectNode, list[Victim]] = {}
        for planned in changed:
            self._changed.setdefault(planned.project, set()).add(planned)
            self._changed_victims.setdefault(planned.project, []).extend(victims_of(planned, now))
        self._cached_lists: dict[tuple[ProjectNode, bool], list[Victim]] = {}
        self._protected: dict[ProjectNode, list[Protected]] = {}
        self._surplus_counts = surplus_counts
        self.has_surplus = any(surplus_counts.values()) or any(
            victim.is_surplus for victims in self._changed_victims.values() for victim in victims
        )

    def of_project(self, project: ProjectNode, *, surplus_only: bool) -> list[Victim]:
        """Return a project's victims, the best last."""
        cached = self._cached_lists.get((project, surplus_only))
        if cached is not None:
            return cached
        if surplus_only:
            listed = []
            if self._surplus_counts.get(project) or project in self._changed_victims:
                listed = [v for v in self.of_project(project, surplus_only=False) if v.is_surplus]
        else:
            unchanged, changed = self._snapshot_victims.get(project, []), self._changed.get(project)
            if changed is None:
                listed = unchanged[:]
            else:
                listed = [victim for victim in unchanged if victim.planned not in changed]
                listed += self._changed_victims[project]
                listed.sort(key=_key)
        self._cached_lists[project, surplus_only] = listed
        return listed

    def protected(self, project: ProjectNode) -> list[Protected]:
        """Return a project's victims that are known to be protected, the best last.

        Searches move them here, so that a pass checks each only once and not once per search.
        """
        return self._protected.setdefault(project, [])

    def of_workers(self, members: Collection[PlannedWorker]) -> dict[ProjectNode, list[Victim]]:
        """Return the victims that include any of these workers, by project."""
        by_project: defaultdict[ProjectNode, list[Victim]] = defaultdict(list)
        present = set(members)
        for planned in dict.fromkeys(member.planned for member in members):
            project = planned.project
            is_unchanged = planned not in self._changed.get(project, ())
            known = self._by_workload.get(planned, ())
            for victim in known if is_unchanged else victims_of(planned, self._now):
                if not present.isdisjoint(victim.workers()):
                    by_project[project].append(victim)
        for listed in by_project.values():
            listed.sort(key=_key)
        return by_project


HOUR = 3600


def protected_until(
    planned: PlannedWorkload, members: Iterable[PlannedWorker], policy: Policy, now: int
) -> int | None:
    """Return the time until which a workload must not be paused. None if it may be now.

    Elastic surplus is never protected: its workload runs on, so nothing is paused (R8).
    """
    until = max(
        _min_runtime_end(planned, members, now),
        pauses_expire_at(planned, policy.max_pauses_per_hour, now),
    )
    return until if until > now else None


def _min_runtime_end(planned: PlannedWorkload, members: Iterable[PlannedWorker], now: int) -> int:
    """Return the minimum run time's end for its project and ancestors, at least `now`."""
    min_runtime = max(project.min_runtime for project in planned.project.path)
    if not min_runtime:
        return now
    starts = [
        member.worker.started
        for member in members
        if member.phase is Phase.RUNNING and member.worker.started is not None
    ]
    return max(starts) + min_runtime if starts else now


def pauses_expire_at(planned: PlannedWorkload, max_pauses: int | None, now: int) -> int:
    """Return when its pauses and moves in the last hour are below `max_pauses`, at least `now`."""
    if max_pauses is None:
        return now
    if not max_pauses:
        return now + HOUR
    recent = sorted(time for time in planned.workload.pauses if now - HOUR < time <= now)
    return recent[-max_pauses] + HOUR if len(recent) >= max_pauses else now

"""Waiting workers as pod sets that start together, in equivalence classes (O2).

Each project's pod sets are sorted. If the head of a class finds no place, none behind it does
either, so that a cycle costs the number of classes and not of workloads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import attrgetter

from runai.hub_service.scheduler.model.elastic_sizes import LINEAR, gain
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.project_tree import ProjectNode

OrderKey = tuple[int, int, int, int, int, str, int]
EquivalenceKey = tuple[int, int, int, tuple[int | str, ...], str, str, bool, bool]

_FIXED, _MINIMUM, _SURPLUS = 0, 1, 2
_SCALE = 10**12  # parts of a surplus are compared as integers: placed * _SCALE // requested
_key = attrgetter("key")


class PodSet:
    """Workers of one workload that start together: its minimum, or one surplus worker (E1)."""

    __slots__ = (
        "demand",
        "equivalence",
        "is_growth",
        "is_surplus",
        "key",
        "members",
        "planned",
        "signature",
    )

    def __init__(
        self,
        planned: PlannedWorkload,
        members: tuple[PlannedWorker, ...],
        *,
        is_surplus: bool,
        is_growth: bool = False,
        part: int = 0,
    ) -> None:
        """Group workers; `part` is the placed part of its surplus, in parts of `_SCALE` (E1)."""
        self.is_growth = is_growth
        """True for a guaranteed worker beyond the minimum (E4)."""
        self.planned = planned
        self.members = members
        self.is_surplus = is_surplus
        first = members[0]
        # A reserved worker counts as allocated already.
        if len(members) == 1:
            self.demand = 0 if first.phase is Phase.RESERVED else first.shape.quota
            self.signature: tuple[int | str, ...] = (first.shape.order,)
        else:
            reserved = Phase.RESERVED
            self.demand = sum(m.shape.quota for m in members if m.phase is not reserved)
            self.signature = tuple(sorted([member.shape.order for member in members]))
        if not is_surplus:
            # Gangs that run below their minimum have turn 0, everything else 1.
            turn = int(
                is_growth
                or len(members) == len(planned.members)
                or not planned.count(Phase.RUNNING, Phase.STARTED)
            )
        else:
            # E3: the next GPU goes to the workload with the largest gain.
            turn = LINEAR - gain(planned.workload, planned.sizes, first.index)
            if planned.sizes is not None:
                # It fits only on the node of its other parts, so no other workload shares this
                # equivalence class.
                self.signature = (planned.name,)
        # O2: sessions, then minima by priority, turn, age and name.
        # Surplus of elastic workloads comes after every waiting minimum, the smallest part first
        # (E1).
        self.key: OrderKey = (
            _SURPLUS if is_surplus else _FIXED if planned.is_fixed else _MINIMUM,
            -planned.rank,
            turn,
            part,
            *planned.age,
            first.index,
        )
        self.equivalence: EquivalenceClass | None = None

    @property
    def is_guaranteed(self) -> bool:
        """Return True if it starts within its project's quota or waits (E4)."""
        return bool(self.planned.guaranteed) and not self.is_surplus

    def falls_short(self, *, now: bool = False) -> bool:
        """Return True if the workload would still be below its minimum after placing this pod set.

        That happens if workers were stopped since the pod set was formed; the workload then waits
        whole (P4). `now` counts running workers only, without reserved and moving ones.
        """
        return not self.is_surplus and not self.planned.has_minimum(len(self.members), now=now)

    def __lt__(self, other: PodSet) -> bool:
        return self.key < other.key


class EquivalenceClass:
    """Sorted pod sets of one project with equal requests. If one is blocked, the rest are too."""

    __slots__ = ("changes", "key", "pod_sets", "project")

    def __init__(self, project: ProjectNode, key: EquivalenceKey) -> None:
        self.project = project
        self.key = key
        self.pod_sets: list[PodSet] = []
        self.changes = 0
        """Number of pod sets added and removed so far."""


def pending_pod_sets(planned: PlannedWorkload) -> list[PodSet]:
    """Group a workload's pending workers into pod sets; none while too many are stopping."""
    pending = [member for member in planned.members if member.phase is Phase.PENDING]
    if planned.sizes is not None:
        pending = [member for member in pending if not planned.exceeds_request(member)]
    if not pending or not planned.is_known:
        return []
    if len(pending) == len(planned.members) == planned.minimum:
        return [PodSet(planned, tuple(pending), is_surplus=False)]
    placed = planned.count(Phase.RUNNING, Phase.STARTED, Phase.RESERVED, Phase.MOVED)
    lacking = max(0, planned.minimum - placed)
    if lacking > len(pending):
        return []
    pod_sets = [PodSet(planned, tuple(pending[:lacking]), is_surplus=False)] if lacking else []
    growth = max(0, planned.guaranteed - max(placed, planned.minimum))
    required = lacking + growth
    pod_sets += [
        PodSet(planned, (m,), is_surplus=False, is_growth=True) for m in pending[lacking:required]
    ]
    return pod_sets + surplus_pod_sets(planned, pending[required:], placed + required)


def surplus_pod_sets(
    planned: PlannedWorkload, members: Sequence[PlannedWorker], placed: int
) -> list[PodSet]:
    """Return the pod sets of surplus workers that follow `placed` workers (E1)."""
    if not members:
        return []
    minimum = max(planned.minimum, planned.guaranteed)
    requested = len(planned.members)
    if planned.sizes is not None and not planned.exceeds_request(members[0]):
        requested = 1 + planned.sizes.requested - planned.sizes.minimum
    surplus_placed = max(0, placed - minimum)
    return [
        PodSet(
            planned,
            (m,),
            is_surplus=True,
            part=(surplus_placed + n) * _SCALE // (requested - minimum),
        )
        for n, m in enumerate(members)
    ]


class EquivalenceClasses:
    """Equivalence classes of every project."""

    def __init__(self, *, by_user: bool) -> None:
        """Start empty; `by_user` separates the classes of each user (O3)."""
        self._by_user = by_user
        self._classes: dict[ProjectNode, dict[EquivalenceKey, EquivalenceClass]] = {}
        self._pod_sets: dict[PlannedWorkload, list[PodSet]] = {}

    @property
    def projects(self) -> list[ProjectNode]:
        """Return the projects that have classes, or had some."""
        return list(self._classes)

    def classes_of(self, project: ProjectNode) -> list[EquivalenceClass]:
        """Return a project's classes."""
        return list(self._classes.get(project, {}).values())

    def key_of(self, pod_set: PodSet) -> EquivalenceKey:
        """Return what decides if a pod set can start: pod sets with equal keys fail alike."""
        workload = pod_set.planned.workload
        user = workload.user if self._by_user else ""
        return (
            *pod_set.key[:3],
            pod_set.signature,
            workload.pack_by,
            user,
            pod_set.is_guaranteed,
            pod_set.is_growth,
        )

    def class_of(self, pod_set: PodSet) -> EquivalenceClass:
        """Return the pod set's class: its own, one with its key, or a new unstored one."""
        if pod_set.equivalence is None:
            project, key = pod_set.planned.project, self.key_of(pod_set)
            pod_set.equivalence = self._classes.get(project, {}).get(key) or EquivalenceClass(
                project, key
            )
        return pod_set.equivalence

    def add(self, planned: PlannedWorkload) -> bool:
        """Queue a workload's pending pod sets; return True if there are any."""
        pod_sets = pending_pod_sets(planned)
        if pod_sets:
            self._pod_sets[planned] = pod_sets
            for pod_set in pod_sets:
                self._add(pod_set)
        return bool(pod_sets)

    def _add(self, pod_set: PodSet) -> None:
        project, key = pod_set.planned.project, self.key_of(pod_set)
        classes = self._classes.setdefault(project, {})
        equivalence = classes.get(key)
        if equivalence is None:
            equivalence = classes[key] = EquivalenceClass(project, key)
        pod_set.equivalence = equivalence
        equivalence.changes += 1
        pod_sets = equivalence.pod_sets
        if not pod_sets or pod_sets[-1].key < pod_set.key:
            pod_sets.append(pod_set)
        else:
            insort(pod_sets, pod_set, key=_key)

    def remove(self, planned: PlannedWorkload) -> None:
        """Remove a workload from its classes; drop classes that become empty."""
        for pod_set in self._pod_sets.pop(planned, ()):
            equivalence = pod_set.equivalence
            assert equivalence is not None, "only queued pod sets are removed"
            index = bisect_left(equivalence.pod_sets, pod_set.key, key=_key)
            assert equivalence.pod_sets[index] is pod_set, "its place follows from its key"
            del equivalence.pod_sets[index]
            equivalence.changes += 1
            if not equivalence.pod_sets:
                del self._classes[equivalence.project][equivalence.key]

    def clear(self) -> None:
        """Clear the pod sets of every class: classes and pod sets reference each other."""
        for classes in self._classes.values():
            for equivalence in classes.values():
                equivalence.pod_sets.clear()

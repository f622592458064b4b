"""Queue order: the next pod set of the most deprived project (O1, O2).

Iterates over the classes of waiting pod sets unchanged, and ranks projects again after each
change of their allocation.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from runai.hub_service.scheduler.state.equivalence_classes import EquivalenceClass, OrderKey, PodSet
from runai.hub_service.scheduler.state.planned_workloads import Phase
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import ProjectNode

_SCALE = 10**15  # shares are compared as integers: allocated * _SCALE // allocatable
_ABOVE_ALL_SHARES = 10**30

_SortKey = OrderKey | tuple[int, int, int, int, int, int, str, int]
_Head = tuple[_SortKey, EquivalenceClass, list[PodSet], int]
"""A class's next pod set: unique key, class, the class's pod sets, and the index there."""


class QueueOrder:
    """Iterator over waiting pod sets; the most deprived project is evaluated before each (O1)."""

    def __init__(
        self,
        state: PlanningState,
        extra: Iterable[PodSet] = (),
        *,
        waiting: bool = True,
        surplus: bool = True,
    ) -> None:
        """Include waiting pod sets (with or without surplus), and `extra` ones as they are."""
        self._state = state
        self._heads: dict[ProjectNode, list[_Head]] = {}
        if waiting:
            for project in state.equivalence_classes.projects:
                for equivalence in state.equivalence_classes.classes_of(project):
                    if surplus or not equivalence.pod_sets[0].is_surplus:
                        self._add_head(equivalence, equivalence.pod_sets)
        grouped: dict[EquivalenceClass, list[PodSet]] = {}
        for pod_set in extra:
            grouped.setdefault(state.equivalence_classes.class_of(pod_set), []).append(pod_set)
        for equivalence, pod_sets in grouped.items():
            pod_sets.sort()
            self._add_head(equivalence, pod_sets)
        self._last_project: ProjectNode | None = None
        """Project of the last popped pod set, which is still at the head of its class."""
        self._is_class_skipped = False
        """True if the rest of that class is skipped."""
        self._ranked: dict[
            ProjectNode | None, list[tuple[tuple[object, ...], int, ProjectNode]]
        ] = {}
        self._versions = count()
        self._version: dict[ProjectNode, int] = {}
        self._next_pod_set: dict[ProjectNode, PodSet | None] = {}
        for heads in self._heads.values():
            heapify(heads)
        state.touched.clear()
        for project in self._heads:
            self._rank_path(project)

    def _add_head(self, equivalence: EquivalenceClass, pod_sets: list[PodSet]) -> None:
        head = self._next_head(equivalence, pod_sets, 0)
        if head is not None:
            self._heads.setdefault(equivalence.project, []).append(head)

    def _next_head(
        self, equivalence: EquivalenceClass, pod_sets: list[PodSet], index: int
    ) -> _Head | None:
        """Return the head of a class from `index` on; None at its end."""
        if pod_sets is equivalence.pod_sets:
            # Pod sets placed meanwhile do not wait any more.
            while index < len(pod_sets) and pod_sets[index].members[0].phase is not Phase.PENDING:
                index += 1
        if index >= len(pod_sets):
            return None
        return self._key_of(pod_sets[index]), equivalence, pod_sets, index

    def _key_of(self, pod_set: PodSet) -> _SortKey:
        turns = self._state.turns
        if turns is None:
            return pod_set.key
        # O3: among equal priorities, the user with the smallest allocation, then by age.
        return (*pod_set.key[:3], turns.allocated(pod_set.planned), *pod_set.key[3:])

    def pop(self) -> PodSet | None:
        """Return the next pod set; None at the end."""
        self._state.pod_sets_popped += 1
        self._advance()
        if len(self._heads) == 1 and self._state.turns is None:
            (heads,) = self._heads.values()  # no other project to compare with
            _, equivalence, pod_sets, index = heads[0]
            self._last_project = equivalence.project
            return pod_sets[index]
        touched = self._state.touched
        if touched:
            # Deepest first: a parent ranks by the head of its best child.
            waiting = [changed for changed in touched if changed in self._next_pod_set]
            touched.clear()
            waiting.sort(key=lambda changed: (-len(changed.path), changed.age))
            for changed in waiting:
                self._rank(changed)
        project = self._first_ranked(None)
        if project is None:
            return None
        while project not in self._heads:
            child = self._first_ranked(project)
            assert child is not None, "a ranked project has a pod set below it"
            project = child
        self._last_project = project
        _, _, pod_sets, index = self._heads[project][0]
        return pod_sets[index]

    def skip_class(self) -> None:
        """Skip the rest of the class of the last popped pod set."""
        assert self._last_project is not None, "a pod set was popped"
        self._is_class_skipped = True

    def _advance(self) -> None:
        """Move past the last popped pod set, or past its whole class."""
        if self._last_project is None:
            return
        project, skips_class = self._last_project, self._is_class_skipped
        self._last_project, self._is_class_skipped = None, False
        heads = self._heads[project]
        _, equivalence, pod_sets, index = heads[0]
        head = None if skips_class else self._next_head(equivalence, pod_sets, index + 1)
        if head is not None:
            heapreplace(heads, head)
        else:
            heappop(heads)
            if not heads:
                del self._heads[project]
        self._state.touched.update(project.path)

    def _rank_path(self, project: ProjectNode) -> None:
        for ancestor in project.path:
            self._rank(ancestor)

    def _first_ranked(self, parent: ProjectNode | None) -> ProjectNode | None:
        """Return the most deprived child with a waiting pod set; drop outdated ranks."""
        ranked = self._ranked.get(parent)
        while ranked:
            _, version, project = ranked[0]
            if version == self._version[project] and self._next_pod_set[project] is not None:
                return project
            heappop(ranked)
        return None

    def _rank(self, project: ProjectNode) -> None:
        """Rank a project by its next pod set; a parent's is that of its most deprived child."""
        heads = self._heads.get(project)
        if heads:
            if self._state.turns is not None:
                # An allocation has changed, so another user may be next (O3).
                heads[:] = [
                    (self._key_of(pod_sets[i]), equivalence, pod_sets, i)
                    for _, equivalence, pod_sets, i in heads
                ]
                heapify(heads)
            _, _, pod_sets, index = heads[0]
            head_pod_set: PodSet | None = pod_sets[index]
        else:
            child = self._first_ranked(project)
            head_pod_set = self._next_pod_set[child] if child is not None else None
        self._next_pod_set[project] = head_pod_set
        version = self._version[project] = next(self._versions)
        if head_pod_set is not None:
            demand = _expected_demand(self._state, head_pod_set)
            entry = (_deprivation(project, head_pod_set, demand), version, project)
            heappush(self._ranked.setdefault(project.parent, []), entry)


def _expected_demand(state: PlanningState, pod_set: PodSet) -> int:
    """Return what a pod set counts for on devices that are free now, else the minimum (P3).

    That differs from its demand if it requests memory of devices of several sizes.
    """
    for member in pod_set.members:
        if member.shape.min_quota != member.shape.quota:
            break
    else:
        return pod_set.demand
    demand = 0
    for shape in (m.shape for m in pod_set.members if m.phase is not Phase.RESERVED):
        free_place = state.now.find(shape)
        demand += shape.min_quota if free_place is None else state.book(shape, *free_place).quota
    return demand


def _deprivation(project: ProjectNode, pod_set: PodSet, demand: int) -> tuple[object, ...]:
    """Return the rank of a project among its siblings, smallest first (O1).

    It ends in the project's age and name, so that ranks are unique.
    """
    if project.parts:
        project = pod_set.planned.project  # Q4: the part that it is charged to decides
    allocated, quota = project.allocated, project.quota
    after = allocated + demand
    allocatable = min(project.limit, max(quota, project.fair_share))
    return (
        after > quota,
        -project.priority,
        _dominant_share(after, allocatable),
        _dominant_share(allocated, allocatable),
        -allocatable,
        project.age,
    )


def _dominant_share(allocated: int, allocatable: int) -> int:
    """Return the allocated part of what is allocatable, in parts of `_SCALE`."""
    if not allocatable:
        return _ABOVE_ALL_SHARES + allocated if allocated else 0
    return allocated * _SCALE // allocatable

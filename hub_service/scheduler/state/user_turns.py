"""Turns of a project's users, by their allocations (O3).

Sorts waiting workloads so that the user with the smallest allocation is next. Used only if the
policy has `users_take_turns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from runai.hub_service.scheduler.state.planned_workloads import PlannedWorkload
from runai.hub_service.scheduler.state.project_tree import ProjectNode


class UserTurns:
    """Allocated milli-GPU by project and user."""

    def __init__(self) -> None:
        """Start without allocations."""
        self._allocated: dict[tuple[ProjectNode, str], int] = {}

    def book(self, planned: PlannedWorkload, change: int) -> None:
        """Add to the allocation of a workload's user; a negative change subtracts."""
        key = planned.project, planned.workload.user
        self._allocated[key] = self._allocated.get(key, 0) + change

    def allocated(self, planned: PlannedWorkload) -> int:
        """Return the allocation of a workload's user in its project, sessions and jobs together."""
        return self._allocated.get((planned.project, planned.workload.user), 0)

    def in_turn(self, queue: Iterable[PlannedWorkload]) -> list[PlannedWorkload]:
        """Sort one project's queue by priority (O2), then by the smallest allocation of the user.

        After a turn, the request of the workload counts as allocated to its user.
        """
        groups: dict[tuple[bool, int], dict[str, list[PlannedWorkload]]] = {}
        for planned in sorted(queue, key=attrgetter("place_in_queue"), reverse=True):
            users = groups.setdefault((not planned.is_fixed, -planned.rank), {})
            users.setdefault(planned.workload.user, []).append(planned)
        ordered: list[PlannedWorkload] = []
        for group in sorted(groups):
            waiting = groups[group]
            heads = [(self.allocated(w[-1]), w[-1].age, u) for u, w in waiting.items()]
            heapify(heads)
            while heads:
                allocated, _, user = heappop(heads)
                planned = waiting[user].pop()
                ordered.append(planned)
                if waiting[user]:
                    heappush(
                        heads,
                        (allocated + _minimum_request(planned), waiting[user][-1].age, user),
                    )
        return ordered


def _minimum_request(planned: PlannedWorkload) -> int:
    return sum(member.shape.quota for member in planned.members[: planned.minimum])

"""Users of a project take turns by what they hold (O3).

Knows what each user holds in each project, kept by `state`, and puts waiting workloads in the order
in which their users' turns come. Used by `order` to choose and by `reasons` to say a position; not
there at all unless the policy says `users_take_turns`.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from operator import attrgetter

from runai.hub_service.scheduler.state.planned_workloads import Item
from runai.hub_service.scheduler.state.project_tree import Account


class Turns:
    """Sums of milli-GPU by project and user."""

    def __init__(self) -> None:
        """Start with nobody holding anything."""
        self._held: dict[tuple[Account, str], int] = {}

    def book(self, item: Item, change: int) -> None:
        """Count what a workload's user got, or with a negative change gave."""
        key = item.account, item.workload.user
        self._held[key] = self._held.get(key, 0) + change

    def held(self, item: Item) -> int:
        """Give what a workload's user holds in its project; sessions and jobs together."""
        return self._held.get((item.account, item.workload.user), 0)

    def in_turn(self, queue: Iterable[Item]) -> list[Item]:
        """Sort one project's queue: by priority as ever (O2), then each time who holds least.

        Whoever has had a turn counts as holding what it asked for.
        """
        groups: dict[tuple[bool, int], dict[str, list[Item]]] = {}
        for item in sorted(queue, key=attrgetter("place_in_queue"), reverse=True):
            users = groups.setdefault((not item.is_fixed, -item.rank), {})
            users.setdefault(item.workload.user, []).append(item)
        found: list[Item] = []
        for group in sorted(groups):
            waiting = groups[group]
            next_of = [(self.held(w[-1]), w[-1].age, u) for u, w in waiting.items()]
            heapify(next_of)
            while next_of:
                held, _, user = heappop(next_of)
                item = waiting[user].pop()
                found.append(item)
                if waiting[user]:
                    heappush(next_of, (held + _asked(item), waiting[user][-1].age, user))
        return found


def _asked(item: Item) -> int:
    return sum(member.kind.quota for member in item.members[: item.minimum])

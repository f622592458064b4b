"""Users of a project take turns by what they hold (O3).

Knows what each user holds in each project, kept by `state`, and puts waiting workloads in the order
in which their users' turns come. Used by `order` to choose and by `reasons` to say a position; not
there at all unless the policy says `users_take_turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import TypeVar

from runai.hub_service.scheduler.items import Item
from runai.hub_service.scheduler.tree import Account

_Entry = TypeVar("_Entry")


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

    def in_turn(self, entries: Iterable[_Entry], item_of: Callable[[_Entry], Item]) -> list[_Entry]:
        """Sort one project's queue: by priority as ever (O2), then each time who holds least.

        Whoever has had a turn counts as holding what it asked for.
        """
        groups: dict[tuple[bool, int], dict[str, list[_Entry]]] = {}
        for entry in sorted(entries, key=lambda entry: item_of(entry).place_in_queue, reverse=True):
            item = item_of(entry)
            users = groups.setdefault((not item.is_fixed, -item.rank), {})
            users.setdefault(item.workload.user, []).append(entry)
        found: list[_Entry] = []
        for group in sorted(groups):
            waiting = groups[group]
            next_of = [
                (self.held(item_of(w[-1])), item_of(w[-1]).age, u) for u, w in waiting.items()
            ]
            heapify(next_of)
            while next_of:
                held, _, user = heappop(next_of)
                entry = waiting[user].pop()
                found.append(entry)
                if waiting[user]:
                    after = held + _asked(item_of(entry))
                    heappush(next_of, (after, item_of(waiting[user][-1]).age, user))
        return found


def _asked(item: Item) -> int:
    return sum(member.kind.quota for member in item.members[: item.minimum])

"""Who is next: the project order and the order inside a project (O1, O2).

Knows units (what starts together), each account's queue of them, and which account is the most
deprived now. Knows nothing of nodes. Used by `cycle` for starting, and for reclaiming.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from runai.hub_service.scheduler.state import Item, Member, Standing, State
from runai.hub_service.scheduler.tree import Account

_SCALE = 10**15  # shares are compared as integers: allocated * _SCALE // allocatable
_HUGE = 10**30

OrderKey = tuple[int, int, int, int, str, int]


class Unit:
    """Workers of one item that start together: its minimum, or one surplus worker (E1)."""

    __slots__ = ("demand", "is_surplus", "item", "key", "members")

    def __init__(self, item: Item, members: tuple[Member, ...], *, is_surplus: bool) -> None:
        self.item = item
        self.members = members
        self.is_surplus = is_surplus
        self.demand = sum(m.kind.quota for m in members if m.standing is not Standing.RESERVED)
        """What placing it adds to its project's allocation."""
        self.key = _key_inside_project(item, members[0].index, is_surplus=is_surplus)

    @property
    def signature(self) -> tuple[int, ...]:
        """Name what is asked of nodes; equal for units that fit in the same places."""
        return tuple(sorted(member.kind.order for member in self.members))


def _key_inside_project(item: Item, index: int, *, is_surplus: bool) -> OrderKey:
    # O2: sessions, then minima by priority (gangs that run below theirs first), age and name; what
    # elastic workloads want beyond their minimum comes after every waiting minimum (E1).
    is_incomplete = item.count(Standing.RUNNING, Standing.STARTED) > 0
    return (
        2 if is_surplus else 0 if item.is_fixed else 1,
        -item.rank,
        0 if is_incomplete else 1,
        item.age[0],
        item.age[1],
        index,
    )


def pending_units(item: Item) -> list[Unit]:
    """Cut what a workload still wants into units; nothing while too many of it are stopping."""
    pending = [member for member in item.members if member.standing is Standing.PENDING]
    if not pending or not item.is_known:
        return []
    placed = item.count(Standing.RUNNING, Standing.STARTED, Standing.RESERVED, Standing.MOVED)
    lacking = max(0, item.minimum - placed)
    if lacking > len(pending):
        return []
    units = [Unit(item, tuple(pending[:lacking]), is_surplus=False)] if lacking else []
    units += [Unit(item, (member,), is_surplus=True) for member in pending[lacking:]]
    return units


class FairOrder:
    """Pops the next unit of the most deprived project, re-evaluated after each (O1)."""

    def __init__(self, state: State, units: Iterable[Unit]) -> None:
        """Queue the units at their accounts."""
        self._state = state
        self._queues: dict[Account, list[tuple[OrderKey, Unit]]] = {}
        for unit in units:
            self._queues.setdefault(unit.item.account, []).append((unit.key, unit))
        self._ranked: dict[Account | None, list[tuple[tuple[object, ...], int, Account]]] = {}
        self._version: dict[Account, int] = {}
        self._head: dict[Account, Unit | None] = {}
        for queue in self._queues.values():
            heapify(queue)
        state.touched.clear()
        for account in sorted(self._queues, key=lambda account: -len(account.path)):
            self._refresh(account)

    def pop(self) -> Unit | None:
        """Take the next unit, or None when all are taken."""
        touched = self._state.touched
        if touched:
            # Deepest first: a parent ranks by the head of its best child.
            for changed in sorted(touched, key=lambda a: (-len(a.path), a.age)):
                self._rank(changed)
            touched.clear()
        best = self._best(None)
        if best is None:
            return None
        account = best
        while account not in self._queues:
            below = self._best(account)
            assert below is not None, "a ranked account has a unit below it"
            account = below
        unit = heappop(self._queues[account])[1]
        if not self._queues[account]:
            del self._queues[account]
        self._refresh(account)
        return unit

    def _refresh(self, account: Account) -> None:
        for above in account.path:
            self._rank(above)

    def _best(self, parent: Account | None) -> Account | None:
        ranked = self._ranked.get(parent)
        while ranked:
            _, version, account = ranked[0]
            if version == self._version[account] and self._head[account] is not None:
                return account
            heappop(ranked)
        return None

    def _rank(self, account: Account) -> None:
        queue = self._queues.get(account)
        if queue:
            head: Unit | None = queue[0][1]
        else:
            best = self._best(account)
            head = self._head[best] if best is not None else None
        self._head[account] = head
        version = self._version[account] = self._version.get(account, 0) + 1
        if head is not None:
            entry = (_deprivation(account, head), version, account)
            heappush(self._ranked.setdefault(account.parent, []), entry)


def _deprivation(account: Account, unit: Unit) -> tuple[object, ...]:
    """Rank siblings (O1): smallest first. Ends in the account's age and name, so never ties."""
    after = account.allocated + unit.demand
    return (
        0 if after <= account.quota else 1,
        -account.priority,
        _dominant_share(after, account.allocatable),
        _dominant_share(account.allocated, account.allocatable),
        -account.allocatable,
        account.age,
    )


def _dominant_share(allocated: int, allocatable: int) -> int:
    if allocatable <= 0:
        return _HUGE + allocated if allocated else 0
    return allocated * _SCALE // allocatable

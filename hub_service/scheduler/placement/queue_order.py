"""Queue order: the next unit of the most deprived project (O1, O2).

Iterates over the lanes of waiting units without changing them, and ranks projects again after each
change of their allocation.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count

from runai.hub_service.scheduler.state.equivalence import EquivalenceClass, OrderKey, PodSet
from runai.hub_service.scheduler.state.planned_workloads import Phase
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode

_SCALE = 10**15  # shares are compared as integers: allocated * _SCALE // allocatable
_HUGE = 10**30

_SortKey = OrderKey | tuple[int, int, int, int, int, int, str, int]
_Head = tuple[_SortKey, EquivalenceClass, list[PodSet], int]
"""A lane's next unit: unique key, lane, the lane's units, and the index there."""


class FairOrder:
    """Iterator over waiting units; the most deprived project is evaluated before each (O1)."""

    def __init__(
        self,
        state: State,
        extra: Iterable[PodSet] = (),
        *,
        waiting: bool = True,
        surplus: bool = True,
    ) -> None:
        """Include waiting units (with or without surplus), and `extra` units as they are."""
        self._state = state
        self._heads: dict[ProjectNode, list[_Head]] = {}
        if waiting:
            for account in state.lanes.accounts:
                for lane in state.lanes.of(account):
                    if surplus or not lane.units[0].is_surplus:
                        self._enter(lane, lane.units)
        grouped: dict[EquivalenceClass, list[PodSet]] = {}
        for unit in extra:
            grouped.setdefault(state.lanes.lane_of(unit), []).append(unit)
        for lane, units in grouped.items():
            units.sort()
            self._enter(lane, units)
        self._last: ProjectNode | None = None
        """Account of the last popped unit, which is still at the head of its lane."""
        self._is_aside = False
        """True if the rest of that lane is skipped."""
        self._ranked: dict[
            ProjectNode | None, list[tuple[tuple[object, ...], int, ProjectNode]]
        ] = {}
        self._versions = count()
        self._version: dict[ProjectNode, int] = {}
        self._head: dict[ProjectNode, PodSet | None] = {}
        for heads in self._heads.values():
            heapify(heads)
        state.touched.clear()
        for account in self._heads:
            self._refresh(account)

    def _enter(self, lane: EquivalenceClass, units: list[PodSet]) -> None:
        head = self._next_head(lane, units, 0)
        if head is not None:
            self._heads.setdefault(lane.account, []).append(head)

    def _next_head(self, lane: EquivalenceClass, units: list[PodSet], index: int) -> _Head | None:
        if units is lane.units:
            # Units placed meanwhile do not wait any more.
            while index < len(units) and units[index].members[0].standing is not Phase.PENDING:
                index += 1
        if index >= len(units):
            return None
        return self._key_of(units[index]), lane, units, index

    def _key_of(self, unit: PodSet) -> _SortKey:
        turns = self._state.turns
        if turns is None:
            return unit.key
        # O3: among equal priorities, the user with the smallest allocation, then by age.
        return (*unit.key[:3], turns.allocated(unit.item), *unit.key[3:])

    def pop(self) -> PodSet | None:
        """Return the next unit; None at the end."""
        self._state.asks += 1
        self._advance()
        if len(self._heads) == 1 and self._state.turns is None:
            (heads,) = self._heads.values()  # no other account to compare with
            _, lane, units, index = heads[0]
            self._last = lane.account
            return units[index]
        touched = self._state.touched
        if touched:
            # Deepest first: a parent ranks by the head of its best child.
            waiting = [account for account in touched if account in self._head]
            touched.clear()
            waiting.sort(key=lambda account: (-len(account.path), account.age))
            for account in waiting:
                self._rank(account)
        best = self._best(None)
        if best is None:
            return None
        while best not in self._heads:
            below = self._best(best)
            assert below is not None, "a ranked account has a unit below it"
            best = below
        self._last = best
        _, _, units, index = self._heads[best][0]
        return units[index]

    def set_aside(self) -> None:
        """Skip the rest of the lane of the last popped unit."""
        assert self._last is not None, "a unit was popped"
        self._is_aside = True

    def _advance(self) -> None:
        if self._last is None:
            return
        account, is_aside = self._last, self._is_aside
        self._last, self._is_aside = None, False
        heads = self._heads[account]
        _, lane, units, index = heads[0]
        head = None if is_aside else self._next_head(lane, units, index + 1)
        if head is not None:
            heapreplace(heads, head)
        else:
            heappop(heads)
            if not heads:
                del self._heads[account]
        self._state.touched.update(account.path)

    def _refresh(self, account: ProjectNode) -> None:
        for above in account.path:
            self._rank(above)

    def _best(self, parent: ProjectNode | None) -> ProjectNode | None:
        ranked = self._ranked.get(parent)
        while ranked:
            _, version, account = ranked[0]
            if version == self._version[account] and self._head[account] is not None:
                return account
            heappop(ranked)
        return None

    def _rank(self, account: ProjectNode) -> None:
        heads = self._heads.get(account)
        if heads:
            if self._state.turns is not None:
                # An allocation has changed, so another user may be next (O3).
                heads[:] = [(self._key_of(units[i]), lane, units, i) for _, lane, units, i in heads]
                heapify(heads)
            _, _, units, index = heads[0]
            head: PodSet | None = units[index]
        else:
            best = self._best(account)
            head = self._head[best] if best is not None else None
        self._head[account] = head
        version = self._version[account] = next(self._versions)
        if head is not None:
            demand = _expected_demand(self._state, head)
            entry = (_deprivation(account, head, demand), version, account)
            heappush(self._ranked.setdefault(account.parent, []), entry)


def _expected_demand(state: State, unit: PodSet) -> int:
    """Return what a unit counts for on the devices that are free now, else where it is least (P3).

    That differs from its demand if it requests memory of devices of several sizes.
    """
    for member in unit.members:
        if member.kind.least != member.kind.quota:
            break
    else:
        return unit.demand
    demand = 0
    for kind in (m.kind for m in unit.members if m.standing is not Phase.RESERVED):
        found = state.now.find(kind)
        demand += kind.least if found is None else state.book(kind, *found).quota
    return demand


def _deprivation(account: ProjectNode, unit: PodSet, demand: int) -> tuple[object, ...]:
    """Return the rank of an account among its siblings, smallest first (O1).

    It ends in the account's age and name, so that ranks are unique.
    """
    if account.parts:
        account = unit.item.account  # Q4: the part of the quota that the unit is charged to decides
    allocated, quota = account.allocated, account.quota
    after = allocated + demand
    allocatable = min(account.limit, max(quota, account.fair_share))
    return (
        after > quota,
        -account.priority,
        _dominant_share(after, allocatable),
        _dominant_share(allocated, allocatable),
        -allocatable,
        account.age,
    )


def _dominant_share(allocated: int, allocatable: int) -> int:
    if not allocatable:
        return _HUGE + allocated if allocated else 0
    return allocated * _SCALE // allocatable

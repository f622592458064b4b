"""Sets of workers to move so that one more worker fits on a node (R10).

Only preemptible jobs may move. Small sets are found node by node, the fewest and cheapest moves
first; the new places of the workers are not chosen here.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import RequestShape
from runai.hub_service.scheduler.state.victim_order import (
    VictimKey,
    pauses_expire,
    protected_until,
    running_since,
    victim_key,
)

WorkerGroup = tuple[PlannedWorker, ...]
"""Workers that move together: one, or all parts of an elastic worker (E2)."""


class _BestVictimFirst:
    """Sort key by R4: the project furthest over, then the best victim, is smallest."""

    __slots__ = ("key",)

    def __init__(self, overage: int, key: VictimKey) -> None:
        self.key = overage, key

    def __lt__(self, other: _BestVictimFirst) -> bool:
        return self.key > other.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BestVictimFirst) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]  # only compared


class Leaving(NamedTuple):
    """A node and the workers that would leave it; the smallest is the least disturbance."""

    moves: int
    """Workloads that stop to move."""
    unsaved: int
    """Of these, workloads that are not known to save their work."""
    gpu_time: int
    """Device-seconds since their start. If a gang's worker moves, the whole gang counts."""
    order: tuple[_BestVictimFirst, ...]
    """Sort keys of the workers in the order of victims (R4), the best first."""
    node: int
    members: WorkerGroup


class Vacancies:
    """Cached sets of workers that could leave, per node and kind, for one plan."""

    def __init__(self, state: State, *, for_quota: bool) -> None:
        """Start with an empty cache; `for_quota` is for claims that are within their quota."""
        self._state = state
        self._room = state.later
        self._for_quota = for_quota
        self._known: dict[tuple[RequestShape, str], _Ranked] = {}
        self._movable: dict[PlannedWorkload, bool] = {}
        self._since: dict[PlannedWorkload, int] = {}
        running = (member for there in state.on_node.values() for member in there)
        self._running = {m.item.workload.project for m in running if m.standing is Phase.RUNNING}
        """Projects with running workers."""

    def privilege(self, item: PlannedWorkload) -> str:
        """Return the project, if it alone may move its own jobs; else the empty text.

        Claims with the same privilege may move the same workloads.
        """
        project = item.workload.project
        alone = not self._for_quota and _is_within_quota(item) and project in self._running
        return project if alone else ""

    def cheapest_first(self, kind: RequestShape, privilege: str) -> Generator[Leaving]:
        """Yield the ways to make room for one worker of a kind, least disturbance first."""
        ranked = self._known.get((kind, privilege))
        if ranked is None:
            ranked = self._known[kind, privilege] = _Ranked(kind.nodes & self._state.on_node.keys())
        for node in sorted(ranked.stale):
            ranked.push(node, self._on(node, kind, privilege))
        ranked.stale.clear()
        yield from ranked.in_order()

    def forget(self, nodes: Iterable[int]) -> None:
        """Drop the cached sets of changed nodes."""
        for (kind, _), ranked in self._known.items():
            ranked.forget(kind.nodes.intersection(nodes))

    def _on(self, node: int, kind: RequestShape, privilege: str) -> list[Leaving]:
        room = self._room
        self._state.victim_looks += 1
        groups = self._groups(node, privilege)
        spare = 0
        if kind.is_whole:
            # Count first: is there enough room if all of them leave?
            spare = room.idle[node] + sum([_devices(group) for group in groups]) - kind.devices
            if spare < 0:
                return []
        ranked = sorted([(self._leaving(node, group), group) for group in groups])
        if len(ranked) == 1:
            return [leaving for leaving, _ in ranked] if self._suffices(node, kind, groups) else []
        # Orders of staying: the dearest, the largest, or the smallest first.
        dearest = [group for _, group in reversed(ranked)]
        largest = sorted(dearest, key=_quota, reverse=True)
        orders = [dearest, largest, largest[::-1]]
        # One that suffices alone, of each request.
        alone: dict[tuple[RequestShape, ...], WorkerGroup] = {}
        for _, group in ranked:
            alone.setdefault(tuple([member.kind for member in group]), group)
        orders += [[*(g for g in dearest if g is not one), one] for one in alone.values()]
        adds_up = kind.is_whole and not (kind.cpu or kind.memory)
        if adds_up and all(member.kind.is_whole for group in groups for member in group):
            found = [_must_leave(order, spare) for order in orders]
        elif self._suffices(node, kind, groups):
            found = self._try_orders(node, kind, groups, orders)
        else:
            return []
        members = dict.fromkeys([tuple(sorted(leaving, key=self._rank)) for leaving in found])
        return [self._leaving(node, leaving) for leaving in members if leaving]

    def _suffices(self, node: int, kind: RequestShape, groups: Sequence[WorkerGroup]) -> bool:
        """Return True if a kind fits once all groups have left, and not before."""
        room = self._room
        if room.devices_on(node, kind) is not None:
            return False
        for group in groups:
            self._book(group, -1)
        fits = room.devices_on(node, kind) is not None
        for group in groups:
            self._book(group, 1)
        return fits

    def _try_orders(
        self,
        node: int,
        kind: RequestShape,
        groups: Sequence[WorkerGroup],
        orders: Iterable[Sequence[WorkerGroup]],
    ) -> list[list[PlannedWorker]]:
        """Return, for each order, the workers that must leave if workers stay in that order."""
        room = self._room
        found: list[list[PlannedWorker]] = []
        for group in groups:
            self._book(group, -1)
        for order in orders:
            staying: list[WorkerGroup] = []
            leaving: list[PlannedWorker] = []
            for group in order:
                self._book(group, 1)
                if room.devices_on(node, kind) is None:
                    self._book(group, -1)
                    leaving += group
                else:
                    staying.append(group)
            for group in staying:
                self._book(group, -1)
            found.append(leaving)
        for group in groups:
            self._book(group, 1)
        return found

    def _groups(self, node: int, privilege: str) -> list[WorkerGroup]:
        """Return the workers of a node that may move, in groups that move together."""
        groups: dict[object, list[PlannedWorker]] = {}
        for member in self._state.on_node[node]:
            item = member.item
            standing = member.standing
            if (standing is Phase.STARTED or standing is Phase.RUNNING) and self._may_move(
                item, privilege, starts=standing is Phase.STARTED
            ):
                groups.setdefault(member if item.sizes is None else item, []).append(member)
        return [tuple(group) for group in groups.values()]

    def _may_move(self, item: PlannedWorkload, privilege: str, *, starts: bool) -> bool:
        if starts and item.sizes is None:
            return not item.is_fixed and item.is_known and item.workload.kind == "job"
        movable = self._movable.get(item)
        if movable is None:
            movable = self._movable[item] = self._is_movable(item)
        if not movable or self._for_quota:
            return movable
        return item.workload.project == privilege or not _is_within_quota(item)

    def _is_movable(self, item: PlannedWorkload) -> bool:
        """Return True if a running workload may be stopped for a move, whoever claims its place."""
        state, policy = self._state, self._state.policy
        # Q5: a preemptible session would end, so it cannot move.
        if item.is_fixed or not item.is_known or item.workload.kind != "job":
            return False
        if item.sizes is not None and any(m.standing is Phase.STARTED for m in item.members):
            return False  # E2: it is about to be resized where it is
        if protected_until(item, item.members, policy, state.time) is not None:
            return False
        if self._for_quota:
            return True
        if policy.moves == "saves" and not item.workload.saves:
            return False
        return pauses_expire(item, policy.max_moves_per_hour, state.time) <= state.time

    def _leaving(self, node: int, members: WorkerGroup) -> Leaving:
        """Return what it costs that workers leave a node."""
        by_item: dict[PlannedWorkload, list[PlannedWorker]] = {}
        for member in members:
            if member.standing is Phase.RUNNING:
                by_item.setdefault(member.item, []).append(member)
        unsaved = gpu_time = 0
        for item, going in by_item.items():
            unsaved += not item.workload.saves
            running = going
            if len(item.members) > len(going):
                running = [m for m in item.members if m.standing is Phase.RUNNING]
                if len(running) - len(going) >= item.minimum:
                    running = going  # it goes on with the others
            for member in running:
                started = member.worker.started
                if started is not None:
                    gpu_time += member.kind.devices * max(0, self._state.time - started)
        order = tuple(sorted([self._rank(member) for member in members]))
        return Leaving(len(by_item), unsaved, gpu_time, order, node, members)

    def _rank(self, member: PlannedWorker) -> _BestVictimFirst:
        item = member.item
        since = self._since.get(item)
        if since is None:
            since = self._since[item] = running_since(item, self._state.time)
        surplus = member.index >= item.minimum
        key = victim_key(item.workload, since=since, index=member.index, is_surplus=surplus)
        return _BestVictimFirst(item.account.overage, key)

    def _book(self, group: WorkerGroup, sign: int) -> None:
        for member in group:
            assert member.booking is not None, "running workers have a booking"
            self._room.book(member.booking, sign)


class _Ranked:
    """The ways to make room for one kind on all nodes, sorted; changed nodes are counted again."""

    def __init__(self, nodes: Iterable[int]) -> None:
        self.stale = set(nodes)
        """Nodes to count before the next use."""
        self._heap: list[tuple[Leaving, int]] = []
        self._version: dict[int, int] = {}

    def forget(self, nodes: Iterable[int]) -> None:
        """Drop the ways of these nodes."""
        for node in nodes:
            self._version[node] = self._version.get(node, 0) + 1
            self.stale.add(node)

    def push(self, node: int, ways: Sequence[Leaving]) -> None:
        """Add the ways of a node."""
        version = self._version.get(node, 0)
        for leaving in ways:
            heappush(self._heap, (leaving, version))

    def in_order(self) -> Generator[Leaving]:
        """Yield the ways that still hold, the smallest first. The caller closes the iterator."""
        seen: list[tuple[Leaving, int]] = []
        try:
            while self._heap:
                leaving, version = entry = heappop(self._heap)
                if version == self._version.get(leaving.node, 0):
                    seen.append(entry)
                    yield leaving
        finally:
            for entry in seen:
                heappush(self._heap, entry)


def _is_within_quota(item: PlannedWorkload) -> bool:
    return item.account.allocated <= item.account.quota


def _must_leave(order: Iterable[WorkerGroup], spare: int) -> list[PlannedWorker]:
    """Return the workers that must leave, if workers stay in `order` as far as devices are spare.

    Counting is enough for whole devices.
    """
    leaving: list[PlannedWorker] = []
    for group in order:
        devices = _devices(group)
        if devices > spare:
            leaving += group
        else:
            spare -= devices
    return leaving


def _devices(group: WorkerGroup) -> int:
    return sum([member.kind.devices for member in group])


def _quota(group: WorkerGroup) -> int:
    return sum([member.kind.quota for member in group])

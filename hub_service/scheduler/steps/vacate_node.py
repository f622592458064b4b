"""Sets of workers to move so that one more worker fits on a node (R10).

Only preemptible workloads may move. Small sets are found node by node, the least disturbance first;
the new places of the workers are not chosen here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorker
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import RequestShape
from runai.hub_service.scheduler.state.victim_order import protected_until

_VictimKey = tuple[int, int, bool, int, str, int]


class Leaving(NamedTuple):
    """A node and the workers that would leave it; the smallest is the least disturbance."""

    gpus: int
    """Devices that stop during the move. If one worker of a gang moves, all of its devices stop."""
    workers: int
    order: tuple[_VictimKey, ...]
    """Sort keys of the workers in the order of victims (R4), the best first."""
    node: int
    members: tuple[PlannedWorker, ...]


class Vacancies:
    """Cached sets of workers that could leave, per node and kind, for one plan."""

    def __init__(self, state: State) -> None:
        """Start with an empty cache."""
        self._state = state
        self._room = state.later
        self._known: dict[int, dict[RequestShape, list[Leaving]]] = {}

    def cheapest_first(self, kind: RequestShape) -> Iterator[Leaving]:
        """Yield the ways to make room for one worker of a kind, least disturbance first.

        Nodes are examined from the emptiest, and only while one could be better than the best
        known.
        """
        idle, on_node = self._room.idle, self._state.on_node
        found: list[Leaving] = []
        for node in sorted(kind.nodes & on_node.keys(), key=lambda n: (-idle[n], n)):
            # A worker that has not started yet loses nothing.
            starts = any(member.standing is Phase.STARTED for member in on_node[node])
            least = 0 if starts or not kind.is_whole else kind.devices - idle[node]
            while found and found[0].gpus < least:
                yield heappop(found)
            known = self._known.setdefault(node, {})
            if kind not in known:
                known[kind] = list(self._on(node, kind))
            for leaving in known[kind]:
                heappush(found, leaving)
        while found:
            yield heappop(found)

    def forget(self, nodes: Iterable[int]) -> None:
        """Drop the cached sets of changed nodes."""
        for node in nodes:
            self._known.pop(node, None)

    def _on(self, node: int, kind: RequestShape) -> Iterator[Leaving]:
        room = self._room
        there = sorted(filter(self._may_move, self._state.on_node[node]), key=_as_victim)
        if kind.is_whole:
            # Count first: is there enough room if all of them leave?
            idle = room.idle[node] + sum(member.kind.devices for member in there)
            if idle < kind.devices:
                return
        for member in there:
            self._book(member, -1)
        found: set[tuple[PlannedWorker, ...]] = set()
        if room.devices_on(node, kind) is not None:
            # Three orders of staying: the best protected, the largest, or the smallest first.
            protected = there[::-1]
            largest = sorted(protected, key=lambda m: -m.kind.quota)
            for keeping in (protected, largest, largest[::-1]):
                found.add(self._must_leave(node, kind, keeping))
        for member in there:
            self._book(member, 1)
        for members in found:
            if members:
                order = tuple(map(_as_victim, members))
                yield Leaving(_idle_devices(members), len(members), order, node, members)

    def _must_leave(
        self, node: int, kind: RequestShape, order: Iterable[PlannedWorker]
    ) -> tuple[PlannedWorker, ...]:
        """Return the workers that must leave, if workers stay in `order` as far as possible."""
        room = self._room
        staying: list[PlannedWorker] = []
        leaving: list[PlannedWorker] = []
        for member in order:
            self._book(member, 1)
            if room.devices_on(node, kind) is None:
                self._book(member, -1)
                leaving.append(member)
            else:
                staying.append(member)
        for member in staying:
            self._book(member, -1)
        return tuple(sorted(leaving, key=_as_victim))

    def _may_move(self, member: PlannedWorker) -> bool:
        item, state = member.item, self._state
        # Q5: a preemptible session would end, so it cannot move.
        if item.is_fixed or not item.is_known or item.workload.kind != "job":
            return False
        if item.sizes is not None:
            return False  # E2: it is resized where it is
        if member.standing is Phase.STARTED:
            return True  # it starts elsewhere instead
        return (
            member.standing is Phase.RUNNING
            and protected_until(item, item.members, state.policy, state.time) is None
        )

    def _book(self, member: PlannedWorker, sign: int) -> None:
        assert member.booking is not None, "running workers have a booking"
        self._room.take(member.booking, sign)


def _as_victim(member: PlannedWorker) -> _VictimKey:
    # R4: the project furthest over, the lowest priority, surplus, the latest; ties by name.
    item = member.item
    return (
        -item.account.overage,
        item.rank,
        member.index < item.minimum,
        -item.age[0],
        item.name,
        -member.index,
    )


def _idle_devices(members: Iterable[PlannedWorker]) -> int:
    """Return the number of devices that stop while these workers move."""
    leaving: dict[PlannedWorker, None] = dict.fromkeys(members)
    still = 0
    for item in dict.fromkeys(member.item for member in leaving):
        running = [m for m in item.members if m.standing is Phase.RUNNING]
        going = [m for m in running if m in leaving]
        goes_on = len(running) - len(going) >= item.minimum
        still += sum(m.kind.devices for m in (going if goes_on else running))
    return still

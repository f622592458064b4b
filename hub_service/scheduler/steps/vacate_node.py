"""Who would have to leave a node so that one more worker fits there (R10).

Knows which preemptible work may move at all, and finds small sets of it node by node, those that
disturb least first. Moves nobody, and does not know where they would go: that is `consolidate`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from runai.hub_service.scheduler.state.planned_workloads import Member, Standing
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.request_shape import Kind
from runai.hub_service.scheduler.state.victim_order import protected_until

_VictimKey = tuple[int, int, bool, int, str, int]


class Leaving(NamedTuple):
    """A node and those who would leave it; the smallest disturbs least."""

    gpus: int
    """Devices that stand still meanwhile: all of a gang's, if one of it moves."""
    workers: int
    order: tuple[_VictimKey, ...]
    """What ranks them in the order of victims (R4), the best first."""
    node: int
    members: tuple[Member, ...]


class Vacancies:
    """What could be made free by moving, while one plan is being made."""

    def __init__(self, state: State) -> None:
        """Look at nobody yet."""
        self._state = state
        self._room = state.later
        self._known: dict[int, dict[Kind, list[Leaving]]] = {}

    def cheapest_first(self, kind: Kind) -> Iterator[Leaving]:
        """Go through the ways to make room for one worker of a kind.

        Nodes are looked at from the emptiest, and only as far as they can be better than what is
        known already.
        """
        idle, on_node = self._room.idle, self._state.on_node
        found: list[Leaving] = []
        for node in sorted(kind.nodes & on_node.keys(), key=lambda n: (-idle[n], n)):
            # Whoever has not started yet loses nothing.
            starts = any(member.standing is Standing.STARTED for member in on_node[node])
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
        """Look at these nodes anew: somebody came or went."""
        for node in nodes:
            self._known.pop(node, None)

    def _on(self, node: int, kind: Kind) -> Iterator[Leaving]:
        room = self._room
        there = sorted(filter(self._may_move, self._state.on_node[node]), key=_as_victim)
        if kind.is_whole:
            # Count first: even if all of them left, would there be enough?
            idle = room.idle[node] + sum(member.kind.devices for member in there)
            if idle < kind.devices:
                return
        for member in there:
            self._book(member, -1)
        found: set[tuple[Member, ...]] = set()
        if room.devices_on(node, kind) is not None:
            # Who stays comes first: the best protected; else the largest; else the smallest.
            protected = there[::-1]
            largest = sorted(protected, key=lambda m: -m.kind.quota)
            for keeping in (protected, largest, largest[::-1]):
                found.add(self._those_in_the_way(node, kind, keeping))
        for member in there:
            self._book(member, 1)
        for members in found:
            if members:
                order = tuple(map(_as_victim, members))
                yield Leaving(_standing_still(members), len(members), order, node, members)

    def _those_in_the_way(
        self, node: int, kind: Kind, order: Iterable[Member]
    ) -> tuple[Member, ...]:
        """Let everybody stay, in this order, who leaves room for one worker; give the others."""
        room = self._room
        staying: list[Member] = []
        leaving: list[Member] = []
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

    def _may_move(self, member: Member) -> bool:
        item, state = member.item, self._state
        # Q5: a preemptible session would end; there is nothing to move.
        if item.is_fixed or not item.is_known or item.workload.kind != "job":
            return False
        if item.sizes is not None:
            return False  # E2: it is resized where it is
        if member.standing is Standing.STARTED:
            return True  # it starts elsewhere instead
        return (
            member.standing is Standing.RUNNING
            and protected_until(item, item.members, state.policy, state.time) is None
        )

    def _book(self, member: Member, sign: int) -> None:
        assert member.booking is not None, "who runs is somewhere"
        self._room.take(member.booking, sign)


def _as_victim(member: Member) -> _VictimKey:
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


def _standing_still(members: Iterable[Member]) -> int:
    """Count the devices that do nothing while these move."""
    leaving: dict[Member, None] = dict.fromkeys(members)
    still = 0
    for item in dict.fromkeys(member.item for member in leaving):
        running = [m for m in item.members if m.standing is Standing.RUNNING]
        going = [m for m in running if m in leaving]
        goes_on = len(running) - len(going) >= item.minimum
        still += sum(m.kind.devices for m in (going if goes_on else running))
    return still

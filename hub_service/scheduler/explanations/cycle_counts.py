"""Counts of free, allocated and fitting capacity, cached for one cycle's sentences.

They reflect the state after the plan, and do not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from runai.hub_service.scheduler.placement.quota_check import still_over
from runai.hub_service.scheduler.state.equivalence import PodSet
from runai.hub_service.scheduler.state.free_capacity import Room
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import State
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape


class Census:
    """Cached counts of one plan; the state must not change while it is used."""

    def __init__(self, state: State) -> None:
        """Collect the workers that this cycle placed."""
        self._state = state
        changed = [
            member
            for item in sorted(state.changed(), key=lambda item: item.age)
            for member in item.members
        ]
        self._started = [m for m in changed if m.standing is Phase.STARTED]
        self._reserved = [m for m in changed if m.standing is Phase.RESERVED]
        self._started_on: dict[frozenset[int], dict[PlannedWorkload, int]] = {}
        self._reserved_on: dict[frozenset[int], dict[PlannedWorkload, int]] = {}
        self._free: dict[frozenset[int], int] = {}
        self._devices: dict[frozenset[int], int] = {}
        self._projects: dict[frozenset[int], dict[str, int]] = {}
        self._leaving: dict[Booking, list[PlannedWorker]] = {}
        self._slots_now: dict[RequestShape, int] = {}

    def free_on(self, nodes: frozenset[int]) -> int:
        """Return the free milli-GPU now; of a device as much as its free memory makes up."""
        free = self._free.get(nodes)
        if free is None:
            free = self._free[nodes] = sum(map(self._state.now.free_parts_on, nodes))
        return free

    def devices_on(self, nodes: frozenset[int]) -> int:
        """Return the number of devices that are not broken."""
        count = self._devices.get(nodes)
        if count is None:
            all_nodes = self._state.nodes
            count = self._devices[nodes] = sum(all_nodes[node].usable_devices for node in nodes)
        return count

    def projects_on(self, nodes: frozenset[int]) -> dict[str, int]:
        """Return the allocated milli-GPU per project."""
        sums = self._projects.get(nodes)
        if sums is None:
            sums = self._projects[nodes] = {}
            on_node = self._state.on_node
            for node in nodes:
                for member in on_node.get(node, ()):
                    if member.booking and member.booking.quota:
                        name = member.item.workload.project
                        sums[name] = sums.get(name, 0) + member.booking.quota
        return sums

    def reserved_on(
        self, nodes: frozenset[int], but: PlannedWorkload
    ) -> dict[PlannedWorkload, int]:
        """Return the milli-GPU that this cycle reserved per workload, without `but`."""
        return _without(but, _cached(self._reserved_on, nodes, self._reserved))

    def started_on(self, nodes: frozenset[int], but: PlannedWorkload) -> dict[PlannedWorkload, int]:
        """Return the milli-GPU that this cycle started per workload, without `but`."""
        return _without(but, _cached(self._started_on, nodes, self._started))

    def session_holders(self, account: ProjectNode) -> dict[str, int]:
        """Return the milli-GPU per user in sessions within the build quota."""
        sums: dict[str, int] = {}
        for item in sorted(self._state.fixed, key=lambda item: item.age):
            if account in item.account.path:
                held = sum(m.booking.quota for m in item.members if m.booking)
                if held:
                    name = _holder(item)
                    sums[name] = sums.get(name, 0) + held
        return sums

    def leaving(self, booking: Booking) -> list[PlannedWorker]:
        """Return the workers that must leave before a reservation can start."""
        known = self._leaving.get(booking)
        if known is None:
            known = self._leaving[booking] = self._state.leaving(booking)
        return known

    def waited_for(self, members: Iterable[PlannedWorker]) -> list[PlannedWorker]:
        """Return the workers that must end before reserved ones start.

        They are at the reserved place; if there are none, they are stopping workers of projects
        whose limit counts both (Q3).
        """
        reserved = list(members)
        there = [m for mine in reserved if mine.booking for m in self.leaving(mine.booking)]
        if there:
            return there
        over = {account for mine in reserved for account in still_over(mine.item)}
        return self._state.stopping_workers(over) if over else []

    def fitting(self, unit: PodSet, *, ever: bool = False) -> int:
        """Return how many of a unit's workers fit, counting each kind on its own.

        They fit now, or with `ever` into the empty cluster.
        """
        known, room = self._slots_now, self._state.now
        if ever:
            known, room = self._state.slots_ever, self._state.empty
        kinds = Counter(member.kind for member in unit.members)
        return sum(min(count, _slots(kind, room, known)) for kind, count in kinds.items())


def _slots(kind: RequestShape, room: Room, known: dict[RequestShape, int]) -> int:
    if kind not in known:
        known[kind] = sum(room.roomy(kind).values())
    return known[kind]


def _cached(
    known: dict[frozenset[int], dict[PlannedWorkload, int]],
    nodes: frozenset[int],
    members: Iterable[PlannedWorker],
) -> dict[PlannedWorkload, int]:
    if nodes not in known:
        known[nodes] = _allocated_on(nodes, members)
    return known[nodes]


def _without(item: PlannedWorkload, sums: dict[PlannedWorkload, int]) -> dict[PlannedWorkload, int]:
    return {i: held for i, held in sums.items() if i is not item} if item in sums else sums


def _allocated_on(
    nodes: frozenset[int], members: Iterable[PlannedWorker]
) -> dict[PlannedWorkload, int]:
    sums: dict[PlannedWorkload, int] = {}
    for member in members:
        booking = member.booking
        if booking and booking.node in nodes:
            sums[member.item] = sums.get(member.item, 0) + booking.quota
    return sums


def nodes_of(unit: PodSet) -> frozenset[int]:
    """Return the nodes that any of a unit's workers could ever use."""
    kind, *others = {member.kind for member in unit.members}
    return kind.nodes.union(*(other.nodes for other in others)) if others else kind.nodes


def _holder(item: PlannedWorkload) -> str:
    """Return the user of a session, or the name of a job."""
    return item.workload.user or item.name if item.workload.kind == "session" else item.name

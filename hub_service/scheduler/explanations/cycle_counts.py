"""Counts of free, allocated and fitting capacity, cached for one cycle's sentences.

They reflect the state after the plan, and do not change it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from runai.hub_service.scheduler.placement.quota_check import projects_over_limit
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.free_capacity import FreeCapacity
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape

_Sums = dict[PlannedWorkload, int]
"""Milli-GPU per workload."""


class CycleCounts:
    """Cached counts of one plan; the state must not change while it is used."""

    def __init__(self, state: PlanningState) -> None:
        """Collect the workers that this cycle placed."""
        self._state = state
        changed = [
            member
            for planned in sorted(state.changed(), key=lambda planned: planned.age)
            for member in planned.members
        ]
        self._started = [m for m in changed if m.phase is Phase.STARTED]
        self._reserved = [m for m in changed if m.phase is Phase.RESERVED]
        self._started_on: dict[frozenset[int], _Sums] = {}
        self._reserved_on: dict[frozenset[int], _Sums] = {}
        self._free_milli: dict[frozenset[int], int] = {}
        self._devices: dict[frozenset[int], int] = {}
        self._milli_by_project: dict[frozenset[int], dict[str, int]] = {}
        self._terminating: dict[Booking, list[PlannedWorker]] = {}
        self._slots_now: dict[RequestShape, int] = {}

    def free_on(self, nodes: frozenset[int]) -> int:
        """Return the free milli-GPU now; a device counts no more than its free memory's part."""
        free = self._free_milli.get(nodes)
        if free is None:
            free = self._free_milli[nodes] = sum(map(self._state.now.free_parts_on, nodes))
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
        sums = self._milli_by_project.get(nodes)
        if sums is None:
            sums = self._milli_by_project[nodes] = {}
            on_node = self._state.on_node
            for node in nodes:
                for member in on_node.get(node, ()):
                    if member.booking and member.booking.quota:
                        name = member.planned.workload.project
                        sums[name] = sums.get(name, 0) + member.booking.quota
        return sums

    def reserved_on(self, nodes: frozenset[int], excluded: PlannedWorkload) -> _Sums:
        """Return the milli-GPU that this cycle reserved per workload, without `excluded`."""
        return _without(excluded, _allocated_on(self._reserved_on, nodes, self._reserved))

    def started_on(self, nodes: frozenset[int], excluded: PlannedWorkload) -> _Sums:
        """Return the milli-GPU that this cycle started per workload, without `excluded`."""
        return _without(excluded, _allocated_on(self._started_on, nodes, self._started))

    def session_holders(self, project: ProjectNode) -> dict[str, int]:
        """Return the milli-GPU per user in sessions within the build quota."""
        sums: dict[str, int] = {}
        for planned in sorted(self._state.fixed, key=lambda planned: planned.age):
            if project in planned.project.path:
                allocated = sum(m.booking.quota for m in planned.members if m.booking)
                if allocated:
                    name = _holder_name(planned)
                    sums[name] = sums.get(name, 0) + allocated
        return sums

    def terminating_workers(self, booking: Booking) -> list[PlannedWorker]:
        """Return the workers that must end before a reservation can start."""
        workers = self._terminating.get(booking)
        if workers is None:
            workers = self._terminating[booking] = self._state.terminating_workers(booking)
        return workers

    def blocking_workers(self, members: Iterable[PlannedWorker]) -> list[PlannedWorker]:
        """Return the workers that must end before reserved ones start.

        They occupy the reserved devices; if none does, they are the stopping workers of projects
        whose limit has no room for both (Q3).
        """
        reserved = list(members)
        bookings = [m.booking for m in reserved if m.booking]
        blocking = [m for booking in bookings for m in self.terminating_workers(booking)]
        if blocking:
            return blocking
        over_limit = {project for m in reserved for project in projects_over_limit(m.planned)}
        return self._state.stopping_workers(over_limit) if over_limit else []

    def fitting(self, pod_set: PodSet, *, ever: bool = False) -> int:
        """Return how many of a pod set's workers fit now, or with `ever` into the empty cluster.

        Each request shape is counted as if it were alone.
        """
        cache, capacity = self._slots_now, self._state.now
        if ever:
            cache, capacity = self._state.max_slots, self._state.empty
        shapes = Counter(member.shape for member in pod_set.members)
        return sum(min(count, _slots(shape, capacity, cache)) for shape, count in shapes.items())


def _slots(shape: RequestShape, capacity: FreeCapacity, cache: dict[RequestShape, int]) -> int:
    if shape not in cache:
        cache[shape] = sum(capacity.slots_by_node(shape).values())
    return cache[shape]


def _allocated_on(
    cache: dict[frozenset[int], _Sums], nodes: frozenset[int], members: Iterable[PlannedWorker]
) -> _Sums:
    """Return the milli-GPU of these workers on some nodes by workload, from the cache if known."""
    if nodes not in cache:
        cache[nodes] = _sum_by_workload(nodes, members)
    return cache[nodes]


def _without(excluded: PlannedWorkload, sums: _Sums) -> _Sums:
    if excluded not in sums:
        return sums
    return {planned: milli for planned, milli in sums.items() if planned is not excluded}


def _sum_by_workload(nodes: frozenset[int], members: Iterable[PlannedWorker]) -> _Sums:
    sums: _Sums = {}
    for member in members:
        booking = member.booking
        if booking and booking.node in nodes:
            sums[member.planned] = sums.get(member.planned, 0) + booking.quota
    return sums


def nodes_of(pod_set: PodSet) -> frozenset[int]:
    """Return the nodes that any of a pod set's workers could ever use."""
    shape, *other_shapes = {member.shape for member in pod_set.members}
    return shape.nodes.union(*(s.nodes for s in other_shapes)) if other_shapes else shape.nodes


def _holder_name(planned: PlannedWorkload) -> str:
    """Return the user of a session, or the name of a job."""
    workload = planned.workload
    return workload.user or planned.name if workload.kind == "session" else planned.name

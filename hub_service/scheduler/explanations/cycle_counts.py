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
        self._free: dict[frozenset[int], int] = {}
        self._devices: dict[frozenset[int], int] = {}
        self._projects: dict[frozenset[int], dict[str, int]] = {}
        self._terminating: dict[Booking, list[PlannedWorker]] = {}
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
                        name = member.planned.workload.project
                        sums[name] = sums.get(name, 0) + member.booking.quota
        return sums

    def reserved_on(self, nodes: frozenset[int], excluded: PlannedWorkload) -> _Sums:
        """Return the milli-GPU that this cycle reserved per workload, without `excluded`."""
        return _without(excluded, _cached(self._reserved_on, nodes, self._reserved))

    def started_on(self, nodes: frozenset[int], excluded: PlannedWorkload) -> _Sums:
        """Return the milli-GPU that this cycle started per workload, without `excluded`."""
        return _without(excluded, _cached(self._started_on, nodes, self._started))

    def session_holders(self, project: ProjectNode) -> dict[str, int]:
        """Return the milli-GPU per user in sessions within the build quota."""
        sums: dict[str, int] = {}
        for planned in sorted(self._state.fixed, key=lambda planned: planned.age):
            if project in planned.project.path:
                allocated = sum(m.booking.quota for m in planned.members if m.booking)
                if allocated:
                    name = _holder(planned)
                    sums[name] = sums.get(name, 0) + allocated
        return sums

    def terminating_workers(self, booking: Booking) -> list[PlannedWorker]:
        """Return the workers that must end before a reservation can start."""
        known = self._terminating.get(booking)
        if known is None:
            known = self._terminating[booking] = self._state.terminating_workers(booking)
        return known

    def blocking_workers(self, members: Iterable[PlannedWorker]) -> list[PlannedWorker]:
        """Return the workers that must end before reserved ones start.

        They are at the reserved place; if there are none, they are stopping workers of projects
        whose limit counts both (Q3).
        """
        reserved = list(members)
        bookings = [m.booking for m in reserved if m.booking]
        blocking = [m for booking in bookings for m in self.terminating_workers(booking)]
        if blocking:
            return blocking
        over_limit = {project for m in reserved for project in projects_over_limit(m.planned)}
        return self._state.stopping_workers(over_limit) if over_limit else []

    def fitting(self, pod_set: PodSet, *, ever: bool = False) -> int:
        """Return how many of a pod set's workers fit, counting each shape on its own.

        They fit now, or with `ever` into the empty cluster.
        """
        known, capacity = self._slots_now, self._state.now
        if ever:
            known, capacity = self._state.max_slots, self._state.empty
        shapes = Counter(member.shape for member in pod_set.members)
        return sum(min(count, _slots(shape, capacity, known)) for shape, count in shapes.items())


def _slots(shape: RequestShape, capacity: FreeCapacity, known: dict[RequestShape, int]) -> int:
    if shape not in known:
        known[shape] = sum(capacity.slots_by_node(shape).values())
    return known[shape]


def _cached(
    known: dict[frozenset[int], _Sums], nodes: frozenset[int], members: Iterable[PlannedWorker]
) -> _Sums:
    if nodes not in known:
        known[nodes] = _allocated_on(nodes, members)
    return known[nodes]


def _without(planned: PlannedWorkload, sums: _Sums) -> _Sums:
    return {i: milli for i, milli in sums.items() if i is not planned} if planned in sums else sums


def _allocated_on(nodes: frozenset[int], members: Iterable[PlannedWorker]) -> _Sums:
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


def _holder(planned: PlannedWorkload) -> str:
    """Return the user of a session, or the name of a job."""
    workload = planned.workload
    return workload.user or planned.name if workload.kind == "session" else planned.name

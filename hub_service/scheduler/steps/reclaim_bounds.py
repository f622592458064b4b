"""Upper bounds of reclaimable capacity per node, to skip infeasible searches.

The bounds follow from R1, R2, R6, R8 and E1. They never exclude a search that could succeed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.planned_workloads import ACTIVE, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.victims import protected_until
from runai.hub_service.scheduler.steps.victim_iterator import PreemptionScope


class ReclaimableDevices(NamedTuple):
    """Devices that a project could lose."""

    total: int
    largest: int
    """Most devices that one of its workloads could lose."""


class ProjectDevices(NamedTuple):
    """Devices that one project could lose on some nodes."""

    project: ProjectNode
    devices: dict[PlannedWorkload, int]
    surplus: dict[PlannedWorkload, int]
    """Upper bound of surplus among them, by workload (E1)."""
    is_shared: bool
    """True if other projects may use the same devices."""
    all_devices: ReclaimableDevices
    all_surplus: ReclaimableDevices


class ReclaimBounds:
    """Reclaimable devices by node; valid until a worker starts or stops."""

    def __init__(self, state: PlanningState) -> None:
        """Start without counts."""
        self._state = state
        self._by_node: dict[int, list[ProjectDevices]] = {}
        self._devices_over: dict[tuple[ProjectNode, bool], int] = {}
        self._protected_cache: dict[PlannedWorkload, bool] = {}

    def could_suffice(
        self, nodes: Collection[int], pod_set: PodSet, scope: PreemptionScope, workers: int = 1
    ) -> bool:
        """Return True if `workers` workers of one shape fit once all possible victims left."""
        shape = pod_set.members[0].shape
        idle = sum(self._state.later.idle[node] for node in nodes)
        missing_devices = workers * shape.devices - idle
        if not shape.is_whole or missing_devices <= 0:
            return True
        own_project = pod_set.planned.project
        in_quota = own_project.allocated + pod_set.demand <= own_project.quota or scope.own_project
        for counts in self._reclaimable(nodes):
            if counts.project is own_project:
                if scope.own_project:
                    missing_devices -= _own_reclaimable(counts, pod_set, scope)
            elif scope.other_projects:
                reclaimable = counts.all_surplus if scope.surplus_only else counts.all_devices
                in_tree = own_project.parent is not None or counts.project.parent is not None
                if counts.is_shared or in_tree:
                    # A fraction counts less than the device it frees; in a tree, ancestors are
                    # judged (R2).
                    missing_devices -= reclaimable.total
                else:
                    bound = self._max_loss(counts.project, reclaimable.largest, in_quota)
                    missing_devices -= min(reclaimable.total, bound)
            if missing_devices <= 0:
                return True
        return False

    def has_project_over(self, pod_set: PodSet, scope: PreemptionScope) -> bool:
        """Return True if any project may yield something (R2); True without a check in trees.

        Also True for claims on the own project.
        """
        own_project, roots = pod_set.planned.project, self._state.tree.roots
        if scope.own_project or own_project.parent is not None or any(r.children for r in roots):
            return True
        if any(root.children for root in roots):
            return True
        in_quota = own_project.allocated + pod_set.demand <= own_project.quota
        return any(
            self._max_loss(root, 1, in_quota) > 0 for root in roots if root is not own_project
        )

    def _max_loss(self, project: ProjectNode, largest: int, in_quota: bool) -> int:  # noqa: FBT001  hot
        """Return the most devices that R2 lets a project lose: the last victim may be `largest`."""
        over = self._devices_over.get((project, in_quota))
        if over is None:
            bound = project.quota if in_quota else max(project.quota, project.fair_share)
            bound = min(bound, project.limit)
            over = -((bound - project.allocated) // WHOLE_GPU)
            self._devices_over[project, in_quota] = over
        return over - 1 + largest if over > 0 else 0

    def _reclaimable(self, nodes: Collection[int]) -> list[ProjectDevices]:
        """Return what each project could lose on these nodes, cached for a single node."""
        if len(nodes) != 1:
            return self._count_devices(nodes)
        (node,) = nodes
        known = self._by_node.get(node)
        if known is None:
            known = self._by_node[node] = self._count_devices(nodes)
        return known

    def _count_devices(self, nodes: Iterable[int]) -> list[ProjectDevices]:
        devices: dict[ProjectNode, dict[PlannedWorkload, int]] = {}
        shared: set[ProjectNode] = set()
        for member in (m for node in nodes for m in self._state.on_node.get(node, ())):
            self._state.victims_examined += 1
            planned, booking = member.planned, member.booking
            if booking is None or planned.is_fixed or member.phase not in ACTIVE:
                continue
            by_workload = devices.setdefault(planned.project, {})
            by_workload[planned] = by_workload.get(planned, 0) + len(booking.devices)
            if not member.shape.is_whole:
                shared.add(planned.project)
        reclaimable: list[ProjectDevices] = []
        for project, all_devices in devices.items():
            surplus = {i: s for i, n in all_devices.items() if (s := _max_surplus(i, n))}
            unprotected = all_devices
            if self._state.protects:
                unprotected = {i: n for i, n in all_devices.items() if not self._is_protected(i)}
            totals = _total_of(unprotected), _total_of(surplus)
            counts = ProjectDevices(project, unprotected, surplus, project in shared, *totals)
            reclaimable.append(counts)
        return reclaimable

    def _is_protected(self, planned: PlannedWorkload) -> bool:
        """Return True if pausing is not allowed yet (R8); elastic workloads may shrink first."""
        if len(planned.members) > planned.minimum:
            return False
        known = self._protected_cache.get(planned)
        if known is None:
            state = self._state
            active = [member for member in planned.members if member.phase in ACTIVE]
            until = protected_until(planned, active, state.policy, state.time)
            known = self._protected_cache[planned] = until is not None
        return known


def _total_of(devices: dict[PlannedWorkload, int]) -> ReclaimableDevices:
    return ReclaimableDevices(sum(devices.values()), max(devices.values(), default=0))


def _max_surplus(planned: PlannedWorkload, devices: int) -> int:
    """Return the most devices that a workload could lose and still run (E1, E2)."""
    if len(planned.members) == planned.minimum:
        return 0
    beyond = max(0, planned.count(*ACTIVE) - planned.minimum)
    return min(devices, beyond * max(m.shape.devices for m in planned.members[planned.minimum :]))


def _own_reclaimable(counts: ProjectDevices, pod_set: PodSet, scope: PreemptionScope) -> int:
    """Return the most that a claimant may take of its own project (R1, E1).

    That is workloads of lower priority, and surplus.
    """
    claimant = pod_set.planned
    if scope.surplus_only:
        return counts.all_surplus.total
    if claimant.is_fixed:
        return counts.all_devices.total
    return sum(
        count if planned.rank < claimant.rank else counts.surplus.get(planned, 0)
        for planned, count in counts.devices.items()
    )

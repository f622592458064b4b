"""Capacity held for the oldest blocked gang, with backfill until it starts (O4).

The expected start of a blocked pod set follows from the ends of running workloads. Idle ones there
are held; other pod sets may use them only if they do not delay it. No worker is moved or stopped.
Active if the policy has `backfill`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Project, Worker, Workload, end_of
from runai.hub_service.scheduler.placement.place import place
from runai.hub_service.scheduler.placement.quota_check import first_cap_exceeded
from runai.hub_service.scheduler.state.equivalence_classes import PodSet
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import ProjectNode
from runai.hub_service.scheduler.state.quota_by_type import Charge
from runai.hub_service.scheduler.state.request_shape import RequestShape

NEVER = 1 << 62
_NO_HOLDS: AbstractContextManager[tuple[bool, ...]] = nullcontext(())

DevicePlace = tuple[int, int]
"""A node and the number of a device on it."""


class BackfillHold(NamedTuple):
    """Devices held for a pod set until its expected start."""

    pod_set: PodSet
    start: int
    is_within_quota: bool
    """True if the pod set is within its project's quota by its start."""
    placeholders: tuple[PlannedWorker, ...]
    """Placeholder workers on the idle ones of these devices."""


class BackfillHolds:
    """Holds of one cycle; empty unless the policy has `backfill`."""

    def __init__(self, state: PlanningState) -> None:
        """Start without holds."""
        self._state = state
        self._holds: list[BackfillHold] = []
        self._end_by_workload: dict[PlannedWorkload, int] = {}
        self._ends_by_project: dict[ProjectNode, list[tuple[int, int]]] = {}

    def __bool__(self) -> bool:
        """Return True if there is any hold."""
        return bool(self._holds)

    # ---- holds

    def reserve(self) -> None:
        """Hold, for the oldest blocked pod set of each project, its place of the soonest start."""
        state = self._state
        oldest = [self._oldest_blocked(project) for project in state.equivalence_classes.projects]
        blocked = [pod_set for pod_set in oldest if pod_set is not None]
        if not blocked:
            return
        free_at = self._when_devices_are_free()
        for pod_set in sorted(blocked, key=lambda pod_set: pod_set.planned.age):
            soonest = _soonest(pod_set, free_at)
            if soonest is None:
                continue
            start, devices = soonest
            start = max(start, self._within_bound_from(pod_set, _entitlement))
            is_within_quota = self._within_bound_from(pod_set, _quota) <= start
            for node, device in devices:
                free_at[node][device] = NEVER
            placeholders = self._hold_idle(pod_set, devices)
            self._holds.append(BackfillHold(pod_set, start, is_within_quota, placeholders))

    def _oldest_blocked(self, project: ProjectNode) -> PodSet | None:
        """Return a project's first pod set that will fit its share but not what is free now."""
        classes = self._state.equivalence_classes.classes_of(project)
        heads = [c.pod_sets[0] for c in classes if not c.pod_sets[0].is_surplus]
        for pod_set in sorted(heads, key=lambda pod_set: pod_set.key):
            if (
                pod_set.demand
                and self._within_bound_from(pod_set, _entitlement) < NEVER
                and first_cap_exceeded(pod_set) is None
                and all(member.shape.nodes for member in pod_set.members)
                and not self._fits_now(pod_set)
            ):
                return pod_set
        return None

    def _fits_now(self, pod_set: PodSet) -> bool:
        mark = self._state.mark()
        fits = place(self._state, pod_set.members, Phase.STARTED)
        self._state.roll_back(mark)
        return fits

    def _when_devices_are_free(self) -> list[list[int]]:
        """Return, for every device, when its last worker is expected to leave."""
        state = self._state
        free_at: list[list[int]] = [
            [state.time if milli == WHOLE_GPU else NEVER for milli in devices]
            for devices in state.later.milli
        ]
        busy: dict[DevicePlace, int] = {}
        for node, members in state.on_node.items():
            for member in members:
                end = self._expected_end(member.planned)
                for device in member.booking.devices if member.booking else ():
                    busy[node, device] = max(busy.get((node, device), 0), end)
        for (node, device), at in busy.items():
            free_at[node][device] = at
        return free_at

    def _expected_end(self, planned: PlannedWorkload) -> int:
        """Return when a running workload is expected to end."""
        if planned not in self._end_by_workload:
            end = end_of(planned.workload, self._state.time)
            self._end_by_workload[planned] = NEVER if end is None else end.at
        return self._end_by_workload[planned]

    def _within_bound_from(self, pod_set: PodSet, bound: Callable[[ProjectNode], int]) -> int:
        """Return when a pod set is within a bound at its project and each ancestor.

        Running work has ended by then. `NEVER` if the pod set alone exceeds a bound.
        """
        since = self._state.time
        for project in pod_set.planned.project.path:
            excess = project.allocated + pod_set.demand - bound(project)
            if excess <= 0:
                continue
            for end, milli in self._ends_of(project):
                excess -= milli
                if excess <= 0:
                    since = max(since, end)
                    break
            else:
                return NEVER
        return since

    def _ends_of(self, project: ProjectNode) -> list[tuple[int, int]]:
        """Return the expected ends of a project's running work, each with its milli-GPU."""
        if project not in self._ends_by_project:
            self._ends_by_project[project] = sorted(
                (self._expected_end(member.planned), member.booking.quota)
                for members in self._state.on_node.values()
                for member in members
                if member.booking is not None and project in member.planned.project.path
            )
        return self._ends_by_project[project]

    def _hold_idle(self, pod_set: PodSet, devices: list[DevicePlace]) -> tuple[PlannedWorker, ...]:
        """Reserve the idle ones of these devices for new placeholders; return the placeholders."""
        state, name = self._state, pod_set.planned.name
        workload = Workload(name=name, project=name, workers=())
        # A separate project node, so that held devices count for no project.
        planned = PlannedWorkload(workload, Charge(ProjectNode(Project(name=name), None)))
        placeholders: list[PlannedWorker] = []
        for node, device in devices:
            if _is_idle(state, node, device):
                worker = Worker(name=f"{name} {node}:{device}", gpus=MilliGpu(WHOLE_GPU))
                placeholder = PlannedWorker(worker, len(placeholders), planned, _PLACEHOLDER_SHAPE)
                booking = state.book(_PLACEHOLDER_SHAPE, node, (device,))
                state.set(placeholder, Phase.RESERVED, booking)
                placeholders.append(placeholder)
        return tuple(placeholders)

    # ---- backfill

    def open_to(self, pod_set: PodSet) -> AbstractContextManager[tuple[bool, ...]]:
        """Lift, inside a `with`, the holds that a pod set may use; yield one bool per hold."""
        return self._lift_for(pod_set) if self._holds else _NO_HOLDS

    @contextmanager
    def _lift_for(self, pod_set: PodSet) -> Generator[tuple[bool, ...]]:
        may_pass = tuple(self._may_pass(pod_set, hold) for hold in self._holds)
        lifted = [
            (placeholder, placeholder.booking)
            for hold, passes in zip(self._holds, may_pass, strict=True)
            if passes
            for placeholder in hold.placeholders
            if placeholder.booking is not None
        ]
        for placeholder, _ in lifted:
            self._state.set(placeholder, Phase.PENDING, None)
        yield may_pass
        for placeholder, booking in lifted:
            # A device that a worker took meanwhile is held no longer.
            (device,) = booking.devices
            if _is_idle(self._state, booking.node, device):
                self._state.set(placeholder, Phase.RESERVED, booking)

    def blocking_hold(self, pod_set: PodSet) -> BackfillHold | None:
        """Return the hold in the way of a pod set: they are lifted in turn until it fits now."""
        state = self._state
        mark = state.mark()
        blocking = None
        for hold in self._holds:
            self._lift(hold)
            if hold.pod_set is not pod_set and place(state, pod_set.members, Phase.STARTED):
                blocking = hold
                break
        state.roll_back(mark)
        return blocking

    def release(self) -> None:
        """Remove all holds, after every pod set was tried."""
        for hold in self._holds:
            self._lift(hold)

    def _lift(self, hold: BackfillHold) -> None:
        for placeholder in hold.placeholders:
            if placeholder.booking is not None:
                self._state.set(placeholder, Phase.PENDING, None)

    def _may_pass(self, pod_set: PodSet, hold: BackfillHold) -> bool:
        """Return True if a pod set may use the devices of a hold."""
        claimant = pod_set.planned
        if pod_set is hold.pod_set or claimant.is_fixed:
            return True  # Q1: build GPUs are always available
        workload, left = claimant.workload, hold.start - self._state.time
        # Only a limit is enforced: a run may exceed its expected time.
        if workload.max_runtime is not None and workload.max_runtime <= left:
            return True
        if claimant.project is hold.pod_set.planned.project:
            return pod_set.key < hold.pod_set.key
        return _fits_quota(pod_set) and not hold.is_within_quota


_PLACEHOLDER_SHAPE = RequestShape(order=-1, devices=1, milli=int(WHOLE_GPU), mib=0, cpu=0, memory=0)


def _is_idle(state: PlanningState, node: int, device: int) -> bool:
    """Return True if a device is unused once stopping workers have exited."""
    capacity = state.later
    milli, mib = capacity.milli[node][device], capacity.mib[node][device]
    return milli == WHOLE_GPU and mib == capacity.device_mib[node]


def _entitlement(project: ProjectNode) -> int:
    return max(project.quota, project.fair_share)


def _quota(project: ProjectNode) -> int:
    return project.quota


def _fits_quota(pod_set: PodSet) -> bool:
    return all(p.allocated + pod_set.demand <= p.quota for p in pod_set.planned.project.path)


def _soonest(pod_set: PodSet, free_at: list[list[int]]) -> tuple[int, list[DevicePlace]] | None:
    """Return when and where all workers of a pod set fit first; None if unknown.

    Only whole devices count, a fraction as one. CPU and memory are not predicted.
    """
    start, used_devices = 0, set[DevicePlace]()
    shapes: dict[RequestShape, int] = {}
    for member in pod_set.members:
        shapes[member.shape] = shapes.get(member.shape, 0) + 1
    for shape, count in sorted(shapes.items(), key=lambda item: (-item[0].devices, item[0].order)):
        if not shape.devices:
            continue
        queue = [_next_slot(shape, node, free_at, used_devices) for node in shape.nodes]
        heapify(queue)
        for _ in range(count):
            if not queue:
                return None
            at, node, devices = heappop(queue)
            if at >= NEVER:
                return None
            start = max(start, at)
            used_devices.update((node, device) for device in devices)
            heappush(queue, _next_slot(shape, node, free_at, used_devices))
    return start, sorted(used_devices)


def _next_slot(
    shape: RequestShape, node: int, free_at: list[list[int]], used_devices: set[DevicePlace]
) -> tuple[int, int, list[int]]:
    """Return when, and on which devices, a node has room for a shape's next worker."""
    unused = sorted((at, d) for d, at in enumerate(free_at[node]) if (node, d) not in used_devices)
    free = unused[: shape.devices]
    at = free[-1][0] if len(free) == shape.devices else NEVER
    return at, node, [device for _, device in free]

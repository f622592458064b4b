"""Cluster state while a plan is computed: current and future allocations.

`PlanningState.set` changes a worker, and capacity, projects, classes and victims too; `mark` and
`roll_back` undo trial placements. It applies changes without checking quotas or priorities.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import (
    Node,
    NodeTypes,
    Policy,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.state.equivalence_classes import EquivalenceClasses
from runai.hub_service.scheduler.state.frag_aware_capacity import FragAwareCapacity, capacity_for
from runai.hub_service.scheduler.state.free_capacity import FreeCapacity
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.previous_waits import PreviousWaits
from runai.hub_service.scheduler.state.project_tree import ProjectNode, ProjectTree
from runai.hub_service.scheduler.state.quota_by_type import Charge, candidates, within
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape, RequestShapes
from runai.hub_service.scheduler.state.user_turns import UserTurns
from runai.hub_service.scheduler.state.victims import Victims

_MAX_STALE_SHAPES = 1000
_ANY_NODE_TYPE = NodeTypes()
_TERMINATING = Phase.TERMINATING


class PlanningState:
    """Capacity, projects and workloads of one cycle, changed together by `set` alone."""

    def __init__(self, snapshot: Snapshot, tree: ProjectTree) -> None:
        """Book every running, stopping and reserved worker of the snapshot."""
        self.policy: Policy = snapshot.policy
        self.time = snapshot.now
        self.tree = tree
        self.nodes: Sequence[Node] = sorted(snapshot.nodes, key=lambda node: node.name)
        self.index_of = {node.name: index for index, node in enumerate(self.nodes)}
        packing = snapshot.policy.packing
        self.now = capacity_for(packing, self.nodes)
        self.later = capacity_for(packing, self.nodes)
        self._shapes = RequestShapes(self.nodes)
        self.book = self._shapes.book
        self._open_devices = sum(node.devices for node in self.nodes if node.schedulable)
        self._closed = [i for i, node in enumerate(self.nodes) if not node.schedulable]
        self._with_broken = [i for i, node in enumerate(self.nodes) if node.broken_devices]
        self._journal: list[tuple[PlannedWorker, Phase, Booking | None]] = []
        self.touched: set[ProjectNode] = set()
        """Projects whose allocation changed since the queue order last read them."""
        self.victims_examined = 0
        self.pod_sets_popped = 0
        """Number of pod sets that an order has returned so far, placed or not."""
        self._terminating: dict[int, dict[PlannedWorker, None]] = {}
        self.on_node: dict[int, dict[PlannedWorker, None]] = {}
        """Workers with a current or future booking on a node."""
        self.by_name: dict[str, PlannedWorkload] = {}
        self.turns = UserTurns() if snapshot.policy.users_take_turns else None
        """Allocations per user, if users take turns (O3)."""
        self.equivalence_classes = EquivalenceClasses(by_user=snapshot.policy.users_take_turns)
        self.victims = Victims()
        self.reserved: dict[PlannedWorkload, None] = {}
        """Workloads with a reserved worker in the snapshot (R7)."""
        self.broken: dict[PlannedWorkload, None] = {}
        """Workloads below their minimum in the snapshot (R11)."""
        self.max_slots: dict[RequestShape, int] = {}
        """Number of workers of a shape that fit into the empty cluster, cached."""
        self.fixed: dict[PlannedWorkload, None] = {}
        """Sessions within the build quota (Q1)."""
        self.undecided: dict[PlannedWorkload, None] = {}
        """Waiting workloads that may have several charges: by GPU type (Q4), or by the memory of
        their device (P3)."""
        self._gpu_type_of: dict[str, str] = {}  # by node name, if quotas depend on it (Q4)
        if tree.has_parts:
            self._gpu_type_of = {node.name: node.gpu_type for node in self.nodes if node.devices}
        self.resizable: dict[PlannedWorkload, None] = {}
        """Workloads with one elastic worker (E2)."""
        self.stuck: dict[PlannedWorkload, None] = {}
        """Workloads with pending workers that cannot be placed at present."""
        self.protects = self.policy.max_pauses_per_hour is not None or any(
            project.min_runtime for project in snapshot.projects
        )
        """True if any workload may be protected from being stopped (R8)."""
        self._has_node_types = any(p.node_types != _ANY_NODE_TYPE for p in snapshot.projects)
        oldest_first = sorted(snapshot.workloads, key=lambda w: w.age)
        for workload in oldest_first:
            self.add(workload)

    @property
    def has_stale_shapes(self) -> bool:
        """Return True if most cached request shapes belong to workloads long removed."""
        return len(self._shapes) > _MAX_STALE_SHAPES + 4 * len(self.by_name)

    @cached_property
    def _device_sizes(self) -> list[int]:
        return sorted({node.device_memory_mib for node in self.nodes if node.devices})

    @cached_property
    def empty(self) -> FreeCapacity:
        """Return the capacity of the empty cluster."""
        return FreeCapacity(self.nodes, spread=False)

    @cached_property
    def previous_waits(self) -> PreviousWaits:
        """Return the wait decisions of the previous cycle (X)."""
        return PreviousWaits()

    def set_expected_requests(self) -> None:
        """Set the mix of requests that fragmentation-aware capacity expects (P6)."""
        capacities = [c for c in (self.now, self.later) if isinstance(c, FragAwareCapacity)]
        if capacities:
            members = (member for planned in self.by_name.values() for member in planned.members)
            workers = Counter(member.shape for member in members)
            for capacity in capacities:
                capacity.expect(workers)

    # ---- workloads of the snapshot

    def add(self, workload: Workload, charge: Charge | None = None) -> None:
        """Book a workload as in the snapshot; it counts by `charge` if given."""
        project = self.tree.queue_of(workload.project)
        is_known = project is not None and not self.tree.has_left(workload)
        project = project or ProjectNode(Project(name=workload.project), None)
        charges = self._possible_charges(project, workload)
        charge = charge or charges[0]
        project = charge.project
        planned = PlannedWorkload(workload, charge, is_known=is_known)
        self.by_name[planned.name] = planned
        node_types = self._node_types(planned)
        is_unrestricted = project.gpu_type is None and not charge.device_mib
        is_reserved, is_pending, demand = False, False, 0
        for index, worker in enumerate(planned.workload.workers):
            worker_request = worker if is_unrestricted else self._within(charge, worker)
            shape = self._shapes.shape_of(worker_request, node_types)
            member = PlannedWorker(worker, index, planned, shape)
            planned.members.append(member)
            state = worker.state
            if state is WorkerState.PENDING:
                is_pending = True
                demand += member.shape.quota if is_known else 0
                continue
            member.origin = self._booking_in_snapshot(worker, member.shape)
            if state is WorkerState.STOPPING:
                # A paused job is pending; a stopping worker requests nothing at present.
                member.snapshot_phase = Phase.TERMINATING
                self._apply(member, Phase.TERMINATING, None)
                continue
            demand += member.origin.quota
            if state is WorkerState.RUNNING:
                member.snapshot_phase = Phase.RUNNING
                self._apply(member, Phase.RUNNING, member.origin)
            else:
                # It stays pending until `honour_reservations` has verified its reservation.
                is_reserved, member.snapshot_phase = True, Phase.RESERVED
        if demand:
            demand = planned.cap_to_request(demand)
            for ancestor in project.path:
                ancestor.requested += demand
        if is_reserved:
            self.reserved[planned] = None
        else:
            if is_pending and not self.equivalence_classes.add(planned):
                self.stuck[planned] = None
            self.victims.add(planned, self.time)
        for listed, belongs in (
            (self.undecided, is_pending and len(charges) > 1),
            (self.fixed, planned.is_fixed),
            (self.broken, workload.below_min_since is not None),
            (self.resizable, planned.sizes is not None),
        ):
            if belongs:
                listed[planned] = None

    def remove(self, name: str) -> None:
        """Remove a workload. Call it only when no change is pending, after `roll_back(0)`."""
        planned = self.by_name.pop(name)
        self.victims.remove(planned)
        self.equivalence_classes.remove(planned)
        demand = 0
        for member in planned.members:
            if member.snapshot_phase is Phase.PENDING:
                demand += member.shape.quota if planned.is_known else 0
            elif member.snapshot_phase is not Phase.TERMINATING:
                assert member.origin is not None, "it has a place in the snapshot"
                demand += member.origin.quota
            self._apply(member, Phase.PENDING, None)
        demand = planned.cap_to_request(demand)
        for ancestor in planned.project.path:
            ancestor.requested -= demand
        for listed in (
            self.undecided,
            self.resizable,
            self.reserved,
            self.broken,
            self.fixed,
            self.stuck,
        ):
            listed.pop(planned, None)
        planned.members.clear()

    def clear(self) -> None:
        """Clear references between workloads and their workers; the state is unusable afterwards.

        Reference counting then frees everything, without a full run of the garbage collector.
        """
        for planned in self.by_name.values():
            planned.members.clear()
        self.equivalence_classes.clear()

    def _booking_in_snapshot(self, worker: Worker, shape: RequestShape) -> Booking:
        """Return a placed worker's booking, without devices that its node does not have."""
        index = self.index_of.get(worker.node or "", -1)
        device_count = self.nodes[index].devices if index >= 0 else 0
        devices = worker.devices
        if len(devices) == 1:
            devices = devices if devices[0] < device_count else ()
        else:
            devices = tuple([d for d in range(device_count) if d in devices])
        return self.book(shape, index, devices)

    def _node_types(self, planned: PlannedWorkload) -> tuple[tuple[str, ...], ...]:
        """Return the node types that its project and each ancestor allow a workload (P5)."""
        if not self._has_node_types:
            return ()
        is_job = planned.workload.kind == "job"
        allowed_types = [
            project.spec.node_types.train if is_job else project.spec.node_types.build
            for project in planned.project.path
        ]
        return tuple([types for types in allowed_types if types is not None])

    # ---- changes

    def set(self, member: PlannedWorker, phase: Phase, booking: Booking | None) -> None:
        """Change a worker's phase; capacity and projects follow."""
        self._journal.append((member, member.phase, member.booking))
        self._apply(member, phase, booking)

    def _apply(  # noqa: C901, PLR0912  the innermost loop of everything
        self, member: PlannedWorker, phase: Phase, booking: Booking | None
    ) -> None:
        """Change a worker without an entry in the journal."""
        old_phase, old, origin = member.phase, member.booking, member.origin
        member.phase, member.booking = phase, booking
        self._book_now(old_phase, old, phase, booking, origin)
        if old is not booking:
            if old is not None:
                del self.on_node[old.node][member]
            if booking is not None:
                self.on_node.setdefault(booking.node, {})[member] = None
        if origin is not None and phase.vacates is not old_phase.vacates:
            if phase.vacates:
                self._terminating.setdefault(origin.node, {})[member] = None
            else:
                del self._terminating[origin.node][member]
        if origin is not None and (phase is _TERMINATING) is not (old_phase is _TERMINATING):
            terminating_change = origin.quota if phase is _TERMINATING else -origin.quota
            for project in member.planned.project.path:
                project.terminating += terminating_change
        later_before = old if old_phase.holds_later else None
        later_after = booking if phase.holds_later else None
        if later_before is later_after:
            return
        change = 0
        if later_before is not None:
            self.later.book(later_before, -1)
            change -= later_before.quota
        if later_after is not None:
            self.later.book(later_after)
            change += later_after.quota
        if change:
            planned = member.planned
            path = planned.project.path
            for project in path:
                project.allocated += change
            if planned.is_fixed:
                for project in path:
                    project.build += change
            if self.turns is not None:
                self.turns.book(planned, change)
            self.touched.update(path)

    def _book_now(
        self,
        old_phase: Phase,
        old: Booking | None,
        phase: Phase,
        booking: Booking | None,
        origin: Booking | None,
    ) -> None:
        """Book the capacity free now, after a worker changed."""
        # A stopping worker still occupies its old place; a moving one its old and its new place.
        before = origin if old_phase.vacates else old
        after = origin if phase.vacates else booking
        if before is not after:
            if before is not None:
                self.now.book(before, -1)
            if after is not None:
                self.now.book(after)
        if old_phase is Phase.MOVED and old is not None:
            self.now.book(old, -1)
        if phase is Phase.MOVED and booking is not None:
            self.now.book(booking)

    @property
    def candidates_examined(self) -> int:
        """Return the number of candidates examined so far, to measure how the cost grows."""
        return self.now.examined + self.later.examined + self.victims_examined

    def capacity_by_type(self) -> dict[str, int]:
        """Return the capacity per GPU type, if a quota depends on it (Q4)."""
        by_type: dict[str, int] = {}
        if self.tree.has_parts:
            for index, node in enumerate(self.nodes):
                devices = node.devices if node.schedulable else node.devices - self.now.idle[index]
                devices -= self.now.unused_broken_devices(index)
                by_type[node.gpu_type] = by_type.get(node.gpu_type, 0) + devices * WHOLE_GPU
        return by_type

    def _possible_charges(self, project: ProjectNode, workload: Workload) -> list[Charge]:
        """Return the charges that a workload may have, the default first; never empty."""
        parts = candidates(project, workload, self._gpu_type_of) if project.parts else [project]
        max_memory_mib = 0
        if len(self._device_sizes) > 1:
            max_memory_mib = max(worker.gpu_memory_mib or 0 for worker in workload.workers)
        if not max_memory_mib:
            return [Charge(part) for part in parts] if project.parts else [Charge(project)]
        sizes = [size for size in self._device_sizes if size >= max_memory_mib]
        return [Charge(part, size) for part in parts for size in (0, *sizes[1:])]

    def _within(self, charge: Charge, worker: Worker) -> Worker:
        """Return a worker's request restricted to the nodes where it counts by `charge`."""
        if charge.project.gpu_type is not None:
            worker = within(charge.project, worker, self._gpu_type_of.values())
        if charge.device_mib and worker.gpu_memory_mib and worker.state is WorkerState.PENDING:
            large = tuple(
                node.name
                for node in self.nodes
                if node.device_memory_mib >= charge.device_mib
                and (worker.nodes is None or node.name in worker.nodes)
            )
            worker = replace(worker, nodes=large)
        return worker

    def charges_for(self, planned: PlannedWorkload) -> list[Charge]:
        """Return the charges that a workload may have: by GPU type (Q4), then device (P3)."""
        project = planned.project
        if project.gpu_type is not None and project.parent is not None:
            project = project.parent
        return self._possible_charges(project, planned.snapshot_workload)

    def shape_for(self, charge: Charge, member: PlannedWorker) -> RequestShape:
        """Return a worker's request shape where it counts by another charge."""
        worker = self._within(charge, member.worker)
        return self._shapes.shape_of(worker, self._node_types(member.planned))

    def shapes_by_gpu_type(self, members: Sequence[PlannedWorker]) -> list[list[RequestShape]]:
        """Return the workers' request shapes on each GPU type that they prefer, in order (P5).

        Empty if they name no types, or one.
        """
        preferred, node_types = members[0].worker.gpu_types, self._node_types(members[0].planned)
        if len(preferred) <= 1 or any(m.worker.gpu_types != preferred for m in members):
            return []
        available_types = {self.nodes[index].gpu_type for index in members[0].shape.nodes}
        return [
            [self._shapes.shape_of(replace(m.worker, gpu_types=(t,)), node_types) for m in members]
            for t in preferred
            if t in available_types
        ]

    def rebook(self, planned: PlannedWorkload, charge: Charge) -> PlannedWorkload:
        """Charge a workload that the plan has not changed elsewhere; return its new planned one."""
        self.remove(planned.name)
        self.add(planned.snapshot_workload, charge)
        return self.by_name[planned.name]

    def capacity(self) -> int:
        """Return the milli-GPU to share: open nodes, and used devices that are closed or broken."""
        total = self._open_devices
        for index in self._closed:
            total += self.nodes[index].devices - self.now.idle[index]
        for index in self._with_broken:
            total -= self.now.unused_broken_devices(index)
        return total * WHOLE_GPU

    def terminating_workers(self, booking: Booking) -> list[PlannedWorker]:
        """Return the workers that must leave before a reservation here can start."""
        on_node = self._terminating.get(booking.node)
        if not on_node:
            return []
        devices = set(booking.devices)
        blocking = [m for m in on_node if m.origin and not devices.isdisjoint(m.origin.devices)]
        if not blocking and not self._has_base_now(booking):
            blocking = list(on_node)  # they occupy the CPU or memory that the reservation needs
        return sorted(blocking, key=lambda member: (member.planned.age, member.index))

    def stopping_workers(self, projects: AbstractSet[ProjectNode]) -> list[PlannedWorker]:
        """Return the stopping workers of these projects that have not ended yet."""
        stopping = [
            member
            for on_node in self._terminating.values()
            for member in on_node
            if member.phase is _TERMINATING and not projects.isdisjoint(member.planned.project.path)
        ]
        return sorted(stopping, key=lambda member: (member.planned.age, member.index))

    def _has_base_now(self, booking: Booking) -> bool:
        """Return True if CPU and memory of a booking's node suffice now, itself included."""
        return self.now.cpu[booking.node] >= 0 and self.now.memory[booking.node] >= 0

    def mark(self) -> int:
        """Return the current point of the journal, for `roll_back`."""
        return len(self._journal)

    def roll_back(self, mark: int) -> None:
        """Undo every change since a mark, latest first; 0 restores the snapshot."""
        journal = self._journal
        while len(journal) > mark:
            member, phase, booking = journal.pop()
            self._apply(member, phase, booking)

    def changed(self) -> Iterable[PlannedWorkload]:
        """Return the workloads changed in this cycle so far."""
        return dict.fromkeys([member.planned for member, _, _ in self._journal])

    def release(self, member: PlannedWorker) -> None:
        """Release a victim's devices: a running worker stops, a reservation ends at once."""
        if member.phase is Phase.RUNNING or (
            member.phase is Phase.MOVED and member.snapshot_phase is Phase.RUNNING
        ):
            self.set(member, Phase.TERMINATING, None)
        else:
            self.set(member, Phase.PENDING, None)

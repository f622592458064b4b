"""Cluster state while a plan is computed: current and future allocations.

`State.set` changes a worker and updates capacity, accounts, lanes and victims with it; `mark` and
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
from runai.hub_service.scheduler.state.equivalence import Lanes
from runai.hub_service.scheduler.state.fragmentation_index import FragRoom, room_for
from runai.hub_service.scheduler.state.free_capacity import Room
from runai.hub_service.scheduler.state.planned_workloads import (
    Phase,
    PlannedWorker,
    PlannedWorkload,
)
from runai.hub_service.scheduler.state.previous_waits import PreviousWaits
from runai.hub_service.scheduler.state.project_tree import ProjectNode, ProjectTree
from runai.hub_service.scheduler.state.quota_by_type import Charge, candidates, within
from runai.hub_service.scheduler.state.request_shape import Booking, Kinds, RequestShape
from runai.hub_service.scheduler.state.user_turns import Turns
from runai.hub_service.scheduler.state.victim_order import Victims

_MAX_STALE_KINDS = 1000
_ANY = NodeTypes()
_GOING = Phase.GOING


class State:
    """Capacity, accounts and items of one cycle, changed together by `set` alone."""

    def __init__(self, snapshot: Snapshot, tree: ProjectTree) -> None:
        """Book every running, stopping and reserved worker of the snapshot."""
        self.policy: Policy = snapshot.policy
        self.time = snapshot.now
        self.tree = tree
        self.nodes: Sequence[Node] = sorted(snapshot.nodes, key=lambda node: node.name)
        self.index_of = {node.name: index for index, node in enumerate(self.nodes)}
        packing = snapshot.policy.packing
        self.now = room_for(packing, self.nodes)
        self.later = room_for(packing, self.nodes)
        self._kinds = Kinds(self.nodes)
        self.book = self._kinds.book
        self._open_devices = sum(node.devices for node in self.nodes if node.schedulable)
        self._closed = [i for i, node in enumerate(self.nodes) if not node.schedulable]
        self._with_broken = [i for i, node in enumerate(self.nodes) if node.broken_devices]
        self._journal: list[tuple[PlannedWorker, Phase, Booking | None]] = []
        self.touched: set[ProjectNode] = set()
        """Accounts whose allocation changed since the queue order last read them."""
        self.victim_looks = 0
        self.asks = 0
        """Number of units that an order has returned so far, placed or not."""
        self._leaving: dict[int, dict[PlannedWorker, None]] = {}
        self.on_node: dict[int, dict[PlannedWorker, None]] = {}
        """Workers with a current or future booking on a node."""
        self.by_name: dict[str, PlannedWorkload] = {}
        self.turns = Turns() if snapshot.policy.users_take_turns else None
        """Allocations per user, if users take turns (O3)."""
        self.lanes = Lanes(by_user=snapshot.policy.users_take_turns)
        self.victims = Victims()
        self.reserved: dict[PlannedWorkload, None] = {}
        """Workloads with a reserved worker in the snapshot (R7)."""
        self.broken: dict[PlannedWorkload, None] = {}
        """Workloads below their minimum in the snapshot (R11)."""
        self.slots_ever: dict[RequestShape, int] = {}
        """Number of workers of a kind that fit into the empty cluster, cached."""
        self.fixed: dict[PlannedWorkload, None] = {}
        """Sessions within the build quota (Q1)."""
        self.undecided: dict[PlannedWorkload, None] = {}
        """Waiting workloads that may count in several ways: by GPU type (Q4), or by the memory of
        their device (P3)."""
        self._type_of: dict[str, str] = {}
        if tree.has_parts:
            self._type_of = {node.name: node.gpu_type for node in self.nodes if node.devices}
        self.resizable: dict[PlannedWorkload, None] = {}
        """Workloads with one elastic worker (E2)."""
        self.stuck: dict[PlannedWorkload, None] = {}
        """Workloads with pending workers that cannot be placed at present."""
        self.protects = self.policy.max_pauses_per_hour is not None or any(
            project.min_runtime for project in snapshot.projects
        )
        """True if any workload may be protected from being stopped (R8)."""
        self._restricted = any(project.node_types != _ANY for project in snapshot.projects)
        oldest_first = sorted(snapshot.workloads, key=lambda w: w.age)
        for workload in oldest_first:
            self.add(workload)

    @property
    def has_stale_kinds(self) -> bool:
        """Return True if most cached kinds of request belong to workloads long gone."""
        return len(self._kinds) > _MAX_STALE_KINDS + 4 * len(self.by_name)

    @cached_property
    def _device_sizes(self) -> list[int]:
        return sorted({node.device_memory_mib for node in self.nodes if node.devices})

    @cached_property
    def empty(self) -> Room:
        """Return the capacity of the empty cluster."""
        return Room(self.nodes, spread=False)

    @cached_property
    def previous_waits(self) -> PreviousWaits:
        """Return the wait decisions of the previous cycle (X)."""
        return PreviousWaits()

    def expect_its_like(self) -> None:
        """Set the mix of requests that fragmentation-aware capacity expects (P6)."""
        rooms = [room for room in (self.now, self.later) if isinstance(room, FragRoom)]
        if rooms:
            members = (member for item in self.by_name.values() for member in item.members)
            workers = Counter(member.kind for member in members)
            for room in rooms:
                room.expect(workers)

    # ---- workloads of the snapshot

    def add(self, workload: Workload, charge: Charge | None = None) -> None:
        """Book a workload as in the snapshot; it counts by `charge` if given."""
        account = self.tree.queue_of(workload.project)
        is_known = account is not None and not self.tree.has_left(workload)
        account = account or ProjectNode(Project(name=workload.project), None)
        choices = self._choices(account, workload)
        charge = charge or choices[0]
        account = charge.account
        item = PlannedWorkload(workload, charge, is_known=is_known)
        self.by_name[item.name] = item
        node_types = self._node_types(item)
        is_free = account.gpu_type is None and not charge.device_mib
        is_reserved, is_pending, wanted = False, False, 0
        for index, worker in enumerate(item.workload.workers):
            asked = worker if is_free else self._within(charge, worker)
            member = PlannedWorker(worker, index, item, self._kinds.of(asked, node_types))
            item.members.append(member)
            state = worker.state
            if state is WorkerState.PENDING:
                is_pending = True
                wanted += member.kind.quota if is_known else 0
                continue
            member.origin = self._booking_in_snapshot(worker, member.kind)
            if state is WorkerState.STOPPING:
                # A paused job is pending; a stopping worker requests nothing at present.
                member.was = Phase.GOING
                self._apply(member, Phase.GOING, None)
                continue
            wanted += member.origin.quota
            if state is WorkerState.RUNNING:
                member.was = Phase.RUNNING
                self._apply(member, Phase.RUNNING, member.origin)
            else:
                # It stays pending until `honour_reservations` has verified its reservation.
                is_reserved, member.was = True, Phase.RESERVED
        if wanted:
            wanted = item.request(wanted)
            for above in account.path:
                above.requested += wanted
        if is_reserved:
            self.reserved[item] = None
        else:
            if is_pending and not self.lanes.add(item):
                self.stuck[item] = None
            self.victims.add(item, self.time)
        for listed, belongs in (
            (self.undecided, is_pending and len(choices) > 1),
            (self.fixed, item.is_fixed),
            (self.broken, workload.below_min_since is not None),
            (self.resizable, item.sizes is not None),
        ):
            if belongs:
                listed[item] = None

    def remove(self, name: str) -> None:
        """Remove a workload. Call it only when no change is pending, after `roll_back(0)`."""
        item = self.by_name.pop(name)
        self.victims.remove(item)
        self.lanes.remove(item)
        wanted = 0
        for member in item.members:
            if member.was is Phase.PENDING:
                wanted += member.kind.quota if item.is_known else 0
            elif member.was is not Phase.GOING:
                assert member.origin is not None, "it has a place in the snapshot"
                wanted += member.origin.quota
            self._apply(member, Phase.PENDING, None)
        wanted = item.request(wanted)
        for above in item.account.path:
            above.requested -= wanted
        for listed in (
            self.undecided,
            self.resizable,
            self.reserved,
            self.broken,
            self.fixed,
            self.stuck,
        ):
            listed.pop(item, None)
        item.members.clear()

    def clear(self) -> None:
        """Clear references between workloads and their workers; the state is unusable afterwards.

        Reference counting then frees everything, without a full run of the garbage collector.
        """
        for item in self.by_name.values():
            item.members.clear()
        self.lanes.clear()

    def _booking_in_snapshot(self, worker: Worker, kind: RequestShape) -> Booking:
        index = self.index_of.get(worker.node or "", -1)
        known = self.nodes[index].devices if index >= 0 else 0
        devices = worker.devices
        if len(devices) == 1:
            devices = devices if devices[0] < known else ()
        else:
            devices = tuple([d for d in range(known) if d in devices])
        return self.book(kind, index, devices)

    def _node_types(self, item: PlannedWorkload) -> tuple[tuple[str, ...], ...]:
        """Return the node types that its project and each ancestor allow a workload (P5)."""
        if not self._restricted:
            return ()
        is_job = item.workload.kind == "job"
        chosen = [
            account.project.node_types.train if is_job else account.project.node_types.build
            for account in item.account.path
        ]
        return tuple([allowed for allowed in chosen if allowed is not None])

    # ---- changes

    def set(self, member: PlannedWorker, standing: Phase, booking: Booking | None) -> None:
        """Change a worker's standing; capacity and accounts follow."""
        self._journal.append((member, member.standing, member.booking))
        self._apply(member, standing, booking)

    def _apply(  # noqa: C901, PLR0912  the innermost loop of everything
        self, member: PlannedWorker, standing: Phase, booking: Booking | None
    ) -> None:
        old_standing, old, origin = member.standing, member.booking, member.origin
        member.standing, member.booking = standing, booking
        self._book_now(old_standing, old, standing, booking, origin)
        if old is not booking:
            if old is not None:
                del self.on_node[old.node][member]
            if booking is not None:
                self.on_node.setdefault(booking.node, {})[member] = None
        if origin is not None and standing.leaves is not old_standing.leaves:
            if standing.leaves:
                self._leaving.setdefault(origin.node, {})[member] = None
            else:
                del self._leaving[origin.node][member]
        if origin is not None and (standing is _GOING) is not (old_standing is _GOING):
            told = origin.quota if standing is _GOING else -origin.quota
            for account in member.item.account.path:
                account.leaving += told
        held = old if old_standing.holds_later else None
        holds = booking if standing.holds_later else None
        if held is holds:
            return
        change = 0
        if held is not None:
            self.later.book(held, -1)
            change -= held.quota
        if holds is not None:
            self.later.book(holds)
            change += holds.quota
        if change:
            item = member.item
            path = item.account.path
            for account in path:
                account.allocated += change
            if item.is_fixed:
                for account in path:
                    account.build += change
            if self.turns is not None:
                self.turns.book(item, change)
            self.touched.update(path)

    def _book_now(
        self,
        old_standing: Phase,
        old: Booking | None,
        standing: Phase,
        booking: Booking | None,
        origin: Booking | None,
    ) -> None:
        # A stopping worker still occupies its old place; a moving one its old and its new place.
        before = origin if old_standing.leaves else old
        after = origin if standing.leaves else booking
        if before is not after:
            if before is not None:
                self.now.book(before, -1)
            if after is not None:
                self.now.book(after)
        if old_standing is Phase.MOVED and old is not None:
            self.now.book(old, -1)
        if standing is Phase.MOVED and booking is not None:
            self.now.book(booking)

    @property
    def looks(self) -> int:
        """Return the number of candidates examined so far, to measure how the cost grows."""
        return self.now.looks + self.later.looks + self.victim_looks

    def capacity_by_type(self) -> dict[str, int]:
        """Return the capacity per GPU type, if a quota depends on it (Q4)."""
        by_type: dict[str, int] = {}
        if self.tree.has_parts:
            for index, node in enumerate(self.nodes):
                devices = node.devices if node.schedulable else node.devices - self.now.idle[index]
                devices -= self.now.broken_unheld(index)
                by_type[node.gpu_type] = by_type.get(node.gpu_type, 0) + devices * WHOLE_GPU
        return by_type

    def _choices(self, account: ProjectNode, workload: Workload) -> list[Charge]:
        parts = candidates(account, workload, self._type_of) if account.parts else [account]
        most = 0
        if len(self._device_sizes) > 1:
            most = max(worker.gpu_memory_mib or 0 for worker in workload.workers)
        if not most:
            return [Charge(part) for part in parts] if account.parts else [Charge(account)]
        sizes = [size for size in self._device_sizes if size >= most]
        return [Charge(part, size) for part in parts for size in (0, *sizes[1:])]

    def _within(self, charge: Charge, worker: Worker) -> Worker:
        """Return a worker's request restricted to the nodes where it counts by `charge`."""
        if charge.account.gpu_type is not None:
            worker = within(charge.account, worker, self._type_of.values())
        if charge.device_mib and worker.gpu_memory_mib and worker.state is WorkerState.PENDING:
            large = tuple(
                node.name
                for node in self.nodes
                if node.device_memory_mib >= charge.device_mib
                and (worker.nodes is None or node.name in worker.nodes)
            )
            worker = replace(worker, nodes=large)
        return worker

    def charges_for(self, item: PlannedWorkload) -> list[Charge]:
        """Return the ways in which a workload may count: by GPU type (Q4), then device (P3)."""
        account = item.account
        if account.gpu_type is not None and account.parent is not None:
            account = account.parent
        return self._choices(account, item.given)

    def kind_on(self, charge: Charge, member: PlannedWorker) -> RequestShape:
        """Return a worker's kind of request where it counts by another charge."""
        worker = self._within(charge, member.worker)
        return self._kinds.of(worker, self._node_types(member.item))

    def kinds_by_preference(self, members: Sequence[PlannedWorker]) -> list[list[RequestShape]]:
        """Return the workers' kinds of request on each GPU type that they prefer, in order (P5).

        Empty if they name no types, or one.
        """
        preferred, node_types = members[0].worker.gpu_types, self._node_types(members[0].item)
        if len(preferred) <= 1 or any(m.worker.gpu_types != preferred for m in members):
            return []
        there = {self.nodes[index].gpu_type for index in members[0].kind.nodes}
        return [
            [self._kinds.of(replace(m.worker, gpu_types=(t,)), node_types) for m in members]
            for t in preferred
            if t in there
        ]

    def rebook(self, item: PlannedWorkload, charge: Charge) -> PlannedWorkload:
        """Count a workload that the plan has not changed in another way; return its new item."""
        self.remove(item.name)
        self.add(item.given, charge)
        return self.by_name[item.name]

    def capacity(self) -> int:
        """Return the milli-GPU to share: open nodes, and used devices that are closed or broken."""
        total = self._open_devices
        for index in self._closed:
            total += self.nodes[index].devices - self.now.idle[index]
        for index in self._with_broken:
            total -= self.now.broken_unheld(index)
        return total * WHOLE_GPU

    def leaving(self, booking: Booking) -> list[PlannedWorker]:
        """Return the workers that must leave before a reservation here can start."""
        on_node = self._leaving.get(booking.node)
        if not on_node:
            return []
        wanted = set(booking.devices)
        found = [m for m in on_node if m.origin and not wanted.isdisjoint(m.origin.devices)]
        if not found and not self._is_free_now(booking):
            found = list(on_node)  # they occupy the CPU or memory that the reservation needs
        return sorted(found, key=lambda member: (member.item.age, member.index))

    def stopping_workers(self, accounts: AbstractSet[ProjectNode]) -> list[PlannedWorker]:
        """Return the stopping workers of these projects that have not ended yet."""
        told = [
            member
            for on_node in self._leaving.values()
            for member in on_node
            if member.standing is _GOING and not accounts.isdisjoint(member.item.account.path)
        ]
        return sorted(told, key=lambda member: (member.item.age, member.index))

    def _is_free_now(self, booking: Booking) -> bool:
        # The booking itself is included, so the rest must not be negative.
        return self.now.cpu[booking.node] >= 0 and self.now.memory[booking.node] >= 0

    def mark(self) -> int:
        """Return the current point of the journal, for `roll_back`."""
        return len(self._journal)

    def roll_back(self, mark: int) -> None:
        """Undo every change since a mark, latest first; 0 restores the snapshot."""
        journal = self._journal
        while len(journal) > mark:
            member, standing, booking = journal.pop()
            self._apply(member, standing, booking)

    def changed(self) -> Iterable[PlannedWorkload]:
        """Return the workloads changed in this cycle so far."""
        return dict.fromkeys([member.item for member, _, _ in self._journal])

    def release(self, member: PlannedWorker) -> None:
        """Release a victim's devices: a running worker stops, a reservation ends at once."""
        if member.standing is Phase.RUNNING or (
            member.standing is Phase.MOVED and member.was is Phase.RUNNING
        ):
            self.set(member, Phase.GOING, None)
        else:
            self.set(member, Phase.PENDING, None)

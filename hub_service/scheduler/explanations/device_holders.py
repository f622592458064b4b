"""Workloads on devices that a waiting workload needs, in the order of reclaiming.

Covers the nodes that the workload could use and the workers there after a plan. Rivals are ordered
by R2, their workloads by R4.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

from runai.hub_service.scheduler.model.quantity import WHOLE_GPU
from runai.hub_service.scheduler.model.snapshot import (
    End,
    Plan,
    Snapshot,
    Stop,
    Worker,
    WorkerState,
    Workload,
    end_of,
)
from runai.hub_service.scheduler.model.what_if import worker_after
from runai.hub_service.scheduler.state.project_tree import ProjectNode, tree_of
from runai.hub_service.scheduler.state.request_shape import RequestShape, RequestShapes
from runai.hub_service.scheduler.state.victims import VictimKey, last_start, victim_key

_NODES_COMPARED = 4
_CAP_CODES = ("over_build_quota", "over_limit")


class HolderAllocation(NamedTuple):
    """Allocation of one workload after the plan."""

    workload: Workload
    project: ProjectNode
    total: int
    """Milli-GPU on all nodes."""
    quota: int
    """Milli-GPU on nodes that the waiting workload may use."""
    by_node: dict[str, int]
    """The same by node."""
    end: End | None
    protected_until: int
    """Time until which R8 protects it from being reclaimed; 0 is unprotected."""

    victim_order: VictimKey
    """Sort key by R4: the greatest is reclaimed first."""


class HolderAllocations:
    """Allocations after a plan, relevant to one waiting workload."""

    def __init__(self, snapshot: Snapshot, plan: Plan, workload: Workload) -> None:
        """Add up what each workload but the waiting `workload` holds after the plan."""
        self._now = snapshot.now
        self._tree = tree_of(snapshot)
        self._nodes = sorted(snapshot.nodes, key=lambda node: node.name)
        self._shapes = RequestShapes(self._nodes)
        self._index_of = {node.name: index for index, node in enumerate(self._nodes)}
        self._workload = workload
        project = self._tree.queue_of(workload.project)
        self.path: tuple[ProjectNode, ...] = project.path if project else ()
        shapes = [self._shape(workload, index) for index in range(len(workload.workers))]
        self._usable_nodes = {self._nodes[i].name for shape in shapes for i in shape.nodes}
        """Names of the nodes that the waiting workload may use."""
        lacking = [
            shape.quota
            for shape, worker in zip(shapes, workload.workers, strict=True)
            if worker.state is WorkerState.PENDING
        ]
        running = len(shapes) - len(lacking)
        self.demand = sum(lacking[: max(0, workload.minimum - running)])
        """Milli-GPU that its minimum lacks, as quotas count them."""
        self.workloads = snapshot.workloads
        for tree_node in self._tree.projects.values():
            known = plan.projects.get(tree_node.name)
            tree_node.fair_share = known.fair_share if known else 0
        self._decisions = {
            decision.worker: decision for decision in plan.decisions if decision.kind != "wait"
        }
        self.allocations: list[HolderAllocation] = []
        for other_workload in snapshot.workloads:
            if other_workload is not workload:
                self._add_allocation(other_workload)

    def _shape(self, workload: Workload, index: int) -> RequestShape:
        project = self._tree.queue_of(workload.project)
        restrictions = [a.spec.node_types for a in project.path] if project else []
        is_job = workload.kind == "job"
        allowed_types = [types.train if is_job else types.build for types in restrictions]
        node_types = tuple(types for types in allowed_types if types is not None)
        return self._shapes.shape_of(workload.workers[index], node_types)

    def _workers_after_plan(self, workload: Workload) -> list[Worker]:
        decisions = self._decisions
        return [worker_after(w, decisions.get(w.name), self._now) for w in workload.workers]

    def _add_allocation(self, workload: Workload) -> None:
        """Add what a workload holds to the sums of its projects, and to `allocations`."""
        project = self._tree.queue_of(workload.project)
        if project is None:
            return
        workers = self._workers_after_plan(workload)
        total, by_node = self._milli_of(workload, workers)
        for ancestor in project.path:
            ancestor.allocated += total
            ancestor.build += 0 if workload.is_preemptible else total
        if not total:
            return
        min_runtime = max(ancestor.min_runtime for ancestor in project.path)
        starts = [
            w.started for w in workers if w.state is WorkerState.RUNNING and w.started is not None
        ]
        since = last_start(workload, (w.started for w in workers if w.node is not None), self._now)
        self.allocations.append(
            HolderAllocation(
                workload=workload,
                project=project,
                total=total,
                quota=sum(by_node.values()),
                by_node=by_node,
                end=end_of(workload, self._now),
                protected_until=max(starts) + min_runtime if starts and min_runtime else 0,
                victim_order=victim_key(workload, since=since),
            )
        )

    def _milli_of(self, workload: Workload, workers: list[Worker]) -> tuple[int, dict[str, int]]:
        """Return the milli-GPU of these workers: in total, and by usable node."""
        total, by_node = 0, dict[str, int]()
        for index, worker in enumerate(workers):
            if worker.state in {WorkerState.PENDING, WorkerState.STOPPING}:
                continue
            shape = self._shape(workload, index)
            if shape.is_whole:
                milli = len(worker.devices) * WHOLE_GPU  # of resized ones not the request (E2)
            else:
                node = self._index_of.get(worker.node or "", -1)
                milli = self._shapes.book(shape, node, worker.devices).quota
            total += milli
            if worker.node in self._usable_nodes:
                by_node[worker.node] = by_node.get(worker.node, 0) + milli
        return total, by_node

    # ---- sorted

    def holders(self, code: str) -> list[HolderAllocation]:
        """Return the workloads on capacity that the waiting one needs, largest first."""
        return sorted(self._holders_for(code), key=lambda h: (-h.total, h.workload.name))

    def by_end(self, code: str) -> list[HolderAllocation]:
        """Return the workloads of which one alone may suffice, earliest end first."""
        missing = self.demand - self._free_milli(code)
        enough = [holder for holder in self._holders_for(code) if holder.total >= missing]
        return sorted(enough, key=_by_end)

    def _holders_for(self, code: str) -> list[HolderAllocation]:
        """Return the workloads that count towards a wait code's cap; without one, on its nodes."""
        if code not in _CAP_CODES:
            return [holder for holder in self.allocations if holder.quota]
        own_path = set(self.path)
        capped = [h for h in self.allocations if not own_path.isdisjoint(h.project.path)]
        if code == "over_build_quota":
            return [holder for holder in capped if not holder.workload.is_preemptible]
        return capped

    def _free_milli(self, code: str) -> int:
        """Return the milli-GPU still free under the cap of a wait code, else on its nodes."""
        if code == "over_build_quota":
            return min(a.build_quota - a.build for a in self.path)
        if code == "over_limit":
            return min(a.limit - a.allocated for a in self.path)
        return sum(self._free_by_node().values())

    def _free_by_node(self) -> dict[str, int]:
        free = {
            node.name: node.usable_devices * WHOLE_GPU
            for node in self._nodes
            if node.name in self._usable_nodes
        }
        for holder in self.allocations:
            for node, milli in holder.by_node.items():
                free[node] -= milli
        return free

    def non_lending_projects(self) -> list[ProjectNode]:
        """Return the other projects that keep GPUs idle for themselves (Q2)."""
        return [project for project in self._tree.holders if project not in self.path]

    def terminating_workloads(self) -> list[Workload]:
        """Return the workloads whose workers still occupy devices reserved for it."""
        workers = self._workers_after_plan(self._workload)
        reserved = [worker for worker in workers if _is_reserved(worker)]
        reserved_devices = {(w.node, device) for w in reserved for device in w.devices}
        return [
            workload
            for workload in self.workloads
            if workload is not self._workload
            and any(
                (worker.node, device) in reserved_devices
                for worker in workload.workers
                if worker.state is WorkerState.STOPPING
                or isinstance(self._decisions.get(worker.name), Stop)
                for device in worker.devices
            )
        ]

    # ---- R2 and R4

    def rivals(self) -> list[ProjectNode]:
        """Return the projects over their entitlement on nodes that it may use (R2)."""
        judged_projects = {self._rival_judged_for(holder.project) for holder in self._victims()}
        over_share = [p for p in judged_projects if p is not None and self.overage_of(p) > 0]
        return sorted(over_share, key=lambda project: (-self.overage_of(project), project.age))

    def overage_of(self, project: ProjectNode) -> int:
        """Return a project's overage: over its share, or quota for a claimant within its own."""
        # The path is empty if the waiting workload's project is unknown.
        is_within_quota = all(a.allocated + self.demand <= a.quota for a in self.path[:1])
        over = project.allocated - project.quota if is_within_quota else project.overage
        return max(over, project.over_limit)

    def sets_of(self, rival: ProjectNode) -> Iterator[list[HolderAllocation]]:
        """Yield sets of a rival's workloads that may suffice: on one node first, then anywhere."""
        victims = [
            holder for holder in self._victims() if self._rival_judged_for(holder.project) is rival
        ]
        victims.sort(key=lambda holder: holder.victim_order, reverse=True)
        # Unprotected workloads come first, then by the end of their protection (R8).
        victims.sort(key=lambda holder: max(self._now, holder.protected_until))
        yield from self._on_one_node(victims)
        count = 1
        while count < len(victims):
            yield victims[:count]
            count *= 2
        if victims:
            yield victims

    def _on_one_node(self, victims: list[HolderAllocation]) -> Iterator[list[HolderAllocation]]:
        """Yield the smallest sets that free enough of one node; none for a gang."""
        if self._workload.minimum > 1:
            return
        free = self._free_by_node()
        sets: list[tuple[int, list[HolderAllocation]]] = []
        for node in sorted({node for holder in victims for node in holder.by_node}):
            chosen: list[HolderAllocation] = []
            missing = self.demand - free[node]
            for holder in victims:
                if node in holder.by_node and (missing > 0 or not chosen):
                    chosen.append(holder)
                    missing -= holder.by_node[node]
            if missing <= 0:
                sets.append((sum(holder.total for holder in chosen), chosen))
        sets.sort(key=itemgetter(0))  # stable: ties stay in order of node names
        for _, chosen in sets[:_NODES_COMPARED]:
            yield chosen

    def _victims(self) -> list[HolderAllocation]:
        return [h for h in self.allocations if h.quota and h.workload.is_preemptible]

    def _rival_judged_for(self, project: ProjectNode) -> ProjectNode | None:
        """Return a project's ancestor just below the common one; None for the own path (R2)."""
        if project in self.path:
            return None
        rival_path = [ancestor for ancestor in project.path if ancestor not in self.path]
        return rival_path[-1]


def _is_reserved(worker: Worker) -> bool:
    return worker.state is WorkerState.RESERVED


def _by_end(holder: HolderAllocation) -> tuple[bool, int, str]:
    return (holder.end is None, holder.end.at if holder.end else 0, holder.workload.name)

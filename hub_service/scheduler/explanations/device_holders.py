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
_CAPS = ("over_build_quota", "over_limit")


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

    first_to_go: VictimKey
    """Sort key by R4: the greatest is reclaimed first."""


class HolderAllocations:
    """Allocations after a plan, relevant to one waiting workload."""

    def __init__(self, snapshot: Snapshot, plan: Plan, workload: Workload) -> None:
        """Compute the allocations; `workload` waits."""
        self._now = snapshot.now
        self._tree = tree_of(snapshot)
        self._nodes = sorted(snapshot.nodes, key=lambda node: node.name)
        self._kinds = RequestShapes(self._nodes)
        self._index_of = {node.name: index for index, node in enumerate(self._nodes)}
        self._workload = workload
        project = self._tree.queue_of(workload.project)
        self.path: tuple[ProjectNode, ...] = project.path if project else ()
        shapes = [self._shape(workload, index) for index in range(len(workload.workers))]
        self._mine = {self._nodes[i].name for shape in shapes for i in shape.nodes}
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
        self.allocations = [
            h for w in snapshot.workloads if w is not workload and (h := self._allocation_of(w))
        ]

    def _shape(self, workload: Workload, index: int) -> RequestShape:
        project = self._tree.queue_of(workload.project)
        restrictions = [a.spec.node_types for a in project.path] if project else []
        is_job = workload.kind == "job"
        chosen = [types.train if is_job else types.build for types in restrictions]
        types = tuple(allowed for allowed in chosen if allowed is not None)
        return self._kinds.shape_of(workload.workers[index], types)

    def _after(self, workload: Workload) -> list[Worker]:
        decisions = self._decisions
        return [worker_after(w, decisions.get(w.name), self._now) for w in workload.workers]

    def _allocation_of(self, workload: Workload) -> HolderAllocation | None:
        project = self._tree.queue_of(workload.project)
        if project is None:
            return None
        total, by_node = 0, dict[str, int]()
        after = self._after(workload)
        for index, worker in enumerate(after):
            node = self._index_of.get(worker.node or "", -1)
            if worker.state in {WorkerState.PENDING, WorkerState.STOPPING}:
                continue
            shape = self._shape(workload, index)
            if shape.is_whole:
                booked = len(worker.devices) * WHOLE_GPU  # resized ones differ (E2)
            else:
                booked = self._kinds.book(shape, node, worker.devices).quota
            total += booked
            if worker.node in self._mine:
                by_node[worker.node] = by_node.get(worker.node, 0) + booked
        for above in project.path:
            above.allocated += total
            above.build += 0 if workload.is_preemptible else total
        if not total:
            return None
        min_runtime = max(above.min_runtime for above in project.path)
        starts = [
            w.started for w in after if w.state is WorkerState.RUNNING and w.started is not None
        ]
        return HolderAllocation(
            workload=workload,
            project=project,
            total=total,
            quota=sum(by_node.values()),
            by_node=by_node,
            end=end_of(workload, self._now),
            protected_until=max(starts) + min_runtime if starts and min_runtime else 0,
            first_to_go=victim_key(
                workload,
                since=last_start(
                    workload, (w.started for w in after if w.node is not None), self._now
                ),
            ),
        )

    # ---- sorted

    def holders(self, code: str) -> list[HolderAllocation]:
        """Return the workloads on capacity that it needs, largest first.

        Under a cap, these are the workloads that count towards it.
        """
        return sorted(self._relevant(code), key=lambda h: (-h.total, h.workload.name))

    def by_end(self, code: str) -> list[HolderAllocation]:
        """Return the workloads of which one alone may suffice, earliest end first."""
        missing = self.demand - self._spare(code)
        enough = [holder for holder in self._relevant(code) if holder.total >= missing]
        return sorted(enough, key=_by_end)

    def _relevant(self, code: str) -> list[HolderAllocation]:
        if code in _CAPS:
            mine = set(self.path)
            inside = [h for h in self.allocations if not mine.isdisjoint(h.project.path)]
            fixed_only = code == "over_build_quota"
            return [h for h in inside if not (fixed_only and h.workload.is_preemptible)]
        return [holder for holder in self.allocations if holder.quota]

    def _spare(self, code: str) -> int:
        if code == "over_build_quota":
            return min(a.build_quota - a.build for a in self.path)
        if code == "over_limit":
            return min(a.limit - a.allocated for a in self.path)
        return sum(self._free().values())

    def _free(self) -> dict[str, int]:
        free = {
            node.name: node.usable_devices * WHOLE_GPU
            for node in self._nodes
            if node.name in self._mine
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
        reserved = [worker for worker in self._after(self._workload) if _is_reserved(worker)]
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
        rival_nodes = {self._judged(holder.project) for holder in self._victims()}
        over_share = [p for p in rival_nodes if p is not None and self.overage_of(p) > 0]
        return sorted(over_share, key=lambda project: (-self.overage_of(project), project.age))

    def overage_of(self, project: ProjectNode) -> int:
        """Return a project's overage: over its share, or quota for a claimant within its own."""
        is_within = all(a.allocated + self.demand <= a.quota for a in self.path[:1])
        over = project.allocated - project.quota if is_within else project.overage
        return max(over, project.over_limit)

    def sets_of(self, rival: ProjectNode) -> Iterator[list[HolderAllocation]]:
        """Yield sets of a rival's workloads that may suffice: on one node first, then anywhere."""
        victims = [holder for holder in self._victims() if self._judged(holder.project) is rival]
        victims.sort(key=lambda holder: holder.first_to_go, reverse=True)
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
        if self._workload.minimum > 1:
            return
        free = self._free()
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

    def _judged(self, project: ProjectNode) -> ProjectNode | None:
        """Return the ancestor judged for a project: the one below their common ancestor (R2)."""
        if project in self.path:
            return None
        above = [a for a in project.path if a not in self.path]
        return above[-1]


def _is_reserved(worker: Worker) -> bool:
    return worker.state is WorkerState.RESERVED


def _by_end(holder: HolderAllocation) -> tuple[bool, int, str]:
    return (holder.end is None, holder.end.at if holder.end else 0, holder.workload.name)

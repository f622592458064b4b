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
from runai.hub_service.scheduler.state.request_shape import Kinds, RequestShape
from runai.hub_service.scheduler.state.victim_order import VictimKey, last_start, victim_key

_NODES_COMPARED = 4
_CAPS = ("over_build_quota", "over_limit")


class HolderAllocation(NamedTuple):
    """Allocation of one workload after the plan."""

    workload: Workload
    account: ProjectNode
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


class Holdings:
    """Allocations after a plan, relevant to one waiting workload."""

    def __init__(self, snapshot: Snapshot, plan: Plan, workload: Workload) -> None:
        """Compute the allocations; `workload` waits."""
        self._now = snapshot.now
        self._tree = tree_of(snapshot)
        self._nodes = sorted(snapshot.nodes, key=lambda node: node.name)
        self._kinds = Kinds(self._nodes)
        self._index_of = {node.name: index for index, node in enumerate(self._nodes)}
        self._workload = workload
        account = self._tree.queue_of(workload.project)
        self.path: tuple[ProjectNode, ...] = account.path if account else ()
        kinds = [self._kind(workload, index) for index in range(len(workload.workers))]
        self._mine = {self._nodes[i].name for kind in kinds for i in kind.nodes}
        lacking = [
            kind.quota
            for kind, worker in zip(kinds, workload.workers, strict=True)
            if worker.state is WorkerState.PENDING
        ]
        running = len(kinds) - len(lacking)
        self.demand = sum(lacking[: max(0, workload.minimum - running)])
        """Milli-GPU that its minimum lacks, as quotas count them."""
        self.workloads = snapshot.workloads
        for share in self._tree.accounts.values():
            known = plan.projects.get(share.name)
            share.fair_share = known.fair_share if known else 0
        self._decisions = {
            decision.worker: decision for decision in plan.decisions if decision.kind != "wait"
        }
        self.held = [
            h for w in snapshot.workloads if w is not workload and (h := self._allocation_of(w))
        ]

    def _kind(self, workload: Workload, index: int) -> RequestShape:
        account = self._tree.queue_of(workload.project)
        restrictions = [a.project.node_types for a in account.path] if account else []
        is_job = workload.kind == "job"
        chosen = [types.train if is_job else types.build for types in restrictions]
        types = tuple(allowed for allowed in chosen if allowed is not None)
        return self._kinds.of(workload.workers[index], types)

    def _after(self, workload: Workload) -> list[Worker]:
        decisions = self._decisions
        return [worker_after(w, decisions.get(w.name), self._now) for w in workload.workers]

    def _allocation_of(self, workload: Workload) -> HolderAllocation | None:
        account = self._tree.queue_of(workload.project)
        if account is None:
            return None
        total, by_node = 0, dict[str, int]()
        after = self._after(workload)
        for index, worker in enumerate(after):
            node = self._index_of.get(worker.node or "", -1)
            if worker.state in {WorkerState.PENDING, WorkerState.STOPPING}:
                continue
            kind = self._kind(workload, index)
            if kind.is_whole:
                booked = len(worker.devices) * WHOLE_GPU  # resized ones differ (E2)
            else:
                booked = self._kinds.book(kind, node, worker.devices).quota
            total += booked
            if worker.node in self._mine:
                by_node[worker.node] = by_node.get(worker.node, 0) + booked
        for above in account.path:
            above.allocated += total
            above.build += 0 if workload.is_preemptible else total
        if not total:
            return None
        least = max(above.min_runtime for above in account.path)
        starts = [
            w.started for w in after if w.state is WorkerState.RUNNING and w.started is not None
        ]
        return HolderAllocation(
            workload=workload,
            account=account,
            total=total,
            quota=sum(by_node.values()),
            by_node=by_node,
            end=end_of(workload, self._now),
            protected_until=max(starts) + least if starts and least else 0,
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
        enough = [held for held in self._relevant(code) if held.total >= missing]
        return sorted(enough, key=_by_end)

    def _relevant(self, code: str) -> list[HolderAllocation]:
        if code in _CAPS:
            mine = set(self.path)
            inside = [h for h in self.held if not mine.isdisjoint(h.account.path)]
            fixed_only = code == "over_build_quota"
            return [h for h in inside if not (fixed_only and h.workload.is_preemptible)]
        return [held for held in self.held if held.quota]

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
        for held in self.held:
            for node, milli in held.by_node.items():
                free[node] -= milli
        return free

    def keepers(self) -> list[ProjectNode]:
        """Return the other projects that keep GPUs idle for themselves (Q2)."""
        return [account for account in self._tree.holders if account not in self.path]

    def leaving(self) -> list[Workload]:
        """Return the workloads whose workers are leaving devices reserved for it."""
        reserved = [worker for worker in self._after(self._workload) if _is_reserved(worker)]
        wanted = {(worker.node, device) for worker in reserved for device in worker.devices}
        return [
            workload
            for workload in self.workloads
            if workload is not self._workload
            and any(
                (worker.node, device) in wanted
                for worker in workload.workers
                if worker.state is WorkerState.STOPPING
                or isinstance(self._decisions.get(worker.name), Stop)
                for device in worker.devices
            )
        ]

    # ---- R2 and R4

    def rivals(self) -> list[ProjectNode]:
        """Return the projects over their entitlement on nodes that it may use (R2)."""
        found = {self._judged(held.account) for held in self._victims()}
        over = [account for account in found if account is not None and self.over(account) > 0]
        return sorted(over, key=lambda account: (-self.over(account), account.age))

    def over(self, account: ProjectNode) -> int:
        """Return a project's overage: over its share, or quota for a claimant within its own."""
        is_within = all(a.allocated + self.demand <= a.quota for a in self.path[:1])
        over = account.allocated - account.quota if is_within else account.overage
        return max(over, account.over_limit)

    def sets_of(self, rival: ProjectNode) -> Iterator[list[HolderAllocation]]:
        """Yield sets of a rival's workloads that may suffice: on one node first, then anywhere."""
        victims = [held for held in self._victims() if self._judged(held.account) is rival]
        victims.sort(key=lambda held: held.first_to_go, reverse=True)
        # Unprotected workloads come first, then by the end of their protection (R8).
        victims.sort(key=lambda held: max(self._now, held.protected_until))
        yield from self._on_one_node(victims)
        many = 1
        while many < len(victims):
            yield victims[:many]
            many *= 2
        if victims:
            yield victims

    def _on_one_node(self, victims: list[HolderAllocation]) -> Iterator[list[HolderAllocation]]:
        if self._workload.minimum > 1:
            return
        free = self._free()
        sets: list[tuple[int, list[HolderAllocation]]] = []
        for node in sorted({node for held in victims for node in held.by_node}):
            chosen: list[HolderAllocation] = []
            missing = self.demand - free[node]
            for held in victims:
                if node in held.by_node and (missing > 0 or not chosen):
                    chosen.append(held)
                    missing -= held.by_node[node]
            if missing <= 0:
                sets.append((sum(held.total for held in chosen), chosen))
        sets.sort(key=itemgetter(0))  # stable: ties stay in order of node names
        for _, chosen in sets[:_NODES_COMPARED]:
            yield chosen

    def _victims(self) -> list[HolderAllocation]:
        return [held for held in self.held if held.quota and held.workload.is_preemptible]

    def _judged(self, account: ProjectNode) -> ProjectNode | None:
        """Return the ancestor judged for a project: the one below their common ancestor (R2)."""
        if account in self.path:
            return None
        above = [a for a in account.path if a not in self.path]
        return above[-1]


def _is_reserved(worker: Worker) -> bool:
    return worker.state is WorkerState.RESERVED


def _by_end(held: HolderAllocation) -> tuple[bool, int, str]:
    return (held.end is None, held.end.at if held.end else 0, held.workload.name)

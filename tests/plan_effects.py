"""An independent model of a snapshot and of a plan's effects, for the property tests.

Written from the specification; it shares only data types with the scheduler. It computes the
occupied devices of now (running, stopping or starting workers) and of later (after all stops).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import note

from runai.hub_service.scheduler import (
    Move,
    Node,
    Plan,
    Project,
    Reserve,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Worker,
    WorkerState,
    Workload,
    decide,
)


class Placement(NamedTuple):
    """A worker at a place."""

    worker: Worker
    node: str
    devices: tuple[int, ...]


def device_milli(worker: Worker) -> int:
    """Return the milli-GPU that a worker books on each device; 0 for a memory request."""
    return min(1000, worker.gpus)


def device_mib(worker: Worker, node: Node) -> int:
    """Return the MiB that a worker books on each device of a node."""
    return worker.gpu_memory_mib or device_milli(worker) * node.device_memory_mib // 1000


def device_count(worker: Worker) -> int:
    """Return how many distinct devices a worker needs."""
    if worker.gpus > 1000:
        return worker.gpus // 1000
    return worker.devices_wanted if worker.gpus or worker.gpu_memory_mib else 0


def quota_of(worker: Worker, node: Node) -> int:
    """Return a worker's charge to quotas on a node."""
    if worker.gpu_memory_mib:
        return device_count(worker) * -(-1000 * worker.gpu_memory_mib // node.device_memory_mib)
    return device_count(worker) * device_milli(worker)


@dataclass
class Usage:
    """The bookings of each device and node."""

    milli: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    mib: defaultdict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    cpu: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    memory: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


class PlanEffects:
    """A snapshot, a plan, and every worker's place before and after."""

    def __init__(self, snapshot: Snapshot, plan: Plan) -> None:
        self.snapshot = snapshot
        self.plan = plan
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.projects = {project.name: project for project in snapshot.projects}
        self.workload_of = {k.name: w for w in snapshot.workloads for k in w.workers}
        self.stops = {d.worker: d for d in plan.decisions if isinstance(d, Stop)}
        self.new = {d.worker: d for d in plan.decisions if isinstance(d, Start | Reserve | Move)}
        self.unreserved = {d.worker for d in plan.decisions if isinstance(d, Unreserve)}

    def workers(self) -> Iterator[tuple[Workload, Worker]]:
        """Yield every worker with its workload."""
        for workload in self.snapshot.workloads:
            for worker in workload.workers:
                yield workload, worker

    def _placement_before(self, worker: Worker) -> Placement:
        assert worker.node is not None
        return Placement(worker, worker.node, worker.devices)

    def _planned_placement(self, worker: Worker) -> Placement | None:
        decision = self.new.get(worker.name)
        if decision is None:
            return None
        return Placement(worker, decision.node, tuple(share.device for share in decision.devices))

    def put_back(self, usage: Usage, worker: Worker) -> None:
        """Book a worker that loses its place where it was."""
        after, before = self.placement_after(worker), self._placement_before(worker)
        if after is not None:
            add(usage, after, self.nodes[after.node], -1)
        add(usage, before, self.nodes[before.node])

    def placement_after(self, worker: Worker) -> Placement | None:
        """Return a worker's place after the plan, None without one."""
        new = self._planned_placement(worker)
        if new is not None:
            return new
        stays = worker.state is WorkerState.RUNNING and worker.name not in self.stops
        waits = worker.state is WorkerState.RESERVED and worker.name not in self.unreserved
        return self._placement_before(worker) if stays or waits else None

    def occupies(self, worker: Worker) -> Placement | None:
        """Return the devices that a worker occupies now, or starts on now."""
        if worker.state in {WorkerState.RUNNING, WorkerState.STOPPING}:
            return self._placement_before(worker)
        return (
            self._planned_placement(worker)
            if isinstance(self.new.get(worker.name), Start)
            else None
        )

    def before(self) -> Usage:
        """Sum the snapshot's bookings, stopping workers included."""
        there = [
            self._placement_before(w)
            for _, w in self.workers()
            if w.state is not WorkerState.PENDING
        ]
        return self._usage(there)

    def later(self) -> Usage:
        """Sum the bookings after every stopped worker has exited."""
        return self._usage(
            [placement for _, w in self.workers() if (placement := self.placement_after(w))]
        )

    def now(self) -> Usage:
        """Sum the present usage, with the workers that start now."""
        return self._usage(
            [placement for _, w in self.workers() if (placement := self.occupies(w))]
        )

    def now_and_reserved(self) -> Usage:
        """Sum the present usage and the reservations: no other worker can start there."""
        placements = [placement for _, w in self.workers() if (placement := self.occupies(w))]
        for _, worker in self.workers():
            after, occupied = self.placement_after(worker), self.occupies(worker)
            if after is not None and after != occupied:
                placements.append(after)
        return self._usage(placements)

    def _usage(self, placements: list[Placement]) -> Usage:
        usage = Usage()
        for placement in placements:
            if placement.node in self.nodes:
                add(usage, placement, self.nodes[placement.node])
        return usage

    def path(self, project: str) -> list[Project]:
        """Return a project and its ancestors."""
        found: list[Project] = []
        name: str | None = project
        while name is not None:
            found.append(self.projects[name])
            name = self.projects[name].parent
        return found

    def quota(self, project: Project) -> int:
        """Return a project's guarantee; a parent's default is the sum of its children's."""
        if isinstance(project.quota, int):
            return project.quota
        return sum(self.quota(p) for p in self.projects.values() if p.parent == project.name)

    def build_quota(self, project: Project) -> int:
        """Return the part of the guarantee that sessions may use."""
        own = self.quota(project)
        return own if project.build_quota is None else min(own, project.build_quota)

    def pending_quota(self, worker: Worker) -> int:
        """Return a worker's charge to quotas on its most expensive node."""
        return max(quota_of(worker, node) for node in self.nodes.values())

    def may_reclaim(self, claimant: Workload, victim: Workload, allocated: dict[str, int]) -> bool:
        """Return True if R2 lets a claimant within its quota evict this victim alone."""
        victim_path = self.path(victim.project)
        claimant_path = self.path(claimant.project)
        if (
            victim.is_preemptible is False
            or victim.project in {p.name for p in claimant_path}
            or claimant.project in {p.name for p in victim_path}
            or any(p.min_runtime for p in victim_path)
            or victim.guaranteed
            or not self.active_after(victim)
        ):
            return False
        ancestors = {p.name for p in claimant_path}
        rival = next(p for p in victim_path if p.parent is None or p.parent in ancestors)
        return allocated[rival.name] > self.quota(rival)

    def allocated_before(self, *, fixed_only: bool = False) -> dict[str, int]:
        """Sum each project's running and reserved allocation in the snapshot."""
        states = {WorkerState.RUNNING, WorkerState.RESERVED}
        return self._allocated(
            [(w, self._placement_before(k)) for w, k in self.workers() if k.state in states],
            fixed_only=fixed_only,
        )

    def allocated_after(self, *, fixed_only: bool = False) -> dict[str, int]:
        """Sum each project's allocation after the plan."""
        return self._allocated(
            [(w, placement) for w, k in self.workers() if (placement := self.placement_after(k))],
            fixed_only=fixed_only,
        )

    def allocated_at_once(self, *, by_plan: bool) -> dict[str, int]:
        """Sum the allocations that each project's workers occupy, stopping ones included.

        `by_plan` adds the workers that the plan starts.
        """
        there = {WorkerState.RUNNING, WorkerState.STOPPING}
        return self._allocated(
            [
                (w, placement)
                for w, k in self.workers()
                if (by_plan or k.state in there) and (placement := self.occupies(k))
            ],
            fixed_only=False,
        )

    def _allocated(
        self, placements: list[tuple[Workload, Placement]], *, fixed_only: bool
    ) -> dict[str, int]:
        sums = dict.fromkeys(self.projects, 0)
        for workload, placement in placements:
            if not (fixed_only and workload.is_preemptible):
                for project in self.path(workload.project):
                    sums[project.name] += quota_of(placement.worker, self.nodes[placement.node])
        return sums

    def active_after(self, workload: Workload) -> int:
        """Count the active workers of a workload after the plan."""
        return sum(1 for worker in workload.workers if self.placement_after(worker))


def add(usage: Usage, placement: Placement, node: Node, sign: int = 1) -> None:
    """Book a worker, or with sign -1 take it off."""
    for device in {*placement.devices}:  # an invalid snapshot names one twice
        usage.milli[placement.node, device] += sign * device_milli(placement.worker)
        usage.mib[placement.node, device] += sign * device_mib(placement.worker, node)
    usage.cpu[placement.node] += sign * placement.worker.cpu_milli
    usage.memory[placement.node] += sign * placement.worker.memory_mib


def overbooked(usage: Usage, nodes: dict[str, Node]) -> list[str]:
    """Return the devices and nodes that are booked beyond their capacity."""
    found = [f"{n}:{d}" for (n, d), milli in usage.milli.items() if milli > 1000]
    found += [
        f"{n}:{d} memory" for (n, d), mib in usage.mib.items() if mib > nodes[n].device_memory_mib
    ]
    found += [
        f"{name} cpu"
        for name, cpu in usage.cpu.items()
        if (has := nodes[name].cpu_milli) is not None and cpu > has
    ]
    found += [
        f"{name} memory"
        for name, mib in usage.memory.items()
        if (has := nodes[name].memory_mib) is not None and mib > has
    ]
    return found


def fits_somewhere(workers: list[Worker], usage: Usage, nodes: dict[str, Node]) -> bool:
    """Return True if these workers fit beside the bookings, by trying all placements."""
    if not workers:
        return True
    worker, remaining = workers[0], workers[1:]
    for node in nodes.values():
        if not node.schedulable or (worker.gpu_types and node.gpu_type not in worker.gpu_types):
            continue
        fitting = []
        for device in range(node.devices):
            placement = Placement(worker, node.name, (device,))
            if (
                usage.milli[node.name, device] + device_milli(worker) <= 1000
                and usage.mib[node.name, device] + device_mib(worker, node)
                <= node.device_memory_mib
            ):
                fitting.append(device)
        needed = device_count(worker)
        has_base = (
            node.cpu_milli is None or usage.cpu[node.name] + worker.cpu_milli <= node.cpu_milli
        ) and (
            node.memory_mib is None
            or usage.memory[node.name] + worker.memory_mib <= node.memory_mib
        )
        if len(fitting) < needed or not has_base:
            continue
        placement = Placement(worker, node.name, tuple(fitting[:needed]))
        add(usage, placement, node)
        found = fits_somewhere(remaining, usage, nodes)
        add(usage, placement, node, -1)
        if found:
            return True
    return False


def decide_and_note(snapshot: Snapshot) -> tuple[Plan, PlanEffects]:
    """Decide on a snapshot, noting each decision for the report of a failing example."""
    plan = decide(snapshot)
    for decision in plan.decisions:
        note(str(decision))
    return plan, PlanEffects(snapshot, plan)

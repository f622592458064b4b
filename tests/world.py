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


class Held(NamedTuple):
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


class World:
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

    def _old(self, worker: Worker) -> Held:
        assert worker.node is not None
        return Held(worker, worker.node, worker.devices)

    def _new(self, worker: Worker) -> Held | None:
        decision = self.new.get(worker.name)
        if decision is None:
            return None
        return Held(worker, decision.node, tuple(share.device for share in decision.devices))

    def put_back(self, usage: Usage, worker: Worker) -> None:
        """Book a worker that loses its place where it was."""
        kept, old = self.keeps(worker), self._old(worker)
        if kept is not None:
            add(usage, kept, self.nodes[kept.node], -1)
        add(usage, old, self.nodes[old.node])

    def keeps(self, worker: Worker) -> Held | None:
        """Return a worker's place after the plan, None without one."""
        new = self._new(worker)
        if new is not None:
            return new
        stays = worker.state is WorkerState.RUNNING and worker.name not in self.stops
        waits = worker.state is WorkerState.RESERVED and worker.name not in self.unreserved
        return self._old(worker) if stays or waits else None

    def occupies(self, worker: Worker) -> Held | None:
        """Return the devices that a worker occupies now, or starts on now."""
        if worker.state in {WorkerState.RUNNING, WorkerState.STOPPING}:
            return self._old(worker)
        return self._new(worker) if isinstance(self.new.get(worker.name), Start) else None

    def before(self) -> Usage:
        """Sum the snapshot's bookings, leaving workers included."""
        there = [self._old(w) for _, w in self.workers() if w.state is not WorkerState.PENDING]
        return self._usage(there)

    def later(self) -> Usage:
        """Sum the bookings after every stopped worker has gone."""
        return self._usage([held for _, w in self.workers() if (held := self.keeps(w))])

    def now(self) -> Usage:
        """Sum the present usage, with the workers that start now."""
        return self._usage([held for _, w in self.workers() if (held := self.occupies(w))])

    def now_and_reserved(self) -> Usage:
        """Sum the present usage and the reservations: no other worker can start there."""
        everybody = [held for _, w in self.workers() if (held := self.occupies(w))]
        for _, worker in self.workers():
            kept, occupied = self.keeps(worker), self.occupies(worker)
            if kept is not None and kept != occupied:
                everybody.append(kept)
        return self._usage(everybody)

    def _usage(self, everybody: list[Held]) -> Usage:
        usage = Usage()
        for held in everybody:
            if held.node in self.nodes:
                add(usage, held, self.nodes[held.node])
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

    def may_reclaim(self, claimant: Workload, victim: Workload, held: dict[str, int]) -> bool:
        """Return True if R2 lets a claimant within its quota evict this victim alone."""
        theirs = self.path(victim.project)
        mine = self.path(claimant.project)
        if (
            victim.is_preemptible is False
            or victim.project in {p.name for p in mine}
            or claimant.project in {p.name for p in theirs}
            or any(p.min_runtime for p in theirs)
            or victim.guaranteed
            or not self.active_after(victim)
        ):
            return False
        above = {p.name for p in mine}
        judged = next(p for p in theirs if p.parent is None or p.parent in above)
        return held[judged.name] > self.quota(judged)

    def held_before(self, *, fixed_only: bool = False) -> dict[str, int]:
        """Sum each project's running and reserved allocation in the snapshot."""
        states = {WorkerState.RUNNING, WorkerState.RESERVED}
        return self._held(
            [(w, self._old(k)) for w, k in self.workers() if k.state in states],
            fixed_only=fixed_only,
        )

    def held_after(self, *, fixed_only: bool = False) -> dict[str, int]:
        """Sum each project's allocation after the plan."""
        return self._held(
            [(w, held) for w, k in self.workers() if (held := self.keeps(k))], fixed_only=fixed_only
        )

    def held_at_once(self, *, by_plan: bool) -> dict[str, int]:
        """Sum the allocations that each project's workers occupy, stopping ones included.

        `by_plan` adds the workers that the plan starts.
        """
        there = {WorkerState.RUNNING, WorkerState.STOPPING}
        return self._held(
            [
                (w, held)
                for w, k in self.workers()
                if (by_plan or k.state in there) and (held := self.occupies(k))
            ],
            fixed_only=False,
        )

    def _held(self, everybody: list[tuple[Workload, Held]], *, fixed_only: bool) -> dict[str, int]:
        sums = dict.fromkeys(self.projects, 0)
        for workload, held in everybody:
            if not (fixed_only and workload.is_preemptible):
                for project in self.path(workload.project):
                    sums[project.name] += quota_of(held.worker, self.nodes[held.node])
        return sums

    def active_after(self, workload: Workload) -> int:
        """Count the active workers of a workload after the plan."""
        return sum(1 for worker in workload.workers if self.keeps(worker))


def add(usage: Usage, held: Held, node: Node, sign: int = 1) -> None:
    """Book a worker, or with sign -1 take it off."""
    for device in {*held.devices}:  # an invalid world names one twice
        usage.milli[held.node, device] += sign * device_milli(held.worker)
        usage.mib[held.node, device] += sign * device_mib(held.worker, node)
    usage.cpu[held.node] += sign * held.worker.cpu_milli
    usage.memory[held.node] += sign * held.worker.memory_mib


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
    worker, rest = workers[0], workers[1:]
    for node in nodes.values():
        if not node.schedulable or (worker.gpu_types and node.gpu_type not in worker.gpu_types):
            continue
        fitting = []
        for device in range(node.devices):
            held = Held(worker, node.name, (device,))
            if (
                usage.milli[node.name, device] + device_milli(worker) <= 1000
                and usage.mib[node.name, device] + device_mib(worker, node)
                <= node.device_memory_mib
            ):
                fitting.append(device)
        wanted = device_count(worker)
        has_base = (
            node.cpu_milli is None or usage.cpu[node.name] + worker.cpu_milli <= node.cpu_milli
        ) and (
            node.memory_mib is None
            or usage.memory[node.name] + worker.memory_mib <= node.memory_mib
        )
        if len(fitting) < wanted or not has_base:
            continue
        held = Held(worker, node.name, tuple(fitting[:wanted]))
        add(usage, held, node)
        found = fits_somewhere(rest, usage, nodes)
        add(usage, held, node, -1)
        if found:
            return True
    return False


def looked_at(snapshot: Snapshot) -> tuple[Plan, World]:
    """Decide on a snapshot, noting each decision for the report of a failing example."""
    plan = decide(snapshot)
    for decision in plan.decisions:
        note(str(decision))
    return plan, World(snapshot, plan)

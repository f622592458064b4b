"""Draw the core's snapshot from what the API server keeps.

Knows which nodes each worker may use, how many devices are free for us beside other schedulers'
pods, and what a group of pods is to the core. Pure; called by `cluster` for `observe`. Devices of
whole GPUs are `slots`: numbers that only count.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from runai.hub_service.clusters.kubernetes.grouping import Group
from runai.hub_service.clusters.kubernetes.objects import SCHEDULER, Machine, Pod
from runai.hub_service.clusters.kubernetes.placement import Demands, may_go
from runai.hub_service.scheduler.model import (
    Node,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)
from runai.hub_service.scheduler.quantity import WHOLE_GPU, Mib, MilliGpu

__all__ = ["Promise", "World", "snapshot"]


@dataclass(frozen=True, slots=True)
class Promise:
    """Devices that a plan holds for a pod until they are free (R7)."""

    node: str
    devices: tuple[int, ...]
    gpus: MilliGpu = WHOLE_GPU
    """Of each of them."""
    is_part: bool = False
    """Whether others may share them."""


@dataclass(frozen=True, slots=True)
class World:
    """Everything that a snapshot is drawn from."""

    machines: Sequence[Machine]
    pods: Sequence[Pod]
    groups: Sequence[Group]
    projects: Sequence[Project]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """What pods hold, by UID."""
    promises: Mapping[str, Promise] = field(default_factory=dict)
    closed: Collection[str] = ()
    """Nodes whose devices are given to nobody new."""
    broken: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Devices that nobody may share any more, by node."""
    broken_since: Mapping[str, float] = field(default_factory=dict)
    """Since when a gang runs with fewer workers than it needs, by workload."""


def snapshot(now: float, world: World) -> Snapshot:
    """Return everything that a decision may depend on.

    A gang whose Job has not made all of its pods yet waits until it has, unless some of them run.
    """
    eligible = _Eligible(world.machines)
    return Snapshot(
        now=int(now),
        nodes=tuple(_nodes(world)),
        projects=tuple(world.projects),
        workloads=tuple(
            _workload(group, world, eligible) for group in world.groups if _is_shown(group)
        ),
    )


def _is_shown(group: Group) -> bool:
    is_up = any(pod.node for pod in group.pods)
    return is_up or not (group.missing or group.refusal)


def _nodes(world: World) -> Iterable[Node]:
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    held: dict[str, set[int]] = defaultdict(set)
    foreign: dict[str, set[int]] = defaultdict(set)
    for pod in world.pods:
        if not pod.holds:
            continue
        devices = world.devices.get(pod.uid, ())
        held[pod.node].update(devices)
        if pod.scheduler != SCHEDULER:
            foreign[pod.node].update(devices)
        if pod.scheduler != SCHEDULER or pod.is_reservation:
            cpu[pod.node] += pod.cpu_milli
            memory[pod.node] += pod.memory_mib
    for machine in sorted(world.machines, key=lambda m: m.name):
        name = machine.name
        count = max(machine.gpus, 1 + max(held[name], default=-1))
        # The kubelet counts: where a device is gone, as many of the free ones cannot be given.
        free = [number for number in range(count) if number not in held[name]]
        gone = free[len(free) - (count - machine.gpus) :] if count > machine.gpus else []
        gone = list(range(count)) if name in world.closed else gone
        yield Node(
            name=name,
            devices=count,
            device_memory_mib=Mib(machine.gpu_memory_mib),
            gpu_type=machine.gpu_type,
            cpu_milli=max(0, machine.cpu_milli - cpu[name]),
            memory_mib=Mib(max(0, machine.memory_mib - memory[name])),
            labels=machine.labels,
            schedulable=machine.is_open,
            broken_devices=tuple(sorted(foreign[name].union(gone, world.broken.get(name, ())))),
        )


def _workload(group: Group, world: World, eligible: "_Eligible") -> Workload:
    first = group.first
    since = world.broken_since.get(group.name)
    return Workload(
        name=group.name,
        project=group.project,
        kind="job" if first.kind == "train" else "session",
        user=first.user if group.job is None or group.job.spec is None else group.job.spec.user,
        priority=first.priority if first.kind == "train" else None,
        submitted=int(group.submitted),
        workers=tuple(_worker(pod, world, eligible) for pod in group.pods),
        min_workers=min(group.minimum, len(group.pods)),
        pauses=() if group.job is None else tuple(map(int, group.job.pauses)),
        below_min_since=None if since is None else int(since),
    )


def _worker(pod: Pod, world: World, eligible: "_Eligible") -> Worker:
    promise = None if pod.node else world.promises.get(pod.place)
    state, node = WorkerState.PENDING, None
    devices: tuple[int, ...] = ()
    if pod.node:
        state = WorkerState.RUNNING if pod.deleted is None else WorkerState.STOPPING
        node, devices = pod.node, world.devices.get(pod.uid, ())
    elif promise is not None:
        state, node, devices = WorkerState.RESERVED, promise.node, promise.devices
    return Worker(
        name=pod.called,
        gpus=MilliGpu(pod.gpus * WHOLE_GPU) if pod.part is None else pod.part.gpus,
        gpu_memory_mib=None if pod.part is None else pod.part.memory_mib,
        devices_wanted=1 if pod.part is None else pod.part.devices,
        state=state,
        node=node,
        devices=devices,
        started=int(pod.bound) if pod.bound is not None else None,
        gone_by=ceil(pod.deleted) if pod.node and pod.deleted is not None else None,
        cpu_milli=pod.cpu_milli,
        memory_mib=Mib(pod.memory_mib),
        nodes=eligible.for_pod(pod.demands),
    )


class _Eligible:
    """The nodes that demands allow, worked out once for all pods that have the same."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._known: dict[Demands, tuple[str, ...] | None] = {}

    def for_pod(self, demands: Demands) -> tuple[str, ...] | None:
        """Return their names; None is all of them."""
        if demands not in self._known:
            names = tuple(
                machine.name
                for machine in self._machines
                if may_go(demands, machine.name, machine.labels, machine.taints)
            )
            self._known[demands] = None if len(names) == len(self._machines) else names
        return self._known[demands]

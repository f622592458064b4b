"""Builder of the core's snapshot from the API server's objects.

It determines the nodes that each worker may use, the devices left by other schedulers' pods, and
the core's view of a group of pods. Whole devices have arbitrary numbers (`device_ids`). Pure.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final, NamedTuple

from runai.hub_service.clusters.kubernetes.objects.core_objects import (
    GPU_TYPE_LABEL,
    SCHEDULER,
    KubeNode,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.node_affinity import Demands, may_run, wanted
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup
from runai.hub_service.clusters.kubernetes.objects.run_time import TimeLimited, bound_of
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import (
    dealt,
    is_crowd,
    left_on,
    tightest,
)
from runai.hub_service.clusters.kubernetes.snapshot.lost_devices import LostDevices
from runai.hub_service.clusters.states.resize import shown_while_resizing
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import (
    Node,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)

KNOWN_DEMANDS: Final = 2_000
"""Number of demands with cached eligible nodes; pods with volumes of their own all differ."""


@dataclass(frozen=True, slots=True)
class NominatedPlacement:
    """Devices reserved for a pod by a plan until they are free (R7)."""

    node: str
    devices: tuple[int, ...]
    gpus: MilliGpu = WHOLE_GPU
    """Share of each device."""
    is_part: bool = False
    """True if other pods may share the devices."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties of an elastic job for the core, besides its workers."""

    surplus: bool
    """True if the job may get more workers than it has."""
    stays_away: Collection[str] = ()
    """Names of workers that were lost too often."""
    throughput: Mapping[str, int] = field(default_factory=dict)
    checkpointed: int | None = None
    saves: bool = False
    """True if a worker has ever reported."""


@dataclass(frozen=True, slots=True)
class SnapshotInput:
    """All input of one snapshot."""

    machines: Sequence[KubeNode]
    pods: Sequence[Pod]
    groups: Sequence[PodGroup]
    projects: Sequence[Project]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Device numbers of pods, by UID."""
    promises: Mapping[str, NominatedPlacement] = field(default_factory=dict)
    closed: Collection[str] = ()
    """Nodes that get no new pods on their devices."""
    broken: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Devices that may not be shared any more, by node."""
    broken_since: Mapping[str, float] = field(default_factory=dict)
    """Time since when a gang has run with too few workers, by workload."""
    kept: Collection[str] = ()
    """UIDs of pods that disruption budgets protect from eviction."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """Properties of elastic jobs with several workers, by workload."""
    limited: Mapping[str, TimeLimited] = field(default_factory=dict)
    """Time limits and running times, by Job, element or pod (`run_time.timed`)."""
    resize_cost_s: int = 0
    """Cost in seconds of restarting an elastic job of one process on other devices."""


class SnapshotBuilder:
    """Snapshot builder that reuses the object of an unchanged workload.

    So a comparison of two snapshots (`Index.follow`) finds changes by identity.
    """

    def __init__(self) -> None:
        """Begin with no workload built."""
        self._machines: Sequence[KubeNode] = ()
        self._eligible = _EligibleNodes()
        self._built: dict[str, _BuiltWorkload] = {}
        self._lost = LostDevices()

    def snapshot(self, now: float, world: SnapshotInput) -> Snapshot:
        """Return everything that a decision may depend on.

        A gang waits until its Job has created all pods, unless some of them run.
        """
        machines = left_on(world.machines, world.pods)
        if self._machines != machines:
            self._machines = machines
            others = self._eligible.follow(machines)
            for name, known in self._built.items():
                if not others.isdisjoint(map(_node_demands, known.group.pods)):
                    self._built[name] = known._replace(places=())  # to be rebuilt
        self._eligible.free = None
        self._built = {
            group.name: drawn
            for group in world.groups
            if _is_shown(group) and (drawn := self._build_or_reuse(group, world))
        }
        return Snapshot(
            now=int(now),
            nodes=tuple(_nodes(now, world, self._lost)),
            projects=tuple(world.projects),
            workloads=tuple([drawn.workload for drawn in self._built.values()]),
        )

    def _build_or_reuse(self, group: PodGroup, world: SnapshotInput) -> "_BuiltWorkload | None":
        """Build a group's workload, or return the previous one if its input is unchanged.

        None: the group has no pods to decide about.
        """
        places = [
            (
                world.devices.get(pod.uid) if pod.node else None,
                world.promises.get(pod.place) if pod.may_be_promised else None,
            )
            for pod in group.pods
        ]
        since = world.broken_since.get(group.name)
        shape, is_kept = world.shapes.get(group.name), _is_protected(group, world)
        time = _time_of(group, world)
        known = self._built.get(group.name)
        if (
            known is not None
            # The nodes of each worker of a crowd depend on free devices, which change.
            and not known.is_crowd
            and known.places == places
            and (known.since, known.shape, known.is_kept) == (since, shape, is_kept)
            and known.time == time
            and (known.group is group or known.group == group)
        ):
            return known
        if not (shown := _shown(group, world)):
            return None
        workload = _workload(group, shown, world, self._eligible)
        # The core ignores many fields of a pod: reuse an equal result.
        if known is not None and known.workload == workload:
            workload = known.workload
        return _BuiltWorkload(group, places, since, shape, is_kept, is_crowd(shown), time, workload)


class _BuiltWorkload(NamedTuple):
    """A workload with all of its input except the nodes."""

    group: PodGroup
    places: Sequence[tuple[tuple[int, ...] | None, NominatedPlacement | None]]
    since: float | None
    shape: Shape | None
    is_kept: bool
    is_crowd: bool
    time: tuple[int, float, float | None] | None
    workload: Workload


def _time_of(group: PodGroup, world: SnapshotInput) -> tuple[int, float, float | None] | None:
    """Return a group's time limit and running times; None: it has no limit."""
    if group.array is not None:
        key, spec = f"{group.array.job.uid}/{group.first.index}", group.array.job.spec
        if key not in world.limited and spec is not None and spec.max_runtime is not None:
            return spec.max_runtime, 0.0, None  # it has not begun
    else:
        key = group.first.uid if group.job is None else group.job.uid
    found = world.limited.get(key)
    return None if found is None else found.numbers


def _is_protected(group: PodGroup, world: SnapshotInput) -> bool:
    return bool(world.kept) and any(pod.uid in world.kept for pod in group.pods)


def _is_shown(group: PodGroup) -> bool:
    is_up = any(pod.node for pod in group.pods)
    return is_up or not (group.missing or group.refusal or group.is_clearing)


def _shown(group: PodGroup, world: SnapshotInput) -> Sequence[Pod]:
    """Leave out workers that an elastic job must not start now."""
    shape = world.shapes.get(group.name)
    if shape is None:
        return group.pods
    return [
        pod
        for pod in group.pods
        if pod.node
        or pod.place in world.promises
        or (shape.surplus and pod.called not in shape.stays_away)
    ]


def _nodes(now: float, world: SnapshotInput, lost: LostDevices) -> Iterable[Node]:
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    held: dict[str, set[int]] = defaultdict(set)
    foreign: dict[str, set[int]] = defaultdict(set)
    for pod in world.pods:
        if not pod.uses_node:
            continue
        devices = world.devices.get(pod.uid, ())
        held[pod.node].update(devices)
        if pod.scheduler != SCHEDULER:
            foreign[pod.node].update(devices)
        if pod.scheduler != SCHEDULER or pod.is_reservation:
            cpu[pod.node] += pod.cpu_milli
            memory[pod.node] += pod.memory_mib
    reserved: dict[str, set[int]] = defaultdict(set)
    for promise in world.promises.values():
        reserved[promise.node].update(promise.devices)
    lost.retain({machine.name for machine in world.machines})
    for machine in sorted(world.machines, key=lambda m: m.name):
        name = machine.name
        is_closed, faulty = name in world.closed, world.broken.get(name, ())
        here = lost.on(machine, held[name], faulty, now, reserved=reserved[name], rejects=is_closed)
        yield Node(
            name=name,
            devices=here.total,
            device_memory_mib=Mib(machine.gpu_memory_mib),
            gpu_type=machine.gpu_type,
            cpu_milli=max(0, machine.cpu_milli - cpu[name]),
            memory_mib=Mib(max(0, machine.memory_mib - memory[name])),
            labels=machine.labels,
            schedulable=machine.is_open,
            broken_devices=tuple(sorted(foreign[name].union(here.lost, faulty))),
            returning_devices=tuple(sorted(here.returning - foreign[name])),
            loss=here.loss,
        )


def _workload(
    group: PodGroup, shown: Sequence[Pod], world: SnapshotInput, eligible: "_EligibleNodes"
) -> Workload:
    first, shape = group.first, world.shapes.get(group.name) or Shape(surplus=True)
    since = world.broken_since.get(group.name)
    most = first.part.most if group.is_resizable and first.part is not None else 0
    of_crowd = eligible.for_crowd(shown, world) if is_crowd(shown) else {}
    time = _time_of(group, world)
    drawn = Workload(
        name=group.name,
        project=group.project,
        kind="job" if first.kind == "train" else "session",
        user=group.user,
        preemptible=False if _is_protected(group, world) else None,
        priority=first.priority,
        submitted=int(group.submitted),
        max_runtime=None if time is None else bound_of(time, shown),
        workers=tuple(_worker(pod, world, eligible, of_crowd) for pod in shown),
        min_workers=min(group.minimum, len(shown)),
        guaranteed_workers=group.guaranteed and min(group.guaranteed, len(shown)),
        pauses=tuple(map(int, group.pauses)),
        below_min_since=None if since is None else int(since),
        throughput=shape.throughput,
        checkpointed=shape.checkpointed,
        saves=shape.saves or group.saves,
        gpus_min=WHOLE_GPU if most else None,
        gpus_max=MilliGpu(most * WHOLE_GPU) if most else None,
        resize_cost=world.resize_cost_s if most else 0,
        array_index=None if group.array is None else first.index,
    )
    is_leaving = most and first.node and first.may_be_promised
    promise = world.promises.get(first.place) if is_leaving else None
    if promise is None:
        return drawn
    return shown_while_resizing(
        drawn, promise.devices, None if first.bound is None else int(first.bound)
    )


def _worker(
    pod: Pod,
    world: SnapshotInput,
    eligible: "_EligibleNodes",
    of_crowd: Mapping[str, tuple[str, ...] | None],
) -> Worker:
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
        devices_wanted=1 if pod.part is None else pod.part.distinct,
        state=state,
        node=node,
        devices=devices,
        started=int(pod.bound) if pod.bound is not None else None,
        gone_by=ceil(pod.deleted) if pod.node and pod.deleted is not None else None,
        cpu_milli=pod.cpu_milli,
        memory_mib=Mib(pod.memory_mib),
        # The core checks this by its nodes too; it needs the types to explain why none fits.
        gpu_types=wanted(pod.demands, GPU_TYPE_LABEL),
        nodes=of_crowd[pod.place]
        if pod.place in of_crowd
        else eligible.for_demands(_node_demands(pod)),
    )


def _node_demands(pod: Pod) -> Demands:
    """Return a pod's demands on its node; a bound pod already has its extended resources."""
    is_there = pod.node and pod.demands.stock
    return replace(pod.demands, stock=()) if is_there else pod.demands


class _EligibleNodes:
    """Nodes that satisfy demands, computed once for all pods with equal demands."""

    def __init__(self) -> None:
        self._machines: Sequence[KubeNode] = ()
        self._known: dict[Demands, tuple[str, ...] | None] = {}
        self._rooms: dict[tuple[tuple[str, int], ...], int] = {}
        """Capacity of the fullest node that still fits a pod, by demand."""
        self.free: Mapping[str, int] | None = None
        """Free devices by node; None until needed in this snapshot."""

    def for_crowd(
        self, pods: Sequence[Pod], world: SnapshotInput
    ) -> Mapping[str, tuple[str, ...] | None]:
        """Return the nodes for workers that wait together for scarce resources, by place."""
        asking = [pod for pod in pods if not pod.node and pod.demands.stock]
        asks = {pod.demands.stock for pod in asking}
        if len(asks) == 1 and self._tightest(*asks) >= len(asking):
            return {}
        if self.free is None:
            held: Counter[str] = Counter()
            for pod in world.pods:
                if pod.uses_node:
                    held[pod.node] += len(world.devices.get(pod.uid, ()))
            self.free = {m.name: m.gpus - held[m.name] for m in self._machines if m.is_open}
        every = tuple(machine.name for machine in self._machines)
        nodes = {pod.demands: self.for_demands(pod.demands) for pod in asking}
        allowed = {of: frozenset(every if may is None else may) for of, may in nodes.items()}
        promised = {place: promise.node for place, promise in world.promises.items()}
        found = dealt(asking, self._machines, allowed, self.free, promised)
        return {
            place: None if len(names) == len(every) else tuple(sorted(names))
            for place, names in found.items()
        }

    def _tightest(self, stock: tuple[tuple[str, int], ...]) -> int:
        if stock not in self._rooms:
            self._rooms[stock] = tightest(self._machines, stock)
        return self._rooms[stock]

    def follow(self, machines: Sequence[KubeNode]) -> AbstractSet[Demands]:
        """Replace the nodes; return the demands with other eligible nodes than before.

        Cached demands are evaluated again for the new nodes, up to KNOWN_DEMANDS.
        """
        before, self._known, self._machines = self._known, {}, machines
        self._rooms = {}
        asked = list(before)[-KNOWN_DEMANDS:]
        allowed = {demands: self.for_demands(demands) for demands in asked}
        return {d for d in before if d not in allowed or allowed[d] != before[d]}

    def for_demands(self, demands: Demands) -> tuple[str, ...] | None:
        """Return the names of the eligible nodes; None: all nodes."""
        if demands not in self._known:
            names = tuple(
                machine.name
                for machine in self._machines
                if may_run(demands, machine.name, machine.labels, machine.taints, machine.stock)
            )
            self._known[demands] = None if len(names) == len(self._machines) else names
        return self._known[demands]

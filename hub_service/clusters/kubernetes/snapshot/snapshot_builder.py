"""Draw the core's snapshot from what the API server keeps.

Knows which nodes each worker may use, how many devices are free for us beside other schedulers'
pods, and what a group of pods is to the core. Pure; called by `cluster` for `observe`. Devices of
whole GPUs are `slots`: numbers that only count.
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
    Machine,
    Pod,
)
from runai.hub_service.clusters.kubernetes.objects.node_affinity import Demands, may_go, wanted
from runai.hub_service.clusters.kubernetes.objects.pod_groups import Group
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import (
    dealt,
    is_crowd,
    left_on,
    tightest,
)
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
"""Of so many it is kept which nodes they allow; with a volume of its own each pod has others."""


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
class Shape:
    """What the core is told of an elastic job beside its workers."""

    surplus: bool
    """Whether it may get more workers than it has."""
    stays_away: Collection[str] = ()
    """Workers that were lost too often, by name."""
    throughput: Mapping[str, int] = field(default_factory=dict)
    checkpointed: int | None = None


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
    kept: Collection[str] = ()
    """UIDs of pods that nobody may stop now: their disruption budgets do not allow it."""
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    """What else is known of elastic jobs of several workers, by workload."""
    resize_cost_s: int = 0
    """What it costs an elastic job of one process to be started again on other devices."""


class Drawing:
    """Draws one snapshot after the other; a workload that is as it was is the same object again.

    So whoever compares two of them (`Index.follow`) knows at a glance what has changed.
    """

    def __init__(self) -> None:
        """Begin with nothing drawn."""
        self._machines: Sequence[Machine] = ()
        self._eligible = _Eligible()
        self._drawn: dict[str, _Drawn] = {}

    def snapshot(self, now: float, world: World) -> Snapshot:
        """Return everything that a decision may depend on.

        A gang whose Job has not made all of its pods yet waits until it has, unless some of them
        run.
        """
        machines = left_on(world.machines, world.pods)
        if self._machines != machines:
            self._machines = machines
            others = self._eligible.follow(machines)
            for name, known in self._drawn.items():
                if not others.isdisjoint(map(_asked, known.group.pods)):
                    self._drawn[name] = known._replace(places=())  # to be drawn anew
        self._eligible.free = None
        self._drawn = {
            group.name: drawn
            for group in world.groups
            if _is_shown(group) and (drawn := self._as_drawn(group, world))
        }
        return Snapshot(
            now=int(now),
            nodes=tuple(_nodes(world)),
            projects=tuple(world.projects),
            workloads=tuple([drawn.workload for drawn in self._drawn.values()]),
        )

    def _as_drawn(self, group: Group, world: World) -> "_Drawn | None":
        """Draw a group, or return it as it was drawn if it would look the same.

        None: there is nothing of it to decide about.
        """
        places = [
            (
                world.devices.get(pod.uid) if pod.node else None,
                world.promises.get(pod.place) if pod.may_be_promised else None,
            )
            for pod in group.pods
        ]
        since = world.broken_since.get(group.name)
        shape, is_kept = world.shapes.get(group.name), _is_kept(group, world)
        known = self._drawn.get(group.name)
        if (
            known is not None
            # What each of several may have is dealt by what is free, now here, now there.
            and not known.is_crowd
            and known.places == places
            and (known.since, known.shape, known.is_kept) == (since, shape, is_kept)
            and (known.group is group or known.group == group)
        ):
            return known
        if not (shown := _shown(group, world)):
            return None
        workload = _workload(group, shown, world, self._eligible)
        # Much of a pod is nothing to the core: what came out the same is the same object.
        if known is not None and known.workload == workload:
            workload = known.workload
        return _Drawn(group, places, since, shape, is_kept, is_crowd(shown), workload)


class _Drawn(NamedTuple):
    """A workload, and all that it was drawn from but the machines."""

    group: Group
    places: Sequence[tuple[tuple[int, ...] | None, Promise | None]]
    since: float | None
    shape: Shape | None
    is_kept: bool
    is_crowd: bool
    workload: Workload


def _is_kept(group: Group, world: World) -> bool:
    return bool(world.kept) and any(pod.uid in world.kept for pod in group.pods)


def _is_shown(group: Group) -> bool:
    is_up = any(pod.node for pod in group.pods)
    return is_up or not (group.missing or group.refusal or group.is_clearing)


def _shown(group: Group, world: World) -> Sequence[Pod]:
    """Leave out what an elastic job is not to start, or not now."""
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


def _workload(group: Group, shown: Sequence[Pod], world: World, eligible: "_Eligible") -> Workload:
    first, shape = group.first, world.shapes.get(group.name) or Shape(surplus=True)
    since = world.broken_since.get(group.name)
    most = first.part.most if group.is_resizable and first.part is not None else 0
    of_crowd = eligible.for_crowd(shown, world) if is_crowd(shown) else {}
    drawn = Workload(
        name=group.name,
        project=group.project,
        kind="job" if first.kind == "train" else "session",
        user=first.user if group.job is None or group.job.spec is None else group.job.spec.user,
        preemptible=False if _is_kept(group, world) else None,
        priority=first.priority if first.kind == "train" else None,
        submitted=int(group.submitted),
        workers=tuple(_worker(pod, world, eligible, of_crowd) for pod in shown),
        min_workers=min(group.minimum, len(shown)),
        pauses=() if group.job is None else tuple(map(int, group.job.pauses)),
        below_min_since=None if since is None else int(since),
        throughput=shape.throughput,
        checkpointed=shape.checkpointed,
        gpus_min=WHOLE_GPU if most else None,
        gpus_max=MilliGpu(most * WHOLE_GPU) if most else None,
        resize_cost=world.resize_cost_s if most else 0,
    )
    is_leaving = most and first.node and first.may_be_promised
    promise = world.promises.get(first.place) if is_leaving else None
    if promise is None:
        return drawn
    return shown_while_resizing(
        drawn, promise.devices, None if first.bound is None else int(first.bound)
    )


def _worker(
    pod: Pod, world: World, eligible: "_Eligible", of_crowd: Mapping[str, tuple[str, ...] | None]
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
        # The core knows it already by its nodes; so it can say why none of them will do.
        gpu_types=wanted(pod.demands, GPU_TYPE_LABEL),
        nodes=of_crowd[pod.place] if pod.place in of_crowd else eligible.for_demands(_asked(pod)),
    )


def _asked(pod: Pod) -> Demands:
    """Return what a node must have for a pod; where it is already there, it has its stock."""
    is_there = pod.node and pod.demands.stock
    return replace(pod.demands, stock=()) if is_there else pod.demands


class _Eligible:
    """The nodes that demands allow, worked out once for all pods that have the same."""

    def __init__(self) -> None:
        self._machines: Sequence[Machine] = ()
        self._known: dict[Demands, tuple[str, ...] | None] = {}
        self._rooms: dict[tuple[tuple[str, int], ...], int] = {}
        """Room for how many is on the fullest node that has some, by what they ask for."""
        self.free: Mapping[str, int] | None = None
        """How many devices nobody has, by node, once somebody has asked."""

    def for_crowd(self, pods: Sequence[Pod], world: World) -> Mapping[str, tuple[str, ...] | None]:
        """Return the nodes of those who wait together for what is scarce, by place."""
        asking = [pod for pod in pods if not pod.node and pod.demands.stock]
        asks = {pod.demands.stock for pod in asking}
        if len(asks) == 1 and self._tightest(*asks) >= len(asking):
            return {}
        if self.free is None:
            held: Counter[str] = Counter()
            for pod in world.pods:
                if pod.holds:
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

    def follow(self, machines: Sequence[Machine]) -> AbstractSet[Demands]:
        """Look at other machines from now on; return the demands that others, or more, allow now.

        What was asked of the machines before is asked of these, too, up to KNOWN_DEMANDS.
        """
        before, self._known, self._machines = self._known, {}, machines
        self._rooms = {}
        asked = list(before)[-KNOWN_DEMANDS:]
        allowed = {demands: self.for_demands(demands) for demands in asked}
        return {d for d in before if d not in allowed or allowed[d] != before[d]}

    def for_demands(self, demands: Demands) -> tuple[str, ...] | None:
        """Return their names; None is all of them."""
        if demands not in self._known:
            names = tuple(
                machine.name
                for machine in self._machines
                if may_go(demands, machine.name, machine.labels, machine.taints, machine.stock)
            )
            self._known[demands] = None if len(names) == len(self._machines) else names
        return self._known[demands]

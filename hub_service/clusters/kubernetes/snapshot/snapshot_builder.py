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
from runai.hub_service.clusters.kubernetes.objects.node_eligibility import (
    Demands,
    accepted_values,
    may_run,
)
from runai.hub_service.clusters.kubernetes.objects.pod_groups import PodGroup
from runai.hub_service.clusters.kubernetes.objects.run_time import TimeLimited, bound_of
from runai.hub_service.clusters.kubernetes.snapshot.extended_resources import (
    distribute_nodes,
    is_contended,
    min_fitting_pods,
    with_free_stock,
)
from runai.hub_service.clusters.kubernetes.snapshot.lost_devices import LostDevices
from runai.hub_service.clusters.states.resize import as_if_resized
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
    is_shared: bool = False
    """True if other pods may share the devices."""


@dataclass(frozen=True, slots=True)
class ElasticShape:
    """Properties of an elastic job for the core, besides its workers."""

    surplus: bool
    """True if the job may get more workers than it has."""
    excluded_workers: Collection[str] = ()
    """Names of workers that were lost too often."""
    throughput: Mapping[str, int] = field(default_factory=dict)
    checkpointed: int | None = None
    saves: bool = False
    """True if a worker has ever reported."""


@dataclass(frozen=True, slots=True)
class SnapshotInput:
    """All input of one snapshot."""

    nodes: Sequence[KubeNode]
    pods: Sequence[Pod]
    groups: Sequence[PodGroup]
    projects: Sequence[Project]
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Device numbers of pods, by UID."""
    nominations: Mapping[str, NominatedPlacement] = field(default_factory=dict)
    nodes_in_backoff: Collection[str] = ()
    """Nodes that get no new pods on their devices."""
    broken: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Devices that may not be shared any more, by node."""
    below_min_since: Mapping[str, float] = field(default_factory=dict)
    """Time since when a gang has run with too few workers, by workload."""
    protected: Collection[str] = ()
    """UIDs of pods that disruption budgets protect from eviction."""
    shapes: Mapping[str, ElasticShape] = field(default_factory=dict)
    """Properties of elastic jobs with several workers, by workload."""
    limited: Mapping[str, TimeLimited] = field(default_factory=dict)
    """Time limits and running times, by Job, element or pod (`run_time.timed`)."""
    resize_cost_s: int = 0
    """Cost in seconds of restarting an elastic job of one process on other devices."""


class SnapshotBuilder:
    """Snapshot builder that reuses the object of an unchanged workload.

    So a comparison of two snapshots (`Index.update_nodes`) finds changes by identity.
    """

    def __init__(self) -> None:
        """Begin with no workload built."""
        self._nodes: Sequence[KubeNode] = ()
        self._eligible = _EligibleNodes()
        self._built: dict[str, _BuiltWorkload] = {}
        self._lost = LostDevices()

    def snapshot(self, now: float, inputs: SnapshotInput) -> Snapshot:
        """Return everything that a decision may depend on.

        A gang waits until its Job has created all pods, unless some of them run.
        """
        nodes = with_free_stock(inputs.nodes, inputs.pods)
        if self._nodes != nodes:
            self._nodes = nodes
            changed = self._eligible.update_nodes(nodes)
            for name, previous in self._built.items():
                if not changed.isdisjoint(map(_node_demands, previous.group.pods)):
                    self._built[name] = previous.outdated()
        self._eligible.free_devices = None
        self._built = {
            group.name: built
            for group in inputs.groups
            if _is_schedulable(group) and (built := self._build_or_reuse(group, inputs))
        }
        return Snapshot(
            now=int(now),
            nodes=tuple(_nodes(now, inputs, self._lost)),
            projects=tuple(inputs.projects),
            workloads=tuple([built.workload for built in self._built.values()]),
        )

    def _build_or_reuse(self, group: PodGroup, inputs: SnapshotInput) -> "_BuiltWorkload | None":
        """Build a group's workload, or return the previous one if its input is unchanged.

        None: the group has no pods to decide about.
        """
        placements = [
            (
                inputs.devices.get(pod.uid) if pod.node else None,
                inputs.nominations.get(pod.place) if pod.may_be_nominated else None,
            )
            for pod in group.pods
        ]
        since = inputs.below_min_since.get(group.name)
        shape, is_protected = inputs.shapes.get(group.name), _is_protected(group, inputs)
        time = _time_of(group, inputs)
        previous = self._built.get(group.name)
        if (
            previous is not None
            # Contended nodes depend on free devices, which change.
            and not previous.is_contended
            and previous.placements == placements
            and (previous.since, previous.shape) == (since, shape)
            and previous.is_protected == is_protected
            and previous.time == time
            and (previous.group is group or previous.group == group)
        ):
            return previous
        if not (pods := _schedulable_pods(group, inputs)):
            return None
        workload = _workload(group, pods, inputs, self._eligible)
        # The core ignores many fields of a pod: reuse an equal result.
        if previous is not None and previous.workload == workload:
            workload = previous.workload
        contended = is_contended(pods)
        return _BuiltWorkload(
            group, placements, since, shape, is_protected, contended, time, workload
        )


class _BuiltWorkload(NamedTuple):
    """A workload with all of its input except the nodes."""

    group: PodGroup
    placements: Sequence[tuple[tuple[int, ...] | None, NominatedPlacement | None]]
    """Device numbers and nomination of each pod."""
    since: float | None
    shape: ElasticShape | None
    is_protected: bool
    is_contended: bool
    time: tuple[int, float, float | None] | None
    workload: Workload

    def outdated(self) -> "_BuiltWorkload":
        """Return a copy that fits no input, so that the workload is built again."""
        return self._replace(placements=())


def _time_of(group: PodGroup, inputs: SnapshotInput) -> tuple[int, float, float | None] | None:
    """Return a group's time limit and running times; None: it has no limit."""
    if group.array is not None:
        key, spec = f"{group.array.job.uid}/{group.first.index}", group.array.job.spec
        if key not in inputs.limited and spec is not None and spec.max_runtime is not None:
            return spec.max_runtime, 0.0, None  # it has not begun
    else:
        key = group.first.uid if group.job is None else group.job.uid
    time_limited = inputs.limited.get(key)
    return None if time_limited is None else time_limited.numbers


def _is_protected(group: PodGroup, inputs: SnapshotInput) -> bool:
    return bool(inputs.protected) and any(pod.uid in inputs.protected for pod in group.pods)


def _is_schedulable(group: PodGroup) -> bool:
    """Return True if a pod of the group is bound, or all of its pods may be started."""
    is_bound = any(pod.node for pod in group.pods)
    return is_bound or not (group.missing or group.refusal or group.is_clearing)


def _schedulable_pods(group: PodGroup, inputs: SnapshotInput) -> Sequence[Pod]:
    """Return the pods without the workers that an elastic job must not start now."""
    shape = inputs.shapes.get(group.name)
    if shape is None:
        return group.pods
    return [
        pod
        for pod in group.pods
        if pod.node
        or pod.place in inputs.nominations
        or (shape.surplus and pod.called not in shape.excluded_workers)
    ]


def _nodes(now: float, inputs: SnapshotInput, lost: LostDevices) -> Iterable[Node]:
    """Yield the nodes, less what pods outside the core use; update the `lost` devices.

    The core does not see pods of other schedulers nor reservation pods.
    """
    cpu: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    in_use: dict[str, set[int]] = defaultdict(set)
    foreign: dict[str, set[int]] = defaultdict(set)
    for pod in inputs.pods:
        if not pod.uses_node:
            continue
        devices = inputs.devices.get(pod.uid, ())
        in_use[pod.node].update(devices)
        if pod.scheduler != SCHEDULER:
            foreign[pod.node].update(devices)
        if pod.scheduler != SCHEDULER or pod.is_reservation:
            cpu[pod.node] += pod.cpu_milli
            memory[pod.node] += pod.memory_mib
    reserved: dict[str, set[int]] = defaultdict(set)
    for nomination in inputs.nominations.values():
        reserved[nomination.node].update(nomination.devices)
    lost.retain({node.name for node in inputs.nodes})
    for node in sorted(inputs.nodes, key=lambda node: node.name):
        name = node.name
        in_backoff, faulty = name in inputs.nodes_in_backoff, inputs.broken.get(name, ())
        devices_here = lost.update(
            node, in_use[name], faulty, now, reserved=reserved[name], rejects=in_backoff
        )
        yield Node(
            name=name,
            devices=devices_here.total,
            device_memory_mib=Mib(node.gpu_memory_mib),
            gpu_type=node.gpu_type,
            cpu_milli=max(0, node.cpu_milli - cpu[name]),
            memory_mib=Mib(max(0, node.memory_mib - memory[name])),
            labels=node.labels,
            schedulable=node.is_open,
            broken_devices=tuple(sorted(foreign[name].union(devices_here.lost, faulty))),
            returning_devices=tuple(sorted(devices_here.returning - foreign[name])),
            loss=devices_here.loss,
        )


def _workload(
    group: PodGroup, pods: Sequence[Pod], inputs: SnapshotInput, eligible: "_EligibleNodes"
) -> Workload:
    """Return the core's workload of a group, with only these of its pods as workers."""
    first, shape = group.first, inputs.shapes.get(group.name) or ElasticShape(surplus=True)
    since = inputs.below_min_since.get(group.name)
    request = first.device_request
    # 0: its number of devices is fixed.
    max_gpus = request.most if group.is_resizable and request is not None else 0
    contended_nodes = eligible.for_contended(pods, inputs) if is_contended(pods) else {}
    time = _time_of(group, inputs)
    workload = Workload(
        name=group.name,
        project=group.project,
        kind="job" if first.kind == "train" else "session",
        user=group.user,
        preemptible=False if _is_protected(group, inputs) else None,
        priority=first.priority,
        submitted=int(group.submitted),
        max_runtime=None if time is None else bound_of(time, pods),
        workers=tuple(_worker(pod, inputs, eligible, contended_nodes) for pod in pods),
        min_workers=min(group.minimum, len(pods)),
        guaranteed_workers=group.guaranteed and min(group.guaranteed, len(pods)),
        pauses=tuple(map(int, group.pauses)),
        below_min_since=None if since is None else int(since),
        throughput=shape.throughput,
        checkpointed=shape.checkpointed,
        saves=shape.saves or group.saves,
        gpus_min=WHOLE_GPU if max_gpus else None,
        gpus_max=MilliGpu(max_gpus * WHOLE_GPU) if max_gpus else None,
        resize_cost=inputs.resize_cost_s if max_gpus else 0,
        array_index=None if group.array is None else first.index,
    )
    is_resizing = max_gpus and first.node and first.may_be_nominated
    nomination = inputs.nominations.get(first.place) if is_resizing else None
    if nomination is None:
        return workload
    return as_if_resized(
        workload, nomination.devices, None if first.bound is None else int(first.bound)
    )


def _worker(
    pod: Pod,
    inputs: SnapshotInput,
    eligible: "_EligibleNodes",
    contended_nodes: Mapping[str, tuple[str, ...] | None],
) -> Worker:
    """Return the core's worker of a pod; `contended_nodes` overrides its nodes by place."""
    nomination = None if pod.node else inputs.nominations.get(pod.place)
    state, node = WorkerState.PENDING, None
    devices: tuple[int, ...] = ()
    if pod.node:
        state = WorkerState.RUNNING if pod.deleted is None else WorkerState.STOPPING
        node, devices = pod.node, inputs.devices.get(pod.uid, ())
    elif nomination is not None:
        state, node, devices = WorkerState.RESERVED, nomination.node, nomination.devices
    request = pod.device_request
    return Worker(
        name=pod.called,
        gpus=MilliGpu(pod.gpus * WHOLE_GPU) if request is None else request.gpus,
        gpu_memory_mib=None if request is None else request.memory_mib,
        devices_wanted=1 if request is None else request.distinct,
        state=state,
        node=node,
        devices=devices,
        started=int(pod.bound) if pod.bound is not None else None,
        gone_by=ceil(pod.deleted) if pod.node and pod.deleted is not None else None,
        cpu_milli=pod.cpu_milli,
        memory_mib=Mib(pod.memory_mib),
        # The core checks this by its nodes too; it needs the types to explain why none fits.
        gpu_types=accepted_values(pod.demands, GPU_TYPE_LABEL),
        nodes=contended_nodes[pod.place]
        if pod.place in contended_nodes
        else eligible.for_demands(_node_demands(pod)),
    )


def _node_demands(pod: Pod) -> Demands:
    """Return a pod's demands on its node; a bound pod already has its extended resources."""
    return replace(pod.demands, stock=()) if pod.node and pod.demands.stock else pod.demands


class _EligibleNodes:
    """Nodes that satisfy demands, computed once for all pods with equal demands."""

    def __init__(self) -> None:
        self._nodes: Sequence[KubeNode] = ()
        self._names_by_demands: dict[Demands, tuple[str, ...] | None] = {}
        self._fitting_pods: dict[tuple[tuple[str, int], ...], int] = {}
        """Pods that fit on the smallest node that fits any, by demand (`min_fitting_pods`)."""
        self.free_devices: Mapping[str, int] | None = None
        """Free devices by node; None until needed in this snapshot."""

    def for_contended(
        self, pods: Sequence[Pod], inputs: SnapshotInput
    ) -> Mapping[str, tuple[str, ...] | None]:
        """Return the nodes of waiting workers that may lack resources together, by place.

        Empty: even the smallest node that fits one of them fits all.
        """
        waiting = [pod for pod in pods if not pod.node and pod.demands.stock]
        requests = {pod.demands.stock for pod in waiting}
        if len(requests) == 1 and self._min_fitting_pods(*requests) >= len(waiting):
            return {}
        if self.free_devices is None:
            in_use: Counter[str] = Counter()
            for pod in inputs.pods:
                if pod.uses_node:
                    in_use[pod.node] += len(inputs.devices.get(pod.uid, ()))
            self.free_devices = {
                node.name: node.gpus - in_use[node.name] for node in self._nodes if node.is_open
            }
        all_names = tuple(node.name for node in self._nodes)
        eligible = {pod.demands: self.for_demands(pod.demands) for pod in waiting}
        allowed = {
            demands: frozenset(all_names if names is None else names)
            for demands, names in eligible.items()
        }
        promised = {place: nomination.node for place, nomination in inputs.nominations.items()}
        by_place = distribute_nodes(waiting, self._nodes, allowed, self.free_devices, promised)
        return {
            place: None if len(names) == len(all_names) else tuple(sorted(names))
            for place, names in by_place.items()
        }

    def _min_fitting_pods(self, stock: tuple[tuple[str, int], ...]) -> int:
        if stock not in self._fitting_pods:
            self._fitting_pods[stock] = min_fitting_pods(self._nodes, stock)
        return self._fitting_pods[stock]

    def update_nodes(self, nodes: Sequence[KubeNode]) -> AbstractSet[Demands]:
        """Replace the nodes; return the demands with other eligible nodes than before.

        Cached demands are evaluated again for the new nodes, up to KNOWN_DEMANDS.
        """
        before, self._names_by_demands = self._names_by_demands, {}
        self._nodes = nodes
        self._fitting_pods = {}
        recent = list(before)[-KNOWN_DEMANDS:]
        allowed = {demands: self.for_demands(demands) for demands in recent}
        return {d for d in before if d not in allowed or allowed[d] != before[d]}

    def for_demands(self, demands: Demands) -> tuple[str, ...] | None:
        """Return the names of the eligible nodes; None: all nodes."""
        if demands not in self._names_by_demands:
            names = tuple(
                node.name
                for node in self._nodes
                if may_run(demands, node.name, node.labels, node.taints, node.stock)
            )
            every_node = len(names) == len(self._nodes)
            self._names_by_demands[demands] = None if every_node else names
        return self._names_by_demands[demands]

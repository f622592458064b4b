"""Snapshot of rows, projects and devices for the scheduler.

It has the workloads that hold or request devices. Pure. The same functions show whether a change of
a row changes the snapshot.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil

from runai.hub_service.clusters.states.membership import (
    max_gpus_of,
    must_not_grow,
    throughput_for_core,
)
from runai.hub_service.clusters.states.resize import workload_while_resizing
from runai.hub_service.clusters.workloads.capacity_check import device_memory
from runai.hub_service.model import time_limits
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.gpu_types import by_node_type
from runai.hub_service.model.records import (
    ElasticRules,
    ProjectRecord,
    WorkerRecord,
    WorkloadRecord,
    WorkloadState,
)
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import (
    LeftOut,
    Node,
    NodeTypes,
    Project,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)

NODE_TYPE_LABEL = "runai/node-type"

_WANTS_DEVICES = (
    WorkloadState.QUEUED,
    WorkloadState.PAUSED,
    WorkloadState.STARTING,
    WorkloadState.RUNNING,
)
_UP_STATES = ("starting", "running")
_CORE_STATES = {
    "pending": WorkerState.PENDING,
    "reserved": WorkerState.RESERVED,
    "starting": WorkerState.RUNNING,
    "running": WorkerState.RUNNING,
    "stopping": WorkerState.STOPPING,
}


def snapshot(
    now: float,
    nodes: Mapping[str, Sequence[Device]],
    projects: Sequence[ProjectRecord],
    workloads: tuple[Workload, ...],
    capacities: Mapping[str, NodeCapacity],
) -> Snapshot:
    """Return everything that a decision may depend on, with the given `workloads`."""
    parents = {project.spec.parent for project in projects}
    snapshot_nodes = tuple(
        _node(name, devices, capacities.get(name, NodeCapacity()))
        for name, devices in sorted(nodes.items())
    )
    types = {node.gpu_type for node in snapshot_nodes}
    return Snapshot(
        now=int(now),
        nodes=snapshot_nodes,
        projects=tuple(project_for_core(project, parents, types) for project in projects),
        workloads=workloads,
    )


def with_rows(snapshot: Snapshot, rows: Sequence[WorkloadRecord]) -> Snapshot:
    """Return a snapshot with the workloads of `rows` added, which are stored nowhere."""
    new_workloads = [w for row in rows if (w := workload_for_core(row)) is not None]
    return replace(snapshot, workloads=(*snapshot.workloads, *new_workloads))


def workload_for_core(
    row: WorkloadRecord, now: float = 0.0, rules: ElasticRules | None = None
) -> Workload | None:
    """Return a workload that requests or holds devices; else None.

    A workload that stops as a whole has only the workers that still hold devices: the rest may not
    start before they have gone. An elastic job that was just resized has no workers to grow by.
    """
    rules = rules or ElasticRules()
    if row.resize is not None:
        return workload_while_resizing(_build_workload(row, row.active, rules), row)
    if wants_devices(row):
        workers = [w for w in row.workers if w.state != "finished"]
    else:
        workers = list(row.active)
    if must_not_grow(row, now, rules):
        workers = list(row.active)
    return _build_workload(row, workers, rules) if workers else None


def wants_devices(row: WorkloadRecord) -> bool:
    """Return True if it requests or has devices, and does not stop as a whole."""
    return row.state in _WANTS_DEVICES and not row.halt


def _build_workload(
    row: WorkloadRecord, workers: Sequence[WorkerRecord], rules: ElasticRules
) -> Workload:
    spec, elastic = row.spec, row.elastic
    starts = [int(w.started) for w in workers if w.started is not None and w.state in _UP_STATES]
    return Workload(
        name=row.id,
        project=spec.project,
        user=spec.user,
        kind=spec.kind,
        preemptible=spec.preemptible,
        priority=spec.priority,
        submitted=int(row.submitted),
        expected_runtime=spec.expected_runtime,
        max_runtime=None
        if spec.max_runtime is None
        else time_limits.bound_for_core(
            spec.max_runtime, row.ran_s, row.runs_since, min(starts, default=None)
        ),
        min_workers=min(spec.min_workers, len(workers)),
        # A job may have been scaled below its guarantee, or show fewer workers while it shrinks.
        guaranteed_workers=spec.guaranteed_workers and min(spec.guaranteed_workers, len(workers)),
        workers=tuple(_worker(row, worker) for worker in workers),
        pauses=tuple(int(at) for at in row.pauses),
        checkpointed=_checkpointed(row),
        saves=row.saves,
        below_min_since=None if row.below_min_since is None else int(row.below_min_since),
        gpus_min=WHOLE_GPU if spec.gpus_max else None,
        gpus_max=spec.gpus_max or None,
        throughput={}
        if elastic is None
        else throughput_for_core(elastic.throughput, max_gpus_of(row), pays_from=rules.pays_from),
        resize_cost=rules.resize_cost_s if spec.gpus_max else 0,
        array_index=spec.array_index,
    )


def _checkpointed(row: WorkloadRecord) -> int | None:
    """Return since when work may be unsaved; None if a stop may lose everything.

    A job with the protocol of elastic jobs saves a checkpoint when it has to stop.
    """
    state = row.elastic
    if state is None or not state.phases:
        return None
    return max((int(w.started) for w in row.active if w.started is not None), default=None)


def _worker(row: WorkloadRecord, worker: WorkerRecord) -> Worker:
    spec = row.spec
    released = row.released is not None
    placed = worker.state != "pending"
    return Worker(
        name=worker.name,
        gpus=MilliGpu(0) if spec.gpu_memory_mib or released else spec.gpus,
        gpu_memory_mib=Mib(spec.gpu_memory_mib) if spec.gpu_memory_mib and not released else None,
        state=_CORE_STATES[worker.state],
        node=worker.node if placed else None,
        devices=tuple(share.device for share in worker.devices),
        started=int(worker.started) if placed and worker.started is not None else None,
        gone_by=_kill_time(row) if worker.state == "stopping" else None,
        cpu_milli=spec.cpu_milli,
        memory_mib=Mib(spec.memory_mib),
        gpu_types=spec.gpu_types,
        node_selector={NODE_TYPE_LABEL: spec.node_type} if spec.node_type else {},
    )


def _kill_time(row: WorkloadRecord) -> int | None:
    """Return when a stopping workload is killed, if it has not ended by itself."""
    since = row.stopping_since
    return None if since is None else ceil(since + row.spec.grace_seconds)


def _node(name: str, devices: Sequence[Device], capacity: NodeCapacity) -> Node:
    return Node(
        name=name,
        devices=len(devices),
        device_memory_mib=Mib(device_memory(devices)),
        gpu_type=devices[0].name if devices else "",
        cpu_milli=capacity.cpu_milli,
        memory_mib=None if capacity.memory_mib is None else Mib(capacity.memory_mib),
        broken_devices=tuple(device.index for device in devices if device.fault),
    )


def project_for_core(
    project: ProjectRecord, parents: set[str | None], gpu_types: Collection[str] = ()
) -> Project:
    """Convert a project; `parents` are the projects with children, `gpu_types` the nodes' types."""
    spec = project.spec
    # The quota of a parent without one is the sum of its children's (S3).
    sums_children = spec.quota == 0 and spec.name in parents
    quotas = None if spec.quota_by_type is None else by_node_type(spec.quota_by_type, gpu_types)
    return Project(
        name=spec.name,
        parent=spec.parent,
        quota=LeftOut.SUM_OF_CHILDREN if sums_children else spec.quota,
        quota_by_type=quotas,
        build_quota=spec.build_quota,
        limit=spec.limit,
        weight=spec.weight,
        priority=spec.priority,
        created=int(project.created),
        min_runtime=spec.min_runtime,
        never_lent=spec.never_lent,
        node_types=NodeTypes(build=spec.node_types_build, train=spec.node_types_train),
        members=spec.members,
    )

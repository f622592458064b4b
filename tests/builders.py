"""Short builders of clusters for tests: nodes, projects, sessions and jobs.

Arguments called `gpus` are GPUs (0.5, 2); everything else has the model's units. `Cases` apply a
plan to its snapshot, as a cluster would between two cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from runai.hub_service.scheduler import (
    Decision,
    Mib,
    MilliGpu,
    Move,
    Node,
    Plan,
    Policy,
    Project,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Wait,
    Worker,
    WorkerState,
    Workload,
    decide,
    milli_gpus,
)

GIB = 1024


def gpus(number: float | None) -> MilliGpu | None:
    """Convert GPUs to milli-GPU; None stays "no bound"."""
    return None if number is None else milli_gpus(number)


def cluster(shape: str = "1x8", *, memory_mib: int = 80 * GIB, **fields: Any) -> tuple[Node, ...]:
    """Make nodes n1, n2, ...: "2x8" is two of 8 devices, "1x4+2x1" one of 4 and two of one."""
    sizes = [
        int(devices)
        for group in shape.split("+")
        for count, devices in [group.split("x")]
        for _ in range(int(count))
    ]
    return tuple(
        Node(name=f"n{index}", devices=devices, device_memory_mib=Mib(memory_mib), **fields)
        for index, devices in enumerate(sizes, start=1)
    )


def project(
    name: str,
    quota: float | None = 0,
    *,
    build: float | None = None,
    limit: float | None = None,
    never_lent: float = 0,
    **fields: Any,
) -> Project:
    """Make a project; amounts are in GPUs."""
    return Project(
        name=name,
        quota=gpus(quota),
        build_quota=gpus(build),
        limit=gpus(limit),
        never_lent=milli_gpus(never_lent),
        **fields,
    )


def typed_project(name: str, quotas: dict[str, float | None], **fields: Any) -> Project:
    """Make a project with a quota in GPUs for each GPU type."""
    by_type = {gpu_type: gpus(number) for gpu_type, number in quotas.items()}
    return replace(project(name, **fields), quota_by_type=by_type)


def requesting(gpu_type: str, workload: Workload) -> Workload:
    """Make a workload request a GPU type by name."""
    workers = tuple(replace(worker, gpu_types=(gpu_type,)) for worker in workload.workers)
    return replace(workload, workers=workers)


def parent(name: str, **fields: Any) -> Project:
    """Make a project with the sum of its children's quotas as its quota."""
    return Project(name=name, **fields)


def job(
    name: str,
    gpus: float = 1,
    project: str = "a",
    *,
    workers: int = 1,
    on: str | None = None,
    state: str = "running",
    **fields: Any,
) -> Workload:
    """Make a job of workers that request `gpus` each.

    `on` places workers: "n1:0,1" places one worker, "n1:0,1 n1:2,3" two; the rest pend.
    Fields of a worker (`gpu_memory_mib`, `node_selector`, ...) go to every worker.
    """
    worker_fields = {
        key: fields.pop(key)
        for key in (
            "gpu_memory_mib",
            "devices_wanted",
            "cpu_milli",
            "memory_mib",
            "node_selector",
            "gpu_types",
            "nodes",
            "started",
            "gone_by",
        )
        if key in fields
    }
    amount = milli_gpus(0 if "gpu_memory_mib" in worker_fields else gpus)
    pending = [Worker(name=f"{name}-{i}", gpus=amount, **worker_fields) for i in range(workers)]
    places = on.split() if on else []
    placed = [_placed_on(w, place, state) for w, place in zip(pending, places, strict=False)]
    return Workload(
        name=name, project=project, workers=(*placed, *pending[len(placed) :]), **fields
    )


def fill_node(
    owner: str = "a", devices: int = 2, *, node: str = "n1", **fields: object
) -> list[Workload]:
    """Fill a node with one-GPU jobs, the oldest first."""
    return [
        job(f"{owner}{d}", 1, owner, on=f"{node}:{d}", **fields)  # type: ignore[arg-type]
        for d in range(devices)
    ]


def session(name: str, gpus: float = 1, project: str = "a", **fields: Any) -> Workload:
    """Make a session; its user is the part of `name` before the dash."""
    return job(name, gpus, project, **{"kind": "session", "user": name.partition("-")[0], **fields})


def _placed_on(worker: Worker, place: str, state: str) -> Worker:
    node, _, devices = place.partition(":")
    return replace(
        worker,
        state=WorkerState(state),
        node=node,
        devices=tuple(int(device) for device in devices.split(",") if device),
    )


def snapshot(
    nodes: str | Sequence[Node],
    projects: Iterable[Project],
    workloads: Iterable[Workload] = (),
    *,
    now: int = 1000,
    **policy: Any,
) -> Snapshot:
    """Make a snapshot; workloads without a submission time get one in the given order."""
    return Snapshot(
        now=now,
        policy=Policy(**policy),
        nodes=cluster(nodes) if isinstance(nodes, str) else tuple(nodes),
        projects=tuple(projects),
        workloads=tuple(
            replace(w, submitted=w.submitted or index) for index, w in enumerate(workloads, start=1)
        ),
    )


def started(plan: Plan) -> set[str]:
    """Return the workers that a plan starts."""
    return {d.worker for d in plan.decisions if isinstance(d, Start)}


def stopped(plan: Plan) -> set[str]:
    """Return the workers that a plan stops."""
    return {d.worker for d in plan.decisions if isinstance(d, Stop)}


def reserved(plan: Plan) -> set[str]:
    """Return the workers that a plan reserves devices for."""
    return {d.worker for d in plan.decisions if isinstance(d, Reserve)}


def moved(plan: Plan) -> set[str]:
    """Return the workers that a plan moves."""
    return {d.worker for d in plan.decisions if isinstance(d, Move)}


def places(plan: Plan) -> dict[str, str]:
    """Return the place of each started, reserved or moved worker, as "n1:0,1"."""
    return {
        d.worker: f"{d.node}:{','.join(str(share.device) for share in d.devices)}"
        for d in plan.decisions
        if isinstance(d, Start | Reserve | Move)
    }


def waits(plan: Plan) -> dict[str, str]:
    """Return the reason code of each pending workload."""
    return {d.workload: d.reason.code for d in plan.decisions if isinstance(d, Wait)}


def sentence(plan: Plan, workload: str) -> str:
    """Return the reason sentence of a pending workload."""
    return next(
        d.reason.text for d in plan.decisions if isinstance(d, Wait) and d.workload == workload
    )


def running(cluster_snapshot: Snapshot) -> set[str]:
    """Return the workloads with at least one running worker."""
    return {
        w.name
        for w in cluster_snapshot.workloads
        if any(k.state is WorkerState.RUNNING for k in w.workers)
    }


def applied(
    cluster_snapshot: Snapshot, plan: Plan, *, seconds: int = 10, grace: bool = False
) -> Snapshot:
    """Return the snapshot after a plan: started workers run; stopped ones pend (`grace`: stop)."""
    by_worker: dict[str, Decision] = {
        d.worker: d for d in plan.decisions if not isinstance(d, Wait)
    }
    now = cluster_snapshot.now + seconds
    workloads = []
    for workload in cluster_snapshot.workloads:
        workers = [
            _next_state(k, by_worker.get(k.name), now, grace=grace) for k in workload.workers
        ]
        ends = workload.kind == "session" and any(
            isinstance(by_worker.get(k.name), Stop) for k in workload.workers
        )
        if not ends:
            workloads.append(replace(workload, workers=tuple(workers)))
    return replace(cluster_snapshot, now=now, workloads=tuple(workloads))


def _next_state(worker: Worker, decision: Decision | None, now: int, *, grace: bool) -> Worker:
    pending = replace(worker, state=WorkerState.PENDING, node=None, devices=(), started=None)
    match decision:
        case Stop() if grace:
            return replace(worker, state=WorkerState.STOPPING)
        case Stop() | Unreserve():
            return pending
        case Start() | Resize():
            return _placed(worker, decision, WorkerState.RUNNING, started=now)
        case Reserve() | Move():
            return _placed(worker, decision, WorkerState.RESERVED, started=None)
        case _:
            return pending if worker.state is WorkerState.STOPPING else worker


def _placed(
    worker: Worker,
    decision: Start | Resize | Reserve | Move,
    state: WorkerState,
    *,
    started: int | None,
) -> Worker:
    return replace(
        worker,
        state=state,
        node=decision.node,
        devices=tuple(share.device for share in decision.devices),
        started=started,
    )


def settled(cluster_snapshot: Snapshot, *, cycles: int = 3, seconds: int = 10) -> Snapshot:
    """Return the snapshot after `cycles` cycles of deciding and applying, `seconds` s apart."""
    for _ in range(cycles):
        cluster_snapshot = applied(cluster_snapshot, decide(cluster_snapshot), seconds=seconds)
    return cluster_snapshot


def without_workloads(cluster_snapshot: Snapshot, *names: str) -> Snapshot:
    """Return the snapshot after these workloads have ended."""
    return replace(
        cluster_snapshot,
        workloads=tuple(w for w in cluster_snapshot.workloads if w.name not in names),
    )


def with_workloads(cluster_snapshot: Snapshot, *more: Workload) -> Snapshot:
    """Return the snapshot with newly submitted workloads."""
    added = tuple(replace(w, submitted=w.submitted or cluster_snapshot.now) for w in more)
    return replace(cluster_snapshot, workloads=cluster_snapshot.workloads + added)

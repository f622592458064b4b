"""Hypothetical snapshots, for counterfactuals and for `runai schedule --live`.

Apply changes to a snapshot, and check if the resulting plan serves a workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, assert_never

from runai.hub_service.scheduler.model.explanation import (
    AllowMoves,
    Change,
    ChangeRequest,
    EndWorkloads,
    SetProject,
)
from runai.hub_service.scheduler.model.snapshot import (
    Decision,
    Move,
    Project,
    Reserve,
    Resize,
    Snapshot,
    Start,
    Stop,
    Unreserve,
    Worker,
    WorkerState,
    Workload,
)


def changed(snapshot: Snapshot, changes: Iterable[Change]) -> Snapshot:
    """Apply the changes in order; names that the snapshot lacks are ignored."""
    for change in changes:
        match change:
            case EndWorkloads():
                ended = set(change.workloads)
                remaining = tuple(w for w in snapshot.workloads if w.name not in ended)
                snapshot = replace(snapshot, workloads=remaining)
            case SetProject():
                projects = tuple(
                    _with_setting(p, change) if p.name == change.project else p
                    for p in snapshot.projects
                )
                snapshot = replace(snapshot, projects=projects)
            case ChangeRequest():
                workloads = tuple(
                    _with_request(w, change) if w.name == change.workload else w
                    for w in snapshot.workloads
                )
                snapshot = replace(snapshot, workloads=workloads)
            case AllowMoves():
                phases = dict.fromkeys((*snapshot.policy.phases, "consolidate"))
                snapshot = replace(snapshot, policy=replace(snapshot.policy, phases=tuple(phases)))
            case _:
                assert_never(change)
    return snapshot


def with_workloads(snapshot: Snapshot, added: Sequence[Workload]) -> Snapshot:
    """Return the snapshot with newly submitted workloads."""
    return replace(snapshot, workloads=(*snapshot.workloads, *added))


def serves(decisions: Iterable[Decision], workload: Workload, *, at_once: bool = False) -> bool:
    """Return True if decisions let the workload's minimum run; those about others change nothing.

    A reservation counts too, unless `at_once` is set.
    """
    own_workers = {worker.name for worker in workload.workers}
    serving_states = (
        {WorkerState.RUNNING} if at_once else {WorkerState.RUNNING, WorkerState.RESERVED}
    )
    serving = {worker.name for worker in workload.workers if worker.state in serving_states}
    for decision in decisions:
        match decision:
            case Start() if decision.worker in own_workers:
                serving.add(decision.worker)
            case Reserve() if decision.worker in own_workers and not at_once:
                serving.add(decision.worker)
            case Stop() | Unreserve():
                serving.discard(decision.worker)
            case _:
                pass
    return len(serving) >= workload.minimum


def worker_after(worker: Worker, decision: Decision | None, now: int) -> Worker:
    """Return the worker as it is after a decision about it takes effect at once."""
    match decision:
        case Start() | Move() | Resize():
            return _placed(worker, decision, WorkerState.RUNNING, now)
        case Reserve():
            return _placed(worker, decision, WorkerState.RESERVED, None)
        case Stop() | Unreserve():
            return pending_again(worker)
        case _:
            return worker


def _placed(
    worker: Worker,
    decision: Start | Move | Resize | Reserve,
    state: WorkerState,
    started: int | None,
) -> Worker:
    devices = tuple(share.device for share in decision.devices)
    return replace(worker, state=state, node=decision.node, devices=devices, started=started)


def pending_again(worker: Worker) -> Worker:
    """Return the worker as pending, without a node and devices."""
    return replace(
        worker, state=WorkerState.PENDING, node=None, devices=(), started=None, gone_by=None
    )


def _with_setting(project: Project, change: SetProject) -> Project:
    settings: dict[str, Any] = {change.setting: change.value}
    if change.setting == "quota":
        settings["quota_by_type"] = None
    return replace(project, **settings)


def _with_request(workload: Workload, change: ChangeRequest) -> Workload:
    workers = workload.workers
    minimum = workload.min_workers
    if change.workers is not None:
        workers = workers[: change.workers]
        minimum = min(workload.minimum, change.workers)
    if change.gpus is not None:
        workers = tuple(
            replace(worker, gpus=change.gpus, gpu_memory_mib=None) for worker in workers
        )
    if change.anywhere:
        workers = tuple(
            replace(worker, node_selector={}, gpu_types=(), nodes=None) for worker in workers
        )
    return replace(
        workload,
        workers=workers,
        min_workers=minimum,
        priority=workload.priority if change.priority is None else change.priority,
        max_runtime=workload.max_runtime if change.max_runtime is None else change.max_runtime,
        preemptible=workload.preemptible if change.preemptible is None else change.preemptible,
    )

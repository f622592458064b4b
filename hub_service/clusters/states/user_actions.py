"""Transitions that users request, and the waits that a plan decides. Pure."""

from dataclasses import replace

from runai.hub_service.clusters.states.lifecycle import request_text, stopped, with_worker
from runai.hub_service.clusters.states.outcomes import settle
from runai.hub_service.clusters.states.resize import without_resize
from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.model import arrays
from runai.hub_service.model.records import (
    ACTIVE,
    ElasticState,
    Process,
    StateReason,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
)
from runai.hub_service.scheduler.model.snapshot import DeviceShare, Wait
from runai.hub_service.wire.errors import Conflict

IN_QUEUE = (WorkloadState.QUEUED, WorkloadState.PAUSED, WorkloadState.RETRYING)
"""States of a job that waits to start."""


def submitted(
    spec: WorkloadSpec,
    *,
    now: float,
    checkpoint_dir: str,
    log_dir: str,
    uid: str = "",
    account_uid: int | None = None,
) -> Transition:
    """Build the row of a new workload, or of all elements of a new array."""
    count = 0 if spec.is_array else spec.workers
    workers = tuple(WorkerRecord(f"{spec.id}-{index}", index, "pending") for index in range(count))
    record = WorkloadRecord(
        spec,
        WorkloadState.QUEUED,
        now,
        workers,
        checkpoint_dir=checkpoint_dir,
        log_dir=log_dir,
        elastic=ElasticState() if spec.elastic else None,
        left=((0, spec.array),) if spec.array is not None and spec.is_array else (),
        uid=uid,
        account_uid=account_uid,
    )
    return Transition(record, (("queued", f"submitted by {spec.user}: {request_text(spec)}"),))


def rows_of(spec: WorkloadSpec, *, now: float, max_elements: int) -> list[WorkloadRecord]:
    """Return the rows of a submission that is only tried; of an array at most so many elements."""
    specs = [spec]
    if spec.array is not None:
        specs = [arrays.element(spec, index) for index in range(min(max_elements, spec.array))]
    transitions = [submitted(one, now=now, checkpoint_dir="", log_dir="") for one in specs]
    return [transition.row for transition in transitions if transition.row is not None]


def suspended(row: WorkloadRecord, *, by: str, now: float) -> Transition:
    """Remove a job from the queue, and stop it if it runs.

    Raises:
        Conflict: it is finished, being deleted, or a session.
    """
    refuse_unless_job(row, "suspended")
    if row.state is WorkloadState.SUSPENDED or row.intent == "suspend":
        return Transition(row)
    reason = StateReason("suspended", f"suspended by {by}")
    if row.state in IN_QUEUE:
        row = without_reservations(row)
        record = replace(
            row,
            state=WorkloadState.SUSPENDED,
            reason=reason,
            position=None,
            not_before=None,
        )
        return Transition(record, (("suspended", reason.text),))
    row = replace(row, intent="suspend")
    if row.state is WorkloadState.STOPPING:
        row = replace(without_resize(row), reason=reason)
        return Transition(row, (("warning", f"{reason.text} while it stops"),))
    return stopped(row, range(len(row.workers)), reason, now=now)


def resumed(row: WorkloadRecord, *, by: str) -> Transition:
    """Put a suspended job back into the queue, at its original place.

    Raises:
        Conflict: it is finished, being deleted, or a session.
    """
    refuse_unless_job(row, "resumed")
    if row.intent == "suspend":
        row = replace(row, intent="run")
        return Transition(row, (("warning", f"resumed by {by} while it stops"),))
    if row.state is not WorkloadState.SUSPENDED:
        return Transition(row)
    state = WorkloadState.PAUSED if row.attempts else WorkloadState.QUEUED
    record = replace(row, state=state, reason=None)
    return Transition(record, ((state.value, f"resumed by {by}"),))


def deleted(row: WorkloadRecord, *, by: str, now: float) -> Transition:
    """Stop a workload that holds anything, and delete it when its processes are gone."""
    if row.intent == "delete":
        return Transition(row)
    row = replace(row, intent="delete")
    if not row.active:
        return settle(row, now=now)
    reason = StateReason("deleted", f"deleted by {by}")
    return stopped(without_resize(row), range(len(row.workers)), reason, now=now)


def released(row: WorkloadRecord, *, why: str, now: float) -> Transition:
    """Release a running session's GPUs; its process goes on without them.

    Raises:
        Conflict: it is no session that holds GPUs.
    """
    (worker, *_) = row.workers
    if row.spec.kind != "session" or row.spec.command is not None or worker.state != "running":
        raise Conflict(
            f"{row.id} is no session that runs ({row.state}), so it cannot go on without GPUs.",
            hint="Suspend or delete it.",
            code="not_releasable",
        )
    if not worker.devices:
        return Transition(row)
    row = with_worker(row, replace(worker, devices=()))
    record = replace(row, released=now, reason=StateReason("released", why))
    return Transition(record, (("released", why),))


def regained(row: WorkloadRecord, *, by: str) -> Transition:
    """Queue a released session for its GPUs.

    Raises:
        Conflict: it was not released, or no longer runs.
    """
    (worker, *_) = row.workers
    if row.released is None:
        raise Conflict(
            f"{row.id} still has its GPUs, or is waiting for them already.",
            hint="`runai describe` shows it.",
            code="not_released",
        )
    if worker.state != "running":  # it would wait forever: its server is gone
        raise Conflict(
            f"{row.id} runs no more ({row.state}), so it has no use for its GPUs.",
            hint="Start a server anew.",
            code="not_released",
        )
    row = with_worker(row, replace(worker, state="pending", node=""))
    record = replace(row, state=WorkloadState.QUEUED, released=None, reason=None)
    return Transition(record, (("queued", f"{by} asks for its GPUs again"),))


def reserved(
    row: WorkloadRecord, index: int, node: str, devices: tuple[DeviceShare, ...]
) -> Transition:
    """Reserve devices for a waiting worker (R7)."""
    worker = replace(row.workers[index], state="reserved", node=node, devices=devices)
    return Transition(with_worker(row, worker))


def unreserved(row: WorkloadRecord, index: int) -> Transition:
    """Drop a worker's reservation."""
    worker = replace(row.workers[index], state="pending", node="", devices=())
    return Transition(with_worker(row, worker))


def is_reported(record: WorkloadRecord, wait: Wait) -> bool:
    """Return True if a record has this wait's position and reason already."""
    known, why = record.reason, wait.reason
    return (
        record.position == wait.position
        and known is not None
        and known.text == why.text
        and (known.code, known.rule, known.gains) == (why.code, why.rule, why.for_ or "")
    )


def waiting(row: WorkloadRecord, wait: Wait) -> Transition:
    """Store why a workload waits, and its position.

    The first reason in the queue becomes a history event; later ones change every few seconds.
    """
    why = wait.reason
    reason = StateReason(why.code, why.text, why.rule, why.for_ or "")
    is_first = row.position is None
    row = replace(row, reason=reason, position=wait.position)
    return Transition(
        row, (("waiting", reason.text),) if is_first else (), only_queue_status=not is_first
    )


def without_reservations(row: WorkloadRecord) -> WorkloadRecord:
    """Drop all reservations of a job that leaves the queue."""
    for worker in row.workers:
        if worker.state == "reserved":
            transition = unreserved(row, worker.index)
            assert transition.row is not None
            row = transition.row
    return row


def refuse_unless_attachable(row: WorkloadRecord, process: Process) -> None:
    """Raise Conflict unless the process can be that of a session that holds its GPUs."""
    worker = row.workers[0]
    if row.spec.command is not None:
        raise Conflict(
            f"{row.id} is started by the cluster, not by a spawner.",
            hint="Only a session without a command is attached to.",
            code="not_attachable",
        )
    is_other_process = worker.process is not None and worker.process != process
    if worker.state not in ACTIVE or is_other_process:
        what = "runs as another process" if is_other_process else f"holds no GPUs ({row.state})"
        raise Conflict(f"{row.id} {what}.", hint="Start the session again.", code="not_attachable")


def refuse_unless_job(row: WorkloadRecord, verb: str) -> None:
    """Raise Conflict for a session, and for a finished job or one being deleted."""
    if row.spec.kind == "session":
        raise Conflict(
            f"{row.id} is a session and cannot be {verb}.",
            hint="Stop it, or delete it.",
            code="is_a_session",
        )
    if row.state.finished:
        raise Conflict(
            f"{row.id} is finished ({row.state}) and cannot be {verb}.",
            hint="Submit it again. Under another name, this one and its checkpoints stay.",
            code="finished",
        )
    if row.intent == "delete":
        raise Conflict(
            f"{row.id} is being deleted and cannot be {verb}.",
            hint="Submit it again when it is gone.",
            code="being_deleted",
        )


def refusal_of_whole_array(record: WorkloadRecord) -> Conflict:
    """Return the refusal of what only one element of an array can do."""
    spec = record.spec
    return Conflict(
        f"{record.id} is an array of {spec.array} jobs; this is for one of them.",
        hint=f"Name it: {spec.name}-0 to {spec.name}-{(spec.array or 1) - 1}.",
        code="is_array",
    )


def refusal_of_used_name(workload: WorkloadId, state: str = "") -> Conflict:
    """Return the refusal of a name in use; `state` is that of the workload that has it."""
    project, _, name = workload.partition("/")
    return Conflict(
        f"{project} already has a workload named {name}{f' ({state})' if state else ''}.",
        hint=f"Choose another name, or delete it: runai delete {name} -p {project}",
        code="name_taken",
    )

"""Transitions of jobs that wait for something outside of them: an account that does not answer.

Such a job holds nothing, has not failed, and is `retrying` without a time: the cluster takes it up
again when the cause is over. Pure.
"""

from dataclasses import replace

from runai.hub_service.clusters.states.lifecycle import stopped
from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.clusters.states.user_actions import IN_QUEUE, without_reservations
from runai.hub_service.model.records import StateReason, WorkloadRecord, WorkloadState


def set_aside(row: WorkloadRecord, reason: StateReason) -> Transition | None:
    """Take a job out of the queue that cannot start for now; None: it is not in the queue."""
    if row.spec.kind != "job" or row.active or row.state not in IN_QUEUE:
        return None
    if row.is_set_aside and row.reason == reason:
        return None
    row = without_reservations(row)
    record = replace(
        row, state=WorkloadState.RETRYING, reason=reason, position=None, not_before=None
    )
    return Transition(record, (("waiting", reason.text),))


def put_off_start(
    row: WorkloadRecord, attempt: int, reason: StateReason, *, now: float
) -> Transition | None:
    """Stop a job of which a start cannot go on, to be set aside.

    None: the start has begun or ends, or is of a worker that was to join an elastic job.
    """
    is_starting = any(w.state == "starting" and w.attempt == attempt for w in row.active)
    is_elastic_running = row.spec.elastic and any(w.state == "running" for w in row.active)
    if row.halt or row.intent != "run" or is_elastic_running or not is_starting:
        return None
    return stopped(replace(row, halt="aside"), range(len(row.workers)), reason, now=now)


def taken_up(row: WorkloadRecord, account_uid: int | None = None) -> Transition:
    """Put a job back into the queue at its original place; its history names a new uid."""
    record = replace(row, state=WorkloadState.QUEUED, reason=None)
    uid_before, text = row.account_uid, "tries again"
    if None not in (uid_before, account_uid) and uid_before != account_uid:
        text += (
            f" as uid {account_uid}: an admin says that it is the same person as uid {uid_before}"
        )
    return Transition(record, (("queued", text),))


def given_up(row: WorkloadRecord, reason: StateReason) -> Transition:
    """Suspend a job that was set aside for too long; `resume` puts it back into the queue."""
    record = replace(row, state=WorkloadState.SUSPENDED, reason=reason)
    return Transition(record, (("suspended", reason.text),))

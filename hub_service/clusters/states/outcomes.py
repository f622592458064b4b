"""Outcomes of a workload without active workers: finished, retrying, paused, suspended.

Pure transitions.
"""

from dataclasses import replace

from runai.hub_service.clusters.states.membership import decides_outcome
from runai.hub_service.clusters.states.transition import Transition
from runai.hub_service.model import time_limits
from runai.hub_service.model.records import (
    StateReason,
    WorkerRecord,
    WorkloadRecord,
    WorkloadState,
    unsaved_text,
)

BACK_OFF_S = 10.0
LONGEST_BACK_OFF_S = 300.0
MAX_LOSSES = 6
"""Losses in a row after which a workload fails: its supervisor will not survive here."""


def settle(row: WorkloadRecord, *, now: float) -> Transition:
    """Return the transition of a workload after its last worker has ended."""
    assert not row.active
    if row.intent == "delete":
        return Transition(None)
    row = runs_no_more(row, now)
    deciding = [w for w in row.workers if w.state == "finished" and decides_outcome(row, w)]
    if row.spec.kind == "session":
        state = WorkloadState.TIMED_OUT if row.halt == "timed_out" else WorkloadState.ENDED
        return _finish(row, state, now=now)
    if deciding and all(w.exit_code == 0 for w in deciding):
        reason = StateReason("succeeded", f"finished with exit code 0{_stop_note(row)}")
        return _finish(replace(row, reason=reason), WorkloadState.SUCCEEDED, now=now)
    if row.halt == "failed":
        transition = _after_failure(row, now=now)
    elif row.halt == "lost":
        transition = _after_loss(row, now=now)
    elif row.halt == "aside":
        transition = _wait_aside(row)
    else:
        transition = _after_pause(row, now=now)
    assert transition.row is not None
    is_over = row.halt == "timed_out" or time_limits.has_run_out(row, now)
    if transition.row.state.finished or not is_over:
        return transition
    reason = StateReason("timed_out", time_limits.end_text(row))
    return _finish(replace(row, reason=reason), WorkloadState.TIMED_OUT, now=now)


def _stop_note(row: WorkloadRecord) -> str:
    """Return a warning for exit code 0 during a stop: some tools return it even if not done."""
    if row.halt != "paused" and row.intent != "suspend":
        return ""
    stop = "suspended" if row.intent == "suspend" else "paused"
    return f" while it was being {stop}: if it was not done, submit it again"


def is_examined(row: WorkloadRecord) -> bool:
    """Return True if the platform looks for new checkpoints after a job's next pause.

    Each time, if the job is known to save its work; else once, since it may never do.
    """
    return row.saves or row.spec.elastic or row.unexamined is None


def examined(
    row: WorkloadRecord, stops: tuple[tuple[int, int], ...], *, is_new: bool | None
) -> Transition:
    """Record whether the pause that made these stops left a new checkpoint; None: unknown."""
    if row.unexamined != stops:
        return Transition(row)  # another pause since
    row = replace(row, unexamined=())
    if is_new is not False:
        return Transition(row)
    is_paused = row.state in {WorkloadState.PAUSED, WorkloadState.SUSPENDED}
    text = unsaved_text(row)
    row = replace(row, unsaved=is_paused)
    return Transition(row, (("warning", text),))


def runs_no_more(record: WorkloadRecord, now: float) -> WorkloadRecord:
    """Return the record with its time of running up to now; a repeat changes nothing."""
    if record.runs_since is None:
        return record
    return replace(record, ran_s=time_limits.seconds_run(record, now), runs_since=None)


def _finish(row: WorkloadRecord, state: WorkloadState, *, now: float) -> Transition:
    """Finish a workload in this state, with the first exit code that is not 0, if any."""
    deciding = [w for w in row.workers if decides_outcome(row, w)]
    codes = [w.exit_code for w in deciding if w.exit_code is not None]
    failure_codes = [code for code in codes if code != 0]
    row = replace(
        row,
        state=state,
        finished=now,
        exit_code=failure_codes[0] if failure_codes else (codes[0] if codes else None),
        position=None,
        not_before=None,
        workers=tuple(replace(w, state="finished", devices=()) for w in row.workers),
        intent="run",
        below_min_since=None,
        stopping_since=None,
    )
    text = row.reason.text if row.reason else state.value
    return Transition(row, ((state.value, text),))


def _after_failure(row: WorkloadRecord, *, now: float) -> Transition:
    """Count a failure, then retry later, or fail for good beyond `backoff_limit`."""
    row = replace(row, failures=row.failures + 1)
    if row.failures > row.spec.backoff_limit:
        return _finish(row, WorkloadState.FAILED, now=now)
    left = row.spec.backoff_limit - row.failures
    text = f"failed {row.failures} times, may fail {left} times more"
    return _retry_later(row, row.failures, text, now=now)


def _after_loss(row: WorkloadRecord, *, now: float) -> Transition:
    """Count a loss of the supervisor, then retry later, or fail for good beyond `MAX_LOSSES`."""
    row = replace(row, losses=row.losses + 1)
    if row.losses > MAX_LOSSES:
        return _finish(row, WorkloadState.FAILED, now=now)
    return _retry_later(row, row.losses, "was interrupted and will be started again", now=now)


def _retry_later(row: WorkloadRecord, count: int, text: str, *, now: float) -> Transition:
    """Retry after a time that doubles with each of `count` failures in a row."""
    if row.intent == "suspend":
        return _suspended(row)
    delay_s = min(BACK_OFF_S * 2 ** (count - 1), LONGEST_BACK_OFF_S)
    transition = _reset_workers(row, WorkloadState.RETRYING, f"{text}; next try in {delay_s:.0f} s")
    assert transition.row is not None
    return Transition(replace(transition.row, not_before=now + delay_s), transition.events)


def _after_pause(row: WorkloadRecord, *, now: float) -> Transition:
    """Pause a stopped workload, or suspend it; its new checkpoints may be looked for."""
    by_scheduler = row.halt == "paused" and row.intent == "run"
    pauses = (*row.pauses, now) if by_scheduler else row.pauses
    stops = tuple(
        (w.index, w.attempt)
        for w in row.workers
        if w.state == "finished" and w.exit_code is not None
    )
    if stops and is_examined(row):
        row = replace(row, unexamined=stops)
    row = replace(row, pauses=pauses, losses=0)
    if row.intent == "suspend":
        return _suspended(row)
    return _reset_workers(row, WorkloadState.PAUSED, "paused, and keeps its place in the queue")


def _wait_aside(row: WorkloadRecord) -> Transition:
    """Let a job wait, without a time, for what is outside of it."""
    if row.intent == "suspend":
        return _suspended(row)
    assert row.reason is not None
    return _reset_workers(row, WorkloadState.RETRYING, row.reason.text)


def _suspended(row: WorkloadRecord) -> Transition:
    """Suspend, and clear the intent: a later `resume` finds a suspended job."""
    return _reset_workers(replace(row, intent="run"), WorkloadState.SUSPENDED, "suspended")


def _reset_workers(row: WorkloadRecord, state: WorkloadState, text: str) -> Transition:
    """Reset all workers to pending."""
    workers = tuple(
        WorkerRecord(w.name, w.index, "pending", exit_code=w.exit_code, attempt=w.attempt)
        for w in row.workers
    )
    row = replace(
        row,
        state=state,
        workers=workers,
        position=None,
        halt="",
        stopping_since=None,
        below_min_since=None,
    )
    return Transition(row, ((state.value, text),))

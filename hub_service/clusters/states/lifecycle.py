"""State machine of a workload: pure transitions from one row to the next, with history.

It covers starts, stops, exits, failures and timeouts. `outcomes` has the transitions of workloads
without running workers, `user_actions` transitions that users request.
"""

import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace

from runai.hub_service.clusters.states import membership, resize
from runai.hub_service.clusters.states.outcomes import (
    LONGEST_BACK_OFF_S,
    runs_no_more,
    settle,
)
from runai.hub_service.clusters.states.transition import ExitStatus, Transition
from runai.hub_service.model import time_limits
from runai.hub_service.model.records import (
    ACTIVE,
    Grant,
    Process,
    StateReason,
    WorkerRecord,
    WorkloadRecord,
    WorkloadSpec,
    WorkloadState,
    killed_text,
    move_of,
)
from runai.hub_service.scheduler.model.quantity import WHOLE_GPU, count_text, gpu_text
from runai.hub_service.scheduler.model.snapshot import DeviceShare

ATTACH_WITHIN_S = 120.0
"""Seconds that a granted session may take until its process is attached."""


def started(
    row: WorkloadRecord, grants: Sequence[Grant], *, now: float, master_port: int = 0
) -> Transition:
    """Assign devices to workers; all of them start together, as one attempt."""
    attempt = row.attempts + 1
    grant_by_index = {grant.index: grant for grant in grants}
    workers = tuple(
        replace(
            w,
            # A session that regains its GPUs kept running.
            state="starting" if w.process is None else "running",
            node=grant_by_index[w.index].node,
            devices=grant_by_index[w.index].devices,
            started=now,
            process=w.process,
            attempt=attempt,
            exit_code=None,
        )
        if w.index in grant_by_index
        else w
        for w in row.workers
    )
    verb = "resumes" if row.resumed else "starts"
    text = f"{verb} on {_places_text(grants)}"
    if row.spec.command is None:
        goes_on = any(w.process is not None for w in workers)
        text = f"gets {_places_text(grants)}"
        text += " again" if goes_on else "; waits for its server to start"
    row = replace(
        row,
        workers=workers,
        attempts=attempt,
        started=row.started if row.started is not None else now,
        runs_since=row.runs_since if row.runs_since is not None else now,
        reason=None,
        position=None,
        not_before=None,
        unsaved=False,
        killed=False,
        halt="",
        granted=now,
        stopping_since=None,
        master_port=master_port,
        # The start of a joining worker is not the first of its job.
        resumed=row.resumed or any(w.process is not None for w in workers),
        code_due=attempt,
    )
    row = membership.record_sizing(row, now=now)
    return Transition(_with_state(row, now), (("starting", text),))


def running(row: WorkloadRecord, index: int, process: Process, *, now: float) -> Transition:
    """Store a worker's process; a worker that was stopped meanwhile stays `stopping`."""
    worker = row.workers[index]
    if worker.process == process and worker.state != "starting":
        return Transition(row)
    worker = replace(worker, process=process)
    if worker.state == "starting":
        worker = replace(worker, state="running")
    row = with_worker(row, worker)
    return Transition(
        _with_state(row, now),
        (("running", f"{_worker_prefix(row, index)}runs{_process_text(process)}"),),
    )


def _process_text(process: Process) -> str:
    return f" as process {process.pid}" if process.pid else ""  # of a pod the kubelet knows it


def attached(row: WorkloadRecord, process: Process, *, now: float) -> Transition:
    """Store the process of a session that a spawner started."""
    return running(row, 0, process, now=now)


def stopped(
    row: WorkloadRecord, indexes: Iterable[int], reason: StateReason, *, now: float
) -> Transition:
    """Stop workers; a session without a process has nothing to stop and ends."""
    chosen = set(indexes)
    workers = tuple(
        replace(w, state="stopping")
        if w.index in chosen and w.state in {"starting", "running"}
        else w
        for w in row.workers
    )
    is_whole = all(w.state == "stopping" for w in workers if w.state in ACTIVE)
    row = replace(
        row,
        workers=workers,
        reason=reason,
        position=None,
        moved=move_of(reason.text),
        # False: it is of an earlier stop.
        killed=row.killed and any(w.state == "stopping" for w in row.workers),
        halt=row.halt or ("paused" if is_whole else ""),
        stopping_since=now,
    )
    row = runs_no_more(row, now) if is_whole else row
    row = _with_state(membership.record_sizing(row, now=now), now)
    transition = Transition(row, (("stopping", reason.text),))
    if row.spec.command is None and row.workers[0].process is None:
        return _chain(transition, exited(row, 0, ExitStatus(None, stop_requested=True), now=now))
    return transition


def resized(row: WorkloadRecord, grant: Grant, reason: StateReason, *, now: float) -> Transition:
    """Stop a worker that restarts on these devices of its node (E2)."""
    transition = stopped(row, [grant.index], reason, now=now)
    assert transition.row is not None
    return Transition(replace(transition.row, resize=grant, halt=""), transition.events)


def exited(row: WorkloadRecord, index: int, exit_status: ExitStatus, *, now: float) -> Transition:
    """Release a worker's devices, and apply its exit to the workload.

    Exit code 0 is success, even after a stop. A worker that was told to stop and exits otherwise is
    paused. Any other exit is a failure: it stops the rest of the gang, unless the workers that are
    left of an elastic job can go on.
    """
    before, worker = row, row.workers[index]
    stop_requested = exit_status.stop_requested or worker.state == "stopping"
    grant = resize.grant_after(row, exit_status) if stop_requested else None
    worker = replace(
        worker, state="finished", devices=(), node="", process=None, exit_code=exit_status.exit_code
    )
    if stop_requested and exit_status.exit_code != 0 and not row.halt and len(row.active) > 1:
        # Neither the whole workload stops nor is it done: the others go on without this worker.
        worker = replace(worker, state="pending")
    began = row.resumed or exit_status.began or before.workers[index].process is not None
    row = replace(with_worker(row, worker), resize=None, resumed=began)
    if exit_status.killed:
        row = replace(row, killed=True)
    who = _worker_prefix(row, index).rstrip()
    warning = f"{who}: {exit_status.left}" if who else exit_status.left
    leftover_events = [("warning", warning)] if exit_status.left else []
    events = [("exited", _exit_text(row, index, exit_status)), *leftover_events]
    if grant is not None:
        row = membership.count_resize(row)
        return _chain(Transition(row, tuple(events)), started(row, [grant], now=now))
    is_failure = not stop_requested and exit_status.exit_code != 0
    if is_failure and membership.survives_exit_of(before, index):
        text = f"{_exit_text(row, index, exit_status)}; the others go on without it"
        row = _with_state(membership.requeue_lost_worker(row, index), now)
        return Transition(row, (("warning", text), *leftover_events))
    if exit_status.exit_code == 0 and membership.is_done_by(before, index):
        row = membership.record_finishers(replace(row, halt="done"))
        if late := membership.late_joiners(row):
            why = StateReason("finished", "the others have finished the training")
            transition = stopped(row, [w.index for w in late], why, now=now)
            assert transition.row is not None
            row, events = transition.row, [*events, *transition.events]
    if is_failure and row.halt in {"", "paused", "done"}:
        row = replace(row, halt="lost" if exit_status.lost else "failed")
        if exit_status.is_home_away:
            row = replace(row, halt="aside")
        row = replace(row, reason=_failure(row, index, exit_status))
        rest = [w.index for w in row.active if w.state != "stopping"]
        if rest:
            text = f"{_exit_text(row, index, exit_status)}, so the others stop too"
            why = StateReason("failed", text)
            transition = stopped(row, rest, why, now=now)
            assert transition.row is not None
            row = replace(transition.row, reason=row.reason)
            events += transition.events
    if row.active:  # the last worker's exit settles the workload
        return Transition(_with_state(row, now), tuple(events))
    return _chain(Transition(row, tuple(events)), settle(row, now=now))


def timed_out(row: WorkloadRecord, *, now: float) -> Transition:
    """Stop a workload for good that has used up its time; it may save within its grace."""
    workers = tuple(
        # A session that waits to regain its GPUs still runs.
        replace(w, state="running") if w.state == "pending" and w.process is not None else w
        for w in row.workers
    )
    row = replace(row, workers=workers, halt="timed_out")
    reason = StateReason("timed_out", time_limits.end_text(row))
    return stopped(row, range(len(workers)), reason, now=now)


def due(row: WorkloadRecord, *, now: float) -> Transition | None:
    """Return the transition that time alone causes: a retry, an attach timeout, a time limit."""
    since = row.runs_since
    if since is not None and since > now and row.spec.max_runtime is not None:
        # The clock was set back: count from here, or the limit would come too late.
        return Transition(replace(row, runs_since=now))
    if _is_limited(row) and time_limits.has_run_out(row, now):
        return timed_out(row, now=now)
    if _waits_to_be_attached(row) and row.granted is not None and row.granted > now:
        # The clock was set back: restart the timeout, so that a session waits at most its length.
        return Transition(replace(row, granted=now))
    when = next_due(row)
    is_retrying = row.state is WorkloadState.RETRYING
    # The clock was set back: no back-off is this long.
    was_set_back = is_retrying and when is not None and when > now + 2 * LONGEST_BACK_OFF_S
    if when is None or (when > now and not was_set_back):
        return None
    if is_retrying:
        record = replace(row, state=WorkloadState.QUEUED, not_before=None)
        return Transition(record, (("queued", "tries again"),))
    text = f"its server did not start within {ATTACH_WITHIN_S:.0f} s, so its GPUs were given back"
    transition = stopped(row, [0], StateReason("not_attached", text), now=now)
    return Transition(transition.row, (("warning", text), *transition.events))


def next_due(row: WorkloadRecord) -> float | None:
    """Return when `due` has a transition, or None."""
    record = row
    if record.state is WorkloadState.RETRYING:
        return record.not_before
    waits = _waits_to_be_attached(row)
    attach = row.granted + ATTACH_WITHIN_S if waits and row.granted is not None else None
    end = time_limits.ends_at(record) if _is_limited(row) else None
    return min((when for when in (attach, end) if when is not None), default=None)


# -- parts ---------------------------------------------------------------------------------------


def _is_limited(row: WorkloadRecord) -> bool:
    """Return True if a time limit is to end a workload that is not being stopped already."""
    return row.spec.max_runtime is not None and row.runs_since is not None


def _waits_to_be_attached(row: WorkloadRecord) -> bool:
    return row.spec.command is None and row.state is WorkloadState.STARTING


def _chain(transition: Transition, next_transition: Transition) -> Transition:
    """Return the row of the second transition, with the events of both."""
    return Transition(next_transition.row, (*transition.events, *next_transition.events))


def with_worker(row: WorkloadRecord, worker: WorkerRecord) -> WorkloadRecord:
    """Return a row with one worker replaced."""
    workers = tuple(worker if w.index == worker.index else w for w in row.workers)
    return replace(row, workers=workers)


def _with_state(row: WorkloadRecord, now: float) -> WorkloadRecord:
    """Derive the state of a workload with active workers from theirs."""
    states = [w.state for w in row.active]
    if not states:
        return row
    if all(state == "stopping" for state in states):
        state = WorkloadState.STOPPING
    elif "running" in states:
        state = WorkloadState.RUNNING
    else:
        state = WorkloadState.STARTING
    unfinished = sum(w.state != "finished" for w in row.workers)
    up = sum(s != "stopping" for s in states)
    is_below_min = 0 < up < min(row.spec.min_workers, unfinished)
    since = row.below_min_since if row.below_min_since is not None else now
    return replace(
        row,
        state=state,
        below_min_since=since if is_below_min else None,
    )


def _failure(row: WorkloadRecord, index: int, exit_status: ExitStatus) -> StateReason:
    """Return the reason of a workload that a worker's exit makes fail."""
    if exit_status.text and exit_status.exit_code is not None and exit_status.exit_code < 0:
        return StateReason("contained", f"it {exit_status.text}")
    if exit_status.text:
        code = "home_away" if exit_status.is_home_away else "not_started"
        return StateReason(code, exit_status.text)
    if exit_status.lost:
        return StateReason("interrupted", _exit_text(row, index, exit_status))
    return StateReason("exit_code", _exit_text(row, index, exit_status))


def _worker_prefix(row: WorkloadRecord, index: int) -> str:
    """Return "worker 1 " as the beginning of an event; "" for the only worker."""
    return f"worker {index} " if len(row.workers) > 1 else ""


def _exit_text(row: WorkloadRecord, index: int, exit_status: ExitStatus) -> str:
    """Return how a worker ended, as a sentence without its full stop."""
    who = _worker_prefix(row, index)
    if exit_status.text:
        return exit_status.text
    if exit_status.lost:
        return f"{who}was interrupted: its supervisor is gone (killed, or the machine went down)"
    killed = killed_text(row.spec) if exit_status.killed else ""
    if killed and exit_status.exit_code == -signal.SIGKILL:
        return f"{who}was {killed}"
    killed = f"; the rest was {killed}" if killed else ""
    if exit_status.exit_code is None:
        return f"{who}ended"
    if exit_status.exit_code < 0:
        return f"{who}ended by signal {-exit_status.exit_code}{killed}"
    return f"{who}ended with exit code {exit_status.exit_code}{killed}"


def _places_text(grants: Sequence[Grant]) -> str:
    """Return the granted devices in words: "node-1: GPU 0, 0.5 GPUs of GPU 1; node-2: no GPU"."""
    by_node: dict[str, list[str]] = {}
    for grant in grants:
        by_node.setdefault(grant.node, []).extend(_share_text(share) for share in grant.devices)
    return "; ".join(f"{node}: {', '.join(g) or 'no GPU'}" for node, g in by_node.items())


def _share_text(share: DeviceShare) -> str:
    part = "" if share.gpus == WHOLE_GPU else f"{gpu_text(share.gpus)} of "
    return f"{part}GPU {share.device}"


def request_text(spec: WorkloadSpec) -> str:
    """Return a workload's request in words: "2 workers with 1 GPU each".

    >>> request_text(WorkloadSpec("vision", "exp", "ana", "job", ("true",)))
    'no GPU'
    """
    if spec.gpu_memory_mib:
        amount = f"{spec.gpu_memory_mib} MiB of a GPU"
    elif spec.gpus:
        amount = count_text(spec.gpus)
    else:
        amount = "no GPU"
    return amount if spec.workers == 1 else f"{spec.workers} workers with {amount} each"

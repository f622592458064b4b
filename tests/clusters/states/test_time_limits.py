"""Time limits in the state machine: what counts, when it ends, and the state afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.transition import ExitStatus, Transition
from runai.hub_service.model.records import (
    Grant,
    Process,
    StateReason,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.model.time_limits import ends_at, seconds_run
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare

LIMIT_S = 100
GRANT = Grant(0, "n1", (DeviceShare(0, MilliGpu(1000)),))
Step = Callable[[WorkloadRecord, float], Transition | None]


def submitted(**fields: Any) -> WorkloadRecord:
    options: Any = {"kind": "job", "command": ("train",), "max_runtime": LIMIT_S} | fields
    spec = WorkloadSpec("vision", "exp", "ana", gpus=MilliGpu(1000), **options)
    row = user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir="").row
    assert row is not None
    return row


def starts(row: WorkloadRecord, now: float) -> Transition:
    return lifecycle.started(row, [GRANT], now=now)


def runs(row: WorkloadRecord, now: float) -> Transition:
    return lifecycle.running(row, 0, Process(4711, now), now=now)


def pauses(row: WorkloadRecord, now: float) -> Transition:
    return lifecycle.stopped(row, [0], StateReason("reclaimed", "reclaimed"), now=now)


def suspends(row: WorkloadRecord, now: float) -> Transition:
    return user_actions.suspended(row, by="ana", now=now)


def passes(row: WorkloadRecord, now: float) -> Transition | None:
    return lifecycle.due(row, now=now)


def exits(code: int | None, *, stop_requested: bool = False, lost: bool = False) -> Step:
    exit_status = ExitStatus(code, stop_requested=stop_requested, lost=lost)
    return lambda row, now: lifecycle.exited(row, 0, exit_status, now=now)


UP: Sequence[tuple[float, Step]] = [(10, starts), (15, runs)]
CASES: dict[str, tuple[dict[str, Any], Sequence[tuple[float, Step]], tuple[str, float]]] = {
    "a job within its limit runs on": ({}, [*UP, (109, passes)], ("running", 99)),
    "a job at its limit is stopped": ({}, [*UP, (110, passes)], ("stopping", 100)),
    "a stopped job times out": (
        {},
        [*UP, (110, passes), (112, exits(-15, stop_requested=True))],
        ("timed_out", 100),
    ),
    "a job that ends itself at its limit has succeeded": (
        {},
        [*UP, (110, passes), (112, exits(0, stop_requested=True))],
        ("succeeded", 100),
    ),
    "a pause does not count": (
        {},
        [*UP, (60, pauses), (65, exits(-15, stop_requested=True)), (500, starts), (549, passes)],
        ("starting", 99),
    ),
    "a job ends after all its attempts": (
        {},
        [*UP, (60, pauses), (65, exits(-15, stop_requested=True)), (500, starts), (550, passes)],
        ("stopping", 100),
    ),
    "a suspended job counts no more": (
        {},
        [*UP, (60, suspends), (65, exits(-15, stop_requested=True)), (900, passes)],
        ("suspended", 50),
    ),
    "a job that is paused at its limit is not requeued": (
        {},
        [*UP, (110, pauses), (112, exits(-15, stop_requested=True))],
        ("timed_out", 100),
    ),
    "a job that is suspended while it times out is not resumed": (
        {},
        [*UP, (110, passes), (111, suspends), (112, exits(143, stop_requested=True))],
        ("timed_out", 100),
    ),
    "a failure before the limit is tried again": (
        {"backoff_limit": 1},
        [*UP, (50, exits(1))],
        ("retrying", 40),
    ),
    "a failure after the limit is not tried again": (
        {"backoff_limit": 1},
        [*UP, (111, exits(1))],
        ("timed_out", 101),
    ),
    "a failure without a retry stays a failure": ({}, [*UP, (111, exits(1))], ("failed", 101)),
    "a job that was lost at its limit is not started again": (
        {},
        [*UP, (120, exits(None, lost=True))],
        ("timed_out", 110),
    ),
    "a session times out": (
        {"kind": "session", "command": None},
        [*UP, (110, passes), (112, exits(None))],
        ("timed_out", 100),
    ),
    "a session that its user ends has ended": (
        {"kind": "session", "command": None},
        [*UP, (50, exits(None))],
        ("ended", 40),
    ),
    "a session without its GPUs still counts": (
        {"kind": "session", "command": None},
        [
            *UP,
            (20, lambda row, now: user_actions.released(row, why="idle", now=now)),
            (30, lambda row, _: user_actions.regained(row, by="ana")),
            (110, passes),
        ],
        ("stopping", 100),
    ),
    "a clock that is set back starts the present run anew": (
        {},
        [*UP, (5, passes), (105, passes)],
        ("stopping", 100),
    ),
    "a workload without a limit runs on": (
        {"max_runtime": None},
        [*UP, (10_000, passes)],
        ("running", 9990),
    ),
}


@pytest.mark.parametrize(("fields", "changes", "outcome"), CASES.values(), ids=CASES)
def test_workload_state_and_run_time_follow_its_time_limit_after_each_change(
    fields: dict[str, Any], changes: Sequence[tuple[float, Step]], outcome: tuple[str, float]
) -> None:
    """The limit is 100 s; the outcome is the state and the seconds that have run."""
    row, now = submitted(**fields), 0.0
    for now, step in changes:
        if (after := step(row, now)) is not None:
            assert after.row is not None
            row = after.row

    assert outcome == (row.state, seconds_run(row, now))


def test_next_transition_of_a_running_job_is_due_at_its_time_limit() -> None:
    row = runs(starts(submitted(), 10.0).row, 15.0).row  # type: ignore[arg-type]
    assert row is not None

    assert lifecycle.next_due(row) == ends_at(row) == 10.0 + LIMIT_S


def test_timeout_reason_suggests_a_longer_time_limit() -> None:
    row = submitted(max_runtime=8 * 3600)
    for now, step in [*UP, (30_000.0, passes)]:
        row = step(row, now).row  # type: ignore[union-attr,assignment]

    assert row.reason is not None
    assert row.reason.code == "timed_out"
    assert row.reason.text == (
        "ran 8h, its time limit: submit it again, with --time 12h or so; its checkpoints are in /c"
    )

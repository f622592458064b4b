"""Pauses without a new checkpoint: which ones are examined, and what the job says then."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from runai.hub_service.clusters.states import lifecycle, outcomes, user_actions
from runai.hub_service.clusters.states.transition import ExitStatus, Transition
from runai.hub_service.model.records import (
    Grant,
    Process,
    StateReason,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.scheduler.model.quantity import MilliGpu
from runai.hub_service.scheduler.model.snapshot import DeviceShare

NOTHING_NEW = (
    "nothing new in its checkpoint directory: unless it saves elsewhere, it starts where it began"
)


def submitted(**fields: Any) -> WorkloadRecord:
    spec = WorkloadSpec("vision", "exp", "ana", "job", ("train",), gpus=MilliGpu(1000), **fields)
    return row_after(user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir=""))


def row_after(transition: Transition) -> WorkloadRecord:
    assert transition.row is not None
    return transition.row


def paused(row: WorkloadRecord, *codes: int | None, suspend: bool = False) -> WorkloadRecord:
    """Return the row after a start, a stop, and exits of its workers with these codes."""
    workers = range(len(codes))
    grants = [Grant(i, "n1", (DeviceShare(i, MilliGpu(1000)),)) for i in workers]
    row = row_after(lifecycle.started(row, grants, now=1))
    for index in workers:
        row = row_after(lifecycle.running(row, index, Process(100 + index, 1), now=2))
    reason = StateReason("reclaimed", "reclaimed")
    row = row_after(
        user_actions.suspended(row, by="ana", now=3)
        if suspend
        else lifecycle.stopped(row, workers, reason, now=3)
    )
    for index, code in enumerate(codes):
        row = row_after(lifecycle.exited(row, index, ExitStatus(code, stop_requested=True), now=4))
    return row


def examined(row: WorkloadRecord, *, is_new: bool | None) -> Transition:
    assert row.unexamined
    return outcomes.examined(row, row.unexamined, is_new=is_new)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, 1), ({"saves": True}, 3), ({"elastic": True, "gpus_max": MilliGpu(2000)}, 3)],
    ids=["plain", "saves", "elastic"],
)
@pytest.mark.parametrize("is_new", [False, True, None])
def test_job_without_saves_gets_a_checkpoint_check_after_its_first_pause_only(
    fields, expected, is_new
):
    row, examinations = submitted(**fields), 0
    for _ in range(3):  # pauses
        assert not is_new or not row.unsaved
        row = paused(row, 143)
        if row.unexamined:
            examinations += 1
            row = row_after(examined(row, is_new=is_new))

    assert examinations == expected


@pytest.mark.parametrize("code", [143, -15, -9, 1], ids=["143", "SIGTERM", "SIGKILL", "error"])
@pytest.mark.parametrize("suspend", [False, True], ids=["paused", "suspended"])
def test_job_pause_without_a_new_checkpoint_gives_a_warning_for_any_exit_code(code, suspend):
    row = paused(submitted(), code, suspend=suspend)

    transition = examined(row, is_new=False)

    word = "suspended" if suspend else "paused"
    assert transition.events == (("warning", f"{word}; {NOTHING_NEW}"),)
    assert row_after(transition).unsaved
    next_start = lifecycle.started(row_after(transition), [Grant(0, "n1", ())], now=9)
    assert not row_after(next_start).unsaved


@pytest.mark.parametrize("is_new", [True, None], ids=["saved", "unknown"])
def test_job_pause_with_a_new_checkpoint_or_no_check_answer_has_no_warning(is_new):
    transition = examined(paused(submitted(), 143), is_new=is_new)

    assert (
        transition.events,
        row_after(transition).unsaved,
        row_after(transition).unexamined,
    ) == ((), False, ())


def test_checkpoint_answer_after_the_next_start_is_only_in_the_history():
    row = paused(submitted(saves=True), 143)
    running = row_after(lifecycle.started(row, [Grant(0, "n1", ())], now=9))

    transition = examined(running, is_new=False)

    assert transition.events == (("warning", f"paused; {NOTHING_NEW}"),)
    assert not row_after(transition).unsaved


def test_checkpoint_answer_about_an_earlier_pause_is_ignored():
    first = paused(submitted(saves=True), 143)
    second = paused(first, 143)
    assert first.unexamined is not None

    assert outcomes.examined(second, first.unexamined, is_new=False) == Transition(second)


@pytest.mark.parametrize(
    ("codes", "expected"),  # expected: worker and start of each check
    [((143, -9), ((0, 1), (1, 1))), ((143, None), ((0, 1),)), ((None, None), None)],
    ids=["both began", "one never began", "none began"],
)
def test_workers_that_began_get_a_checkpoint_check_after_a_pause(
    codes: Sequence[int | None], expected
):
    assert paused(submitted(workers=2, min_workers=2), *codes).unexamined == expected


@pytest.mark.parametrize(
    "exit_status",
    [ExitStatus(0, stop_requested=True), ExitStatus(3), ExitStatus(None, lost=True)],
    ids=["finished", "failed", "lost"],
)
def test_job_exit_that_is_not_a_pause_gets_no_checkpoint_check(exit_status):
    row = row_after(lifecycle.started(submitted(backoff_limit=1), [Grant(0, "n1", ())], now=1))
    row = row_after(lifecycle.running(row, 0, Process(100, 1), now=2))

    assert row_after(lifecycle.exited(row, 0, exit_status, now=4)).unexamined is None

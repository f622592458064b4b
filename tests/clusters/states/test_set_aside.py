"""Jobs that wait for something outside of them: no failure, no GPU, no time of a retry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.set_aside import (
    given_up,
    put_off_start,
    set_aside,
    taken_up,
)
from runai.hub_service.clusters.states.transition import ExitStatus, Transition
from runai.hub_service.model.records import Grant, Process, StateReason, WorkloadSpec

REASON = StateReason("account_away", "The account directory does not answer for ana since 14:02.")
HOME_AWAY_EXIT = ExitStatus(127, text="cannot start: /home/ana is not there", is_home_away=True)


def row_after(transition: Transition | None) -> Any:
    """Return the row after a transition."""
    assert transition is not None
    return transition.row


def row_of(workers=1, kind="job", **options) -> Any:
    spec = WorkloadSpec(
        *("vision", "exp", "ana", kind), ("train",), workers=workers, min_workers=1, **options
    )
    return row_after(user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir=""))


def starting(workers=1, **options) -> Any:
    grants = [Grant(index, "n1", ()) for index in range(workers)]
    return row_after(lifecycle.started(row_of(workers, **options), grants, now=1))


def running(workers=1, **options) -> Any:
    row = starting(workers, **options)
    for index in range(workers):
        row = row_after(lifecycle.running(row, index, Process(100 + index, 1), now=2))
    return row


def half_begun(**options) -> Any:
    return row_after(lifecycle.running(starting(2, **options), 0, Process(100, 1), now=2))


REQUESTED_EXIT = ExitStatus(None, stop_requested=True)


def ended(row: Any, exit_status=REQUESTED_EXIT) -> Any:
    """End all workers that are active."""
    for worker in row.active:
        row = row_after(lifecycle.exited(row, worker.index, exit_status, now=3))
    return row


@pytest.mark.parametrize(
    ("row", "is_allowed"),
    [
        pytest.param(row_of(), True, id="queued"),
        pytest.param(
            row_after(user_actions.suspended(row_of(), by="ana", now=1)), False, id="suspended"
        ),
        pytest.param(starting(), False, id="starting"),
        pytest.param(running(), False, id="running"),
        pytest.param(row_of(kind="session"), False, id="session"),
        pytest.param(ended(running(), ExitStatus(0)), False, id="finished"),
    ],
)
def test_queued_jobs_alone_can_be_set_aside(row, is_allowed):
    transition = set_aside(row, REASON)

    assert (transition is not None) == is_allowed
    if transition is not None:
        assert row_after(transition).is_set_aside
        assert set_aside(row_after(transition), REASON) is None


@pytest.mark.parametrize(
    ("row", "state"),
    [
        pytest.param(starting(), "stopping", id="job"),
        pytest.param(starting(2), "stopping", id="gang"),
        pytest.param(half_begun(), "stopping", id="gang with one running worker"),
        pytest.param(half_begun(elastic=True), None, id="elastic job with one running worker"),
        pytest.param(running(), None, id="running"),
        pytest.param(replace(starting(), intent="delete"), None, id="being deleted"),
    ],
)
def test_job_with_a_postponed_start_is_stopped_and_set_aside(row, state):
    transition = put_off_start(row, 1, REASON, now=2)

    assert (transition and row_after(transition).state) == state
    assert put_off_start(row, 2, REASON, now=2) is None  # another start than the current one
    if transition is not None:
        put_off = ended(row_after(transition))
        assert put_off.is_set_aside
        record = put_off
        assert (record.reason, record.failures, record.pauses) == (REASON, 0, ())
        assert lifecycle.next_due(put_off) is None


def test_job_suspended_after_a_postponed_start_ends_suspended_not_set_aside():
    stopping = row_after(put_off_start(starting(), 1, REASON, now=2))

    suspended = row_after(user_actions.suspended(stopping, by="ana", now=3))

    assert ended(suspended).state == "suspended"


@pytest.mark.parametrize("workers", [1, 2])
def test_job_start_without_a_reachable_home_counts_no_job_failure(workers):
    row = ended(row_after(lifecycle.exited(starting(workers), 0, HOME_AWAY_EXIT, now=2)))

    assert row.is_set_aside
    assert (row.failures, row.reason.code) == (0, "home_away")


def test_set_aside_job_is_queued_on_retry_and_suspended_but_resumable_on_give_up():
    aside = row_after(set_aside(row_of(), REASON))

    assert row_after(taken_up(aside)).state == "queued"
    suspended = row_after(given_up(aside, REASON))
    assert (suspended.state, suspended.reason) == ("suspended", REASON)
    assert row_after(user_actions.resumed(suspended, by="ana")).state == "queued"

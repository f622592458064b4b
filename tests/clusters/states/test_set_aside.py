"""Jobs that wait for something outside of them: no failure, no GPU, no time of a retry."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.set_aside import (
    given_up,
    set_aside,
    start_put_off,
    taken_up,
)
from runai.hub_service.clusters.states.state import ExitStatus, Grant, Transition
from runai.hub_service.model.records import Process, StateReason, WorkloadSpec

WHY = StateReason("account_away", "The account directory does not answer for ana since 14:02.")
AWAY = ExitStatus(127, text="cannot start: /home/ana is not there", is_home_away=True)


def after(step: Transition | None) -> Any:
    """Return the row after a transition."""
    assert step is not None
    return step.row


def row_of(workers=1, kind="job", **options) -> Any:
    spec = WorkloadSpec(
        *("vision", "exp", "ana", kind), ("train",), workers=workers, min_workers=1, **options
    )
    return after(user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir=""))


def starting(workers=1, **options) -> Any:
    grants = [Grant(index, "n1", ()) for index in range(workers)]
    return after(lifecycle.started(row_of(workers, **options), grants, now=1))


def running(workers=1, **options) -> Any:
    row = starting(workers, **options)
    for index in range(workers):
        row = after(lifecycle.running(row, index, Process(100 + index, 1), now=2))
    return row


def half_begun(**options) -> Any:
    return after(lifecycle.running(starting(2, **options), 0, Process(100, 1), now=2))


TOLD = ExitStatus(None, stop_requested=True)


def ended(row: Any, ending=TOLD) -> Any:
    """End all workers that are active."""
    for worker in row.active:
        row = after(lifecycle.exited(row, worker.index, ending, now=3))
    return row


@pytest.mark.parametrize(
    ("row", "is_set"),
    [
        pytest.param(row_of(), True, id="queued"),
        pytest.param(
            after(user_actions.suspended(row_of(), by="ana", now=1)), False, id="suspended"
        ),
        pytest.param(starting(), False, id="starting by itself"),
        pytest.param(running(), False, id="running"),
        pytest.param(row_of(kind="session"), False, id="session"),
        pytest.param(ended(running(), ExitStatus(0)), False, id="finished"),
    ],
)
def test_jobs_in_the_queue_alone_are_set_aside_with_another(row, is_set):
    step = set_aside(row, WHY)

    assert (step is not None) == is_set
    if step is not None:
        assert after(step).record.is_set_aside
        assert set_aside(after(step), WHY) is None


@pytest.mark.parametrize(
    ("row", "state"),
    [
        pytest.param(starting(), "stopping", id="job"),
        pytest.param(starting(2), "stopping", id="gang"),
        pytest.param(half_begun(), "stopping", id="gang of which one has begun"),
        pytest.param(half_begun(elastic=True), None, id="elastic that another was to join"),
        pytest.param(running(), None, id="running"),
        pytest.param(replace(starting(), intent="delete"), None, id="being deleted"),
    ],
)
def test_job_of_which_a_start_cannot_go_on_is_stopped_and_set_aside(row, state):
    step = start_put_off(row, 1, WHY, now=2)

    assert (step and after(step).record.state) == state
    assert start_put_off(row, 2, WHY, now=2) is None  # another start than the current one
    if step is not None:
        put_off = ended(after(step))
        assert put_off.record.is_set_aside
        record = put_off.record
        assert (record.reason, record.failures, record.pauses) == (WHY, 0, ())
        assert lifecycle.next_due(put_off) is None


def test_suspension_that_came_meanwhile_wins():
    stopping = after(start_put_off(starting(), 1, WHY, now=2))

    suspended = after(user_actions.suspended(stopping, by="ana", now=3))

    assert ended(suspended).record.state == "suspended"


@pytest.mark.parametrize("workers", [1, 2])
def test_start_that_finds_the_home_away_is_no_failure(workers):
    row = ended(after(lifecycle.exited(starting(workers), 0, AWAY, now=2)))

    assert row.record.is_set_aside
    assert (row.record.failures, row.record.reason.code) == (0, "home_away")


def test_job_that_is_taken_up_is_queued_and_one_that_is_given_up_can_be_resumed():
    aside = after(set_aside(row_of(), WHY))

    assert after(taken_up(aside)).record.state == "queued"
    suspended = after(given_up(aside, WHY))
    assert (suspended.record.state, suspended.record.reason) == ("suspended", WHY)
    assert after(user_actions.resumed(suspended, by="ana")).record.state == "queued"

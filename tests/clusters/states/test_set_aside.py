"""Jobs that wait for something outside of them: no failure, no GPU, no time of a retry."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.set_aside import (
    given_up,
    is_set_aside,
    set_aside,
    start_put_off,
    taken_up,
)
from runai.hub_service.clusters.states.state import ExitStatus, Grant
from runai.hub_service.model.records import Process, StateReason, WorkloadSpec

WHY = StateReason("account_away", "The account directory does not answer for ana since 14:02.")
AWAY = ExitStatus(127, text="cannot start: /home/ana is not there", is_home_away=True)


def row_of(workers=1, kind="job", **options):
    spec = WorkloadSpec(
        *("vision", "exp", "ana", kind), ("train",), workers=workers, min_workers=1, **options
    )
    return user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir="").row


def starting(workers=1, **options):
    grants = [Grant(index, "n1", ()) for index in range(workers)]
    return lifecycle.started(row_of(workers, **options), grants, now=1).row


def running(workers=1, **options):
    row = starting(workers, **options)
    for index in range(workers):
        row = lifecycle.running(row, index, Process(100 + index, 1), now=2).row
    return row


def half_begun(**options):
    return lifecycle.running(starting(2, **options), 0, Process(100, 1), now=2).row


TOLD = ExitStatus(None, told=True)


def ended(row, ending=TOLD):
    """End all workers that are active."""
    for worker in row.active:
        row = lifecycle.exited(row, worker.index, ending, now=3).row
    return row


@pytest.mark.parametrize(
    ("row", "is_set"),
    [
        pytest.param(row_of(), True, id="queued"),
        pytest.param(user_actions.suspended(row_of(), by="ana", now=1).row, False, id="suspended"),
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
        assert is_set_aside(step.row)
        assert set_aside(step.row, WHY) is None


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

    assert (step and step.row.record.state) == state
    assert start_put_off(row, 2, WHY, now=2) is None  # another start than the current one
    if step is not None:
        after = ended(step.row)
        assert is_set_aside(after)
        assert (after.record.reason, after.record.failures, after.record.pauses) == (WHY, 0, ())
        assert lifecycle.next_due(after) is None


def test_suspension_that_came_meanwhile_wins():
    stopping = start_put_off(starting(), 1, WHY, now=2).row

    suspended = user_actions.suspended(stopping, by="ana", now=3).row

    assert ended(suspended).record.state == "suspended"


@pytest.mark.parametrize("workers", [1, 2])
def test_start_that_finds_the_home_away_is_no_failure(workers):
    row = lifecycle.exited(starting(workers), 0, AWAY, now=2).row

    after = ended(row)

    assert is_set_aside(after)
    assert (after.record.failures, after.record.reason.code) == (0, "home_away")


def test_job_that_is_taken_up_is_queued_and_one_that_is_given_up_can_be_resumed():
    aside = set_aside(row_of(), WHY).row

    assert taken_up(aside).row.record.state == "queued"
    suspended = given_up(aside, WHY).row
    assert (suspended.record.state, suspended.record.reason) == ("suspended", WHY)
    assert user_actions.resumed(suspended, by="ana").row.record.state == "queued"

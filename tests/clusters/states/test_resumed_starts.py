"""Whether a job's next start is told that a program of it ran before, by the end of the last."""

from __future__ import annotations

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
from runai.hub_service.scheduler.model.quantity import MilliGpu

RECLAIMED = StateReason("reclaimed", "reclaimed")


def row_after(transition: Transition) -> WorkloadRecord:
    assert transition.row is not None
    return transition.row


def started() -> WorkloadRecord:
    spec = WorkloadSpec(
        "vision", "exp", "ana", "job", ("train",), gpus=MilliGpu(1000), backoff_limit=3
    )
    row = row_after(user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir=""))
    assert not row.resumed
    return row_after(lifecycle.started(row, [Grant(0, "n1", ())], now=1))


ENDINGS = {
    "exit code": (ExitStatus(1), True),
    "signal": (ExitStatus(-11), True),
    "ended by its supervisor": (ExitStatus(-9, text="had more than 4096 processes"), True),
    "lost": (ExitStatus(None, lost=True), True),
    "stopped": (ExitStatus(143, stop_requested=True), True),
    "stopped before it began": (ExitStatus(None, stop_requested=True), False),
    "no account": (ExitStatus(None, text="ana has no account"), False),
    "no working directory": (ExitStatus(126, text="cannot start"), False),
}


@pytest.mark.parametrize(("exit_status", "program_ran"), ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("is_reported", [False, True], ids=["before its report", "after it"])
def test_next_job_start_is_a_resume_if_a_program_of_the_job_ran(
    exit_status, program_ran, is_reported
):
    row = started()
    if is_reported:
        row = row_after(lifecycle.running(row, 0, Process(100, 1), now=2))
    if exit_status.stop_requested:
        row = row_after(lifecycle.stopped(row, [0], RECLAIMED, now=3))

    row = row_after(lifecycle.exited(row, 0, exit_status, now=4))

    assert row.resumed is (program_ran or is_reported)
    assert not row.state.finished


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        pytest.param("", "finished with exit code 0", id="by itself"),
        pytest.param(
            "pause",
            "finished with exit code 0 while it was being paused: if it was not done, submit it"
            " again",
            id="pause",
        ),
        pytest.param(
            "suspend",
            "finished with exit code 0 while it was being suspended: if it was not done, submit it"
            " again",
            id="suspension",
        ),
    ],
)
def test_job_exit_with_code_0_during_a_stop_has_a_hint_in_its_reason(stop, text):
    row = row_after(lifecycle.running(started(), 0, Process(100, 1), now=2))
    if stop == "pause":
        row = row_after(lifecycle.stopped(row, [0], RECLAIMED, now=3))
    if stop == "suspend":
        row = row_after(user_actions.suspended(row, by="ana", now=3))

    transition = lifecycle.exited(row, 0, ExitStatus(0, stop_requested=bool(stop)), now=4)

    record = row_after(transition)
    assert record.state == "succeeded"
    assert record.reason is not None
    assert record.reason.text == text
    assert ("succeeded", text) in transition.events

"""History of a worker whose program left processes that still worked."""

from __future__ import annotations

import pytest

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.model.records import Grant, Process, WorkloadSpec

LEFTOVERS = "1 process was still working"


@pytest.mark.parametrize(
    ("workers", "elastic", "exit_code", "expected"),
    [
        (1, False, 0, LEFTOVERS),
        (1, False, 3, LEFTOVERS),
        (2, False, 0, f"worker 1: {LEFTOVERS}"),
        (2, False, 3, f"worker 1: {LEFTOVERS}"),
        (2, True, 3, f"worker 1: {LEFTOVERS}"),
    ],
    ids=["job", "failed job", "gang", "failed gang", "elastic job that goes on"],
)
def test_job_history_names_leftover_processes_once_with_their_worker(
    workers, elastic, exit_code, expected
):
    spec = WorkloadSpec(
        "vision", "exp", "ana", "job", ("train",), workers=workers, min_workers=1, elastic=elastic
    )
    row = user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir="").row
    assert row is not None
    row = lifecycle.started(row, [Grant(i, "n1", ()) for i in range(workers)], now=1).row
    for index in range(workers):
        assert row is not None
        row = lifecycle.running(row, index, Process(100 + index, 1), now=2).row
    assert row is not None

    transition = lifecycle.exited(row, workers - 1, ExitStatus(exit_code, left=LEFTOVERS), now=3)

    assert [text for kind, text in transition.events if LEFTOVERS in text] == [expected]

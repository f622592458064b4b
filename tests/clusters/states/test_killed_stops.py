"""How long a workload says that its last stop killed processes of it."""

from __future__ import annotations

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.transition import ExitStatus, Transition
from runai.hub_service.model.records import (
    Grant,
    Process,
    StateReason,
    WorkloadRecord,
    WorkloadSpec,
)

RECLAIMED = StateReason("reclaimed", "reclaimed")
KILLED_EXIT = ExitStatus(-9, stop_requested=True, killed=True)
OWN_EXIT = ExitStatus(143, stop_requested=True)


def row_after(transition: Transition) -> WorkloadRecord:
    assert transition.row is not None
    return transition.row


def running_row(workers: int) -> WorkloadRecord:
    spec = WorkloadSpec(
        "vision", "exp", "ana", "job", ("train",), workers=workers, min_workers=1, elastic=True
    )
    row = row_after(user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir=""))
    return restarted(row, *range(workers))


def restarted(row: WorkloadRecord, *workers: int) -> WorkloadRecord:
    row = row_after(lifecycle.started(row, [Grant(i, "n1", ()) for i in workers], now=1))
    for index in workers:
        row = row_after(lifecycle.running(row, index, Process(100 + index, 1), now=2))
    return row


def stopped(row: WorkloadRecord, *exits: tuple[int, ExitStatus]) -> WorkloadRecord:
    row = row_after(lifecycle.stopped(row, [index for index, _ in exits], RECLAIMED, now=3))
    for index, exit_status in exits:
        row = row_after(lifecycle.exited(row, index, exit_status, now=4))
    return row


def test_killed_worker_is_in_the_job_record_until_the_next_start():
    row = stopped(running_row(2), (0, KILLED_EXIT), (1, OWN_EXIT))

    assert row.killed
    assert not restarted(row, 0, 1).killed


def test_worker_killed_by_an_elastic_shrink_is_in_the_job_record_until_a_later_stop():
    row = stopped(running_row(2), (1, KILLED_EXIT))

    assert row.killed
    assert not stopped(row, (0, OWN_EXIT)).killed

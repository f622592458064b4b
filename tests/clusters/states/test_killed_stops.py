"""How long a workload says that its last stop killed processes of it."""

from __future__ import annotations

from runai.hub_service.clusters.states import lifecycle, user_actions
from runai.hub_service.clusters.states.state import ExitStatus, Grant, StoredWorkload, Transition
from runai.hub_service.model.records import Process, StateReason, WorkloadSpec

RECLAIMED = StateReason("reclaimed", "reclaimed")
KILLED = ExitStatus(-9, stop_requested=True, killed=True)
BY_ITSELF = ExitStatus(143, stop_requested=True)


def of(step: Transition) -> StoredWorkload:
    assert step.row is not None
    return step.row


def runs(workers: int) -> StoredWorkload:
    spec = WorkloadSpec(
        "vision", "exp", "ana", "job", ("train",), workers=workers, min_workers=1, elastic=True
    )
    row = of(user_actions.submitted(spec, now=0.0, checkpoint_dir="/c", log_dir=""))
    return again(row, *range(workers))


def again(row: StoredWorkload, *workers: int) -> StoredWorkload:
    row = of(lifecycle.started(row, [Grant(i, "n1", ()) for i in workers], now=1))
    for index in workers:
        row = of(lifecycle.running(row, index, Process(100 + index, 1), now=2))
    return row


def stopped(row: StoredWorkload, *endings: tuple[int, ExitStatus]) -> StoredWorkload:
    row = of(lifecycle.stopped(row, [index for index, _ in endings], RECLAIMED, now=3))
    for index, ending in endings:
        row = of(lifecycle.exited(row, index, ending, now=4))
    return row


def test_killed_worker_of_several_counts_until_the_next_start():
    row = stopped(runs(2), (0, KILLED), (1, BY_ITSELF))

    assert row.record.killed
    assert not again(row, 0, 1).record.killed


def test_worker_given_back_counts_until_a_later_stop():
    row = stopped(runs(2), (1, KILLED))

    assert row.record.killed
    assert not stopped(row, (0, BY_ITSELF)).record.killed

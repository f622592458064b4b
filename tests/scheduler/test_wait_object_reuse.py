"""An unchanged wait is the same object as before; a changed one is a new object (X)."""

from __future__ import annotations

import pytest

from builders import cluster, job, project, snapshot
from runai.hub_service.scheduler import (
    ClusterIndex,
    Policy,
    SnapshotChanges,
    Wait,
    Workload,
    decide,
)


def waiting_index() -> ClusterIndex:
    """Build an index of one GPU: one job of a runs, three of a and two of b wait."""
    jobs = [job(f"a-{n}", submitted=10 + n) for n in range(3)]
    jobs += [job(f"b-{n}", project="b", submitted=10 + n) for n in range(2)]
    cluster_snapshot = snapshot(
        "1x1", [project("a", 1), project("b", 0)], [job("a-r", on="n1:0"), *jobs]
    )
    return ClusterIndex(cluster_snapshot)


def waits_by_workload(index: ClusterIndex) -> dict[str, Wait]:
    plan = decide(index)
    assert plan == decide(index.snapshot())
    return {d.workload: d for d in plan.decisions if isinstance(d, Wait)}


def rebuilt_waits(before: dict[str, Wait], after: dict[str, Wait]) -> set[str]:
    return {name for name, wait in after.items() if before.get(name) is not wait}


def test_unchanged_wait_reuses_the_wait_object_of_the_previous_plan() -> None:
    index = waiting_index()
    first = waits_by_workload(index)

    assert len(first) == 5  # three jobs of a and two of b
    assert rebuilt_waits(first, waits_by_workload(index)) == set()


@pytest.mark.parametrize(
    ("added", "removed", "rebuilt"),
    [
        pytest.param([job("a-9", submitted=19)], [], {"a-9"}, id="job behind all others added"),
        pytest.param(
            [job("a-1x", submitted=11)], [], {"a-1x", "a-2"}, id="job between two others added"
        ),
        pytest.param([], ["a-2"], set(), id="last job removed"),
        pytest.param([], ["a-0"], {"a-1", "a-2"}, id="first job removed"),
        pytest.param([], ["b-0", "b-1"], set(), id="all jobs of a project removed"),
        pytest.param(
            [job("a-1", submitted=11, gpus=2)], [], {"a-1", "a-2"}, id="job requests more GPUs"
        ),
    ],
)
def test_queue_change_rebuilds_wait_objects_of_changed_and_later_workloads_only(
    added: list[Workload], removed: list[str], rebuilt: set[str]
) -> None:
    index = waiting_index()
    before = waits_by_workload(index)
    index.apply(SnapshotChanges(workloads=tuple(added), removed=tuple(removed)))

    assert rebuilt_waits(before, waits_by_workload(index)) == rebuilt


def test_changed_wait_reason_rebuilds_the_wait_object_of_every_waiting_workload() -> None:
    index = waiting_index()
    before = waits_by_workload(index)
    index.apply(SnapshotChanges(nodes=cluster("1x2"), workloads=(job("a-s", on="n1:1"),)))

    after = waits_by_workload(index)

    assert len(after) == 5  # three jobs of a and two of b
    assert rebuilt_waits(before, after) == set(after)


def test_wait_object_of_a_project_is_reused_when_a_second_project_starts_a_job() -> None:
    index = waiting_index()
    before = waits_by_workload(index)
    # The running job of a ends: a's first waiting job starts, and the waits of b are reused.
    index.apply(SnapshotChanges(removed=("a-r",)))

    after = waits_by_workload(index)

    assert "a-0" not in after
    assert rebuilt_waits(before, after) == {"a-1", "a-2"}


def test_explain_policy_none_reports_no_waits() -> None:
    index = waiting_index()
    index.apply(SnapshotChanges(policy=Policy(explain="none")))

    assert waits_by_workload(index) == {}

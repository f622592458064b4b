"""Queue order: projects by deprivation (O1), then workloads (O2), surplus last (E1)."""

from __future__ import annotations

import pytest

from builders import job, project, session, snapshot, started, waits
from runai.hub_service.scheduler import Project, Workload, decide

ONE_GPU_LEFT: dict[str, tuple[list[Project], list[Workload], str]] = {
    "O1: project within quota first": (
        [project("a", 0), project("b", 1)],
        [job("a1"), job("b1", project="b")],
        "b1",
    ),
    "O1: then project priority": (
        [project("a", 1), project("b", 1, priority=200)],
        [job("a1"), job("b1", project="b")],
        "b1",
    ),
    "O1: quota before priority": (
        [project("a", 1), project("b", 0, priority=200)],
        [job("a1"), job("b1", project="b")],
        "a1",
    ),
    "O1: then the smaller share with the workload": (
        [project("a", 2), project("b", 4)],
        [job("a1"), job("b1", project="b")],
        "b1",
    ),
    "O1: share with the workload, not the share held": (
        [project("a", 1), project("b", 4)],
        [job("runs", project="b", on="n2:0"), job("a1"), job("b1", project="b")],
        "b1",
    ),
    "O1: then the smaller share without it": (
        [project("a", 2), project("b", 1)],
        [job("runs", on="n2:0"), job("a1"), job("b1", project="b")],
        "b1",
    ),
    "O1: then the larger quota": (
        [project("a", 1), project("b", 2)],
        [job("a1", 0.5), job("b1", project="b")],
        "b1",
    ),
    "O1: fewer GPUs of two projects without a share": (
        [project("a", 0, weight=0), project("b", 0, weight=0)],
        [job("runs", on="n2:0"), job("a1"), job("b1", project="b")],
        "b1",
    ),
    "O1: then the older project": (
        [project("a", 1, created=2), project("b", 1, created=1)],
        [job("a1"), job("b1", project="b")],
        "b1",
    ),
    "O1: then the name": (
        [project("b", 1), project("a", 1)],
        [job("b1", project="b"), job("a1")],
        "a1",
    ),
    "O2: session before a job of higher priority": (
        [project("a", 1)],
        [job("j", priority=100), session("ana-1", priority=1)],
        "ana-1",
    ),
    "O2: priority before age": (
        [project("a", 1)],
        [job("old"), job("urgent", priority=75)],
        "urgent",
    ),
    "O2: then age": (
        [project("a", 1)],
        [job("young", submitted=9), job("old", submitted=3)],
        "old",
    ),
    "O2: then the name": (
        [project("a", 1)],
        [job("y", submitted=3), job("x", submitted=3)],
        "x",
    ),
}


@pytest.mark.parametrize(
    ("projects", "workloads", "expected"), ONE_GPU_LEFT.values(), ids=ONE_GPU_LEFT
)
def test_last_gpu_goes_to_the_first_workload_in_queue_order(
    projects: list[Project], workloads: list[Workload], expected: str
) -> None:
    # One GPU is idle: a job "runs", if there is one, fills the second node.
    nodes = "2x1" if any(workload.name == "runs" for workload in workloads) else "1x1"

    assert started(decide(snapshot(nodes, projects, workloads))) == {f"{expected}-0"}


def test_projects_tied_with_the_next_workload_are_ordered_by_their_share_without_it() -> None:
    # With its next job a holds 3 of 3 GPUs and b 2 of 2: equal. Without, a has 2/3 and b nothing.
    cluster_snapshot = snapshot(
        "1x4",
        [project("a", 3), project("b", 2)],
        [job("runs", 2, on="n1:0,1"), job("a1", 1), job("b1", 2, "b")],
    )

    plan = decide(cluster_snapshot)

    assert (started(plan), waits(plan)) == ({"b1-0"}, {"a1": "behind"})


def test_queue_order_is_recomputed_after_each_workload() -> None:
    jobs = [job(f"{name}{i}", 1, name) for name in "ab" for i in range(4)]

    plan = decide(snapshot("1x5", [project("a", 0, weight=1), project("b", 0, weight=1)], jobs))

    assert started(plan) == {"a0-0", "a1-0", "a2-0", "b0-0", "b1-0"}


def test_more_deprived_parent_goes_first_whatever_its_children_use() -> None:
    cluster_snapshot = snapshot(
        "1x5",
        [
            project("left", 2),
            project("right", 2),
            project("l1", 1, parent="left"),
            project("l2", 1, parent="left"),
            project("r1", 2, parent="right"),
        ],
        [
            job("runs", 3, "l1", on="n1:0,1,2"),
            job("has", 1, "r1", on="n1:3"),
            job("poor-child", 1, "l2"),
            job("poor-parent", 1, "r1"),
        ],
    )

    assert started(decide(cluster_snapshot)) == {"poor-parent-0"}


def test_small_job_passes_a_big_job_that_does_not_fit() -> None:
    cluster_snapshot = snapshot(
        "1x2", [project("a", 4)], [job("runs", on="n1:0"), job("big", 2), job("small")]
    )

    assert started(decide(cluster_snapshot)) == {"small-0"}


def test_minimum_workers_of_all_jobs_start_before_surplus_workers() -> None:
    jobs = [job("e1", workers=3, min_workers=1), job("e2", workers=3, min_workers=1), job("late")]

    plan = decide(snapshot("1x4", [project("a", 4)], jobs))

    # Four GPUs: one for each job, and the last for a surplus worker.
    assert started(plan) == {"e1-0", "e2-0", "late-0", "e1-1"}


def test_gang_below_its_minimum_is_completed_first() -> None:
    broken = job("broken", workers=2, on="n1:0", submitted=9)

    plan = decide(snapshot("1x2", [project("a", 2)], [job("old", submitted=1), broken]))

    assert started(plan) == {"broken-1"}


def test_surplus_workers_do_not_start_before_the_minimum_runs() -> None:
    cluster_snapshot = snapshot(
        "1x1+1x2", [project("a", 9)], [job("e", 2, workers=3, min_workers=2)]
    )

    assert started(decide(cluster_snapshot)) == set()


def test_surplus_worker_reserves_no_gpu_of_a_stopping_job() -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("a", 2)],
        [job("e", workers=2, min_workers=1, on="n1:0"), job("old", on="n1:1", state="stopping")],
    )

    assert decide(cluster_snapshot).decisions == ()

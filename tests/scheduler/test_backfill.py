"""The oldest blocked gang holds nodes; other jobs run there only if they end in time (O4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    applied,
    job,
    places,
    project,
    running,
    sentence,
    session,
    settled,
    snapshot,
    started,
    stopped,
    waits,
    with_workloads,
    without_workloads,
)
from runai.hub_service.scheduler import Project, Snapshot, Workload, decide
from runai.hub_service.scheduler.model.snapshot import end_of

ONE_PROJECT = [project("a", 8)]
# Two nodes of two GPUs; n1 is free at 1300, n2 at 1500, and each has one idle GPU.
RUNNING_JOBS = [
    job("soon", on="n1:0", started=900, expected_runtime=400),
    job("later", on="n2:0", started=900, expected_runtime=600),
]
GANG = job("gang", 2, submitted=10)


def backfill_snapshot(
    workloads: list[Workload], projects: list[Project] | None = None, **policy: Any
) -> Snapshot:
    return snapshot("2x2", projects or ONE_PROJECT, workloads, backfill=True, **policy)


JOBS_BEHIND_GANG: dict[str, tuple[Workload, dict[str, str]]] = {
    "expected end in time: node that is not held": (
        job("hopeful", submitted=20, expected_runtime=10),
        {"hopeful-0": "n2:1"},
    ),
    "time limit in time: held GPU": (
        job("limited", submitted=20, max_runtime=300),
        {"limited-0": "n1:1"},
    ),
    "time limit a second late: node that is not held": (
        job("limited", submitted=20, max_runtime=301),
        {"limited-0": "n2:1"},
    ),
    "unknown end: node that is not held": (
        job("unknown", submitted=20),
        {"unknown-0": "n2:1"},
    ),
    "older job: held GPU": (job("older", submitted=5), {"older-0": "n1:1"}),
    "higher priority: held GPU": (
        job("urgent", submitted=20, priority=75),
        {"urgent-0": "n1:1"},
    ),
    "session within the build quota: held GPU": (
        session("ana-1", submitted=20),
        {"ana-1-0": "n1:1"},
    ),
}


@pytest.mark.parametrize(("new", "expected"), JOBS_BEHIND_GANG.values(), ids=JOBS_BEHIND_GANG)
def test_backfill_places_a_job_on_a_gangs_gpus_only_if_it_ends_in_time_or_goes_first(
    new: Workload, expected: dict[str, str]
) -> None:
    # "soon" leaves n1 to the gang at 1300, in 300 s; one GPU of n1 and of n2 is idle until then.
    plan = decide(backfill_snapshot([*RUNNING_JOBS, GANG, new]))

    assert places(plan) == expected
    assert "gang" in waits(plan)


def test_gang_holds_no_gpus_if_backfill_is_off() -> None:
    cluster_snapshot = snapshot(
        "2x2", ONE_PROJECT, [*RUNNING_JOBS, GANG, job("unknown", submitted=20)]
    )

    assert places(decide(cluster_snapshot)) == {"unknown-0": "n1:1"}


def test_job_blocked_by_a_hold_reports_the_gang_ahead_and_its_expected_start() -> None:
    # "soon" leaves n1 to the gang at 1300, in 5 minutes; n2 is full.
    filler = job("filler", on="n2:1", started=0)
    plan = decide(backfill_snapshot([*RUNNING_JOBS, filler, GANG, job("unknown", submitted=20)]))

    assert waits(plan)["unknown"] == "held_for"
    assert sentence(plan, "unknown") == (
        "the free GPUs are kept for gang, which waits longer and is expected to start in 5 minutes"
    )


@pytest.mark.parametrize(
    "projects",
    [
        pytest.param(ONE_PROJECT, id="within its quota"),
        pytest.param([project("a", 2)], id="needs all of its quota"),
        pytest.param([project("a", 0, weight=1)], id="needs all of its fair share"),
        pytest.param(
            [project("top", 2), project("a", 2, parent="top")], id="needs all of its parent's quota"
        ),
        pytest.param(
            [project("top", 0, weight=1), project("a", 0, weight=1, parent="top")],
            id="needs all of its parent's fair share",
        ),
    ],
)
def test_gang_starts_behind_a_stream_of_its_projects_jobs(projects: list[Project]) -> None:
    # The stream of one-GPU jobs never leaves two GPUs of a node idle at once.
    def running_after_stream(*, backfill: bool) -> set[str]:
        cluster_snapshot = snapshot(
            "1x2", projects, [job("j0", on="n1:0", started=900)], backfill=backfill
        )
        cluster_snapshot = with_workloads(cluster_snapshot, job("gang", 2, submitted=950))
        for i in range(1, 6):
            cluster_snapshot = with_workloads(cluster_snapshot, job(f"j{i}", submitted=950 + i))
            cluster_snapshot = settled(cluster_snapshot, cycles=1)
            cluster_snapshot = without_workloads(cluster_snapshot, f"j{i - 1}")
        return running(settled(cluster_snapshot, cycles=1))

    assert "gang" not in running_after_stream(backfill=False)
    assert "gang" in running_after_stream(backfill=True)


def test_job_without_run_time_is_expected_to_run_as_long_again() -> None:
    # It has run for 100 s: the gang is expected in another 100 s.
    runs = [job("r", on="n1:0", started=900), job("full", 2, on="n2:0,1", started=100)]
    short = job("short", submitted=20, max_runtime=100)
    long = job("long", submitted=20, max_runtime=101)

    assert started(decide(backfill_snapshot([*runs, GANG, short]))) == {"short-0"}
    assert waits(decide(backfill_snapshot([*runs, GANG, long])))["long"] == "held_for"


def test_gang_with_unknown_start_time_holds_no_gpus() -> None:
    # The start of n1's job is unknown.
    runs = [job("r", on="n1:0"), job("full", 2, on="n2:0,1")]

    assert started(decide(backfill_snapshot([*runs, GANG, job("new", submitted=20)]))) == {"new-0"}


def test_gang_of_two_workers_holds_gpus_on_two_nodes() -> None:
    gang = job("gang", 2, workers=2, submitted=10)
    # n2 is free at 1500, in 500 s.
    late = job("late", submitted=20, max_runtime=501)
    in_time = job("in-time", submitted=21, max_runtime=500)

    plan = decide(backfill_snapshot([*RUNNING_JOBS, gang, late, in_time]))

    assert (started(plan), waits(plan)["late"]) == ({"in-time-0"}, "held_for")


def test_oldest_gang_of_each_project_holds_a_different_node() -> None:
    # One GPU of each of the two nodes is idle, and each gang needs a whole node.
    projects = [project("a", 4), project("b", 2)]
    workloads = [
        *RUNNING_JOBS,
        job("gang-a", 2, "a", submitted=10),
        job("gang-b", 2, "b", submitted=11),
        job("new-a", 1, "a", submitted=20),
    ]

    plan = decide(backfill_snapshot(workloads, projects))

    assert started(plan) == set()
    assert waits(plan)["new-a"] == "held_for"


def test_gang_holds_until_its_projects_own_jobs_leave_its_share() -> None:
    # Devices are free at 1300; the share of a, where elsewhere runs until 1500, is then.
    runs = [
        job("elsewhere", on="n2:0", started=900, expected_runtime=600),
        job("soon", project="b", on="n1:0", started=900, expected_runtime=400),
    ]
    workloads = [*runs, GANG, job("new", 1, "b", submitted=20, max_runtime=400)]
    projects = [project("a", 2), project("b", 2)]

    assert places(decide(backfill_snapshot(workloads, projects))) == {"new-0": "n1:1"}
    late = replace(workloads[-1], max_runtime=501)
    assert places(decide(backfill_snapshot([*workloads[:-1], late], projects))) == {"new-0": "n2:1"}


def test_gang_over_its_projects_share_holds_no_gpus() -> None:
    projects = [project("a", 0, weight=0), project("b", 4)]
    workloads = [*RUNNING_JOBS, job("gang", 2, "a", submitted=10), job("new", 1, "b", submitted=20)]

    assert places(decide(backfill_snapshot(workloads, projects))) == {"new-0": "n1:1"}


def test_job_within_quota_starts_despite_the_hold_of_a_gang_over_quota() -> None:
    projects = [project("a", 2, weight=1), project("b", 1, weight=0)]
    runs = [
        job("soon", project="a", on="n1:0", started=900, expected_runtime=400),
        job("later", project="a", on="n2:0", started=900, expected_runtime=600),
    ]
    workloads = [*runs, job("gang", 2, "a", submitted=10)]

    plan = decide(backfill_snapshot([*workloads, job("owed", 1, "b", submitted=20)], projects))
    assert started(plan) == {"owed-0"}


def test_hold_stops_no_job_and_ends_when_the_gang_is_removed() -> None:
    snapshot = backfill_snapshot(
        [*RUNNING_JOBS, GANG, job("unknown", submitted=20), job("more", submitted=21)]
    )
    plan = decide(snapshot)
    assert (stopped(plan), waits(plan)["more"]) == (set(), "held_for")

    snapshot = without_workloads(applied(snapshot, plan), "gang")

    assert started(decide(snapshot)) == {"more-0"}


def test_gang_starts_on_the_gpus_it_holds() -> None:
    snapshot = backfill_snapshot(
        [*RUNNING_JOBS, GANG, job("unknown", submitted=20), job("more", submitted=21)]
    )
    # "soon" ends, which frees the second GPU of n1.
    snapshot = without_workloads(applied(snapshot, decide(snapshot)), "soon")

    assert places(decide(snapshot)) == {"gang-0": "n1:0,1"}


def test_gang_of_unequal_workers_holds_gpus_for_the_largest_first() -> None:
    """Its small worker would take half of the only node where the large worker has room."""
    small, large = job("small", 1), job("large", 2)
    gang = replace(small, name="gang", workers=(*small.workers, *large.workers), submitted=10)
    busy = job("busy", on="n2:0", started=900, expected_runtime=400)
    cluster_snapshot = snapshot(
        "1x2+1x1", ONE_PROJECT, [busy, gang, job("unknown", submitted=20)], backfill=True
    )

    assert (started(decide(cluster_snapshot)), waits(decide(cluster_snapshot))["unknown"]) == (
        set(),
        "held_for",
    )


@pytest.mark.parametrize(
    ("fields", "end", "is_estimated"),
    [
        ({}, 1100, True),
        ({"max_runtime": 150}, 1050, True),
        ({"max_runtime": 400, "expected_runtime": 500}, 1300, False),
        ({"max_runtime": 600, "expected_runtime": 500}, 1400, False),
        ({"max_runtime": 50}, 1000, True),
    ],
    ids=["estimated", "limited", "limit first", "expected end first", "limit is over"],
)
def test_expected_end_of_a_job_is_no_later_than_its_time_limit(
    fields: dict[str, Any], end: int, *, is_estimated: bool
) -> None:
    running_job = job("j", on="n1:0", started=900, **fields)

    assert end_of(running_job, now=1000) == (end, is_estimated)

"""Protection of workloads against repeated stops, and bounds on one plan's stops (R8)."""

from __future__ import annotations

import pytest

from builders import (
    fill_node,
    job,
    project,
    reserved,
    running,
    sentence,
    settled,
    snapshot,
    stopped,
    waits,
)
from runai.hub_service.scheduler import decide


@pytest.mark.parametrize(
    ("started", "expected"),
    [(900, {"a1-0"}), (950, set()), (None, {"a1-0"})],
    ids=["ran long enough", "too young", "unknown start"],
)
def test_reclaim_spares_a_job_within_its_minimum_run_time(
    started: int | None, expected: set[str]
) -> None:
    projects = [project("a", 0, min_runtime=100), project("b", 1)]

    plan = decide(snapshot("1x2", projects, [*fill_node(started=started), job("new", project="b")]))

    assert stopped(plan) == expected


def test_minimum_run_time_does_not_protect_surplus_workers() -> None:
    projects = [project("a", 0, min_runtime=100), project("b", 1)]
    elastic = job("e", workers=2, min_workers=1, on="n1:0 n1:1", started=999)

    assert stopped(decide(snapshot("1x2", projects, [elastic, job("new", project="b")]))) == {"e-1"}


def test_minimum_run_time_of_a_department_protects_jobs_of_its_projects() -> None:
    projects = [
        project("p", 0, min_runtime=100),
        project("a", 0, parent="p"),
        project("b", 1),
    ]

    plan = decide(snapshot("1x2", projects, [*fill_node(started=950), job("new", project="b")]))

    assert waits(plan) == {"new": "protected"}


HOUR = 3600
PAUSE_TIMES = {
    "two pauses within the hour": ((2000, 3000), set()),
    "one pause within the hour": ((3000,), {"a1-0"}),
    "two pauses more than an hour ago": ((10, 20, 3000), {"a1-0"}),
    "pause in the future": ((3000, 9000), {"a1-0"}),
}


@pytest.mark.parametrize(("pauses", "expected"), PAUSE_TIMES.values(), ids=PAUSE_TIMES)
def test_job_is_not_paused_more_often_than_the_hourly_limit(
    pauses: tuple[int, ...], expected: set[str]
) -> None:
    projects = [project("a", 0), project("b", 1)]
    jobs = [*fill_node(pauses=pauses), job("new", project="b")]
    cluster_snapshot = snapshot("1x2", projects, jobs, now=HOUR + 100, max_pauses_per_hour=2)

    plan = decide(cluster_snapshot)

    assert stopped(plan) == expected
    if not expected:
        # The pause at 2000 counts until 5600, and it is 3700 now.
        assert sentence(plan, "new") == (
            "the jobs that may be paused for it are in their minimum run time, for 32 minutes more"
        )


def test_reclaim_stops_a_never_paused_job_before_a_job_at_its_pause_limit() -> None:
    projects = [project("a", 0), project("b", 1)]
    jobs = [job("rested", on="n1:0"), job("tired", on="n1:1", pauses=(900,)), job("new", 1, "b")]

    cluster_snapshot = snapshot("1x2", projects, jobs, max_pauses_per_hour=1)

    assert stopped(decide(cluster_snapshot)) == {"rested-0"}


def test_pause_limit_of_zero_stops_no_job() -> None:
    projects = [project("a", 0), project("b", 1)]
    cluster_snapshot = snapshot(
        "1x2", projects, [*fill_node(), job("new", 1, "b")], max_pauses_per_hour=0
    )

    assert stopped(decide(cluster_snapshot)) == set()


def test_pause_limit_does_not_protect_surplus_workers() -> None:
    projects = [project("a", 0), project("b", 1)]
    elastic = job("e", workers=2, min_workers=1, on="n1:0 n1:1", pauses=(900,))

    cluster_snapshot = snapshot(
        "1x2", projects, [elastic, job("new", 1, "b")], max_pauses_per_hour=1
    )

    assert stopped(decide(cluster_snapshot)) == {"e-1"}


def test_plan_stops_at_most_max_evictions_and_the_next_plan_continues() -> None:
    projects = [project("a", 0, weight=0), project("b", 4)]
    jobs = [*fill_node("a", 4), *[job(f"b{n}", 1, "b") for n in range(4)]]
    cluster_snapshot = snapshot("1x4", projects, jobs, max_evictions=3)

    plan = decide(cluster_snapshot)
    assert stopped(plan) == {"a1-0", "a2-0", "a3-0"}
    assert reserved(plan) == {"b0-0", "b1-0", "b2-0"}
    assert (waits(plan)["b3"], sentence(plan, "b3")) == (
        "protected",
        "its place would stop more workers than the 3 that one plan may stop",
    )

    assert running(settled(cluster_snapshot)) == {"b0", "b1", "b2", "b3"}


def test_gang_that_needs_more_than_max_evictions_stops_no_job() -> None:
    projects = [project("a", 0, weight=0), project("b", 4)]
    jobs = [*fill_node("a", 4), job("gang", 1, "b", workers=4), job("small", 1, "b")]

    plan = decide(snapshot("1x4", projects, jobs, max_evictions=3))

    assert (stopped(plan), reserved(plan)) == ({"a3-0"}, {"small-0"})

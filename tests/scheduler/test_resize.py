"""One-worker elastic workloads: they start, grow, shrink and come to rest (E2, E3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    applied,
    job,
    places,
    project,
    reserved,
    session,
    settled,
    snapshot,
    started,
    stopped,
    without_workloads,
)
from runai.hub_service.scheduler import (
    Resize,
    Snapshot,
    Workload,
    decide,
    milli_gpus,
)

PROJECT_A, PROJECT_B = project("a", 2), project("b", 2)


def elastic(name: str, sizes: tuple[int, int, int], owner: str = "a", **fields: Any) -> Workload:
    """Make a job of one worker; `sizes` are its minimum, requested and maximum GPUs."""
    min_gpus, max_gpus = milli_gpus(sizes[0]), milli_gpus(sizes[2])
    return job(name, sizes[1], owner, gpus_min=min_gpus, gpus_max=max_gpus, **fields)


def resizes(cluster_snapshot: Snapshot) -> dict[str, tuple[str, str, tuple[int, ...]]]:
    """Return each resize by workload: code, rule, and the worker's new devices."""
    return {
        d.workload: (d.reason.code, d.reason.rule, tuple(s.device for s in d.devices))
        for d in decide(cluster_snapshot).decisions
        if isinstance(d, Resize)
    }


# ---- starting


STARTS = {
    "maximum on an idle node": (
        "1x4",
        [elastic("e", (1, 2, 4))],
        "n1:0,1,2,3",
    ),
    "all GPUs of a smaller node": ("1x3", [elastic("e", (1, 4, 4))], "n1:0,1,2"),
    "maximum on a larger node": ("1x8", [elastic("e", (1, 2, 4))], "n1:0,1,2,3"),
    "minimum if no more is idle": ("1x2", [job("x", on="n1:0"), elastic("e", (1, 4, 4))], "n1:1"),
    "no start below its minimum": ("1x2", [job("x", on="n1:0"), elastic("e", (2, 4, 4))], None),
    "node that has its request": ("1x2+1x4", [elastic("e", (1, 3, 3))], "n2:0,1,2"),
    "node with most idle GPUs": ("1x1+1x2", [elastic("e", (1, 4, 4))], "n2:0,1"),
    "GPUs left by all jobs of its project": (
        "1x4",
        [elastic("e", (1, 4, 4)), job("x", 1), job("y", 1)],
        "n1:0,3",
    ),
    "GPUs left by a job of another project": (
        "1x4",
        [elastic("e", (1, 1, 4)), job("x", 2, "b")],
        "n1:0,3",
    ),
    "limit of its project": (
        "1x4",
        [elastic("e", (1, 4, 4), "c")],
        "n1:0,1,2",
    ),
}


@pytest.mark.parametrize(("nodes", "workloads", "expected"), STARTS.values(), ids=STARTS)
def test_elastic_worker_starts_on_as_many_idle_gpus_as_it_may_use(
    nodes: str, workloads: list[Workload], expected: str | None
) -> None:
    plan = decide(snapshot(nodes, [PROJECT_A, PROJECT_B, project("c", 4, limit=3)], workloads))

    assert places(plan).get("e-0") == expected


def test_session_is_never_resized() -> None:
    ana = session("ana-1", 1, gpus_min=milli_gpus(1), gpus_max=milli_gpus(4))
    cluster_snapshot = snapshot("1x4", [PROJECT_A], [ana])

    assert places(decide(cluster_snapshot)) == {"ana-1-0": "n1:0"}
    assert resizes(settled(cluster_snapshot)) == {}


# ---- growing and giving back


def test_elastic_worker_grows_on_its_node_when_gpus_become_free() -> None:
    # "e" requests two GPUs and may use up to four; it holds one now.
    cluster_snapshot = snapshot(
        "2x4", [PROJECT_A], [elastic("e", (1, 2, 4), on="n1:0"), job("x", 2, on="n1:1,2")]
    )

    assert resizes(cluster_snapshot) == {"e": ("grown", "E2", (0, 3))}
    assert resizes(settled(without_workloads(cluster_snapshot, "x"))) == {}
    assert resizes(without_workloads(cluster_snapshot, "x")) == {"e": ("grown", "E2", (0, 1, 2, 3))}


GROWN_JOB = [elastic("e", (1, 2, 4), on="n1:0,1,2,3")]

RESIZE_SENTENCES = {
    "grown by one": ([elastic("e", (1, 2, 2), on="n1:0")], "1 GPU more on n1 was idle"),
    "grown by more": ([elastic("e", (1, 2, 4), on="n1:0")], "3 GPUs more on n1 were idle"),
    "shrunk by one": ([*GROWN_JOB, job("x", 1)], "1 GPU beyond its request: x waits for it"),
    "shrunk by more": ([*GROWN_JOB, job("x", 2)], "2 GPUs beyond its request: x waits for them"),
    "reclaimed by one": (
        [elastic("e", (1, 2, 3), on="n1:0,1,2"), job("y", on="n1:3"), job("x", 1, "b")],
        "a is over its fair share of 3 GPUs: 1 GPU goes to x",
    ),
    "reclaimed by more": (
        [*GROWN_JOB, job("x", 2, "b")],
        "a is over its quota of 2 GPUs: 2 GPUs go to x",
    ),
}


@pytest.mark.parametrize(("jobs", "sentence"), RESIZE_SENTENCES.values(), ids=RESIZE_SENTENCES)
def test_resize_reason_text_has_the_number_of_gpus(jobs: list[Workload], sentence: str) -> None:
    plan = decide(snapshot("1x4", [PROJECT_A, PROJECT_B], jobs))

    assert {d.reason.text for d in plan.decisions if isinstance(d, Resize)} == {sentence}


SHRINKS = {
    "claim of another project within its quota": (
        [PROJECT_A, PROJECT_B],
        [*GROWN_JOB, job("x", 2, "b")],
        ("shrunk", "R2", (0, 1)),
    ),
    "claim of another project: down to the minimum": (
        [project("a", 1), project("b", 3)],
        [*GROWN_JOB, job("x", 3, "b")],
        ("shrunk", "R2", (0,)),
    ),
    "claim of its project: GPUs beyond the request": (
        [project("a", 4)],
        [*GROWN_JOB, job("x", 1)],
        ("shrunk", "E2", (0, 1, 2)),
    ),
    "no requested GPUs for a claim of its project": (
        [project("a", 4)],
        [*GROWN_JOB, job("x", 3)],
        None,
    ),
    "claim of higher priority: down to the minimum": (
        [project("a", 4)],
        [*GROWN_JOB, job("x", 3, priority=90)],
        ("shrunk", "R1", (0,)),
    ),
    "claim of another project over its quota": (
        [project("a", 4), project("b", 0)],
        [
            replace(GROWN_JOB[0], gpus_max=None, workers=job("e", 4, on="n1:0,1,2,3").workers),
            job("x", 1, "b"),
        ],
        None,
    ),
}


@pytest.mark.parametrize(("projects", "workloads", "expected"), SHRINKS.values(), ids=SHRINKS)
def test_elastic_worker_shrinks_for_a_claimant_of_its_gpus(
    projects: list[Any],
    workloads: list[Workload],
    expected: tuple[str, str, tuple[int, ...]] | None,
) -> None:
    cluster_snapshot = snapshot("1x4", projects, workloads)
    plan = decide(cluster_snapshot)

    assert resizes(cluster_snapshot).get("e") == expected
    assert stopped(plan) == set()
    assert reserved(plan) == ({"x-0"} if expected else set())
    after = applied(cluster_snapshot, plan)
    assert started(decide(after)) == ({"x-0"} if expected else set())
    assert resizes(settled(after)) == {}, "no further resize"


def test_gpus_beyond_a_request_are_reclaimed_before_requested_gpus() -> None:
    """In one project the lower priority loses first, but GPUs beyond a request go before.

    "low" holds the two GPUs it requests, "high" one more than the one it requests.
    """
    cluster_snapshot = snapshot(
        "1x4",
        [PROJECT_A, PROJECT_B],
        [
            elastic("low", (1, 2, 2), priority=10, on="n1:0,1"),
            elastic("high", (1, 1, 2), priority=90, on="n1:2,3"),
            job("x", 1, "b"),
        ],
    )

    assert resizes(cluster_snapshot) == {"high": ("shrunk", "R2", (2,))}


SHIELDED = {
    "alone on the node": ([], "n1:2,3", job("new", 2), {"low-0"}),
    "with a job of a project over its quota": (
        [job("other", 1, "b", on="n1:2")],
        "n2:0,1",
        job("new", 3),
        {"low-0", "other-0"},
    ),
}


@pytest.mark.parametrize(
    ("other_jobs", "place", "claimant", "expected"), SHIELDED.values(), ids=SHIELDED
)
def test_gpus_lent_to_a_high_priority_job_protect_no_lower_priority_job(
    other_jobs: list[Workload], place: str, claimant: Workload, expected: set[str]
) -> None:
    """R1: the shielding job is first in the order of R4, but may not be stopped itself."""
    cluster_snapshot = snapshot(
        "1x4" if place.startswith("n1") else "1x3+1x2",
        [project("a", 5), project("b", 0)],
        [
            elastic("high", (1, 1, 2), priority=90, on=place),
            job("low", 2, priority=10, on="n1:0,1"),
            *other_jobs,
            claimant,
        ],
    )

    assert stopped(decide(cluster_snapshot)) == expected


@pytest.mark.parametrize("shrink_first", [True, False])
def test_shrink_first_shrinks_an_elastic_job_before_a_job_is_stopped(*, shrink_first: bool) -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("a", 2), project("b", 1)],
        [
            elastic("e", (1, 2, 2), on="n1:0,1"),
            job("x", 2, priority=10, on="n1:2,3"),
            job("y", 1, "b"),
        ],
        shrink_first=shrink_first,
    )
    plan = decide(cluster_snapshot)

    assert (set(resizes(cluster_snapshot)), stopped(plan)) == (
        ({"e"}, set()) if shrink_first else (set(), {"x-0"})
    )


def test_elastic_worker_stops_as_a_whole_if_its_minimum_is_reclaimed() -> None:
    # The job needs at least one of its four GPUs, and b claims all four.
    cluster_snapshot = snapshot(
        "1x4", [project("a", 0), project("b", 4)], [*GROWN_JOB, job("x", 4, "b")]
    )
    plan = decide(cluster_snapshot)

    assert (stopped(plan), resizes(cluster_snapshot)) == ({"e-0"}, {})
    [reserve] = [d for d in plan.decisions if d.kind == "reserve"]
    assert reserve.waits_for == ("e-0",)


def test_claimant_of_two_gpus_waits_once_for_the_elastic_worker_that_returns_them() -> None:
    cluster_snapshot = snapshot("1x4", [PROJECT_A, PROJECT_B], [*GROWN_JOB, job("x", 2, "b")])

    # The job requests two GPUs and holds four.
    [reserve] = [d for d in decide(cluster_snapshot).decisions if d.kind == "reserve"]
    assert reserve.waits_for == ("e-0",)


def test_gpus_beyond_a_request_do_not_raise_the_fair_share() -> None:
    e = elastic("e", (1, 2, 8), on="n1:0,1,2,3")
    plan = decide(snapshot("1x8", [PROJECT_A, PROJECT_B], [e]))

    # The job requests two GPUs and holds four; it grows to eight.
    assert plan.projects["a"].fair_share == 2000
    assert plan.projects["a"].allocated == 8000


# ---- E3


def test_next_gpu_goes_to_the_job_that_gains_most_throughput() -> None:
    cluster_snapshot = snapshot(
        "1x5",
        [project("a", 5)],
        [
            elastic("flat", (1, 3, 3), throughput={"1": 10, "2": 11, "3": 12}),
            elastic("steep", (1, 3, 3), throughput={"1": 10, "2": 19, "3": 27}),
            job("x", 1),
        ],
    )

    assert places(decide(cluster_snapshot)) == {
        "flat-0": "n1:0",
        "steep-0": "n1:1,3,4",
        "x-0": "n1:2",
    }


def test_idle_gpu_that_gains_no_throughput_is_not_used_for_growth() -> None:
    cluster_snapshot = snapshot(
        "1x4", [PROJECT_A], [elastic("e", (1, 2, 4), throughput={"1": 10, "2": 18, "3": 18})]
    )

    assert places(decide(cluster_snapshot)) == {"e-0": "n1:0,1"}


def test_idle_gpu_that_gains_a_thousandth_of_a_gpu_is_used_for_growth() -> None:
    grows_little = elastic("e", (1, 1, 3), throughput={"1": 1000, "2": 1001, "3": 1001})

    assert places(decide(snapshot("1x3", [PROJECT_A], [grows_little]))) == {"e-0": "n1:0,1"}


def test_resize_that_does_not_repay_its_cost_is_not_planned() -> None:
    def grows(**fields: Any) -> bool:
        e = elastic("e", (1, 2, 2), on="n1:0", **fields)
        return bool(resizes(snapshot("1x2", [PROJECT_A], [e])))

    # It is 1000 now. Without a stated run time a job is expected to run as long again.
    assert grows(started=0, resize_cost=100)
    assert not grows(started=900, resize_cost=100)
    assert grows(started=900, resize_cost=100, expected_runtime=3600)


def test_elastic_growth_that_repays_only_with_gpus_of_a_rival_job_is_undone() -> None:
    # Alone "e" grows by two GPUs, which repays its cost. With "f" only one is left for "e".
    e = elastic("e", (1, 1, 3), on="n1:0", started=1000, resize_cost=60, expected_runtime=100)
    f = elastic("f", (1, 1, 2), "b", on="n1:1")

    assert resizes(snapshot("1x3", [PROJECT_A], [e]))["e"][2] == (0, 1, 2)
    assert set(resizes(snapshot("1x4", [PROJECT_A, PROJECT_B], [e, f]))) == {"f"}


def test_job_without_a_project_is_not_resized() -> None:
    elastic_jobs = [
        elastic("e", (1, 1, 2), "missing", on="n1:0"),
        elastic("f", (1, 1, 2), "missing", on="n2:0"),
    ]

    assert not resizes(snapshot("2x2", [PROJECT_A], elastic_jobs))

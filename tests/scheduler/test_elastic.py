"""Workloads with surplus workers: GPUs beyond the minimum are only lent (E1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    job,
    project,
    reserved,
    sentence,
    session,
    settled,
    snapshot,
    started,
    stopped,
    waits,
    with_workloads,
)
from runai.hub_service.scheduler import Snapshot, Stop, WorkerState, Workload, decide


def elastic(workers: int, *, running: int, **fields: Any) -> Workload:
    """Make a job of at least one worker and at most `workers`, some of them running on n1."""
    placements = " ".join(f"n1:{device}" for device in range(running))
    return job("e", workers=workers, min_workers=1, on=placements, **fields)


SHRINK_CASES = {
    "for a job of equal priority": ("1x2", [elastic(2, running=2)], job("new"), {"e-1"}),
    "for a job of lower priority": (
        "1x2",
        [elastic(2, running=2, priority=75)],
        job("new", priority=25),
        {"e-1"},
    ),
    "no worker of the minimum": ("1x2", [elastic(2, running=2)], job("new", 2), set()),
    "highest indexes first, for a gang": (
        "1x4",
        [elastic(4, running=4)],
        job("new", workers=2),
        {"e-3", "e-2"},
    ),
    "no worker while a GPU is idle": ("1x3", [elastic(3, running=2)], job("new"), set()),
    "for the minimum of an elastic job, not its surplus": (
        "1x3",
        [elastic(3, running=3)],
        job("new", workers=2, min_workers=1),
        {"e-2"},
    ),
    "before a job of lower priority": (
        "1x3",
        [elastic(2, running=2), job("low", on="n1:2", priority=25)],
        job("new"),
        {"e-1"},
    ),
    "with a job of lower priority, for a gang": (
        "1x3",
        [elastic(2, running=2), job("low", on="n1:2", priority=25)],
        job("new", workers=2),
        {"e-1", "low-0"},
    ),
}


@pytest.mark.parametrize(
    ("nodes", "existing", "new", "expected"), SHRINK_CASES.values(), ids=SHRINK_CASES
)
def test_surplus_workers_stop_for_the_minimum_of_a_job_in_their_own_project(
    nodes: str, existing: list[Workload], new: Workload, expected: set[str]
) -> None:
    cluster_snapshot = snapshot(nodes, [project("a", 2)], [*existing, new])

    assert stopped(decide(cluster_snapshot)) == expected


def test_stop_reason_of_a_surplus_worker_names_the_job_that_waits_for_its_gpu() -> None:
    plan = decide(snapshot("1x2", [project("a", 2)], [elastic(2, running=2), job("new")]))

    (stop,) = [d for d in plan.decisions if isinstance(d, Stop)]
    assert (stop.reason.code, stop.reason.rule, stop.reason.for_) == ("shrunk", "E1", "new")
    assert stop.reason.text == "1 GPU beyond its minimum: new waits for it"
    assert reserved(plan) == {"new-0"}


def test_surplus_workers_of_the_project_stop_before_jobs_of_other_projects() -> None:
    projects = [project("a", 3), project("b", 0, weight=0)]
    jobs = [elastic(2, running=2), job("b1", 1, "b", on="n1:2"), job("new")]

    assert stopped(decide(snapshot("1x3", projects, jobs))) == {"e-1"}


def test_project_at_its_fair_share_stops_its_surplus_for_its_new_job() -> None:
    # No other project may be reclaimed from (R2): a and b hold half of the cluster each.
    projects = [project("a", 2), project("b", 2)]
    jobs = [elastic(2, running=2), session("bo-1", 2, "b", on="n1:2,3"), job("new")]

    assert stopped(decide(snapshot("1x4", projects, jobs))) == {"e-1"}


def test_surplus_workers_stop_so_that_a_new_job_fits_the_project_limit() -> None:
    jobs = [elastic(2, running=2), job("new")]

    plan = decide(snapshot("1x4", [project("a", 2, limit=2)], jobs))

    assert (stopped(plan), started(plan) | reserved(plan)) == ({"e-1"}, {"new-0"})


def test_surplus_of_a_project_does_not_justify_reclaim_from_other_projects() -> None:
    # Without its surplus a would be within its quota, and b is over its own. But surplus given up
    # on nodes where no claimant can use it comes back at once, and b would claim in its turn.
    projects = [project("a", 4, weight=1, created=1), project("b", 1, weight=1)]
    jobs = [
        job("e", workers=3, min_workers=1, on="n1:0 n1:1 n3:1"),
        session("ana-1", on="n3:0"),
        job("b1", 2, "b", on="n2:0,1"),
        job("new", 2),
    ]

    assert stopped(decide(snapshot("3x2", projects, jobs))) == set()


def test_surplus_workers_use_idle_gpus_and_stop_when_new_jobs_arrive() -> None:
    cluster_snapshot = settled(snapshot("1x4", [project("a", 2)], [elastic(4, running=1)]))
    assert gpus_by_workload(cluster_snapshot) == {"e": 4}

    cluster_snapshot = settled(with_workloads(cluster_snapshot, job("x"), job("y", 2)))
    assert gpus_by_workload(cluster_snapshot) == {"e": 1, "x": 1, "y": 2}

    assert decide(cluster_snapshot).decisions == ()


def gpus_by_workload(snapshot: Snapshot) -> dict[str, int]:
    """Count the GPUs of each workload's running workers."""
    return {
        w.name: sum(len(worker.devices) for worker in w.workers if worker.state == "running")
        for w in snapshot.workloads
    }


GAINS = {
    "each worker gains": (2, {"1": 10, "2": 18, "3": 26, "4": 34}, {"e-2", "e-3"}),
    "next worker gains, the last does not": (2, {"1": 10, "2": 18, "3": 26, "4": 26}, {"e-2"}),
    "next worker gains nothing": (2, {"1": 10, "2": 18, "3": 18, "4": 30}, set()),
    "no number for more workers": (2, {"1": 10, "2": 18}, set()),
    "next worker slows it down": (1, {"1": 10, "2": 9}, set()),
    "no numbers": (2, {}, {"e-2", "e-3"}),
}


@pytest.mark.parametrize(("running", "throughput", "expected"), GAINS.values(), ids=GAINS)
def test_elastic_job_grows_only_while_its_throughput_increases(
    running: int, throughput: dict[str, int], expected: set[str]
) -> None:
    cluster_snapshot = snapshot(
        "1x4", [project("a", 4)], [elastic(4, running=running, throughput=throughput)]
    )

    assert started(decide(cluster_snapshot)) == expected


def test_gang_gain_depends_on_the_number_of_running_workers_not_on_their_index() -> None:
    gang = job(
        "e",
        workers=3,
        min_workers=1,
        throughput={"1": 10, "2": 18, "3": 18},
        on=None,
    )
    first, *later_workers = gang.workers
    running_workers = [
        replace(worker, state=WorkerState.RUNNING, node="n1", devices=(index,), started=0)
        for index, worker in enumerate(later_workers)
    ]
    cluster_snapshot = snapshot(
        "1x4", [project("a", 4)], [replace(gang, workers=(first, *running_workers))]
    )

    # Two workers run; a third, which the throughput numbers say gains nothing, does not start.
    assert started(decide(cluster_snapshot)) == set()


# ---- E1: an even surplus


def growing(name: str, max_workers: int, *, min_workers: int = 1, **fields: Any) -> Workload:
    """Return a job of `min_workers` to `max_workers` workers."""
    return job(name, workers=max_workers, min_workers=min_workers, **fields)


EVEN_SURPLUS: dict[str, tuple[int, list[Workload], dict[str, int]]] = {
    "equal jobs: odd GPU to the older": (
        5,
        [growing("x", 4, submitted=2), growing("y", 4, submitted=1)],
        {"x": 2, "y": 3},
    ),
    "in proportion to the requests": (
        7,
        [growing("x", 3), growing("y", 9)],
        {"x": 2, "y": 5},
    ),
    "jobs with and without running workers": (
        6,
        [growing("x", 5, on="n1:0 n1:1 n1:2"), growing("y", 5)],
        {"x": 3, "y": 3},
    ),
    "higher priority first": (
        5,
        [growing("x", 4), growing("y", 4, priority=75)],
        {"x": 1, "y": 4},
    ),
    "larger gain first": (
        5,
        [
            growing("x", 4, throughput={"1": 10, "2": 20, "3": 30, "4": 40}),
            growing("y", 4, throughput={"1": 10, "2": 12, "3": 13, "4": 14}),
        ],
        {"x": 4, "y": 1},
    ),
}


@pytest.mark.parametrize(("devices", "jobs", "expected"), EVEN_SURPLUS.values(), ids=EVEN_SURPLUS)
def test_surplus_workers_start_first_in_the_job_with_the_smallest_part_of_its_request(
    devices: int, jobs: list[Workload], expected: dict[str, int]
) -> None:
    cluster_snapshot = settled(snapshot(f"1x{devices}", [project("a", devices)], jobs))

    assert {w.name: running_count(w) for w in cluster_snapshot.workloads} == expected


def running_count(workload: Workload) -> int:
    return sum(worker.state is WorkerState.RUNNING for worker in workload.workers)


# ---- E4: guaranteed workers


def guaranteed_job(name: str, count: int, guaranteed: int, **fields: Any) -> Workload:
    """Return a job of one to `count` workers, some of them guaranteed."""
    return growing(name, count, guaranteed_workers=guaranteed, **fields)


def test_guaranteed_workers_start_within_the_quota_or_wait() -> None:
    cluster_snapshot = snapshot(
        "1x8", [project("a", 2)], [guaranteed_job("x", 4, 3), growing("y", 3)]
    )

    after = settled(cluster_snapshot)

    # x has the quota; y runs on what is idle, and x's third worker waits although more is idle.
    assert {w.name: running_count(w) for w in after.workloads} == {"x": 2, "y": 3}
    assert waits(decide(after)) == {}


def test_guaranteed_minimum_over_quota_waits_and_names_the_quota() -> None:
    cluster_snapshot = snapshot(
        "1x8", [project("a", 2)], [guaranteed_job("x", 3, 3, min_workers=3)]
    )

    plan = decide(cluster_snapshot)

    assert (started(plan), waits(plan)) == (set(), {"x": "over_share"})
    assert sentence(plan, "x") == (
        "its guaranteed workers stay within the quota: a holds 0 of 2 GPUs; this asks for 3"
    )


def test_guaranteed_workers_reclaim_gpus_of_their_quota() -> None:
    jobs = [job(f"b{n}", 1, "b", on=f"n1:{n}") for n in (1, 2, 3)]
    cluster_snapshot = snapshot(
        "1x4", [project("a", 3), project("b", 1)], [guaranteed_job("x", 4, 3, on="n1:0"), *jobs]
    )

    plan = decide(cluster_snapshot)

    # x's fourth worker is not guaranteed.
    assert (stopped(plan), reserved(plan)) == ({"b2-0", "b3-0"}, {"x-1", "x-2"})
    assert waits(plan) == {}


GUARANTEED_CASES: dict[str, tuple[Workload, Workload, set[str]]] = {
    "surplus for another project": (
        guaranteed_job("x", 3, 2, on="n1:0 n1:1 n1:2"),
        job("new", 1, "b"),
        {"x-2"},
    ),
    "no guaranteed worker for another project": (
        guaranteed_job("x", 3, 2, on="n1:0 n1:1 n1:2"),
        job("new", 2, "b"),
        set(),
    ),
    "no guaranteed job for another project": (
        guaranteed_job("x", 3, 3, min_workers=3, on="n1:0 n1:1 n1:2"),
        job("new", 1, "b"),
        set(),
    ),
    "surplus for a job of lower priority in its project": (
        guaranteed_job("x", 3, 2, on="n1:0 n1:1 n1:2"),
        job("new", priority=10),
        {"x-2"},
    ),
    "no guaranteed worker for an equal job of its project": (
        guaranteed_job("x", 3, 2, on="n1:0 n1:1 n1:2"),
        job("new", 2),
        set(),
    ),
    "one worker for a job of higher priority in its project": (
        guaranteed_job("x", 3, 3, on="n1:0 n1:1 n1:2"),
        job("new", priority=90),
        {"x-2"},
    ),
    "whole job for a session of its project": (
        guaranteed_job("x", 3, 3, min_workers=3, on="n1:0 n1:1 n1:2"),
        session("ana-1"),
        {"x-0", "x-1", "x-2"},
    ),
}


@pytest.mark.parametrize(
    ("existing", "new", "expected"), GUARANTEED_CASES.values(), ids=GUARANTEED_CASES
)
def test_guaranteed_workers_stop_only_for_their_own_project(
    existing: Workload, new: Workload, expected: set[str]
) -> None:
    owners = [project("a", 1), project("b", 2)]

    assert stopped(decide(snapshot("1x3", owners, [existing, new]))) == expected

"""Choice of victims, and no more of them than needed (R1 to R7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    applied,
    cluster,
    fill_node,
    job,
    moved,
    places,
    project,
    reserved,
    sentence,
    session,
    snapshot,
    started,
    stopped,
    waits,
)
from runai.hub_service.scheduler import Project, Unreserve, Workload, decide

ONE_PROJECT = [project("a", 2)]


# ---- R1


PREEMPTIONS = {
    "victims of lower priority": (
        [*fill_node(priority=25)],
        job("new", priority=50),
        {"a1-0"},
    ),
    "no victims of equal priority": ([*fill_node()], job("new"), set()),
    "jobs for a session": ([*fill_node(priority=100)], session("ana-1"), {"a1-0"}),
    "no sessions for a session": (
        [session("bo-1", on="n1:0"), session("cy-1", on="n1:1")],
        session("ana-1", priority=125),
        set(),
    ),
    "no victims for a session over the build quota": (
        [session("bo-1", 2, on="n1:0,1")],
        session("ana-1", priority=125),
        set(),
    ),
    "preemptible session for a session within the build quota": (
        [*fill_node(devices=1), session("bo-1", preemptible=True, on="n1:1", priority=10)],
        session("ana-1"),
        {"bo-1-0"},
    ),
    "R4: lowest priority first": (
        [job("x", on="n1:0", priority=25), job("y", on="n1:1", priority=40)],
        job("new", priority=50),
        {"x-0"},
    ),
    "R4: then latest submitted": (
        [job("x", on="n1:0", submitted=9), job("y", on="n1:1", submitted=5)],
        session("ana-1"),
        {"x-0"},
    ),
    "R5: one sufficient victim instead of two": (
        [job("h1", 0.5, on="n1:0"), job("whole", 1, on="n1:1"), job("h2", 0.5, on="n1:0")],
        session("ana-1"),
        {"whole-0"},
    ),
    "R5: no victim if the claim would still not fit": (
        [job("x", on="n1:0"), session("bo-1", on="n1:1")],
        session("ana-1", 2),
        set(),
    ),
}


@pytest.mark.parametrize(("existing", "new", "expected"), PREEMPTIONS.values(), ids=PREEMPTIONS)
def test_preemption_stops_only_workloads_of_lower_rank(
    existing: list[Workload], new: Workload, expected: set[str]
) -> None:
    assert stopped(decide(snapshot("1x2", ONE_PROJECT, [*existing, new]))) == expected


def test_preemption_under_a_limit_counts_the_victim_until_it_has_exited() -> None:
    cluster_snapshot = snapshot(
        "1x2", [project("a", 1, limit=1)], [job("j", on="n1:0"), session("ana-1")]
    )

    plan = decide(cluster_snapshot)
    in_grace = applied(cluster_snapshot, plan, grace=True)
    next_plan = decide(in_grace)

    assert (stopped(plan), started(plan)) == ({"j-0"}, set())
    # The job still counts against the limit of one GPU, although the second GPU is idle.
    assert (started(next_plan), waits(next_plan)) == (set(), {"ana-1": "stopping"})
    assert "waiting for j to stop" in sentence(next_plan, "ana-1")
    assert started(decide(applied(in_grace, next_plan))) == {"ana-1-0"}


# ---- R2, R3


TWO_PROJECTS = [project("a", 1), project("b", 1)]
RECLAIMS: dict[str, tuple[list[Project], list[Workload], set[str]]] = {
    "project over quota for a project within": (
        TWO_PROJECTS,
        [*fill_node(), job("new", project="b")],
        {"a1-0"},
    ),
    "no project within its quota": (
        [project("a", 2), project("b", 1)],
        [*fill_node(), job("new", project="b")],
        set(),
    ),
    "no victim for a claim over its fair share": (
        TWO_PROJECTS,
        [*fill_node(devices=1), job("b1", project="b", on="n1:1"), job("new", project="b")],
        set(),
    ),
    "quota before a fair share of the surplus": (
        [project("a", 0, weight=5), project("b", 1, weight=0)],
        [*fill_node(), job("new", project="b")],
        {"a1-0"},
    ),
    "project of weight 0": (
        [project("a", 0, weight=0), project("b", 0, weight=1)],
        [*fill_node(), job("n1", project="b"), job("n2", project="b")],
        {"a0-0", "a1-0"},
    ),
    "no session within its build quota": (
        [project("a", 2, build=2, weight=0), project("b", 1)],
        [session("ana-1", on="n1:0"), session("bo-1", on="n1:1"), job("new", project="b")],
        set(),
    ),
    "R4: project furthest over first": (
        [project("a", 0, weight=0), project("b", 0, weight=0), project("c", 1)],
        [
            job("a-half", 0.5, "a", on="n1:0", submitted=9),
            job("b-whole", 1, "b", on="n1:1", submitted=1),
            job("new", project="c"),
        ],
        {"b-whole-0"},
    ),
    "R4: of equal overage the younger project": (
        [project("a", 0, weight=0), project("b", 0, weight=0, created=1), project("c", 1)],
        [job("a-1", on="n1:0"), job("b-1", project="b", on="n1:1"), job("new", project="c")],
        {"b-1-0"},
    ),
    "whole gang": (
        TWO_PROJECTS,
        [job("gang", workers=2, on="n1:0 n1:1"), job("new", project="b")],
        {"gang-0", "gang-1"},
    ),
    "surplus worker of an elastic job": (
        TWO_PROJECTS,
        [job("e", workers=2, min_workers=1, on="n1:0 n1:1"), job("new", project="b")],
        {"e-1"},
    ),
}


@pytest.mark.parametrize(("projects", "workloads", "expected"), RECLAIMS.values(), ids=RECLAIMS)
def test_reclaim_stops_workloads_of_projects_over_their_share(
    projects: list[Project], workloads: list[Workload], expected: set[str]
) -> None:
    assert stopped(decide(snapshot("1x2", projects, workloads))) == expected


def test_reclaim_between_departments_compares_them_below_their_common_ancestor() -> None:
    # x is over its quota, but its department is within its own: y's department may not reclaim.
    projects = [
        project("left", 2),
        project("right", 2),
        project("x", 1, parent="left"),
        project("y", 1, parent="right"),
    ]
    within = snapshot("1x2", projects, [*fill_node("x"), job("new", project="y")])
    over = snapshot(
        "1x3", projects, [*fill_node("x", 3), job("new", project="y"), job("more", project="y")]
    )

    assert stopped(decide(within)) == set()
    assert stopped(decide(over)) == {"x2-0"}


def test_quota_of_a_child_does_not_protect_it_while_its_department_is_over() -> None:
    projects = [
        project("left", 1),
        project("right", 1),
        project("x", 2, parent="left"),
        project("y", 1, parent="right"),
    ]
    cluster_snapshot = snapshot("1x2", projects, [*fill_node("x"), job("new", project="y")])

    assert stopped(decide(cluster_snapshot)) == {"x1-0"}


def test_reclaim_is_limited_by_the_share_of_the_claimants_department() -> None:
    projects = [
        project("left", 1),
        project("right", 1),
        project("x", 1, parent="left"),
        project("y", 1, parent="right"),
        project("z", 1, parent="right"),
    ]
    workloads = [*fill_node("x", 2), job("z1", project="z", on="n1:2"), job("new", project="y")]

    # The department "right" already holds its one GPU by z's job.
    assert stopped(decide(snapshot("1x3", projects, workloads))) == set()


# ---- R5, R6


@pytest.mark.parametrize("shrink_first", [True, False])
def test_shrink_first_stops_surplus_of_any_project_before_pausing_a_job(
    *, shrink_first: bool
) -> None:
    projects = [project("a", 0, weight=0), project("b", 0, weight=0), project("c", 1)]
    workloads = [
        *[job(f"a{d}", on=f"n1:{d}") for d in range(3)],
        job("e", project="b", workers=2, min_workers=1, on="n1:3 n1:4"),
        job("new", project="c"),
    ]

    plan = decide(snapshot("1x5", projects, workloads, shrink_first=shrink_first))

    # a is further over its quota, but only b has a surplus worker.
    assert stopped(plan) == ({"e-1"} if shrink_first else {"a2-0"})


def test_victim_that_fits_on_a_different_node_is_moved_and_not_stopped() -> None:
    projects = [project("a", 0), project("b", 0, created=1), project("c", 1)]
    halves = [job("x", 0.5, on="n1:0"), job("y", 0.5, "b", on="n2:0")]

    plan = decide(snapshot("2x1", projects, [*halves, job("new", 1, "c")]))

    assert (stopped(plan), moved(plan)) == (set(), {"y-0"})
    assert places(plan) == {"y-0": "n1:0", "new-0": "n2:0"}


def test_big_job_stops_the_fewest_jobs_that_free_one_node() -> None:
    projects = [project("a", 0, weight=0), project("b", 4)]
    running = [*fill_node("a", 4, node="n1"), *[job(f"z{d}", on=f"n2:{d}") for d in range(3)]]

    plan = decide(snapshot("2x4", projects, [*running, job("big", 4, "b")]))

    assert stopped(plan) == {"z0-0", "z1-0", "z2-0"}


@pytest.mark.parametrize(
    ("quota", "saves", "expected"),
    [
        pytest.param(2, False, {"n2-old-0", "n2-newest-0"}, id="claim within quota"),
        pytest.param(1, False, set(), id="claim over quota: jobs that do not save"),
        pytest.param(1, True, {"n2-old-0", "n2-newest-0"}, id="claim over quota: jobs that save"),
    ],
)
def test_reclaim_stops_jobs_on_the_node_where_the_claimant_fits(
    quota: int, expected: set[str], *, saves: bool
) -> None:
    # a may give two GPUs; its two newest jobs are on different nodes: stopping them is no use.
    projects = [project("a", quota), project("b", quota)]
    running = [
        job("n1-oldest", on="n1:0", submitted=1, saves=saves),
        job("n2-old", on="n2:0", submitted=2, saves=saves),
        job("n1-young", on="n1:1", submitted=3, saves=saves),
        job("n2-newest", on="n2:1", submitted=4, saves=saves),
    ]

    plan = decide(snapshot("2x2", projects, [*running, job("big", 2, "b")]))

    assert stopped(plan) == expected


def test_gang_frees_only_as_many_nodes_as_it_needs() -> None:
    # a may give four GPUs; its four newest jobs are on four nodes: stopping them is no use.
    projects = [project("a", 4), project("b", 4)]
    running = [
        job(f"n{node}-{age}", on=f"n{node}:{device}", submitted=10 * device + node)
        for node in (1, 2, 3, 4)
        for device, age in enumerate(["old", "young"])
    ]
    cluster_snapshot = snapshot("4x2", projects, [*running, job("gang", 2, "b", workers=2)])

    assert stopped(decide(cluster_snapshot)) == {"n3-old-0", "n3-young-0", "n4-old-0", "n4-young-0"}


def test_gang_that_would_still_lack_one_gpu_stops_no_job() -> None:
    # a is over its quota by three GPUs; the gang needs four.
    projects = [project("a", 2), project("b", 4)]
    jobs = [*fill_node("a", 5), job("gang", 2, "b", workers=2)]

    plan = decide(snapshot("1x5", projects, jobs))

    assert (stopped(plan), waits(plan)) == (set(), {"gang": "no_room"})


def test_jobs_on_nodes_that_the_claimant_cannot_use_are_not_stopped() -> None:
    nodes = [*cluster("1x1", gpu_type="t4"), *cluster("2x1", gpu_type="a100")[1:]]
    projects = [project("a", 0, weight=0), project("b", 1)]
    jobs = [
        job("on-a100", on="n2:0"),
        job("on-t4", on="n1:0"),
        job("new", 1, "b", gpu_types=("a100",)),
    ]

    assert stopped(decide(snapshot(nodes, projects, jobs))) == {"on-a100-0"}


@pytest.mark.parametrize("lacking", ["cpu_milli", "memory_mib"])
def test_reclaim_stops_the_smallest_job_that_frees_the_missing_cpu_or_memory(lacking: str) -> None:
    # n1 has an idle device, but lacks a thousandth of a core (or one MiB) for the job.
    full_amount: dict[str, Any] = {lacking: 1000}
    minimal_amount: dict[str, Any] = {lacking: 1}
    nodes = [replace(node, **full_amount) for node in cluster("1x3+1x2")]
    projects = [project("a", 0, weight=0), project("b", 1)]
    jobs = [
        job("bare", on="n1:0"),
        job("in-the-way", on="n1:1", **minimal_amount),
        job("elsewhere", 2, on="n2:0,1", submitted=1, **minimal_amount),
        job("new", 1, "b", **full_amount),
    ]

    assert stopped(decide(snapshot(nodes, projects, jobs))) == {"in-the-way-0"}


def test_claimant_stops_its_own_and_a_foreign_job_where_neither_suffices() -> None:
    projects = [project("a", 2, build=2), project("b", 0, weight=0)]
    jobs = [job("own", on="n1:0"), job("theirs", project="b", on="n1:1"), session("ana-1", 2)]

    assert stopped(decide(snapshot("1x2", projects, jobs))) == {"own-0", "theirs-0"}


def test_claimant_stops_own_lower_priority_jobs_to_reclaim_within_its_quota() -> None:
    # b is over its quota, not over its fair share: a may reclaim only within its own quota, so
    # that `low-1` cannot stay beside the claimant, although its device is of no use to it.
    projects = [project("a", 2), project("b", 1)]
    jobs = [
        *[job(f"low-{i}", on=f"n{i}:0", priority=25, nodes=("n1", "n2")) for i in (1, 2)],
        *[job(f"b{i}", project="b", on=f"n{i}:1", nodes=("n1", "n2")) for i in (1, 2)],
        job("new", 2),
    ]

    plan = decide(snapshot("2x2+1x1", projects, jobs))

    assert (stopped(plan), places(plan)) == (
        {"low-1-0", "low-2-0"},
        {"new-0": "n2:0,1", "b2-0": "n1:0"},
    )


def test_reservation_is_cancelled_before_a_job_is_stopped_for_its_gpu() -> None:
    projects = [project("a", 0, weight=0), project("b", 1)]
    jobs = [
        job("old", on="n1:0", state="stopping"),
        job("promised", on="n1:0", state="reserved"),
        job("new", project="b"),
    ]

    plan = decide(snapshot("1x1", projects, jobs))

    assert (stopped(plan), reserved(plan)) == (set(), {"new-0"})
    assert Unreserve(workload="promised", worker="promised-0") in plan.decisions


def test_reclaim_cancels_an_over_quota_start_of_the_same_plan() -> None:
    # b's job fits the one idle GPU first; a's two need both, which b's quota does not cover.
    projects = [project("a", 2), project("b", 0, weight=0, priority=200)]
    jobs = [job("theirs", 1, "b", on="n1:0"), job("promised", 1, "b"), job("new", 2)]

    plan = decide(snapshot("1x2", projects, jobs))

    assert (started(plan), stopped(plan), reserved(plan)) == (set(), {"theirs-0"}, {"new-0"})


def test_claimant_of_two_gpus_stops_no_job_if_only_one_is_reclaimable() -> None:
    # b may reclaim one GPU of a, which is over its quota by one, and needs two on one node.
    projects = [project("a", 3), project("b", 2)]
    jobs = [*[job(f"a{i}", on=f"n{i // 2 + 1}:{i % 2}") for i in range(4)], job("b1", 2, "b")]
    plan = decide(snapshot("2x2", projects, jobs))

    assert stopped(plan) == set()
    assert len([d for d in plan.decisions if d.kind == "wait"]) == 1


def test_oldest_job_moves_although_reclaim_stops_the_latest_first() -> None:
    """R4 stops the latest first; the one to continue elsewhere is chosen by age (O2, R5)."""
    cluster_snapshot = snapshot(
        "1x2+1x1",
        [project("a", 0, limit=2), project("b", 3)],
        [*fill_node("a", 2), job("new", 2, "b"), job("late")],
    )

    plan = decide(cluster_snapshot)

    assert (stopped(plan), moved(plan)) == ({"a1-0"}, {"a0-0"})

"""Moves for claims within their quota, and which jobs `consolidate` may move (R10)."""

from __future__ import annotations

from typing import Any

import pytest

from builders import (
    applied,
    cluster,
    job,
    moved,
    project,
    reserved,
    running,
    session,
    settled,
    snapshot,
    stopped,
)
from runai.hub_service.scheduler import Policy, Project, Workload, decide

EVERY_PHASE = (*Policy().phases, "consolidate")


# ---- R10 (a): claims within their quota


TWO_PROJECTS = [project("a", 2, weight=0), project("b", 2, weight=0)]
QUOTA_MOVES: dict[str, tuple[str, list[Project], list[Workload], set[str], set[str]]] = {
    "victim of a project within its quota": (
        "2x2",
        TWO_PROJECTS,
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {"y-0"},
        set(),
    ),
    "claimant is a session": (
        "2x2",
        TWO_PROJECTS,
        [job("x", on="n1:0"), job("y", on="n2:0"), session("ana-1", 2, "b")],
        {"y-0"},
        set(),
    ),
    "victim of the own project with higher priority": (
        "2x2",
        [project("a", 4)],
        [session("bo-1", on="n1:0"), job("y", on="n2:0", priority=90), job("new", 2)],
        {"y-0"},
        set(),
    ),
    "two over-quota jobs stop and one job moves": (
        "2x2",
        [project("a", 0, weight=0), project("b", 2, weight=0), project("c", 2, weight=0)],
        [
            *[job(f"a{n}", on=f"n{n}:0") for n in (1, 2)],
            *[job(f"b{n}", 1, "b", on=f"n{n}:1") for n in (1, 2)],
            job("new", 2, "c"),
        ],
        {"b2-0"},
        {"a1-0", "a2-0"},
    ),
    "one over-quota job stops and one job moves": (
        "2x2",
        [project("a", 0, weight=0), project("b", 2, weight=0), project("c", 2, weight=0)],
        [job("a1", on="n1:0"), *[job(f"b{n}", 1, "b", on=f"n{n}:1") for n in (1, 2)],
         job("new", 2, "c")],
        {"b2-0"},
        {"a1-0"},
    ),
    "elastic victim with three GPUs": (
        "1x4+1x3",
        [project("a", 4), project("b", 3)],
        [
            job("e", 3, on="n2:0,1,2", gpus_min=1000, gpus_max=4000),
            job("new", 3, "b", nodes=("n2",)),
        ],
        {"e-0"},
        set(),
    ),
    "victim without a GPU that uses the CPU": (
        "2x2",
        TWO_PROJECTS,
        [job("x", 0, on="n1:", cpu_milli=5000), job("new", 1, "b", nodes=("n1",), cpu_milli=5000)],
        {"x-0"},
        set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "owners", "jobs", "moves", "stops"), QUOTA_MOVES.values(), ids=QUOTA_MOVES
)
def test_claim_within_quota_moves_jobs_that_fragment_the_nodes(
    nodes: str, owners: list[Project], jobs: list[Workload], moves: set[str], stops: set[str]
) -> None:
    cluster_snapshot = snapshot(cluster(nodes, cpu_milli=8000), owners, jobs)
    plan = decide(cluster_snapshot)

    claimant = jobs[-1].name
    moved_jobs = {worker.removesuffix("-0") for worker in moves}
    assert moved(plan) == moves
    assert stopped(plan) == stops
    assert reserved(plan) == {f"{claimant}-0"}
    after = settled(cluster_snapshot)
    assert {claimant, *moved_jobs} <= running(after)
    assert not [d for d in decide(after).decisions if d.kind != "wait"]


NO_QUOTA_MOVES: dict[str, tuple[list[Project], list[Workload], dict[str, Any]]] = {
    "claim over its quota": (
        [project("a", 2), project("b", 1)],
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {},
    ),
    "parent of the claimant over its quota": (
        [project("a", 2), project("lab", 1), project("b", 2, parent="lab")],
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {},
    ),
    "claim without a GPU": (
        TWO_PROJECTS,
        [job(f"x{n}", on=f"n{n}:0", cpu_milli=5000) for n in (1, 2)]
        + [job("new", 0, "b", cpu_milli=8000)],
        {},
    ),
    "policy without reclaim": (
        TWO_PROJECTS,
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {"phases": ("allocate", "preempt")},
    ),
    "policy without quota moves": (
        TWO_PROJECTS,
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {"quota_moves": False},
    ),
    "victims are sessions": (
        TWO_PROJECTS,
        [
            session("x-1", on="n1:0"),
            session("y-1", on="n2:0", preemptible=True),
            job("new", 2, "b"),
        ],
        {},
    ),
    "session over its build quota": (
        [project("a", 2), project("b", 2, build=1)],
        [job("x", on="n1:0"), job("y", on="n2:0"), session("ana-1", 2, "b")],
        {},
    ),
}


@pytest.mark.parametrize(("owners", "jobs", "policy"), NO_QUOTA_MOVES.values(), ids=NO_QUOTA_MOVES)
def test_claim_that_does_not_qualify_for_quota_moves_moves_no_job(
    owners: list[Project], jobs: list[Workload], policy: dict[str, Any]
) -> None:
    plan = decide(snapshot(cluster("2x2", cpu_milli=8000), owners, jobs, **policy))

    assert (moved(plan), stopped(plan)) == (set(), set())


# ---- R10 (b): to make room for anybody


def job_that_saves(
    name: str,
    node: int,
    *,
    gpus: float = 1,
    on: str = "",
    saves: bool = True,
    started: int = 100,
    **fields: Any,
) -> Workload:
    """Return a job that saves, on the first device of a node."""
    return job(name, gpus, on=on or f"n{node}:0", saves=saves, started=started, **fields)


CONSOLIDATION_CHOICES: dict[str, tuple[list[Workload], dict[str, Any], set[str]]] = {
    "least GPU-time since the start": (
        [job_that_saves("x", 1), job_that_saves("y", 2, started=500)],
        {},
        {"y-0"},
    ),
    "job that saves before job that ran shorter": (
        [job_that_saves("x", 1), job_that_saves("y", 2, saves=False, started=990)],
        {},
        {"x-0"},
    ),
    "least GPU-time of jobs that do not save": (
        [job_that_saves("x", 1, saves=False), job_that_saves("y", 2, saves=False, started=500)],
        {},
        {"y-0"},
    ),
    "no job that does not save with policy moves=saves": (
        [job_that_saves("x", 1, saves=False), job_that_saves("y", 2, saves=False)],
        {"moves": "saves"},
        set(),
    ),
    "latest submitted of jobs with equal GPU-time": (
        [
            job_that_saves("x", 1, gpus=0.5, started=100, submitted=1),
            job_that_saves("y", 2, gpus=0.5),
        ],
        {},
        {"y-0"},
    ),
    "no job with two moves or pauses within the hour": (
        [job_that_saves(name, n, pauses=(-5000, 300, 800)) for n, name in enumerate("xy", 1)],
        {"max_moves_per_hour": 2},
        set(),
    ),
    "job with one move within the hour": (
        [job_that_saves(name, n, pauses=(-5000, -4000, 800)) for n, name in enumerate("xy", 1)],
        {"max_moves_per_hour": 2},
        {"y-0"},
    ),
    "no job of another project within its quota": (
        [job_that_saves("x", 1, project="b"), job_that_saves("y", 2, project="b")],
        {},
        set(),
    ),
    "job of another project over its quota": (
        [job_that_saves("x", 1, project="c"), job_that_saves("y", 2, project="c")],
        {},
        {"y-0"},
    ),
}


@pytest.mark.parametrize(
    ("jobs", "policy", "expected"), CONSOLIDATION_CHOICES.values(), ids=CONSOLIDATION_CHOICES
)
def test_consolidation_selects_the_moves_with_the_lowest_cost(
    jobs: list[Workload], policy: dict[str, Any], expected: set[str]
) -> None:
    owners = [project("a", 1, weight=0), project("b", 9, weight=0), project("c", 0, weight=0)]
    workloads = [*jobs, job_that_saves("w", 3, kind="session"), job("new", 2)]
    # The session on n3 never moves; "new" needs n1 or n2 as a whole.
    policy = {"phases": EVERY_PHASE, "quota_moves": False, **policy}

    assert moved(decide(snapshot("3x2", owners, workloads, **policy))) == expected


def test_consolidation_moves_at_most_max_moves_workloads_per_plan() -> None:
    jobs = [job_that_saves(f"x{n}", n) for n in range(1, 9)]
    claims = [job(f"new{n}", 2) for n in range(4)]
    cluster_snapshot = snapshot(
        "8x2", [project("a", 0)], [*jobs, *claims], phases=EVERY_PHASE, max_moves=3
    )

    plan = decide(cluster_snapshot)

    assert len(moved(plan)) == 3
    assert len(reserved(plan)) == 3
    # The fourth claim is left for the next plan.
    assert len(moved(decide(applied(cluster_snapshot, plan)))) == 1


def test_consolidation_moves_one_long_job_rather_than_two_short_jobs() -> None:
    jobs = [
        job_that_saves("x", 1, gpus=2, on="n1:0,1"),
        *[job_that_saves(f"y{device}", 2, on=f"n2:{device}", started=999) for device in (0, 1)],
        *[session(f"s-{node}", on=f"n{node}:2") for node in (1, 2)],
        session("s-3", 2, on="n3:0,1"),
    ]
    cluster_snapshot = snapshot(
        "3x4", [project("a", 5)], [*jobs, job("new", 3)], phases=EVERY_PHASE
    )

    assert moved(decide(cluster_snapshot)) == {"x-0"}


def test_quota_moves_ignore_max_moves_and_max_moves_per_hour() -> None:
    jobs = [job_that_saves(f"x{n}", n, pauses=(999, 1000)) for n in (1, 2, 3, 4)]
    claims = [job(f"new{n}", 2, "b") for n in range(2)]
    cluster_snapshot = snapshot("4x2", [project("a", 4), project("b", 4)], [*jobs, *claims],
                     phases=EVERY_PHASE, max_moves=0, max_moves_per_hour=1)  # fmt: skip

    assert len(moved(decide(cluster_snapshot))) == 2


def test_claim_moves_jobs_of_a_foreign_project_once_it_is_over_quota() -> None:
    # The first claim takes a beyond its quota: from then on b's claim may move a's jobs too.
    jobs = [job_that_saves(f"x{n}", n) for n in (1, 2, 3, 4)]
    claims = [job("first", 2), job("second", 2, "b")]
    owners = [project("a", 5, weight=0), project("b", 0, weight=0, priority=50)]
    cluster_snapshot = snapshot(
        "4x2", owners, [*jobs, *claims], phases=EVERY_PHASE, quota_moves=False
    )

    plan = decide(cluster_snapshot)

    assert len(moved(plan)) == 2
    assert reserved(plan) == {"first-0", "second-0"}

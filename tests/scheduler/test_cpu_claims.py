"""CPU and memory as a part of the promise: what a claim within its quota takes for them (Q6)."""

from __future__ import annotations

from dataclasses import replace
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
from runai.hub_service.scheduler import Mib, Project, Stop, Workload, decide

OWNERS = [project("a", 2, weight=0), project("b", 2, weight=0), project("none", 0, weight=0)]


def cpu_job(name: str, milli: int, owner: str = "none", on: str = "n1:", **fields: Any) -> Workload:
    """Return a running job without a GPU."""
    return job(name, 0, owner, on=on, cpu_milli=milli, **fields)


def claim(milli: int, **fields: Any) -> Workload:
    """Return a waiting job of `a` with one GPU."""
    return job("new", 1, cpu_milli=milli, **fields)


FOUR_GPU_NODE = replace(cluster("1x4")[0], cpu_milli=8000, memory_mib=Mib(8000))
"""A node with four GPUs; the part of each is 2000 thousandths of a core, and 2000 MiB."""

VICTIMS: dict[str, tuple[list[Project], list[Workload], set[str]]] = {
    "latest submitted, no more than needed": (
        OWNERS,
        [cpu_job("x", 4000), cpu_job("y", 2000), cpu_job("z", 2000), claim(2000)],
        {"z-0"},
    ),
    "latest submitted, not last started": (
        OWNERS,
        [cpu_job("x", 4000, started=900), cpu_job("y", 4000, started=100), claim(2000)],
        {"y-0"},
    ),
    "large job, because the two later jobs do not suffice": (
        OWNERS,
        [cpu_job("x", 6000), cpu_job("y", 1000), cpu_job("z", 1000), claim(4000)],
        {"x-0"},
    ),
    "jobs of the own project and of a project within quota": (
        OWNERS,
        [cpu_job("x", 4000, "b"), cpu_job("y", 4000, "a"), claim(6000)],
        {"x-0", "y-0"},
    ),
    "job without a GPU before an over-quota job with a GPU": (
        OWNERS,
        [job("over", 1, "none", on="n1:0", cpu_milli=4000), cpu_job("x", 4000, "b"), claim(4000)],
        {"x-0"},
    ),
    "preemptible session without a GPU": (
        OWNERS,
        [session("u-x", 0, "b", on="n1:", cpu_milli=8000, preemptible=True), claim(4000)],
        {"u-x-0"},
    ),
    "no session that is not preemptible": (
        OWNERS,
        [session("u-x", 0, "b", on="n1:", cpu_milli=8000), claim(4000)],
        set(),
    ),
    "no job of higher priority in the own project": (
        OWNERS,
        [cpu_job("x", 8000, "a", priority=75), claim(4000)],
        set(),
    ),
    "job of higher priority in the own project, for a session": (
        OWNERS,
        [cpu_job("x", 8000, "a", priority=75), session("ana-1", cpu_milli=4000)],
        {"x-0"},
    ),
    "no job within its minimum run time": (
        [*OWNERS[:2], replace(OWNERS[2], min_runtime=600)],
        [cpu_job("x", 8000, started=900), claim(4000)],
        set(),
    ),
    "no job for a claim over quota": (
        [project("a", 0), project("b", 2)],
        [cpu_job("x", 8000, "b"), claim(4000)],
        set(),
    ),
    "no job for a claim without a GPU": (
        OWNERS,
        [cpu_job("x", 8000, "b"), cpu_job("new", 4000, "a", on="")],
        set(),
    ),
    "over-quota job for a GPU, job without a GPU for CPU": (
        OWNERS,
        [
            *[job(f"b{n}", 2, "b", on=f"n1:{n},{n + 1}") for n in (0, 2)],
            cpu_job("x", 8000, "b"),
            claim(4000, priority=10),
        ],
        {"b2-0", "x-0"},
    ),
    "surplus worker of an elastic job": (
        OWNERS,
        [cpu_job("e", 2000, on="n1: n1: n1: n1:", workers=4, min_workers=1), claim(2000)],
        {"e-3"},
    ),
    "job with more CPU than its part": (
        OWNERS,
        [job("fat", 1, "b", on="n1:0", cpu_milli=7000), claim(2000)],
        {"fat-0"},
    ),
    "job with more memory than its part": (
        OWNERS,
        [job("fat", 1, "b", on="n1:0", memory_mib=Mib(7000)), claim(0, memory_mib=Mib(2000))],
        {"fat-0"},
    ),
    "no job for a claim with more CPU than its part": (
        OWNERS,
        [job("fat", 1, "b", on="n1:0", cpu_milli=7000), claim(2001)],
        set(),
    ),
    "no job within its part": (
        OWNERS,
        [
            *[job(f"lean{n}", 1, "b", on=f"n1:{n}", cpu_milli=2000) for n in (0, 1)],
            session("u-x", 0, "b", on="n1:", cpu_milli=3000),
            claim(2000),
        ],
        set(),
    ),
    "no job with more memory than its part for CPU": (
        OWNERS,
        [
            job("fat", 1, "b", on="n1:0", cpu_milli=2000, memory_mib=Mib(7000)),
            session("u-x", 0, "b", on="n1:", cpu_milli=5000),
            claim(2000),
        ],
        set(),
    ),
    "job without a GPU before a job with more than its part": (
        OWNERS,
        [cpu_job("x", 2000, "b"), job("fat", 1, "b", on="n1:0", cpu_milli=6000), claim(2000)],
        {"x-0"},
    ),
    "no guaranteed job": (
        OWNERS,
        [
            cpu_job("x", 6000, "b", guaranteed_workers=1),
            job("fat", 1, "b", on="n1:0", cpu_milli=2000, guaranteed_workers=1),
            claim(2000),
        ],
        set(),
    ),
}


@pytest.mark.parametrize(("owners", "jobs", "expected"), VICTIMS.values(), ids=VICTIMS)
def test_claim_within_quota_stops_workloads_that_use_its_cpu(
    owners: list[Project], jobs: list[Workload], expected: set[str]
) -> None:
    # The node has four GPUs and 8000 thousandths of a core: 2000 are the part of each GPU.
    cluster_snapshot = snapshot((FOUR_GPU_NODE,), owners, jobs)
    plan = decide(cluster_snapshot)

    assert stopped(plan) == expected
    claimant = jobs[-1].workers[0].name
    assert reserved(plan) == ({claimant} if expected else set())
    cluster_snapshot = applied(cluster_snapshot, plan, seconds=0)
    for cycle in range(4):
        plan = decide(cluster_snapshot)
        # A victim may itself be owed GPUs (R2), but it never takes back the CPU.
        assert claimant not in stopped(plan)
        if cycle:
            assert (stopped(plan), moved(plan), reserved(plan)) == (set(), set(), set())
        cluster_snapshot = applied(cluster_snapshot, plan, seconds=0)


@pytest.mark.parametrize(
    ("claimant", "expected"),
    [
        (job("new", 0, "a", cpu_milli=4000), set[str]()),
        (session("new", 0, "a", cpu_milli=4000), {"over-0"}),
        (job("new", 1, "a", cpu_milli=4000), {"over-0"}),
    ],
    ids=["job without a GPU", "session without a GPU", "job with a GPU"],
)
def test_cpu_of_other_projects_is_reclaimed_only_for_gpu_jobs_and_sessions(
    claimant: Workload, expected: set[str]
) -> None:
    over = job("over", 1, "none", on="n1:0", cpu_milli=8000)

    assert stopped(decide(snapshot((FOUR_GPU_NODE,), OWNERS, [over, claimant]))) == expected


def test_victims_for_cpu_move_where_they_fit() -> None:
    second_node = replace(FOUR_GPU_NODE, name="n2", devices=1)
    # Each node has 8000 thousandths of a core: x and the claim do not fit on n1 together.
    jobs = [cpu_job("x", 4000, "b"), job("fat", 1, "b", on="n2:0", cpu_milli=4000)]
    cluster_snapshot = snapshot(
        (FOUR_GPU_NODE, second_node), OWNERS, [*jobs, claim(5000, nodes=("n1",))]
    )

    plan = decide(cluster_snapshot)

    assert (stopped(plan), moved(plan)) == (set(), {"x-0"})
    assert {"x", "fat", "new"} <= running(settled(cluster_snapshot))


def test_stop_reason_names_the_claim_that_lacks_cpu_or_memory() -> None:
    plan = decide(snapshot((FOUR_GPU_NODE,), OWNERS, [cpu_job("x", 8000, "b"), claim(4000)]))

    (reason,) = [d.reason for d in plan.decisions if isinstance(d, Stop)]
    assert (reason.code, reason.rule, reason.for_) == ("reclaimed", "Q6", "new")
    assert reason.text == (
        "new is within its quota of GPUs, and needs the CPU or memory that this holds"
    )

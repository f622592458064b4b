"""Moves for quotas: a claim within its quota moves jobs that lie badly (R10 (a))."""

from __future__ import annotations

from typing import Any

import pytest

from builders import (
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
from runai.hub_service.scheduler import Project, Workload, decide

BOTH = [project("a", 2, weight=0), project("b", 2, weight=0)]
KEPT: dict[str, tuple[str, list[Project], list[Workload], tuple[set[str], set[str]]]] = {
    "a job of a project within its quota moves": (
        "2x2",
        BOTH,
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        ({"y-0"}, set()),
    ),
    "a session moves it too": (
        "2x2",
        BOTH,
        [job("x", on="n1:0"), job("y", on="n2:0"), session("ana-1", 2, "b")],
        ({"y-0"}, set()),
    ),
    "its own project's job moves, whatever its priority": (
        "2x2",
        [project("a", 4)],
        [session("bo-1", on="n1:0"), job("y", on="n2:0", priority=90), job("new", 2)],
        ({"y-0"}, set()),
    ),
    "both are taken back, and one moves": (
        "2x2",
        [project("a", 0, weight=0), project("b", 2, weight=0), project("c", 2, weight=0)],
        [
            *[job(f"a{n}", on=f"n{n}:0") for n in (1, 2)],
            *[job(f"b{n}", 1, "b", on=f"n{n}:1") for n in (1, 2)],
            job("new", 2, "c"),
        ],
        ({"b2-0"}, {"a1-0", "a2-0"}),
    ),
    "no more is taken back than moves need": (
        "2x2",
        [project("a", 0, weight=0), project("b", 2, weight=0), project("c", 2, weight=0)],
        [job("a1", on="n1:0"), *[job(f"b{n}", 1, "b", on=f"n{n}:1") for n in (1, 2)],
         job("new", 2, "c")],
        ({"b2-0"}, {"a1-0"}),
    ),
    "an elastic worker moves with all its GPUs": (
        "1x4+1x3",
        [project("a", 4), project("b", 3)],
        [
            job("e", 3, on="n2:0,1,2", gpus_min=1000, gpus_max=4000),
            job("new", 3, "b", nodes=("n2",)),
        ],
        ({"e-0"}, set()),
    ),
    "a job without a GPU moves for its CPU": (
        "2x2",
        BOTH,
        [job("x", 0, on="n1:", cpu_milli=5000), job("new", 1, "b", nodes=("n1",), cpu_milli=5000)],
        ({"x-0"}, set()),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "owners", "jobs", "expected"), KEPT.values(), ids=KEPT)
def test_a_claim_within_its_quota_moves_jobs_that_lie_badly(
    nodes: str, owners: list[Project], jobs: list[Workload], expected: tuple[set[str], set[str]]
) -> None:
    world = snapshot(cluster(nodes, cpu_milli=8000), owners, jobs)
    plan = decide(world)

    assert (moved(plan), stopped(plan)) == expected
    assert reserved(plan) == {f"{jobs[-1].name}-0"}
    after = settled(world)
    assert {jobs[-1].name, *(name[:-2] for name in expected[0])} <= running(after)
    assert not [d for d in decide(after).decisions if d.kind != "wait"]


UNKEPT: dict[str, tuple[list[Project], list[Workload], dict[str, Any]]] = {
    "beyond its quota": (
        [project("a", 2), project("b", 1)],
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {},
    ),
    "a parent beyond its quota": (
        [project("a", 2), project("lab", 1), project("b", 2, parent="lab")],
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {},
    ),
    "for work without a GPU": (
        BOTH,
        [job(f"x{n}", on=f"n{n}:0", cpu_milli=5000) for n in (1, 2)]
        + [job("new", 0, "b", cpu_milli=8000)],
        {},
    ),
    "where the policy does not reclaim": (
        BOTH,
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {"phases": ("allocate", "preempt")},
    ),
    "where the policy says no": (
        BOTH,
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2, "b")],
        {"quota_moves": False},
    ),
    "sessions and preemptible sessions": (
        BOTH,
        [
            session("x-1", on="n1:0"),
            session("y-1", on="n2:0", preemptible=True),
            job("new", 2, "b"),
        ],
        {},
    ),
    "a session beyond its build quota": (
        [project("a", 2), project("b", 2, build=1)],
        [job("x", on="n1:0"), job("y", on="n2:0"), session("ana-1", 2, "b")],
        {},
    ),
}


@pytest.mark.parametrize(("owners", "jobs", "policy"), UNKEPT.values(), ids=UNKEPT)
def test_a_promise_moves_nothing(
    owners: list[Project], jobs: list[Workload], policy: dict[str, Any]
) -> None:
    plan = decide(snapshot(cluster("2x2", cpu_milli=8000), owners, jobs, **policy))

    assert (moved(plan), stopped(plan)) == (set(), set())

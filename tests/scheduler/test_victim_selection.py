"""Victim selection (R4): the project furthest over, judged anew after each; only useful victims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import cluster, job, parent, project, snapshot, stopped
from runai.hub_service.scheduler import Mib, Node, Workload, decide


def held(owner: str, node: str, *devices: int) -> list[Workload]:
    """Return running one-GPU jobs of a project, the oldest first."""
    return [job(f"{owner}{d}", project=owner, on=f"{node}:{d}") for d in devices]


def test_projects_give_in_turn_once_they_are_equally_far_over() -> None:
    # a is 3 over, b is 2: first a's job stops, then the younger of both, then a's again.
    projects = [project("a", 1), project("b", 1), project("c", 5)]
    jobs = [*held("a", "n1", 0, 1, 2, 3), *held("b", "n1", 4, 5, 6), job("new", 1, "c", workers=3)]

    assert stopped(decide(snapshot("1x7", projects, jobs))) == {"a3-0", "a2-0", "b6-0"}


def test_reclaim_stops_a_job_of_the_project_furthest_over_quota_first() -> None:
    projects = [project("a", 1), project("b", 1), project("c", 5)]
    jobs = [*held("a", "n1", 0, 1, 2), *held("b", "n1", 3, 4, 5, 6), job("new", 1, "c")]

    assert stopped(decide(snapshot("1x7", projects, jobs))) == {"b6-0"}


def test_below_a_parent_the_child_that_is_furthest_over_gives() -> None:
    projects = [
        parent("lab"),
        *[project(name, 1, parent="lab") for name in ("x", "y", "z")],
        project("owner", 3),
    ]
    jobs = [*held("x", "n1", 0), *held("y", "n1", 1, 2, 3), *held("z", "n1", 4, 5)]

    world = snapshot("1x6", projects, [*jobs, job("new", 1, "owner", workers=2)])

    # y is over by two and z by one; then they are equal, and z's job is the younger.
    assert stopped(decide(world)) == {"y3-0", "z5-0"}


def small() -> list[Node]:
    """Make a node of two GPUs, 8 cores and 8000 MiB."""
    (node,) = cluster("1x2")
    return [replace(node, cpu_milli=8000, memory_mib=Mib(8000))]


LACKING = {
    "only CPU: who holds it gives": (
        [job("cpu", 0, cpu_milli=8000, on="n1:"), job("gpu", 1, on="n1:0")],
        job("new", 1, "b", cpu_milli=4000),
        {"cpu-0"},
    ),
    "only memory: who holds it gives": (
        [job("memory", 0, memory_mib=Mib(8000), on="n1:"), job("gpu", 1, on="n1:0")],
        job("new", 1, "b", memory_mib=Mib(4000)),
        {"memory-0"},
    ),
    "only a GPU: who holds CPU alone stays": (
        [job("gpus", 2, on="n1:0,1"), job("cpu", 0, cpu_milli=4000, on="n1:")],
        job("new", 1, "b", cpu_milli=4000),
        {"gpus-0"},
    ),
    "CPU and memory that just suffice lack nothing": (
        [job("cpu", 0, cpu_milli=4000, memory_mib=Mib(4000), on="n1:"), job("gpu", 1, on="n1:0")],
        job("new", 1, "b", cpu_milli=4000, memory_mib=Mib(4000)),
        set(),
    ),
    "a GPU first, then the CPU beside it": (
        [job("cpu", 0, cpu_milli=8000, on="n1:"), *[job(f"g{i}", on=f"n1:{i}") for i in (0, 1)]],
        job("new", 1, "b", cpu_milli=4000),
        {"g1-0", "cpu-0"},
    ),
}


@pytest.mark.parametrize(("there", "new", "expected"), LACKING.values(), ids=LACKING)
def test_reclaim_stops_only_workloads_that_hold_the_missing_resource(
    there: list[Workload], new: Workload, expected: set[str]
) -> None:
    projects = [project("a", 0, weight=0), project("b", 2)]

    assert stopped(decide(snapshot(small(), projects, [*there, new]))) == expected

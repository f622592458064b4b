"""Victim selection (R4): the project furthest over, judged anew after each; only useful victims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from builders import cluster, job, moved, parent, project, session, snapshot, stopped
from runai.hub_service.scheduler import (
    ClusterIndex,
    Mib,
    Node,
    Plan,
    SnapshotChanges,
    Workload,
    decide,
)
from runai.hub_service.scheduler.explanations.device_holders import HolderAllocations
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of
from runai.hub_service.scheduler.state.victim_order import victims_of


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


# ---- R5: of equal victims the one that can go on elsewhere moves


def of_a(name: str, device: str, submitted: int, **fields: Any) -> Workload:
    """Return a running job of `a`, which owns no quota."""
    return job(name, fields.pop("gpus", 1), on=f"n1:{device}", submitted=submitted, **fields)


HERE: dict[str, Any] = {"nodes": ("n1",)}
MOVABLE: dict[str, tuple[str, list[Workload], str, str]] = {
    "the older, if the younger fits nowhere else": (
        "1x2+1x1",
        [of_a("pinned", "0", 2, **HERE), of_a("free", "1", 1)],
        "free",
        "move",
    ),
    "the younger, if both fit elsewhere": (
        "1x2+1x1",
        [of_a("young", "0", 2), of_a("old", "1", 1)],
        "young",
        "move",
    ),
    "the one that began first, if the other fits nowhere else": (
        "1x2+1x1",
        [of_a("pinned", "0", 1, started=900, **HERE), of_a("free", "1", 2, started=100)],
        "free",
        "move",
    ),
    "the youngest that fits elsewhere": (
        "1x3+1x1",
        [of_a("pinned", "0", 3, **HERE), of_a("old", "1", 1), of_a("free", "2", 2)],
        "free",
        "move",
    ),
    "the younger, if no GPU is idle elsewhere": (
        "1x2",
        [of_a("pinned", "0", 2, **HERE), of_a("free", "1", 1)],
        "pinned",
        "stop",
    ),
    "a job that fits elsewhere, as a stopped session ends": (
        "1x2+1x1",
        [
            session("ana-s", on="n1:0", preemptible=True, priority=50, submitted=2),
            of_a("free", "1", 1),
        ],
        "free",
        "move",
    ),
    "the younger, if the older is a session, which never moves": (
        "1x2+1x1",
        [
            of_a("pinned", "0", 2, **HERE),
            session("ana-s", on="n1:1", preemptible=True, priority=50, submitted=1),
        ],
        "pinned",
        "stop",
    ),
    "never one of higher priority": (
        "1x2+1x1",
        [of_a("pinned", "0", 2, **HERE), of_a("free", "1", 1, priority=60)],
        "pinned",
        "stop",
    ),
    "never one that holds more": (
        "1x3+1x2",
        [of_a("pinned", "0", 2, **HERE), of_a("free", "1,2", 1, gpus=2)],
        "pinned",
        "stop",
    ),
    "never one that loses more work": (
        "1x2+1x1",
        [
            of_a("pinned", "0", 2, checkpointed=900, **HERE),
            of_a("free", "1", 1, checkpointed=500),
        ],
        "pinned",
        "stop",
    ),
    "never one of another project": (
        "1x2+1x1",
        [of_a("pinned", "0", 2, **HERE), of_a("free", "1", 1, project="c")],
        "pinned",
        "stop",
    ),
}


@pytest.mark.parametrize(("shape", "jobs", "expected", "kind"), MOVABLE.values(), ids=MOVABLE)
def test_of_equal_victims_the_one_that_fits_elsewhere_goes(
    shape: str, jobs: list[Workload], expected: str, kind: str
) -> None:
    projects = [project("a", 0), project("b", 1), project("c", 1)]
    plan = decide(snapshot(shape, projects, [*jobs, job("new", 1, "b", **HERE)]))

    assert [(d.kind, d.workload) for d in plan.decisions if d.kind in {"move", "stop"}] == [
        (kind, expected)
    ]


def test_two_victims_do_not_count_on_the_same_idle_gpu() -> None:
    # One GPU is idle on n2: one of the free jobs moves there, the other is no better there.
    jobs = [
        of_a("free0", "0", 1),
        of_a("free1", "1", 2),
        of_a("pinned2", "2", 3, **HERE),
        of_a("pinned3", "3", 4, **HERE),
    ]
    projects = [project("a", 0), project("b", 2)]
    plan = decide(snapshot("1x4+1x1", projects, [*jobs, job("new", 2, "b", **HERE)]))

    assert {(d.kind, d.workload) for d in plan.decisions if d.kind in {"move", "stop"}} == {
        ("move", "free1"),
        ("stop", "pinned3"),
    }


@each(
    pinned=st.lists(st.booleans(), min_size=1, max_size=6),
    beside=st.integers(0, 3),
    wanted=st.integers(1, 6),
    as_gang=st.booleans(),
    ages=st.randoms(use_true_random=False),
)
def test_of_equal_victims_as_many_move_as_there_are_places(
    pinned: list[bool], beside: int, wanted: int, ages: Any, *, as_gang: bool
) -> None:
    wanted = min(wanted, len(pinned))
    order = ages.sample(range(1, 100), len(pinned))
    jobs = [
        of_a(f"j{i}", str(i), order[i], **(HERE if is_pinned else {}))
        for i, is_pinned in enumerate(pinned)
    ]
    size: dict[str, Any] = {"workers": wanted} if as_gang else {"gpus": wanted}
    claim = job("claim", project="b", submitted=200, **HERE, **size)
    nodes = cluster(f"1x{len(pinned)}+1x{beside}")

    plan = decide(snapshot(nodes, [project("a", 0), project("b", wanted)], [*jobs, claim]))

    movers = min(wanted, pinned.count(False), beside)
    assert (len(moved(plan)), len(stopped(plan))) == (movers, wanted - movers)


# ---- R4: jobs that save take turns, and of the others the last started goes


def given(name: str, *, saves: bool = True, started: int | None = 100, **fields: Any) -> Workload:
    """Return a job of `a` that runs on the device in its name."""
    places = " ".join(f"n1:{digit}" for digit in name if digit.isdigit())
    return job(name, workers=len(places.split()), on=places, saves=saves, started=started, **fields)


IN_TURN: dict[str, tuple[list[Workload], str]] = {
    "the longest run, not the latest submitted": (
        [given("a0", started=500), given("a1"), given("a2", started=900)],
        "a1",
    ),
    "one that saves before one that loses its work": (
        [given("a0", saves=False), given("a1", started=900), given("a2", saves=False)],
        "a1",
    ),
    "a known checkpoint is no promise to save": (
        [given("a0", checkpointed=5, saves=False), given("a1"), given("a2", started=900)],
        "a1",
    ),
    "without saving the last started, which loses least": (
        [
            given("a0", saves=False, started=940, submitted=1),
            given("a1", saves=False, submitted=2),
            given("a2", saves=False, started=500, submitted=3),
        ],
        "a0",
    ),
    "without saving, of equal starts, the latest submitted": (
        [given("a0", saves=False, submitted=3), given("a1", saves=False, submitted=2)],
        "a0",
    ),
    "without saving an unknown start counts as now": (
        [given("a0", saves=False, started=None), given("a1", saves=False, started=999)],
        "a0",
    ),
    "the least known loss, not the last started": (
        [
            given("a0", saves=False, started=100, checkpointed=900),
            given("a1", saves=False, started=900, checkpointed=500),
        ],
        "a0",
    ),
    "of equal known losses the last started": (
        [
            given("a0", saves=False, started=400, checkpointed=500),
            given("a1", saves=False, started=100, checkpointed=500),
        ],
        "a0",
    ),
    "surplus of the latest submitted, whatever started last": (
        [
            given("a01", saves=False, started=900, min_workers=1, submitted=1),
            given("a23", saves=False, started=100, min_workers=1, submitted=2),
        ],
        "a23",
    ),
    "of equal starts the latest submitted": (
        [given("a0", submitted=3), given("a1", submitted=2), given("a2", submitted=1)],
        "a0",
    ),
    "of equal starts and ages the last by name": ([given("a0"), given("a1")], "a1"),
    "the lowest priority goes first all the same": (
        [given("a0", started=0), given("a1", saves=False, priority=25)],
        "a1",
    ),
    "surplus goes before a whole workload all the same": (
        [given("a0", started=0), given("a12", saves=False, min_workers=1)],
        "a12",
    ),
    "an unknown start counts as now": (
        [given("a0", started=None), given("a1", started=999)],
        "a1",
    ),
    "a start at this second is as late as an unknown one": (
        [given("a0", started=1000, submitted=1), given("a1", started=None, submitted=2)],
        "a1",
    ),
}


@pytest.mark.parametrize(("jobs", "expected"), IN_TURN.values(), ids=IN_TURN)
@pytest.mark.parametrize("by_index", [False, True], ids=["snapshot", "index"])
def test_a_project_gives_its_jobs_back_in_order(
    jobs: list[Workload], expected: str, *, by_index: bool
) -> None:
    held = sum(len(workload.workers) for workload in jobs)
    world = snapshot(
        f"1x{held}", [project("a", held - 1), project("b", 1)], [*jobs, job("new", 1, "b")]
    )
    plan = decide(world)
    if by_index:
        index = ClusterIndex(replace(world, now=10))
        decide(index)
        index.apply(SnapshotChanges(now=world.now))
        plan = decide(index)

    assert {worker.rpartition("-")[0] for worker in stopped(plan)} == {expected}


@pytest.mark.parametrize(
    ("saves", "expected"), [(True, {"a2-0"}), (False, {"a01-0", "a01-1"})], ids=["saves", "not"]
)
def test_a_gang_has_run_since_its_youngest_worker_started(
    *, saves: bool, expected: set[str]
) -> None:
    gang = given("a01", started=100, saves=saves)
    old, young = gang.workers
    gang = replace(gang, workers=(old, replace(young, started=900)))
    jobs = [gang, given("a2", started=500, saves=saves), job("new", 1, "b")]
    world = snapshot("1x3", [project("a", 2), project("b", 1)], jobs)

    assert stopped(decide(world)) == expected


def test_explanations_and_the_search_for_victims_have_one_order() -> None:
    jobs = [
        given("a0", started=500),
        given("a1"),
        given("a2", saves=False, checkpointed=7),
        given("a3", saves=False, submitted=9),
        given("a4", saves=False, started=900),
    ]
    world = snapshot("1x5", [project("a", 0), project("b", 0)], [*jobs, job("new", 2, "b")])
    seen = HolderAllocations(world, Plan(), world.workloads[-1])

    told = [held.workload.name for held in max(seen.sets_of(seen.allocations[0].project), key=len)]
    item_of = PlanningState(world, tree_of(world)).by_name
    victims = [v for w in jobs for v in victims_of(item_of[w.name], world.now)]
    victims.sort(key=lambda victim: victim.key, reverse=True)

    assert told == [victim.planned.name for victim in victims] == ["a1", "a0", "a2", "a4", "a3"]

"""Victim selection (R4): the project furthest over, judged anew after each; only useful victims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
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
from runai.hub_service.scheduler.state.victims import victims_of


def running_jobs(owner: str, node: str, *devices: int) -> list[Workload]:
    """Return running one-GPU jobs of a project, the oldest first."""
    return [job(f"{owner}{d}", project=owner, on=f"{node}:{d}") for d in devices]


def test_projects_equally_far_over_quota_lose_jobs_in_turn() -> None:
    # a is 3 over, b is 2: first a3 stops. Then both are 2 over: b6 stops as the younger, then a2.
    projects = [project("a", 1), project("b", 1), project("c", 5)]
    jobs = [
        *running_jobs("a", "n1", 0, 1, 2, 3),
        *running_jobs("b", "n1", 4, 5, 6),
        job("new", 1, "c", workers=3),
    ]

    assert stopped(decide(snapshot("1x7", projects, jobs))) == {"a3-0", "a2-0", "b6-0"}


def test_reclaim_stops_a_job_of_the_project_furthest_over_quota_first() -> None:
    projects = [project("a", 1), project("b", 1), project("c", 5)]
    jobs = [
        *running_jobs("a", "n1", 0, 1, 2),
        *running_jobs("b", "n1", 3, 4, 5, 6),
        job("new", 1, "c"),
    ]

    assert stopped(decide(snapshot("1x7", projects, jobs))) == {"b6-0"}


def test_child_project_furthest_over_quota_loses_jobs_first() -> None:
    projects = [
        parent("lab"),
        *[project(name, 1, parent="lab") for name in ("x", "y", "z")],
        project("owner", 3),
    ]
    jobs = [
        *running_jobs("x", "n1", 0),
        *running_jobs("y", "n1", 1, 2, 3),
        *running_jobs("z", "n1", 4, 5),
    ]

    cluster_snapshot = snapshot("1x6", projects, [*jobs, job("new", 1, "owner", workers=2)])

    # y is over by two and z by one; then they are equal, and z's job is the younger.
    assert stopped(decide(cluster_snapshot)) == {"y3-0", "z5-0"}


def two_gpu_node() -> list[Node]:
    """Make a node of two GPUs, 8 cores and 8000 MiB."""
    (node,) = cluster("1x2")
    return [replace(node, cpu_milli=8000, memory_mib=Mib(8000))]


MISSING = {
    "CPU: job that uses CPU": (
        [job("cpu", 0, cpu_milli=8000, on="n1:"), job("gpu", 1, on="n1:0")],
        job("new", 1, "b", cpu_milli=4000),
        {"cpu-0"},
    ),
    "memory: job that uses memory": (
        [job("memory", 0, memory_mib=Mib(8000), on="n1:"), job("gpu", 1, on="n1:0")],
        job("new", 1, "b", memory_mib=Mib(4000)),
        {"memory-0"},
    ),
    "GPU: not the job that uses only CPU": (
        [job("gpus", 2, on="n1:0,1"), job("cpu", 0, cpu_milli=4000, on="n1:")],
        job("new", 1, "b", cpu_milli=4000),
        {"gpus-0"},
    ),
    "none: exactly enough CPU and memory": (
        [job("cpu", 0, cpu_milli=4000, memory_mib=Mib(4000), on="n1:"), job("gpu", 1, on="n1:0")],
        job("new", 1, "b", cpu_milli=4000, memory_mib=Mib(4000)),
        set(),
    ),
    "GPU and CPU": (
        [job("cpu", 0, cpu_milli=8000, on="n1:"), *[job(f"g{i}", on=f"n1:{i}") for i in (0, 1)]],
        job("new", 1, "b", cpu_milli=4000),
        {"g1-0", "cpu-0"},
    ),
}


@pytest.mark.parametrize(("existing", "new", "expected"), MISSING.values(), ids=MISSING)
def test_reclaim_stops_only_workloads_that_hold_the_missing_resource(
    existing: list[Workload], new: Workload, expected: set[str]
) -> None:
    projects = [project("a", 0, weight=0), project("b", 2)]

    assert stopped(decide(snapshot(two_gpu_node(), projects, [*existing, new]))) == expected


# ---- R5: of equal victims the one that can go on elsewhere moves


def running_job(name: str, device: str, submitted: int, **fields: Any) -> Workload:
    """Return a running job of `a`, which owns no quota."""
    return job(name, fields.pop("gpus", 1), on=f"n1:{device}", submitted=submitted, **fields)


PINNED_TO_N1: dict[str, Any] = {"nodes": ("n1",)}
MOVABLE: dict[str, tuple[str, list[Workload], str, str]] = {
    "older moves if the younger fits nowhere else": (
        "1x2+1x1",
        [running_job("pinned", "0", 2, **PINNED_TO_N1), running_job("free", "1", 1)],
        "free",
        "move",
    ),
    "younger moves if both fit elsewhere": (
        "1x2+1x1",
        [running_job("young", "0", 2), running_job("old", "1", 1)],
        "young",
        "move",
    ),
    "first started moves if the last started fits nowhere else": (
        "1x2+1x1",
        [
            running_job("pinned", "0", 1, started=900, **PINNED_TO_N1),
            running_job("free", "1", 2, started=100),
        ],
        "free",
        "move",
    ),
    "youngest of those that fit elsewhere moves": (
        "1x3+1x1",
        [
            running_job("pinned", "0", 3, **PINNED_TO_N1),
            running_job("old", "1", 1),
            running_job("free", "2", 2),
        ],
        "free",
        "move",
    ),
    "younger stops if no GPU is idle elsewhere": (
        "1x2",
        [running_job("pinned", "0", 2, **PINNED_TO_N1), running_job("free", "1", 1)],
        "pinned",
        "stop",
    ),
    "job moves before a session stops": (
        "1x2+1x1",
        [
            session("ana-s", on="n1:0", preemptible=True, priority=50, submitted=2),
            running_job("free", "1", 1),
        ],
        "free",
        "move",
    ),
    "younger job stops before an older session": (
        "1x2+1x1",
        [
            running_job("pinned", "0", 2, **PINNED_TO_N1),
            session("ana-s", on="n1:1", preemptible=True, priority=50, submitted=1),
        ],
        "pinned",
        "stop",
    ),
    "younger stops if the movable job has higher priority": (
        "1x2+1x1",
        [running_job("pinned", "0", 2, **PINNED_TO_N1), running_job("free", "1", 1, priority=60)],
        "pinned",
        "stop",
    ),
    "younger stops if the movable job holds more GPUs": (
        "1x3+1x2",
        [running_job("pinned", "0", 2, **PINNED_TO_N1), running_job("free", "1,2", 1, gpus=2)],
        "pinned",
        "stop",
    ),
    "younger stops if the movable job loses more work": (
        "1x2+1x1",
        [
            running_job("pinned", "0", 2, checkpointed=900, **PINNED_TO_N1),
            running_job("free", "1", 1, checkpointed=500),
        ],
        "pinned",
        "stop",
    ),
    "younger stops if the movable job is of another project": (
        "1x2+1x1",
        [running_job("pinned", "0", 2, **PINNED_TO_N1), running_job("free", "1", 1, project="c")],
        "pinned",
        "stop",
    ),
}


@pytest.mark.parametrize(("shape", "jobs", "expected", "kind"), MOVABLE.values(), ids=MOVABLE)
def test_reclaim_prefers_among_equal_victims_the_job_that_can_move(
    shape: str, jobs: list[Workload], expected: str, kind: str
) -> None:
    projects = [project("a", 0), project("b", 1), project("c", 1)]
    plan = decide(snapshot(shape, projects, [*jobs, job("new", 1, "b", **PINNED_TO_N1)]))

    assert [(d.kind, d.workload) for d in plan.decisions if d.kind in {"move", "stop"}] == [
        (kind, expected)
    ]


def test_two_reclaim_victims_do_not_move_to_the_same_idle_gpu() -> None:
    # One GPU is idle on n2: one of the free jobs moves there, the other is no better there.
    jobs = [
        running_job("free0", "0", 1),
        running_job("free1", "1", 2),
        running_job("pinned2", "2", 3, **PINNED_TO_N1),
        running_job("pinned3", "3", 4, **PINNED_TO_N1),
    ]
    projects = [project("a", 0), project("b", 2)]
    plan = decide(snapshot("1x4+1x1", projects, [*jobs, job("new", 2, "b", **PINNED_TO_N1)]))

    assert {(d.kind, d.workload) for d in plan.decisions if d.kind in {"move", "stop"}} == {
        ("move", "free1"),
        ("stop", "pinned3"),
    }


@given(
    pinned=st.lists(st.booleans(), min_size=1, max_size=6),
    idle_gpus=st.integers(0, 3),
    claimed_gpus=st.integers(1, 6),
    as_gang=st.booleans(),
    ages=st.randoms(use_true_random=False),
)
def test_reclaim_moves_as_many_equal_victims_as_idle_gpus_allow(
    pinned: list[bool], idle_gpus: int, claimed_gpus: int, ages: Any, *, as_gang: bool
) -> None:
    claimed_gpus = min(claimed_gpus, len(pinned))
    order = ages.sample(range(1, 100), len(pinned))
    jobs = [
        running_job(f"j{i}", str(i), order[i], **(PINNED_TO_N1 if is_pinned else {}))
        for i, is_pinned in enumerate(pinned)
    ]
    size: dict[str, Any] = {"workers": claimed_gpus} if as_gang else {"gpus": claimed_gpus}
    claim = job("claim", project="b", submitted=200, **PINNED_TO_N1, **size)
    nodes = cluster(f"1x{len(pinned)}+1x{idle_gpus}")

    plan = decide(snapshot(nodes, [project("a", 0), project("b", claimed_gpus)], [*jobs, claim]))

    movers = min(claimed_gpus, pinned.count(False), idle_gpus)
    assert len(moved(plan)) == movers
    assert len(stopped(plan)) == claimed_gpus - movers


# ---- R4: jobs that save take turns, and of the others the last started goes


def job_on_named_devices(
    name: str, *, saves: bool = True, started: int | None = 100, **fields: Any
) -> Workload:
    """Return a job of `a` that runs on the device in its name."""
    places = " ".join(f"n1:{digit}" for digit in name if digit.isdigit())
    return job(name, workers=len(places.split()), on=places, saves=saves, started=started, **fields)


VICTIM_ORDER: dict[str, tuple[list[Workload], str]] = {
    "longest run, not latest submitted": (
        [
            job_on_named_devices("a0", started=500),
            job_on_named_devices("a1"),
            job_on_named_devices("a2", started=900),
        ],
        "a1",
    ),
    "job that saves first": (
        [
            job_on_named_devices("a0", saves=False),
            job_on_named_devices("a1", started=900),
            job_on_named_devices("a2", saves=False),
        ],
        "a1",
    ),
    "job with a checkpoint that does not save": (
        [
            job_on_named_devices("a0", checkpointed=5, saves=False),
            job_on_named_devices("a1"),
            job_on_named_devices("a2", started=900),
        ],
        "a1",
    ),
    "not saving: last started": (
        [
            job_on_named_devices("a0", saves=False, started=940, submitted=1),
            job_on_named_devices("a1", saves=False, submitted=2),
            job_on_named_devices("a2", saves=False, started=500, submitted=3),
        ],
        "a0",
    ),
    "not saving, equal starts: latest submitted": (
        [
            job_on_named_devices("a0", saves=False, submitted=3),
            job_on_named_devices("a1", saves=False, submitted=2),
        ],
        "a0",
    ),
    "not saving: unknown start counts as now": (
        [
            job_on_named_devices("a0", saves=False, started=None),
            job_on_named_devices("a1", saves=False, started=999),
        ],
        "a0",
    ),
    "not saving: latest checkpoint": (
        [
            job_on_named_devices("a0", saves=False, started=100, checkpointed=900),
            job_on_named_devices("a1", saves=False, started=900, checkpointed=500),
        ],
        "a0",
    ),
    "not saving, equal checkpoints: last started": (
        [
            job_on_named_devices("a0", saves=False, started=400, checkpointed=500),
            job_on_named_devices("a1", saves=False, started=100, checkpointed=500),
        ],
        "a0",
    ),
    "surplus: latest submitted": (
        [
            job_on_named_devices("a01", saves=False, started=900, min_workers=1, submitted=1),
            job_on_named_devices("a23", saves=False, started=100, min_workers=1, submitted=2),
        ],
        "a23",
    ),
    "equal starts: latest submitted": (
        [
            job_on_named_devices("a0", submitted=3),
            job_on_named_devices("a1", submitted=2),
            job_on_named_devices("a2", submitted=1),
        ],
        "a0",
    ),
    "equal starts and ages: last by name": (
        [job_on_named_devices("a0"), job_on_named_devices("a1")],
        "a1",
    ),
    "lowest priority before longest run": (
        [
            job_on_named_devices("a0", started=0),
            job_on_named_devices("a1", saves=False, priority=25),
        ],
        "a1",
    ),
    "surplus before longest run": (
        [
            job_on_named_devices("a0", started=0),
            job_on_named_devices("a12", saves=False, min_workers=1),
        ],
        "a12",
    ),
    "unknown start counts as now": (
        [job_on_named_devices("a0", started=None), job_on_named_devices("a1", started=999)],
        "a1",
    ),
    "start now equals an unknown start": (
        [
            job_on_named_devices("a0", started=1000, submitted=1),
            job_on_named_devices("a1", started=None, submitted=2),
        ],
        "a1",
    ),
}


@pytest.mark.parametrize(("jobs", "expected"), VICTIM_ORDER.values(), ids=VICTIM_ORDER)
@pytest.mark.parametrize("by_index", [False, True], ids=["snapshot", "index"])
def test_reclaim_stops_jobs_of_a_project_in_victim_order(
    jobs: list[Workload], expected: str, *, by_index: bool
) -> None:
    device_count = sum(len(workload.workers) for workload in jobs)
    cluster_snapshot = snapshot(
        f"1x{device_count}",
        [project("a", device_count - 1), project("b", 1)],
        [*jobs, job("new", 1, "b")],
    )
    plan = decide(cluster_snapshot)
    if by_index:
        # An earlier cycle at 10: the order must follow the time of the later one.
        index = ClusterIndex(replace(cluster_snapshot, now=10))
        decide(index)
        index.apply(SnapshotChanges(now=cluster_snapshot.now))
        plan = decide(index)

    assert {worker.rpartition("-")[0] for worker in stopped(plan)} == {expected}


@pytest.mark.parametrize(
    ("saves", "expected"), [(True, {"a2-0"}), (False, {"a01-0", "a01-1"})], ids=["saves", "loses"]
)
def test_victim_order_measures_the_run_time_of_a_gang_from_its_youngest_worker(
    *, saves: bool, expected: set[str]
) -> None:
    gang = job_on_named_devices("a01", started=100, saves=saves)
    old, young = gang.workers
    gang = replace(gang, workers=(old, replace(young, started=900)))
    jobs = [gang, job_on_named_devices("a2", started=500, saves=saves), job("new", 1, "b")]
    cluster_snapshot = snapshot("1x3", [project("a", 2), project("b", 1)], jobs)

    assert stopped(decide(cluster_snapshot)) == expected


def test_explanations_list_victims_in_the_order_of_the_reclaim_search() -> None:
    jobs = [
        job_on_named_devices("a0", started=500),
        job_on_named_devices("a1"),
        job_on_named_devices("a2", saves=False, checkpointed=7),
        job_on_named_devices("a3", saves=False, submitted=9),
        job_on_named_devices("a4", saves=False, started=900),
    ]
    cluster_snapshot = snapshot(
        "1x5", [project("a", 0), project("b", 0)], [*jobs, job("new", 2, "b")]
    )
    holders = HolderAllocations(cluster_snapshot, Plan(), cluster_snapshot.workloads[-1])

    explained_order = [
        allocation.workload.name
        for allocation in max(holders.sets_of(holders.allocations[0].project), key=len)
    ]
    planned_by_name = PlanningState(cluster_snapshot, tree_of(cluster_snapshot)).by_name
    victims = [v for w in jobs for v in victims_of(planned_by_name[w.name], cluster_snapshot.now)]
    victims.sort(key=lambda victim: victim.key, reverse=True)

    assert (
        explained_order
        == [victim.planned.name for victim in victims]
        == ["a1", "a0", "a2", "a4", "a3"]
    )

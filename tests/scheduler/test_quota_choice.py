"""The quota entry that a workload is charged to, and the entry's GPU types (Q4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import job, places, project, requesting, reserved, session, snapshot, typed_project
from runai.hub_service.scheduler import Mib, MilliGpu, Node, Project, Worker, Workload, decide
from runai.hub_service.scheduler.state.project_tree import ProjectNode, ProjectTree
from runai.hub_service.scheduler.state.quota_by_type import (
    candidates,
    reset_and_group,
    types_of,
    within,
)

TYPE_OF_NODE = {"n1": "a100", "n2": "h100", "n3": "t4", "n4": "v100"}
FOUR_GPU_NODES = [Node(name=n, devices=4, gpu_type=t) for n, t in TYPE_OF_NODE.items()]


def parts_of(*projects: Project) -> dict[str | None, ProjectNode]:
    """Return the quota entries of the first project by GPU type."""
    account = ProjectTree(projects).projects[projects[0].name]
    return {part.gpu_type: part for part in account.parts}


X_H100_A100_STAR = typed_project("x", {"h100": 1, "a100": 2, "*": 3})


def test_quota_table_has_a_part_for_each_gpu_type_entry_and_for_other_types() -> None:
    parts = parts_of(typed_project("x", {"a100": 2, "h100": None}, created=7))

    assert {t: (p.name, p.is_unlimited, p.age[0]) for t, p in parts.items()} == {
        "a100": ("x on a100", False, 7),
        "h100": ("x on h100", True, 7),
        "*": ("x on other GPUs", False, 7),
    }
    # Other GPUs have no quota, a100 has 2 GPUs, and an unlimited quota weighs 1 GPU.
    assert [p.weight for p in parts.values()] == [0, 2000, 1000]


@pytest.mark.parametrize(
    ("gpu_type", "expected"),
    [("a100", {"a100"}), ("h100", {"h100"}), ("*", {"t4", "v100"})],
)
def test_quota_table_part_covers_the_gpu_types_of_its_entry(
    gpu_type: str, expected: set[str]
) -> None:
    part = parts_of(X_H100_A100_STAR)[gpu_type]

    assert types_of(part, TYPE_OF_NODE.values()) == expected
    # A type that the table does not name belongs to the entry "*".
    assert types_of(part, ["b200"]) == ({"b200"} if gpu_type == "*" else set())


def test_project_without_a_quota_table_covers_all_gpu_types() -> None:
    account = ProjectTree([project("y", 1)]).projects["y"]

    assert types_of(account, TYPE_OF_NODE.values()) == set(TYPE_OF_NODE.values())


def mixed_gang(*gpu_types: str) -> Workload:
    """Make a gang with one worker for each of the GPU types."""
    gang = job("j", 1, "x", workers=len(gpu_types))
    workers = zip(gang.workers, gpu_types, strict=True)
    return replace(gang, workers=tuple(replace(w, gpu_types=(t,)) for w, t in workers))


CANDIDATES: dict[str, tuple[Workload, list[str]]] = {
    "no requested type: other GPUs, then types by name": (job("j"), ["*", "a100", "h100"]),
    "requested type": (requesting("h100", job("j")), ["h100"]),
    "gang whose types belong to one part": (mixed_gang("t4", "v100"), ["*"]),
    "gang whose types belong to two parts": (mixed_gang("t4", "a100"), ["*"]),
    "running job": (job("j", on="n1:0"), ["a100"]),
    "gang with one running worker": (job("j", workers=2, on="n3:0"), ["*"]),
    "job on a removed node": (job("j", on="removed:0"), ["*", "a100", "h100"]),
    "job without a GPU": (job("j", 0), ["*"]),
    "memory request of a type": (requesting("a100", job("j", gpu_memory_mib=Mib(100))), ["a100"]),
}


@pytest.mark.parametrize(("workload", "expected"), CANDIDATES.values(), ids=CANDIDATES)
def test_candidate_quota_parts_match_the_gpu_types_of_the_workload(
    workload: Workload, expected: list[str]
) -> None:
    account = ProjectTree([X_H100_A100_STAR]).projects["x"]

    assert [part.gpu_type for part in candidates(account, workload, TYPE_OF_NODE)] == expected


def test_quota_part_for_a_gpu_type_without_a_node_is_no_candidate() -> None:
    account = ProjectTree([X_H100_A100_STAR]).projects["x"]

    candidate_parts = candidates(account, job("j"), {"n1": "a100"})
    assert [part.gpu_type for part in candidate_parts] == ["a100"]


WITHIN: dict[str, tuple[Worker, str, tuple[str, ...], tuple[str, ...] | None]] = {
    "no requested type": (Worker(name="w", gpus=MilliGpu(1000)), "*", ("t4", "v100"), None),
    "requested types inside and outside the part": (
        Worker(name="w", gpus=MilliGpu(1000), gpu_types=("v100", "a100")),
        "*",
        ("v100",),
        None,
    ),
    "requested type outside the part": (
        Worker(name="w", gpus=MilliGpu(1000), gpu_types=("a100",)),
        "*",
        ("a100",),
        (),
    ),
    "memory request": (
        Worker(name="w", gpu_memory_mib=Mib(100)),
        "a100",
        ("a100",),
        None,
    ),
    "worker without a GPU": (Worker(name="w"), "a100", (), None),
}


@pytest.mark.parametrize(("worker", "part_type", "types", "nodes"), WITHIN.values(), ids=WITHIN)
def test_worker_is_restricted_to_the_gpu_types_of_its_quota_part(
    worker: Worker, part_type: str, types: tuple[str, ...], nodes: tuple[str, ...] | None
) -> None:
    restricted = within(parts_of(X_H100_A100_STAR)[part_type], worker, TYPE_OF_NODE.values())

    # Without nodes (None) any node is allowed; with an empty tuple, none.
    assert (restricted.gpu_types, restricted.nodes) == (types, nodes)


CAPACITY_BY_TYPE = {"a100": 4000, "t4": 2000, "v100": 1000}


def share_groups(
    projects: list[Project], requested: dict[str, int], *, capacity: int
) -> list[tuple[list[str], int]]:
    tree = ProjectTree(projects)
    for root in tree.roots:
        for account in root.parts or [root]:
            account.requested = requested.get(account.name, 0)
            account.fair_share = 5  # left from an earlier cycle, to be reset
    groups = reset_and_group(tree.roots, capacity, CAPACITY_BY_TYPE)
    for root in tree.roots:
        assert {part.fair_share for part in root.parts or [root]} == {0}
    return [([account.name for account in accounts], milli) for accounts, milli in groups]


Y_A100_STAR = typed_project("y", {"a100": 1, "*": 1})
Z_A100_STAR = typed_project("z", {"a100": 1, "*": 1})


def test_gpu_types_in_all_quota_tables_are_shared_separately() -> None:
    requested = {"z on a100": 1, "y on a100": 1, "y on other GPUs": 1}

    # The cluster has 4 a100, 2 t4 and 1 v100, in milli-GPU.
    assert share_groups([Y_A100_STAR, Z_A100_STAR], requested, capacity=7000) == [
        (["y on other GPUs"], 3000),
        (["y on a100", "z on a100"], 4000),
    ]


def test_project_without_a_table_merges_gpu_types_while_it_requests_gpus() -> None:
    requested = {"y on a100": 1, "y on other GPUs": 1}
    projects = [Y_A100_STAR, project("w", 1)]

    assert share_groups(projects, requested | {"w": 1}, capacity=7000) == [
        (["w", "y on a100", "y on other GPUs"], 7000)
    ]
    assert share_groups(projects, requested, capacity=7000) == [
        (["y on other GPUs"], 3000),
        (["y on a100"], 4000),
    ]


def test_quota_parts_share_no_more_than_the_capacity_of_their_project() -> None:
    requested = {"y on a100": 1, "y on other GPUs": 1}

    assert share_groups([Y_A100_STAR], requested, capacity=3500) == [
        (["y on other GPUs"], 3000),
        (["y on a100"], 500),
    ]


# ---- in a cluster


def fill_gpus(node: str) -> list[Workload]:
    return [job(f"{node}-{i}", 1, "y", on=f"{node}:{i}") for i in range(4)]


ONE_GPU_NODES = [replace(node, devices=1) for node in FOUR_GPU_NODES[2:]]
"""Two nodes of other types with one device each."""

PLACES: dict[str, tuple[list[Node], list[Workload], dict[str, str]]] = {
    "exactly enough idle GPUs": (FOUR_GPU_NODES, [job("j", 4, "x")], {"j-0": "n3:0,1,2,3"}),
    "second job after the other GPUs are used up": (
        FOUR_GPU_NODES[:1] + FOUR_GPU_NODES[2:3],
        [job("j", 3, "x"), job("k", 2, "x")],
        {"j-0": "n3:0,1,2", "k-0": "n1:0,1"},
    ),
    "a100 node where no node of other types has room": (
        [*FOUR_GPU_NODES[:2], *ONE_GPU_NODES],
        [job("j", 2, "x")],
        {"j-0": "n1:0,1"},
    ),
    "h100 node where the a100 node is full": (
        [*FOUR_GPU_NODES[:2], *ONE_GPU_NODES],
        [*fill_gpus("n1"), job("j", 2, "x")],
        {"j-0": "n2:0,1"},
    ),
}


@pytest.mark.parametrize(("nodes", "workloads", "expected"), PLACES.values(), ids=PLACES)
def test_workload_starts_on_a_gpu_type_with_enough_idle_gpus(
    nodes: list[Node], workloads: list[Workload], expected: dict[str, str]
) -> None:
    owners = [X_H100_A100_STAR, project("y", 0)]

    assert places(decide(snapshot(nodes, owners, workloads))) == expected


def test_quota_claims_reclaim_up_to_the_quota_of_each_gpu_type() -> None:
    # x may claim one a100 and one other GPU, so that the third of its jobs waits.
    owner = typed_project("x", {"a100": 1, "*": 1}, weight=0)
    cluster_snapshot = snapshot(
        [FOUR_GPU_NODES[0], FOUR_GPU_NODES[2]],
        [owner, typed_project("y", {})],
        [*fill_gpus("n1"), *fill_gpus("n3"), *[job(f"j{i}", 1, "x") for i in range(3)]],
    )
    plan = decide(cluster_snapshot)

    assert reserved(plan) == {"j0-0", "j1-0"}
    assert {place.partition(":")[0] for place in places(plan).values()} == {"n1", "n3"}


# ---- P5: types in order of preference


def claim_for(*gpu_types: str, gpus: float = 1, **fields: Any) -> Workload:
    """Make a job that prefers GPU types in this order."""
    return job("new", gpus, "x", gpu_types=gpu_types, **fields)


def fill_node(node: str, owner: str = "x") -> Workload:
    """Fill a node of four GPUs."""
    return job(f"on-{node}", 4, owner, on=f"{node}:0,1,2,3")


PREFERRED: dict[str, tuple[Project, list[Workload], str | None]] = {
    "first preferred type": (project("x", 9), [claim_for("h100", "a100")], "n2"),
    "preference order, not by name": (project("x", 9), [claim_for("t4", "a100", "h100")], "n3"),
    "next type where the first is busy": (
        project("x", 9),
        [fill_node("n2"), claim_for("h100", "t4", "a100")],
        "n3",
    ),
    "next type where the first lacks CPU": (
        project("x", 9),
        [
            session("u-cpu", 0, "x", on="n2:", cpu_milli=8000),
            claim_for("h100", "a100", cpu_milli=4000),
        ],
        "n1",
    ),
    "next type if the first is missing": (project("x", 9), [claim_for("b200", "t4")], "n3"),
    "emptier node of the first type before fuller node of the next": (
        project("x", 9),
        [job("there", 3, "x", on="n1:0,1,2"), claim_for("h100", "a100")],
        "n2",
    ),
    "gang on one type": (
        project("x", 9),
        [job("there", 3, "x", on="n2:0,1,2"), claim_for("h100", "a100", workers=2)],
        "n1",
    ),
    "first type with quota left": (
        typed_project("x", {"h100": 0, "a100": 2}),
        [claim_for("h100", "a100")],
        "n1",
    ),
    "preference order where both quotas have room": (
        typed_project("x", {"h100": 2, "a100": 2}),
        [claim_for("h100", "a100")],
        "n2",
    ),
    "preference order inside one quota entry": (
        typed_project("x", {"h100": 1, "*": 4}),
        [claim_for("v100", "t4")],
        "n4",
    ),
    "first type over its quota where neither quota has room": (
        typed_project("x", {"h100": 0, "a100": 0}),
        [claim_for("h100", "a100")],
        "n2",
    ),
    "no start where all types are busy": (
        project("x", 8),
        [fill_node("n1"), fill_node("n2"), claim_for("h100", "a100")],
        None,
    ),
}


@pytest.mark.parametrize(("owner", "jobs", "expected"), PREFERRED.values(), ids=PREFERRED)
def test_workload_starts_on_its_first_preferred_gpu_type_with_room(
    owner: Project, jobs: list[Workload], expected: str | None
) -> None:
    nodes = [replace(node, cpu_milli=8000) for node in FOUR_GPU_NODES]
    worker_places = places(decide(snapshot(nodes, [owner], jobs)))

    used_nodes = {
        place.partition(":")[0] for name, place in worker_places.items() if name.startswith("new")
    }
    assert used_nodes == ({expected} if expected else set())


def test_workload_that_cannot_start_reserves_gpus_of_any_preferred_type() -> None:
    # x holds four GPUs of its quota of five; y, without a quota, holds the a100 node n1.
    owners = [project("x", 5), project("y", 0)]
    jobs = [fill_node("n1", "y"), fill_node("n2", "x"), claim_for("h100", "a100")]

    plan = decide(snapshot(FOUR_GPU_NODES, owners, jobs))

    assert places(plan)["new-0"].startswith("n1:")

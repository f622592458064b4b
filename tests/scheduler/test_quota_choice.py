"""The quota entry that a workload is charged to, and the entry's GPU types (Q4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import job, places, project, requesting, reserved, session, snapshot, table
from runai.hub_service.scheduler import Mib, MilliGpu, Node, Project, Worker, Workload, decide
from runai.hub_service.scheduler.state.project_tree import ProjectNode, ProjectTree
from runai.hub_service.scheduler.state.quota_by_type import (
    candidates,
    reset_and_group,
    types_of,
    within,
)

TYPES = {"n1": "a100", "n2": "h100", "n3": "t4", "n4": "v100"}
NODES = [Node(name=name, devices=4, gpu_type=gpu_type) for name, gpu_type in TYPES.items()]


def parts_of(*projects: Project) -> dict[str | None, ProjectNode]:
    """Return the quota entries of the first project by GPU type."""
    account = ProjectTree(projects).projects[projects[0].name]
    return {part.gpu_type: part for part in account.parts}


X = table("x", {"h100": 1, "a100": 2, "*": 3})


def test_quota_table_has_a_part_for_each_gpu_type_entry_and_for_other_types() -> None:
    parts = parts_of(table("x", {"a100": 2, "h100": None}, created=7))

    assert {t: (p.name, p.quota >= 1 << 62, p.age[0]) for t, p in parts.items()} == {
        "a100": ("x on a100", False, 7),
        "h100": ("x on h100", True, 7),
        "*": ("x on other GPUs", False, 7),
    }
    assert [p.weight for p in parts.values()] == [0, 2000, 1000]


@pytest.mark.parametrize(
    ("gpu_type", "expected"),
    [("a100", {"a100"}), ("h100", {"h100"}), ("*", {"t4", "v100"})],
)
def test_quota_table_part_covers_the_gpu_types_of_its_entry(
    gpu_type: str, expected: set[str]
) -> None:
    assert types_of(parts_of(X)[gpu_type], TYPES.values()) == expected
    assert types_of(parts_of(X)[gpu_type], ["b200"]) == ({"b200"} if gpu_type == "*" else set())


def test_project_without_a_quota_table_covers_all_gpu_types() -> None:
    account = ProjectTree([project("y", 1)]).projects["y"]

    assert types_of(account, TYPES.values()) == set(TYPES.values())


def mixed(*gpu_types: str) -> Workload:
    """Make a gang with one worker for each of the GPU types."""
    gang = job("j", 1, "x", workers=len(gpu_types))
    workers = zip(gang.workers, gpu_types, strict=True)
    return replace(gang, workers=tuple(replace(w, gpu_types=(t,)) for w, t in workers))


CANDIDATES: dict[str, tuple[Workload, list[str]]] = {
    "any other first, then by name": (job("j"), ["*", "a100", "h100"]),
    "whose types it names": (requesting("h100", job("j")), ["h100"]),
    "where all of a gang may go": (mixed("t4", "v100"), ["*"]),
    "else any other, where it finds no node": (mixed("t4", "a100"), ["*"]),
    "where it is": (job("j", on="n1:0"), ["a100"]),
    "where the first of it is": (job("j", workers=2, on="n3:0"), ["*"]),
    "on a node that is gone it is nowhere": (job("j", on="gone:0"), ["*", "a100", "h100"]),
    "without a GPU it matters not": (job("j", 0), ["*"]),
    "of memory too": (requesting("a100", job("j", gpu_memory_mib=Mib(100))), ["a100"]),
}


@pytest.mark.parametrize(("workload", "expected"), CANDIDATES.values(), ids=list(CANDIDATES))
def test_candidate_quota_parts_match_the_gpu_types_of_the_workload(
    workload: Workload, expected: list[str]
) -> None:
    account = ProjectTree([X]).projects["x"]

    assert [part.gpu_type for part in candidates(account, workload, TYPES)] == expected


def test_quota_part_for_a_gpu_type_without_a_node_is_no_candidate() -> None:
    account = ProjectTree([X]).projects["x"]

    found = candidates(account, job("j"), {"n1": "a100"})
    assert [part.gpu_type for part in found] == ["a100"]


WITHIN: dict[str, tuple[Worker, str, tuple[str, ...], tuple[str, ...] | None]] = {
    "any of the part's types": (Worker(name="w", gpus=MilliGpu(1000)), "*", ("t4", "v100"), None),
    "those it asks for": (
        Worker(name="w", gpus=MilliGpu(1000), gpu_types=("v100", "a100")),
        "*",
        ("v100",),
        None,
    ),
    "no node where it asks for others": (
        Worker(name="w", gpus=MilliGpu(1000), gpu_types=("a100",)),
        "*",
        ("a100",),
        (),
    ),
    "memory of the part's types too": (
        Worker(name="w", gpu_memory_mib=Mib(100)),
        "a100",
        ("a100",),
        None,
    ),
    "anywhere without a GPU": (Worker(name="w"), "a100", (), None),
}


@pytest.mark.parametrize(
    ("worker", "gpu_type", "types", "nodes"), WITHIN.values(), ids=list(WITHIN)
)
def test_worker_is_restricted_to_the_gpu_types_of_its_quota_part(
    worker: Worker, gpu_type: str, types: tuple[str, ...], nodes: tuple[str, ...] | None
) -> None:
    restricted = within(parts_of(X)[gpu_type], worker, TYPES.values())

    assert (restricted.gpu_types, restricted.nodes) == (types, nodes)


def share_groups(
    projects: list[Project], requested: dict[str, int], capacity: int, by_type: dict[str, int]
) -> list[tuple[list[str], int]]:
    tree = ProjectTree(projects)
    for root in tree.roots:
        for account in root.parts or [root]:
            account.requested = requested.get(account.name, 0)
            account.fair_share = 5
    found = reset_and_group(tree.roots, capacity, by_type)
    for root in tree.roots:
        assert {part.fair_share for part in root.parts or [root]} == {0}
    return [([account.name for account in accounts], there) for accounts, there in found]


Y = table("y", {"a100": 1, "*": 1})
Z = table("z", {"a100": 1, "*": 1})
CLUSTER = {"a100": 4000, "t4": 2000, "v100": 1000}


def test_gpu_types_in_all_quota_tables_are_shared_separately() -> None:
    requested = {"z on a100": 1, "y on a100": 1, "y on other GPUs": 1}

    assert share_groups([Y, Z], requested, 7000, CLUSTER) == [
        (["y on other GPUs"], 3000),
        (["y on a100", "z on a100"], 4000),
    ]


def test_project_without_a_table_merges_gpu_types_while_it_requests_gpus() -> None:
    requested = {"y on a100": 1, "y on other GPUs": 1}
    both = [Y, project("w", 1)]

    assert share_groups(both, requested | {"w": 1}, 7000, CLUSTER) == [
        (["w", "y on a100", "y on other GPUs"], 7000)
    ]
    assert share_groups(both, requested, 7000, CLUSTER) == [
        (["y on other GPUs"], 3000),
        (["y on a100"], 4000),
    ]


def test_quota_parts_share_no_more_than_the_capacity_of_their_project() -> None:
    requested = {"y on a100": 1, "y on other GPUs": 1}

    assert share_groups([Y], requested, 3500, CLUSTER) == [
        (["y on other GPUs"], 3000),
        (["y on a100"], 500),
    ]


# ---- in a cluster


def full(node: str) -> list[Workload]:
    return [job(f"{node}-{i}", 1, "y", on=f"{node}:{i}") for i in range(4)]


WIDE = [replace(node, devices=1) for node in NODES[2:]]
"""Two nodes of other types with one device each."""

PLACES: dict[str, tuple[list[Node], list[Workload], dict[str, str]]] = {
    "as many as are idle are enough": (NODES, [job("j", 4, "x")], {"j-0": "n3:0,1,2,3"}),
    "one by one they are used up": (
        NODES[:1] + NODES[2:3],
        [job("j", 3, "x"), job("k", 2, "x")],
        {"j-0": "n3:0,1,2", "k-0": "n1:0,1"},
    ),
    "who finds no place there tries the next, and stays in the first that has": (
        [*NODES[:2], *WIDE],
        [job("j", 2, "x")],
        {"j-0": "n1:0,1"},
    ),
    "beyond one that is full": (
        [*NODES[:2], *WIDE],
        [*full("n1"), job("j", 2, "x")],
        {"j-0": "n2:0,1"},
    ),
}


@pytest.mark.parametrize(("nodes", "workloads", "expected"), PLACES.values(), ids=list(PLACES))
def test_workload_starts_on_a_gpu_type_with_enough_idle_gpus(
    nodes: list[Node], workloads: list[Workload], expected: dict[str, str]
) -> None:
    assert places(decide(snapshot(nodes, [X, project("y", 0)], workloads))) == expected


def test_quota_claims_reclaim_up_to_the_quota_of_each_gpu_type() -> None:
    owner = table("x", {"a100": 1, "*": 1}, weight=0)
    cluster_snapshot = snapshot(
        [NODES[0], NODES[2]],
        [owner, table("y", {})],
        [*full("n1"), *full("n3"), *[job(f"j{i}", 1, "x") for i in range(3)]],
    )
    plan = decide(cluster_snapshot)

    assert reserved(plan) == {"j0-0", "j1-0"}
    assert {place.partition(":")[0] for place in places(plan).values()} == {"n1", "n3"}


# ---- P5: types in order of preference


def preferring(*gpu_types: str, gpus: float = 1, **fields: Any) -> Workload:
    """Make a job that prefers GPU types in this order."""
    return job("new", gpus, "x", gpu_types=gpu_types, **fields)


def busy(node: str, owner: str = "x") -> Workload:
    """Fill a node of four GPUs."""
    return job(f"on-{node}", 4, owner, on=f"{node}:0,1,2,3")


PREFERRED: dict[str, tuple[Project, list[Workload], str | None]] = {
    "the first of them": (project("x", 9), [preferring("h100", "a100")], "n2"),
    "in their order, not by name": (project("x", 9), [preferring("t4", "a100", "h100")], "n3"),
    "the next where the first is busy": (
        project("x", 9),
        [busy("n2"), preferring("h100", "t4", "a100")],
        "n3",
    ),
    "the next where the first lacks CPU": (
        project("x", 9),
        [
            session("u-cpu", 0, "x", on="n2:", cpu_milli=8000),
            preferring("h100", "a100", cpu_milli=4000),
        ],
        "n1",
    ),
    "the next where the first does not exist": (project("x", 9), [preferring("b200", "t4")], "n3"),
    "the emptier of the first type, before a fuller node of the next": (
        project("x", 9),
        [job("there", 3, "x", on="n1:0,1,2"), preferring("h100", "a100")],
        "n2",
    ),
    "a gang on one type": (
        project("x", 9),
        [job("there", 3, "x", on="n2:0,1,2"), preferring("h100", "a100", workers=2)],
        "n1",
    ),
    "the first within its quota of that type": (
        table("x", {"h100": 0, "a100": 2}),
        [preferring("h100", "a100")],
        "n1",
    ),
    "in their order where the quotas of both have room": (
        table("x", {"h100": 2, "a100": 2}),
        [preferring("h100", "a100")],
        "n2",
    ),
    "in their order inside one entry": (
        table("x", {"h100": 1, "*": 4}),
        [preferring("v100", "t4")],
        "n4",
    ),
    "over its quota on the first, where neither has room": (
        table("x", {"h100": 0, "a100": 0}),
        [preferring("h100", "a100")],
        "n2",
    ),
    "none where all are busy": (
        project("x", 8),
        [busy("n1"), busy("n2"), preferring("h100", "a100")],
        None,
    ),
}


@pytest.mark.parametrize(("owner", "jobs", "expected"), PREFERRED.values(), ids=PREFERRED)
def test_workload_starts_on_its_first_preferred_gpu_type_with_room(
    owner: Project, jobs: list[Workload], expected: str | None
) -> None:
    nodes = [replace(node, cpu_milli=8000) for node in NODES]
    found = places(decide(snapshot(nodes, [owner], jobs)))

    used_nodes = {
        place.partition(":")[0] for name, place in found.items() if name.startswith("new")
    }
    assert used_nodes == ({expected} if expected else set())


def test_workload_that_cannot_start_reserves_gpus_of_any_preferred_type() -> None:
    owners = [project("x", 4), project("y", 0)]
    jobs = [busy("n1", "y"), busy("n2", "x"), preferring("h100", "a100")]

    plan = decide(snapshot(NODES, [replace(owners[0], quota=MilliGpu(5000)), owners[1]], jobs))

    assert places(plan)["new-0"].startswith("n1:")

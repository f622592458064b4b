"""Quotas by GPU type: each entry of a table is a separate guarantee (Q4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import (
    applied,
    asking,
    job,
    places,
    project,
    reserved,
    sentence,
    session,
    snapshot,
    started,
    stopped,
    table,
    waits,
)
from runai.hub_service.scheduler import (
    Node,
    Project,
    Workload,
    decide,
    oversubscribed,
)

NODES = [
    Node(name="n1", devices=4, gpu_type="a100"),
    Node(name="n2", devices=4, gpu_type="t4"),
]


def singles(count: int, owner: str, node: str, *, first: int = 0) -> list[Workload]:
    """Make running one-GPU jobs, one for each device."""
    return [
        job(f"{owner}-{node}-{i}", 1, owner, on=f"{node}:{i}") for i in range(first, first + count)
    ]


X = table("x", {"a100": 2, "*": 2})
Y = table("y", {"a100": 2, "*": 2})


# ---- S, R2: a guarantee of a type is honoured by reclaiming on that type


RECLAIMS: dict[str, tuple[list[Project], list[Workload], set[str]]] = {
    "who is over on a type gives back there, though it is within its sum": (
        [X, Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "who is within on a type keeps it, though it is over elsewhere": (
        [X, Y],
        [
            *singles(2, "x", "n1"),
            *singles(4, "x", "n2"),
            *singles(2, "y", "n1", first=2),
            asking("a100", job("new", 1, "y")),
        ],
        set(),
    ),
    "and gives back where it is over": (
        [X, Y],
        [*singles(2, "x", "n1"), *singles(4, "x", "n2"), asking("t4", job("new", 2, "y"))],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "a type that is named has no part in any other": (
        [table("x", {"a100": 0, "*": 4}), Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "a table without any other guarantees nothing of the rest": (
        [table("x", {"a100": 4}), Y],
        [*singles(4, "x", "n2"), asking("t4", job("new", 2, "y"))],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "an unlimited entry is never over its quota": (
        [table("x", {"a100": None}), Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        set(),
    ),
    "a project with one number is judged as a whole": (
        [project("x", 4), Y],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        set(),
    ),
    "and takes back what is over of a type": (
        [X, project("y", 4)],
        [*singles(4, "x", "n1"), asking("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "whoever may use both types takes back where its quota has room": (
        [X, Y],
        [*singles(4, "x", "n1"), *singles(4, "y", "n2"), job("new", 1, "y")],
        {"x-n1-3-0"},
    ),
    "a priority goes first within a part": (
        [table("x", {"a100": 4})],
        [*singles(4, "x", "n1"), asking("a100", job("new", 1, "x", priority=90))],
        {"x-n1-3-0"},
    ),
}


@pytest.mark.parametrize(("projects", "there", "expected"), RECLAIMS.values(), ids=list(RECLAIMS))
def test_a_guarantee_is_one_of_a_type(
    projects: list[Project], there: list[Workload], expected: set[str]
) -> None:
    world = snapshot(NODES, projects, there, quota_moves=False)
    plan = decide(world)

    assert stopped(plan) == expected
    assert reserved(plan) == ({"new-0"} if expected else set())
    assert started(decide(applied(world, plan))) >= ({"new-0"} if expected else set())


def test_the_sum_of_a_table_stands_in_the_plan() -> None:
    plan = decide(snapshot(NODES, [X, Y], [asking("a100", job("new", 3, "x"))]))

    share = plan.projects["x"]
    assert (share.quota, share.fair_share, share.allocated, share.over_quota) == (
        4000,
        3000,
        3000,
        0,
    )


SHARES: dict[str, tuple[list[Project], list[Workload], dict[str, int]]] = {
    "types that all quotas tell apart are shared apart": (
        [X, Y],
        [asking("a100", job("x-1", 4, "x")), asking("t4", job("y-1", 4, "y"))],
        {"x": 4000, "y": 4000},
    ),
    "no share is larger than what there is of a type": (
        [X, project("y", 0, weight=1)],
        [asking("a100", job("x-1", 4, "x", workers=2)), job("y-1", 1, "y")],
        {"x": 4000, "y": 1000},
    ),
    "surplus of a type goes by the weights that tables give it": (
        [table("x", {"a100": 3}, weight=3), table("y", {"a100": 1}, weight=1)],
        [
            asking("a100", job("x-1", 4, "x", workers=2)),
            asking("a100", job("y-1", 4, "y", workers=2)),
        ],
        {"x": 3000, "y": 1000},
    ),
}


@pytest.mark.parametrize(("projects", "there", "expected"), SHARES.values(), ids=list(SHARES))
def test_fair_shares_by_type(
    projects: list[Project], there: list[Workload], expected: dict[str, int]
) -> None:
    plan = decide(snapshot(NODES, projects, there))

    assert {name: share.fair_share for name, share in plan.projects.items()} == expected


# ---- O1


def test_project_within_its_quota_of_the_type_starts_first() -> None:
    world = snapshot(
        NODES,
        [X, Y],
        [
            *singles(2, "x", "n1"),
            # y holds more in all, but nothing of this type.
            *singles(4, "y", "n2"),
            asking("a100", job("x-new", 2, "x")),
            asking("a100", job("y-new", 2, "y")),
        ],
    )

    assert started(decide(world)) == {"y-new-0"}


# ---- workloads that may use several types


CHOICES: dict[str, tuple[list[Workload], dict[str, str]]] = {
    "any other first": ([job("g", 1, "x")], {"g-0": "n2:0"}),
    "beyond its quota where GPUs are idle": (
        [*singles(3, "x", "n2"), job("g", 2, "x")],
        {"g-0": "n1:0,1"},
    ),
    "a gang stays on one side of the table": (
        [*singles(2, "y", "n2"), job("g", 1, "x", workers=3)],
        {"g-0": "n1:0", "g-1": "n1:1", "g-2": "n1:2"},
    ),
    "each on its own where the other is full": (
        [job(f"g{i}", 2, "x") for i in range(5)],
        {"g0-0": "n2:0,1", "g1-0": "n1:0,1", "g2-0": "n2:2,3", "g3-0": "n1:2,3"},
    ),
    "where it has a place, though more is idle elsewhere": (
        [
            *[job(f"h{i}", 0.75, "y", on=f"n2:{i}") for i in range(4)],
            job("g", 0.5, "x"),
        ],
        {"g-0": "n1:0"},
    ),
    "without a GPU anywhere": ([*singles(4, "x", "n2"), job("g", 0, "x")], {"g-0": "n2:"}),
}


@pytest.mark.parametrize(("there", "expected"), CHOICES.values(), ids=list(CHOICES))
def test_workload_that_may_use_several_gpu_types_is_placed_on_one(
    there: list[Workload], expected: dict[str, str]
) -> None:
    assert places(decide(snapshot(NODES, [X, Y], there))) == expected


def test_sessions_stay_within_the_build_quota_of_the_type_and_of_the_project() -> None:
    world = snapshot(
        NODES,
        [table("x", {"a100": 1, "*": 3}, build=3)],
        [
            asking("a100", session("ana-1", 1, "x")),
            asking("a100", session("bo-1", 1, "x")),
            asking("t4", session("cy-1", 2, "x")),
            asking("t4", session("di-1", 1, "x")),
        ],
    )
    plan = decide(world)

    assert started(plan) == {"ana-1-0", "cy-1-0"}
    assert waits(plan) == {"bo-1": "over_build_quota", "di-1": "over_build_quota"}


def test_a_wait_within_a_table_names_the_type_and_the_numbers() -> None:
    world = snapshot(
        NODES,
        [table("x", {"a100": 2, "*": 2}), table("y", {"a100": 2})],
        [
            asking("a100", session("ana-1", 2, "x", on="n1:0,1")),
            asking("a100", session("bo-1", 1, "x")),
            asking("a100", job("y-1", 2, "y", on="n1:2,3")),
            asking("a100", job("y-2", 2, "y")),
            asking("a100", job("x-1", 1, "x")),
        ],
    )
    plan = decide(replace(world, policy=replace(world.policy, name_others=False)))

    assert {name: sentence(plan, name) for name in ("bo-1", "y-2", "x-1")} == {
        "bo-1": "notebooks of x on a100 may hold 2 GPUs together, and hold 2: ana 2",
        "y-2": "y on a100 holds 2 of its fair share of 2 GPUs; this asks for 2, and 4 of 4 GPUs of"
        " type a100 are in use",
        "x-1": "x on a100 holds 2 of its fair share of 2 GPUs; this asks for 1, and 4 of 4 GPUs of"
        " type a100 are in use",
    }


def test_a_limit_is_one_for_all_types() -> None:
    world = snapshot(
        NODES,
        [table("x", {"a100": 2, "*": 2}, limit=3)],
        [asking("a100", job("j1", 2, "x")), asking("t4", job("j2", 2, "x"))],
    )

    assert waits(decide(world)) == {"j2": "over_limit"}


def test_a_parents_table_counts_as_its_sum() -> None:
    world = snapshot(NODES, [table("lab", {"a100": 1, "*": 2}), project("x", 5, parent="lab")])

    assert decide(world).projects["lab"].quota == 3000


def test_request_for_a_missing_gpu_type_waits_with_no_such_node() -> None:
    world = snapshot(NODES, [X], [asking("h100", job("new", 1, "x"))])

    assert waits(decide(world)) == {"new": "no_such_node"}


def test_more_of_a_type_is_promised_than_there_is() -> None:
    nodes = [*NODES, Node(name="old", devices=1, gpu_type="k80")]
    world = snapshot(nodes, [table("x", {"a100": 3}), table("y", {"a100": 2, "*": 1})])

    assert oversubscribed(world) == (
        "the quotas of a100 add up to 5 GPUs, but the cluster has 4 GPUs of them",
    )

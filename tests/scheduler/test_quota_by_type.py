"""Quotas by GPU type: each entry of a table is a separate guarantee (Q4)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    applied,
    cluster,
    job,
    places,
    project,
    requesting,
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
    Wait,
    Workload,
    decide,
    oversubscribed,
)

NODES = [
    Node(name="n1", devices=4, gpu_type="a100"),
    Node(name="n2", devices=4, gpu_type="t4"),
]


def single_gpu_jobs(count: int, owner: str, node: str, *, first: int = 0) -> list[Workload]:
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
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "who is within on a type keeps it, though it is over elsewhere": (
        [X, Y],
        [
            *single_gpu_jobs(2, "x", "n1"),
            *single_gpu_jobs(4, "x", "n2"),
            *single_gpu_jobs(2, "y", "n1", first=2),
            requesting("a100", job("new", 1, "y")),
        ],
        set(),
    ),
    "and gives back where it is over": (
        [X, Y],
        [
            *single_gpu_jobs(2, "x", "n1"),
            *single_gpu_jobs(4, "x", "n2"),
            requesting("t4", job("new", 2, "y")),
        ],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "a type that is named has no part in any other": (
        [table("x", {"a100": 0, "*": 4}), Y],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "a table without any other guarantees nothing of the rest": (
        [table("x", {"a100": 4}), Y],
        [*single_gpu_jobs(4, "x", "n2"), requesting("t4", job("new", 2, "y"))],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "an unlimited entry is never over its quota": (
        [table("x", {"a100": None}), Y],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        set(),
    ),
    "a project with one number is judged as a whole": (
        [project("x", 4), Y],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        set(),
    ),
    "and takes back what is over of a type": (
        [X, project("y", 4)],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "whoever may use both types takes back where its quota has room": (
        [X, Y],
        [*single_gpu_jobs(4, "x", "n1"), *single_gpu_jobs(4, "y", "n2"), job("new", 1, "y")],
        {"x-n1-3-0"},
    ),
    "a priority goes first within a part": (
        [table("x", {"a100": 4})],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 1, "x", priority=90))],
        {"x-n1-3-0"},
    ),
}


@pytest.mark.parametrize(
    ("projects", "workloads", "expected"), RECLAIMS.values(), ids=list(RECLAIMS)
)
def test_quota_of_a_gpu_type_is_reclaimed_on_that_type(
    projects: list[Project], workloads: list[Workload], expected: set[str]
) -> None:
    cluster_snapshot = snapshot(NODES, projects, workloads, quota_moves=False)
    plan = decide(cluster_snapshot)

    assert stopped(plan) == expected
    assert reserved(plan) == ({"new-0"} if expected else set())
    assert started(decide(applied(cluster_snapshot, plan))) >= ({"new-0"} if expected else set())


def test_plan_reports_the_sum_of_a_quota_table() -> None:
    plan = decide(snapshot(NODES, [X, Y], [requesting("a100", job("new", 3, "x"))]))

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
        [requesting("a100", job("x-1", 4, "x")), requesting("t4", job("y-1", 4, "y"))],
        {"x": 4000, "y": 4000},
    ),
    "no share is larger than what there is of a type": (
        [X, project("y", 0, weight=1)],
        [requesting("a100", job("x-1", 4, "x", workers=2)), job("y-1", 1, "y")],
        {"x": 4000, "y": 1000},
    ),
    "surplus of a type goes by the weights that tables give it": (
        [table("x", {"a100": 3}, weight=3), table("y", {"a100": 1}, weight=1)],
        [
            requesting("a100", job("x-1", 4, "x", workers=2)),
            requesting("a100", job("y-1", 4, "y", workers=2)),
        ],
        {"x": 3000, "y": 1000},
    ),
}


@pytest.mark.parametrize(("projects", "workloads", "expected"), SHARES.values(), ids=list(SHARES))
def test_fair_shares_are_divided_by_gpu_type(
    projects: list[Project], workloads: list[Workload], expected: dict[str, int]
) -> None:
    plan = decide(snapshot(NODES, projects, workloads))

    assert {name: share.fair_share for name, share in plan.projects.items()} == expected


# ---- O1


def test_project_within_its_quota_of_the_type_starts_first() -> None:
    cluster_snapshot = snapshot(
        NODES,
        [X, Y],
        [
            *single_gpu_jobs(2, "x", "n1"),
            # y holds more in all, but nothing of this type.
            *single_gpu_jobs(4, "y", "n2"),
            requesting("a100", job("x-new", 2, "x")),
            requesting("a100", job("y-new", 2, "y")),
        ],
    )

    assert started(decide(cluster_snapshot)) == {"y-new-0"}


# ---- workloads that may use several types


CHOICES: dict[str, tuple[list[Workload], dict[str, str]]] = {
    "any other first": ([job("g", 1, "x")], {"g-0": "n2:0"}),
    "beyond its quota where GPUs are idle": (
        [*single_gpu_jobs(3, "x", "n2"), job("g", 2, "x")],
        {"g-0": "n1:0,1"},
    ),
    "a gang stays on one side of the table": (
        [*single_gpu_jobs(2, "y", "n2"), job("g", 1, "x", workers=3)],
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
    "without a GPU anywhere": ([*single_gpu_jobs(4, "x", "n2"), job("g", 0, "x")], {"g-0": "n2:"}),
}


@pytest.mark.parametrize(("workloads", "expected"), CHOICES.values(), ids=list(CHOICES))
def test_workload_that_may_use_several_gpu_types_is_placed_on_one(
    workloads: list[Workload], expected: dict[str, str]
) -> None:
    assert places(decide(snapshot(NODES, [X, Y], workloads))) == expected


def test_sessions_stay_within_the_build_quota_of_the_type_and_of_the_project() -> None:
    cluster_snapshot = snapshot(
        NODES,
        [table("x", {"a100": 1, "*": 3}, build=3)],
        [
            requesting("a100", session("ana-1", 1, "x")),
            requesting("a100", session("bo-1", 1, "x")),
            requesting("t4", session("cy-1", 2, "x")),
            requesting("t4", session("di-1", 1, "x")),
        ],
    )
    plan = decide(cluster_snapshot)

    assert started(plan) == {"ana-1-0", "cy-1-0"}
    assert waits(plan) == {"bo-1": "over_build_quota", "di-1": "over_build_quota"}


def test_wait_reason_with_a_quota_table_names_the_type_and_the_numbers() -> None:
    cluster_snapshot = snapshot(
        NODES,
        [table("x", {"a100": 2, "*": 2}), table("y", {"a100": 2})],
        [
            requesting("a100", session("ana-1", 2, "x", on="n1:0,1")),
            requesting("a100", session("bo-1", 1, "x")),
            requesting("a100", job("y-1", 2, "y", on="n1:2,3")),
            requesting("a100", job("y-2", 2, "y")),
            requesting("a100", job("x-1", 1, "x")),
        ],
    )
    plan = decide(
        replace(cluster_snapshot, policy=replace(cluster_snapshot.policy, name_others=False))
    )

    assert {name: sentence(plan, name) for name in ("bo-1", "y-2", "x-1")} == {
        "bo-1": "the build quota of x on a100 is 2 GPUs, and its notebooks hold 2: ana 2",
        "y-2": "y on a100 holds 2 of its fair share of 2 GPUs; this asks for 2, and 4 of 4 GPUs of"
        " type a100 are in use",
        "x-1": "x on a100 holds 2 of its fair share of 2 GPUs; this asks for 1, and 4 of 4 GPUs of"
        " type a100 are in use",
    }


def test_project_limit_covers_all_gpu_types_together() -> None:
    cluster_snapshot = snapshot(
        NODES,
        [table("x", {"a100": 2, "*": 2}, limit=3)],
        [requesting("a100", job("j1", 2, "x")), requesting("t4", job("j2", 2, "x"))],
    )

    assert waits(decide(cluster_snapshot)) == {"j2": "over_limit"}


def test_quota_table_of_a_parent_counts_as_its_sum() -> None:
    cluster_snapshot = snapshot(
        NODES, [table("lab", {"a100": 1, "*": 2}), project("x", 5, parent="lab")]
    )

    assert decide(cluster_snapshot).projects["lab"].quota == 3000


def test_request_for_a_missing_gpu_type_waits_with_no_such_node() -> None:
    cluster_snapshot = snapshot(NODES, [X], [requesting("h100", job("new", 1, "x"))])

    assert waits(decide(cluster_snapshot)) == {"new": "no_such_node"}


def test_oversubscribed_quota_of_a_gpu_type_is_reported() -> None:
    nodes = [*NODES, Node(name="old", devices=1, gpu_type="k80")]
    cluster_snapshot = snapshot(nodes, [table("x", {"a100": 3}), table("y", {"a100": 2, "*": 1})])

    assert oversubscribed(cluster_snapshot) == (
        "the quotas of a100 add up to 5 GPUs, but the cluster has 4 GPUs of them",
    )


# ---- R1, R2, R10: a claim takes victims on every type that it may use


AB = [Node(name="n1", devices=2, gpu_type="a"), Node(name="n2", devices=2, gpu_type="b")]
BUSY_A = job("high", 2, "x", on="n1:0,1", priority=80)


def claim_on_types(*gpu_types: str, **fields: Any) -> Workload:
    """Return the claim of x, which may use these GPU types."""
    return job("new", project="x", priority=50, submitted=9, gpu_types=gpu_types, **fields)


SECOND_TYPE: dict[str, tuple[list[Workload], Workload, str, set[str]]] = {
    "preempted on the second type": (
        [BUSY_A, job("low", 2, "x", on="n2:0,1", priority=10)],
        claim_on_types("a", "b"),
        "stop",
        {"low-0"},
    ),
    "preempted on any type": (
        [BUSY_A, job("low", 2, "x", on="n2:0,1", priority=10)],
        claim_on_types(),
        "stop",
        {"low-0"},
    ),
    "reclaimed on the second type": (
        [BUSY_A, *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2))],
        claim_on_types("a", "b"),
        "stop",
        {"y1-0"},
    ),
    "reclaimed behind a notebook on the first type": (
        [
            session("ana-1", 2, "x", on="n1:0,1"),
            *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2)),
        ],
        claim_on_types("a", "b"),
        "stop",
        {"y1-0"},
    ),
    "reclaimed for a gang": (
        [BUSY_A, *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2))],
        claim_on_types("a", "b", workers=2),
        "stop",
        {"y0-0", "y1-0"},
    ),
    "reclaimed for a session": (
        [
            session("ana-1", 2, "x", on="n1:0,1"),
            *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2)),
        ],
        session("new", 1, "x", submitted=9, gpu_types=("a", "b")),
        "stop",
        {"y1-0"},
    ),
    "reclaimed for an elastic job": (
        [BUSY_A, *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2))],
        claim_on_types("a", "b", workers=3, min_workers=2),
        "stop",
        {"y0-0", "y1-0"},
    ),
    "moved on the second type": (
        [
            session("ana-1", 1, "x", on="n1:0"),
            session("bo-1", 1, "x", on="n1:1"),
            job("y0", 1, "z", on="n2:0", gpu_types=("b",)),
            job("y1", 1, "z", on="n3:0", gpu_types=("b",)),
        ],
        job("new", 2, "x", submitted=9, gpu_types=("a", "b")),
        "move",
        {"y1-0"},
    ),
}


@pytest.mark.parametrize(
    ("existing", "new", "kind", "expected"), SECOND_TYPE.values(), ids=list(SECOND_TYPE)
)
def test_claim_stops_victims_on_every_gpu_type_it_may_use(
    existing: list[Workload], new: Workload, kind: str, expected: set[str]
) -> None:
    nodes = [*AB, Node(name="n3", devices=2, gpu_type="b")] if kind == "move" else AB
    projects = [table("x", {"a": 2, "b": 2}), project("y", 0, weight=0), project("z", 2)]
    plan = decide(snapshot(nodes, projects, [*existing, new]))

    changed = {d.worker for d in plan.decisions if d.kind == kind and not isinstance(d, Wait)}
    assert changed == expected
    assert {worker.partition("-")[0] for worker in reserved(plan)} == {"new"}


def test_wait_reason_of_a_job_with_several_gpu_types_counts_all_of_them() -> None:
    existing = [BUSY_A, job("equal", 2, "x", on="n2:0,1", priority=50)]
    plan = decide(
        snapshot(AB, [table("x", {"a": 2, "b": 2})], [*existing, claim_on_types("a", "b")])
    )

    assert sentence(plan, "new") == "4 of 4 GPUs are in use: x 4"


# ---- P3: a memory request counts by the device that it gets


SIZES = [
    *cluster("1x4", memory_mib=15_360),
    replace(*cluster("1x4", memory_mib=81_920), name="big"),
]
TEN_GIB = 10_240  # 0.667 of a device of n1, 0.125 of one of the other node
FULL = [job(f"f{i}", 1, "b", on=f"big:{i}", submitted=1) for i in range(4)]


@pytest.mark.parametrize(
    ("bounds", "existing", "new", "expected"),
    [
        pytest.param(
            {"build": 0.5},
            [],
            session("new", gpu_memory_mib=TEN_GIB),
            {"new-0": "big:0"},
            id="build quota",
        ),
        pytest.param(
            {"limit": 0.5},
            [job("first", on="big:0", gpu_memory_mib=8192)],
            job("new", gpu_memory_mib=TEN_GIB),
            {"new-0": "big:0"},
            id="limit",
        ),
        pytest.param(
            {"limit": 0.5},
            [],
            job("new", gpu_memory_mib=TEN_GIB, workers=4),
            {f"new-{i}": "big:0" for i in range(4)},
            id="limit of a gang",
        ),
        pytest.param(
            {"quota": 0.2},
            [],
            job("new", gpu_memory_mib=TEN_GIB, guaranteed_workers=1),
            {"new-0": "big:0"},
            id="guaranteed worker",
        ),
    ],
)
def test_memory_request_is_charged_by_the_size_of_its_device(
    bounds, existing, new, expected
) -> None:
    owner = project("a", **{"quota": 2, **bounds})

    assert places(decide(snapshot(SIZES, [owner], [*existing, new]))) == expected


def test_memory_request_reclaims_within_its_quota_on_the_larger_device() -> None:
    small = [job(f"s{i}", 1, "c", on=f"n1:{i}", submitted=1) for i in range(4)]
    projects = [project("a", 0.2, weight=0), project("b", 3), project("c", 4)]
    new = job("new", gpu_memory_mib=TEN_GIB)
    plan = decide(snapshot(SIZES, projects, [*small, *FULL, new]))

    assert (stopped(plan), reserved(plan)) == ({"f3-0"}, {"new-0"})


def test_project_within_quota_by_the_device_of_its_memory_request_goes_first() -> None:
    nodes = [replace(SIZES[0], name="small"), replace(SIZES[1], devices=1)]
    taken = [job(f"s{i}", 1, "c", on=f"small:{i}") for i in range(4)]
    projects = [project("a", 0.2), project("b", 0), project("c", 4)]
    rival, new = job("rival", project="b", submitted=1), job("new", gpu_memory_mib=TEN_GIB)

    assert started(decide(snapshot(nodes, projects, [*taken, rival, new]))) == {"new-0"}


def test_wait_reason_of_a_memory_request_names_a_device_within_its_limit() -> None:
    owners = [project("a", 2, limit=0.5), project("b", 4)]
    new = job("new", gpu_memory_mib=TEN_GIB)
    plan = decide(snapshot(SIZES, owners, [*FULL, new], quota_moves=False))

    assert waits(plan) == {"new": "no_room"}
    assert sentence(plan, "new").startswith(
        "needs 10240 MiB on one GPU; big has at most 0 of 81920"
    )

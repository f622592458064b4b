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
    typed_project,
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

A100_T4_NODES = [
    Node(name="n1", devices=4, gpu_type="a100"),
    Node(name="n2", devices=4, gpu_type="t4"),
]


def single_gpu_jobs(count: int, owner: str, node: str, *, first: int = 0) -> list[Workload]:
    """Make running one-GPU jobs, one for each device."""
    return [
        job(f"{owner}-{node}-{i}", 1, owner, on=f"{node}:{i}") for i in range(first, first + count)
    ]


X_2_EACH = typed_project("x", {"a100": 2, "*": 2})
Y_2_EACH = typed_project("y", {"a100": 2, "*": 2})


# ---- S, R2: a guarantee of a type is honoured by reclaiming on that type


RECLAIMS: dict[str, tuple[list[Project], list[Workload], set[str]]] = {
    "victim over its quota of the type, within its sum": (
        [X_2_EACH, Y_2_EACH],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "rival within its quota of the type, over on the others": (
        [X_2_EACH, Y_2_EACH],
        [
            *single_gpu_jobs(2, "x", "n1"),
            *single_gpu_jobs(4, "x", "n2"),
            *single_gpu_jobs(2, "y", "n1", first=2),
            requesting("a100", job("new", 1, "y")),
        ],
        set(),
    ),
    "victim over its quota of other types": (
        [X_2_EACH, Y_2_EACH],
        [
            *single_gpu_jobs(2, "x", "n1"),
            *single_gpu_jobs(4, "x", "n2"),
            requesting("t4", job("new", 2, "y")),
        ],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "zero quota of the type beside a quota of others": (
        [typed_project("x", {"a100": 0, "*": 4}), Y_2_EACH],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "table without an entry for other types": (
        [typed_project("x", {"a100": 4}), Y_2_EACH],
        [*single_gpu_jobs(4, "x", "n2"), requesting("t4", job("new", 2, "y"))],
        {"x-n2-2-0", "x-n2-3-0"},
    ),
    "unlimited quota of the type": (
        [typed_project("x", {"a100": None}), Y_2_EACH],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        set(),
    ),
    "victim with one quota for all types, within it": (
        [project("x", 4), Y_2_EACH],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        set(),
    ),
    "claimant with one quota for all types": (
        [X_2_EACH, project("y", 4)],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 2, "y"))],
        {"x-n1-2-0", "x-n1-3-0"},
    ),
    "claimant of any type with quota left on a100": (
        [X_2_EACH, Y_2_EACH],
        [*single_gpu_jobs(4, "x", "n1"), *single_gpu_jobs(4, "y", "n2"), job("new", 1, "y")],
        {"x-n1-3-0"},
    ),
    "claimant of higher priority in the same project": (
        [typed_project("x", {"a100": 4})],
        [*single_gpu_jobs(4, "x", "n1"), requesting("a100", job("new", 1, "x", priority=90))],
        {"x-n1-3-0"},
    ),
}


@pytest.mark.parametrize(("projects", "workloads", "expected"), RECLAIMS.values(), ids=RECLAIMS)
def test_quota_of_a_gpu_type_is_reclaimed_on_that_type(
    projects: list[Project], workloads: list[Workload], expected: set[str]
) -> None:
    cluster_snapshot = snapshot(A100_T4_NODES, projects, workloads, quota_moves=False)
    plan = decide(cluster_snapshot)

    assert stopped(plan) == expected
    assert reserved(plan) == ({"new-0"} if expected else set())
    assert started(decide(applied(cluster_snapshot, plan))) >= ({"new-0"} if expected else set())


def test_plan_reports_the_sum_of_a_quota_table() -> None:
    plan = decide(
        snapshot(A100_T4_NODES, [X_2_EACH, Y_2_EACH], [requesting("a100", job("new", 3, "x"))])
    )

    share = plan.projects["x"]
    assert share.quota == 4000  # 2 a100 and 2 of other types
    assert share.fair_share == share.allocated == 3000
    assert share.over_quota == 0


SHARES: dict[str, tuple[list[Project], list[Workload], dict[str, int]]] = {
    "types named by all tables are shared separately": (
        [X_2_EACH, Y_2_EACH],
        [requesting("a100", job("x-1", 4, "x")), requesting("t4", job("y-1", 4, "y"))],
        {"x": 4000, "y": 4000},
    ),
    "share limited to the GPUs of the type": (
        [X_2_EACH, project("y", 0, weight=1)],
        [requesting("a100", job("x-1", 4, "x", workers=2)), job("y-1", 1, "y")],
        {"x": 4000, "y": 1000},
    ),
    "surplus of a type by weight": (
        [typed_project("x", {"a100": 3}, weight=3), typed_project("y", {"a100": 1}, weight=1)],
        [
            requesting("a100", job("x-1", 4, "x", workers=2)),
            requesting("a100", job("y-1", 4, "y", workers=2)),
        ],
        {"x": 3000, "y": 1000},
    ),
}


@pytest.mark.parametrize(("projects", "workloads", "expected"), SHARES.values(), ids=SHARES)
def test_fair_shares_are_divided_by_gpu_type(
    projects: list[Project], workloads: list[Workload], expected: dict[str, int]
) -> None:
    plan = decide(snapshot(A100_T4_NODES, projects, workloads))

    assert {name: share.fair_share for name, share in plan.projects.items()} == expected


# ---- O1


def test_project_within_its_quota_of_the_type_starts_first() -> None:
    # Two a100 are idle. x holds its quota of two a100; y holds four t4, and nothing of a100.
    cluster_snapshot = snapshot(
        A100_T4_NODES,
        [X_2_EACH, Y_2_EACH],
        [
            *single_gpu_jobs(2, "x", "n1"),
            *single_gpu_jobs(4, "y", "n2"),
            requesting("a100", job("x-new", 2, "x")),
            requesting("a100", job("y-new", 2, "y")),
        ],
    )

    assert started(decide(cluster_snapshot)) == {"y-new-0"}


# ---- workloads that may use several types


PLACES: dict[str, tuple[list[Workload], dict[str, str]]] = {
    "other GPUs first": ([job("g", 1, "x")], {"g-0": "n2:0"}),
    "idle GPUs of a100, over its quota of others": (
        [*single_gpu_jobs(3, "x", "n2"), job("g", 2, "x")],
        {"g-0": "n1:0,1"},
    ),
    "gang on one type": (
        [*single_gpu_jobs(2, "y", "n2"), job("g", 1, "x", workers=3)],
        {"g-0": "n1:0", "g-1": "n1:1", "g-2": "n1:2"},
    ),
    "jobs on either type until both are full": (
        [job(f"g{i}", 2, "x") for i in range(5)],
        {"g0-0": "n2:0,1", "g1-0": "n1:0,1", "g2-0": "n2:2,3", "g3-0": "n1:2,3"},
    ),
    "a100, because idle fractions of t4 are too small": (
        [
            *[job(f"h{i}", 0.75, "y", on=f"n2:{i}") for i in range(4)],
            job("g", 0.5, "x"),
        ],
        {"g-0": "n1:0"},
    ),
    "job without a GPU": ([*single_gpu_jobs(4, "x", "n2"), job("g", 0, "x")], {"g-0": "n2:"}),
}


@pytest.mark.parametrize(("workloads", "expected"), PLACES.values(), ids=PLACES)
def test_workload_that_may_use_several_gpu_types_is_placed_on_one(
    workloads: list[Workload], expected: dict[str, str]
) -> None:
    assert places(decide(snapshot(A100_T4_NODES, [X_2_EACH, Y_2_EACH], workloads))) == expected


def test_sessions_stay_within_the_build_quota_of_the_type_and_of_the_project() -> None:
    cluster_snapshot = snapshot(
        A100_T4_NODES,
        [typed_project("x", {"a100": 1, "*": 3}, build=3)],
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
        A100_T4_NODES,
        [typed_project("x", {"a100": 2, "*": 2}), typed_project("y", {"a100": 2})],
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
        A100_T4_NODES,
        [typed_project("x", {"a100": 2, "*": 2}, limit=3)],
        [requesting("a100", job("j1", 2, "x")), requesting("t4", job("j2", 2, "x"))],
    )

    # Two GPUs of each job exceed the limit of three, although each quota has room.
    assert waits(decide(cluster_snapshot)) == {"j2": "over_limit"}


def test_quota_table_of_a_parent_counts_as_its_sum() -> None:
    cluster_snapshot = snapshot(
        A100_T4_NODES, [typed_project("lab", {"a100": 1, "*": 2}), project("x", 5, parent="lab")]
    )

    assert decide(cluster_snapshot).projects["lab"].quota == 3000


def test_request_for_a_missing_gpu_type_waits_with_no_such_node() -> None:
    cluster_snapshot = snapshot(A100_T4_NODES, [X_2_EACH], [requesting("h100", job("new", 1, "x"))])

    assert waits(decide(cluster_snapshot)) == {"new": "no_such_node"}


def test_oversubscribed_quota_of_a_gpu_type_is_reported() -> None:
    nodes = [*A100_T4_NODES, Node(name="old", devices=1, gpu_type="k80")]
    cluster_snapshot = snapshot(
        nodes, [typed_project("x", {"a100": 3}), typed_project("y", {"a100": 2, "*": 1})]
    )

    assert oversubscribed(cluster_snapshot) == (
        "the quotas of a100 add up to 5 GPUs, but the cluster has 4 GPUs of them",
    )


# ---- R1, R2, R10: a claim takes victims on every type that it may use


A_B_NODES = [Node(name="n1", devices=2, gpu_type="a"), Node(name="n2", devices=2, gpu_type="b")]
JOB_ON_A = job("high", 2, "x", on="n1:0,1", priority=80)


def claim_on_types(*gpu_types: str, **fields: Any) -> Workload:
    """Return the claim of x, which may use these GPU types."""
    return job("new", project="x", priority=50, submitted=9, gpu_types=gpu_types, **fields)


SECOND_TYPE: dict[str, tuple[list[Workload], Workload, str, set[str]]] = {
    "preemption on the second type": (
        [JOB_ON_A, job("low", 2, "x", on="n2:0,1", priority=10)],
        claim_on_types("a", "b"),
        "stop",
        {"low-0"},
    ),
    "preemption for a claim on any type": (
        [JOB_ON_A, job("low", 2, "x", on="n2:0,1", priority=10)],
        claim_on_types(),
        "stop",
        {"low-0"},
    ),
    "reclaim on the second type": (
        [JOB_ON_A, *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2))],
        claim_on_types("a", "b"),
        "stop",
        {"y1-0"},
    ),
    "reclaim on the second type beside a session on the first": (
        [
            session("ana-1", 2, "x", on="n1:0,1"),
            *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2)),
        ],
        claim_on_types("a", "b"),
        "stop",
        {"y1-0"},
    ),
    "reclaim for a gang": (
        [JOB_ON_A, *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2))],
        claim_on_types("a", "b", workers=2),
        "stop",
        {"y0-0", "y1-0"},
    ),
    "reclaim for a session": (
        [
            session("ana-1", 2, "x", on="n1:0,1"),
            *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2)),
        ],
        session("new", 1, "x", submitted=9, gpu_types=("a", "b")),
        "stop",
        {"y1-0"},
    ),
    "reclaim for an elastic job": (
        [JOB_ON_A, *(job(f"y{i}", 1, "y", on=f"n2:{i}") for i in range(2))],
        claim_on_types("a", "b", workers=3, min_workers=2),
        "stop",
        {"y0-0", "y1-0"},
    ),
    "move on the second type": (
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
    ("existing", "new", "kind", "expected"), SECOND_TYPE.values(), ids=SECOND_TYPE
)
def test_claim_stops_victims_on_every_gpu_type_it_may_use(
    existing: list[Workload], new: Workload, kind: str, expected: set[str]
) -> None:
    nodes = [*A_B_NODES, Node(name="n3", devices=2, gpu_type="b")] if kind == "move" else A_B_NODES
    projects = [typed_project("x", {"a": 2, "b": 2}), project("y", 0, weight=0), project("z", 2)]
    plan = decide(snapshot(nodes, projects, [*existing, new]))

    changed = {d.worker for d in plan.decisions if d.kind == kind and not isinstance(d, Wait)}
    assert changed == expected
    assert {worker.partition("-")[0] for worker in reserved(plan)} == {"new"}


def test_wait_reason_of_a_job_with_several_gpu_types_counts_all_of_them() -> None:
    existing = [JOB_ON_A, job("equal", 2, "x", on="n2:0,1", priority=50)]
    plan = decide(
        snapshot(
            A_B_NODES, [typed_project("x", {"a": 2, "b": 2})], [*existing, claim_on_types("a", "b")]
        )
    )

    assert sentence(plan, "new") == "4 of 4 GPUs are in use: x 4"


# ---- P3: a memory request counts by the device that it gets


SMALL_BIG_NODES = [
    *cluster("1x4", memory_mib=15_360),
    replace(*cluster("1x4", memory_mib=81_920), name="big"),
]
TEN_GIB = 10_240  # 0.667 of a device of n1, 0.125 of one of the other node
JOBS_ON_BIG_NODE = [job(f"f{i}", 1, "b", on=f"big:{i}", submitted=1) for i in range(4)]


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
    # 10 GiB are 0.667 of a small device, which exceeds each bound, but 0.125 of a big one.
    owner = project("a", **{"quota": 2, **bounds})

    assert places(decide(snapshot(SMALL_BIG_NODES, [owner], [*existing, new]))) == expected


def test_memory_request_reclaims_within_its_quota_on_the_larger_device() -> None:
    # b holds four GPUs of the big node, one over its quota. a's quota of 0.2 covers 10 GiB there
    # (0.125 of a device), but not on the small node.
    small = [job(f"s{i}", 1, "c", on=f"n1:{i}", submitted=1) for i in range(4)]
    projects = [project("a", 0.2, weight=0), project("b", 3), project("c", 4)]
    new = job("new", gpu_memory_mib=TEN_GIB)
    plan = decide(snapshot(SMALL_BIG_NODES, projects, [*small, *JOBS_ON_BIG_NODE, new]))

    assert stopped(plan) == {"f3-0"}
    assert reserved(plan) == {"new-0"}


def test_project_within_quota_by_the_device_of_its_memory_request_goes_first() -> None:
    nodes = [replace(SMALL_BIG_NODES[0], name="small"), replace(SMALL_BIG_NODES[1], devices=1)]
    # Only the GPU of "big" is idle: a is within its quota of 0.2 there, and b has no quota.
    small_node_jobs = [job(f"s{i}", 1, "c", on=f"small:{i}") for i in range(4)]
    projects = [project("a", 0.2), project("b", 0), project("c", 4)]
    rival, new = job("rival", project="b", submitted=1), job("new", gpu_memory_mib=TEN_GIB)

    assert started(decide(snapshot(nodes, projects, [*small_node_jobs, rival, new]))) == {"new-0"}


def test_wait_reason_of_a_memory_request_names_a_device_within_its_limit() -> None:
    # The request exceeds a's limit of 0.5 on the idle small node; the big node is full.
    owners = [project("a", 2, limit=0.5), project("b", 4)]
    new = job("new", gpu_memory_mib=TEN_GIB)
    plan = decide(snapshot(SMALL_BIG_NODES, owners, [*JOBS_ON_BIG_NODE, new], quota_moves=False))

    assert waits(plan) == {"new": "no_room"}
    assert sentence(plan, "new").startswith(
        "needs 10240 MiB on one GPU; big has at most 0 of 81920"
    )

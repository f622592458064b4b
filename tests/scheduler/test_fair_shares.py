"""Fair shares: quotas first, the rest by priority and weight, level by level (S1 to S5)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import cluster, gpus, job, parent, project, snapshot
from runai.hub_service.scheduler import Project, Snapshot, decide, oversubscribed


def fair_shares(devices: int, *demands: tuple[Project, float]) -> dict[str, float]:
    """Return each project's fair share in GPUs for the given demands."""
    workloads = [
        job(f"{owner.name}-{part}", amount, owner.name)
        for owner, demand in demands
        for part, amount in enumerate([1.0] * int(demand) + [demand % 1])
        if amount
    ]
    cluster_snapshot = snapshot(cluster(f"1x{devices}"), [owner for owner, _ in demands], workloads)
    return shares_in(cluster_snapshot)


def shares_in(snapshot: Snapshot) -> dict[str, float]:
    return {name: share.fair_share / 1000 for name, share in decide(snapshot).projects.items()}


SHARE_CASES = {
    "S1: quota of each project first": (4, [("a", 3, {}), ("b", 1, {})], [4, 4], [3, 1]),
    "S1: no more than its request": (4, [("a", 3, {}), ("b", 1, {})], [1, 4], [1, 3]),
    "S1: no more than its limit": (4, [("a", 3, {"limit": 2}), ("b", 1, {})], [4, 4], [2, 2]),
    "S1: quotas regardless of priority": (
        4,
        [("a", 2, {"priority": 200}), ("b", 2, {})],
        [4, 4],
        [2, 2],
    ),
    "S1: oversubscribed quotas": (2, [("a", 2, {}), ("b", 2, {})], [4, 4], [2, 2]),
    "S1: unlimited quota is the whole cluster": (4, [("a", None, {})], [9], [4]),
    "S2: surplus by the default weight, the quota": (
        8,
        [("a", 3, {}), ("b", 1, {})],
        [9, 9],
        [6, 2],
    ),
    "S2: surplus by weight": (
        8,
        [("a", 1, {"weight": 1}), ("b", 1, {"weight": 5})],
        [9, 9],
        [2, 6],
    ),
    "S2: surplus to the higher priority first": (
        8,
        [("a", 1, {"priority": 200}), ("b", 1, {})],
        [9, 9],
        [7, 1],
    ),
    "S2: second round for the other": (8, [("a", 2, {}), ("b", 2, {})], [3, 9], [3, 5]),
    "S2: further rounds by weight": (
        5,
        [("a", 0, {"weight": 1}), ("b", 0, {"weight": 1})],
        [1, 9],
        [1, 4],
    ),
    "S2: request of exactly its part, with a fraction": (
        3,
        [("a", 0, {"weight": 1}), ("b", 0, {"weight": 1})],
        [2, 1.5],
        [1.5, 1.5],
    ),
    "S2: request of exactly its part begins no further round": (
        3,
        [("a", 0, {"weight": 1}), ("b", 0, {"weight": 2}), ("c", 0, {"weight": 3})],
        [3, 1, 3],
        [1, 1, 1],
    ),
    "S2: leftover GPU to the largest remainder": (
        5,
        [("a", 0, {"weight": 1}), ("b", 0, {"weight": 2})],
        [9, 9],
        [2, 3],
    ),
    "S2: leftover GPU to the largest remainder of a younger project": (
        5,
        [("a", 0, {"weight": 2}), ("b", 0, {"weight": 1, "created": 1})],
        [9, 9],
        [3, 2],
    ),
    "S2: leftover GPU of equal remainders to the oldest": (
        3,
        [("a", 0, {"weight": 1, "created": 2}), ("b", 0, {"weight": 1, "created": 1})],
        [9, 9],
        [1, 2],
    ),
    "S2: leftover GPU of equal age by name": (
        3,
        [("a", 0, {"weight": 1}), ("b", 0, {"weight": 1})],
        [9, 9],
        [2, 1],
    ),
    "S2: fraction left to the next priority": (
        8,
        [("a", 2.5, {"priority": 50}), ("b", 0, {"weight": 1, "limit": 6}), ("c", 0, {})],
        [9, 9, 0],
        [2.5, 5.5, 0],
    ),
    "S3: request with a fraction": (3, [("a", 1, {}), ("b", 1, {})], [1.5, 9], [1.5, 1.5]),
    "S4: no surplus for weight 0": (
        8,
        [("a", 1, {"weight": 0}), ("b", 1, {})],
        [9, 9],
        [1, 7],
    ),
}


@pytest.mark.parametrize(
    ("devices", "project_fields", "demands", "expected"), SHARE_CASES.values(), ids=SHARE_CASES
)
def test_fair_shares_follow_quota_then_priority_and_weight(
    devices: int,
    project_fields: list[tuple[str, float | None, dict[str, int]]],
    demands: list[float],
    expected: list[float],
) -> None:
    projects = [project(name, quota, **fields) for name, quota, fields in project_fields]

    shares = fair_shares(devices, *zip(projects, demands, strict=True))

    assert shares == {p.name: share for p, share in zip(projects, expected, strict=True)}


HISTORY: dict[str, tuple[int, list[dict[str, int]], list[float], list[float]]] = {
    "no history weight": (
        0,
        [{"usage": 9000}, {"usage": 0}],
        [9, 9],
        [5, 5],
    ),
    "no usage": (2, [{}, {}], [9, 9], [5, 5]),
    "project with all usage keeps its quota only": (
        1,
        [{"usage": 9000}, {"usage": 0}],
        [9, 9],
        [1, 9],
    ),
    "project with more usage gets less": (
        1,
        [{"usage": 6000}, {"usage": 4000}],
        [9, 9],
        [4, 6],
    ),
    "same ratio of larger usage": (
        1,
        [{"usage": 60_000}, {"usage": 40_000}],
        [9, 9],
        [4, 6],
    ),
    "larger history weight": (
        2,
        [{"usage": 6000}, {"usage": 4000}],
        [9, 9],
        [3, 7],
    ),
    "usage in proportion to weight": (
        3,
        [{"usage": 6000, "weight": 3}, {"usage": 2000, "weight": 1}],
        [9, 9],
        [7, 3],
    ),
    "no demand of other projects": (
        1,
        [{"usage": 9000}, {"usage": 0}],
        [9, 1],
        [9, 1],
    ),
}


@pytest.mark.parametrize(
    ("history_weight", "fields", "demands", "expected"), HISTORY.values(), ids=HISTORY
)
def test_past_gpu_usage_reduces_the_projects_share_of_the_surplus(
    history_weight: int, fields: list[dict[str, int]], demands: list[float], expected: list[float]
) -> None:
    owners = [
        project(name, 1, **project_fields)
        for name, project_fields in zip("ab", fields, strict=True)
    ]
    jobs = [
        job(f"{n}-{i}", 1, n) for n, w in zip("ab", demands, strict=True) for i in range(int(w))
    ]

    shares = shares_in(snapshot("1x10", owners, jobs, history_weight=history_weight))

    assert list(shares.values()) == expected


def test_project_with_all_past_usage_has_no_weight_left_even_on_a_large_cluster() -> None:
    # With thousands of GPUs even the smallest weight or usage would be worth one GPU.
    owners = [
        project("a", 1, weight=1, usage=gpus(0.001)),
        project("b", 1, weight=1, usage=gpus(0)),
    ]
    jobs = [job(f"{name}-{i}", 9000, name) for name in "ab" for i in range(2)]

    shares = shares_in(snapshot("1x9002", owners, jobs, history_weight=1))

    assert shares == {"a": 1, "b": 9001}


def test_parent_usage_defaults_to_the_sum_of_its_children() -> None:
    owners = [
        parent("p"),
        project("x", 1, parent="p", usage=gpus(3)),
        project("y", 1, parent="p", usage=gpus(3)),
        project("q", 2, usage=gpus(6)),
    ]
    jobs = [job(f"{name}-{i}", 1, name) for name in "xyq" for i in range(9)]

    assert shares_in(snapshot("1x12", owners, jobs, history_weight=5)) == {
        "p": 6,
        "q": 6,
        "x": 3,
        "y": 3,
    }


def test_children_divide_the_share_of_their_parent() -> None:
    cluster_snapshot = snapshot(
        "1x8",
        [
            project("left", 4),
            project("right", 4),
            project("l1", 1, parent="left"),
            project("l2", 3, parent="left"),
            project("r1", 2, parent="right"),
        ],
        [job(f"{name}-{i}", 1, name) for name in ("l1", "l2", "r1") for i in range(6)],
    )

    assert shares_in(cluster_snapshot) == {"left": 4, "right": 4, "l1": 1, "l2": 3, "r1": 4}


def test_parent_quota_defaults_to_the_sum_of_its_children() -> None:
    cluster_snapshot = snapshot(
        "1x8", [parent("p"), project("x", 1, parent="p"), project("y", 2.5, parent="p")]
    )

    assert decide(cluster_snapshot).projects["p"].quota == gpus(3.5)


def test_parent_quota_that_is_set_overrides_the_sum_of_its_children() -> None:
    cluster_snapshot = snapshot("1x8", [project("p", 2), project("x", 4, parent="p")])

    assert decide(cluster_snapshot).projects["p"].quota == gpus(2)


def test_parent_of_a_child_with_unlimited_quota_has_unlimited_quota() -> None:
    cluster_snapshot = snapshot("1x8", [parent("p"), project("x", None, parent="p")])

    assert decide(cluster_snapshot).projects["p"].quota is None


def test_workloads_of_a_parent_get_its_quota_less_that_of_its_children() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [project("p", 3), project("x", 1, parent="p")],
        [job(f"{name}-{i}", 1, name) for name in ("p", "x") for i in range(4)],
    )

    plan = decide(cluster_snapshot)

    assert {n: p.allocated for n, p in plan.projects.items()} == {"p": 4000, "x": 1000}


def test_unschedulable_nodes_count_only_their_running_gpus() -> None:
    closed = cluster("2x4", schedulable=False)
    cluster_snapshot = snapshot(
        closed, [project("a", 0, weight=1)], [job("runs", 2, on="n1:0,1"), job("waits", 4)]
    )

    assert shares_in(cluster_snapshot) == {"a": 2}


def test_oversubscribed_quotas_are_accepted_and_reported() -> None:
    cluster_snapshot = snapshot(
        "1x4",
        [
            project("p", 3),
            project("x", 2, parent="p", build=1),
            project("y", 2.5, parent="p", build=1),
            project("q", 4),
            project("free", None, build=0),
        ],
    )

    assert oversubscribed(cluster_snapshot) == (
        "the quotas add up to 7 GPUs, but the cluster has 4 GPUs",
        "the build quotas add up to 7 GPUs, but the cluster has 4 GPUs",
        "the quotas inside p add up to 4.5 GPUs, but p itself has 3 GPUs",
    )


def test_quotas_within_capacity_are_not_reported_as_oversubscribed() -> None:
    assert oversubscribed(snapshot("1x4", [project("a", 3), project("b", 1)])) == ()


GPU_DEMANDS = st.integers(0, 12)


@given(
    devices=st.integers(0, 16),
    quotas=st.lists(st.integers(0, 6), min_size=2, max_size=4),
    weights=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    demands=st.lists(GPU_DEMANDS, min_size=4, max_size=4),
)
def test_fair_shares_never_exceed_requests_and_use_all_gpus_of_weighted_demand(
    devices: int, quotas: list[int], weights: list[int], demands: list[int]
) -> None:
    owners = [
        project(f"p{i}", quota, weight=weights[i], created=i) for i, quota in enumerate(quotas)
    ]

    shares = fair_shares(devices, *((owner, demands[i]) for i, owner in enumerate(owners)))

    guaranteed = sum(min(quota, demands[i]) for i, quota in enumerate(quotas))
    eligible_demand = sum(
        demands[i] if weights[i] else min(quota, demands[i]) for i, quota in enumerate(quotas)
    )
    assert sum(shares.values()) == max(guaranteed, min(devices, eligible_demand))
    assert all(shares[f"p{i}"] <= demands[i] for i in range(len(quotas)))


@given(devices=st.integers(1, 16), quota=st.integers(0, 3), count=st.integers(2, 4))
def test_fair_shares_of_equal_projects_differ_by_at_most_one_gpu(
    devices: int, quota: int, count: int
) -> None:
    owners = [project(f"p{i}", quota, weight=1) for i in range(count)]

    shares = fair_shares(devices, *((owner, 20) for owner in owners)).values()

    # The remainder of rounding down is shared in whole GPUs (S2): one GPU is the largest gap.
    assert max(shares) - min(shares) <= (1 if devices % count else 0) or quota * count > devices


@given(
    devices=st.integers(1, 16),
    weights=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    demands=st.lists(GPU_DEMANDS, min_size=3, max_size=3),
)
def test_higher_weight_never_reduces_the_fair_share(
    devices: int, weights: list[int], demands: list[int]
) -> None:
    def share_with(weight: int) -> float:
        owners = [
            project(f"p{i}", 1, weight=weight if i == 0 else weights[i], created=i)
            for i in range(3)
        ]
        return fair_shares(devices, *zip(owners, demands, strict=True))["p0"]

    assert share_with(weights[0] + 1) >= share_with(weights[0])


@given(
    devices=st.integers(1, 16),
    weights=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    usage=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    demands=st.lists(GPU_DEMANDS, min_size=3, max_size=3),
    history_weight=st.integers(0, 3),
)
def test_usage_history_changes_neither_quotas_nor_the_sum_of_shares(
    devices: int, weights: list[int], usage: list[int], demands: list[int], history_weight: int
) -> None:
    owners = [
        project(f"p{i}", 1, weight=weights[i], usage=gpus(usage[i]), created=i) for i in range(3)
    ]
    jobs = [job(f"p{i}-{n}", 1, f"p{i}") for i, count in enumerate(demands) for n in range(count)]

    with_history, without_history = (
        shares_in(snapshot(f"1x{devices}", owners, jobs, history_weight=weight))
        for weight in (history_weight, 0)
    )

    assert sum(with_history.values()) == sum(without_history.values())
    assert all(with_history[f"p{i}"] >= min(1, demands[i]) for i in range(3))

"""Users inside a project take turns by the GPUs that they hold (O3)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import (
    job,
    project,
    session,
    settled,
    snapshot,
    started,
    stopped,
    with_workloads,
    without_workloads,
)
from runai.hub_service.scheduler import Project, Wait, Workload, decide

ONE_PROJECT = [project("a", 8)]


def queued_jobs(user: str, count: int, **fields: object) -> list[Workload]:
    """Return `count` queued one-GPU jobs of a user."""
    return [job(f"{user}-{i}", 1, user=user, **fields) for i in range(count)]  # type: ignore[arg-type]


TURNS: dict[str, tuple[str, list[Workload], set[str]]] = {
    "odd GPU to the user of the oldest job": (
        "1x3",
        [*queued_jobs("ana", 5), *queued_jobs("bo", 5)],
        {"ana-0-0", "ana-1-0", "bo-0-0"},
    ),
    "user without GPUs first": (
        "1x2",
        [job("has", user="ana", on="n1:0"), *queued_jobs("ana", 2), *queued_jobs("bo", 1)],
        {"bo-0-0"},
    ),
    "sessions count": (
        "1x2",
        [session("ana-s", user="ana", on="n1:0"), *queued_jobs("ana", 2), *queued_jobs("bo", 1)],
        {"bo-0-0"},
    ),
    "GPUs count, not jobs": (
        "1x5",
        [job("big", 2, user="ana"), *queued_jobs("bo", 4)],
        {"big-0", "bo-0-0", "bo-1-0", "bo-2-0"},
    ),
    "priority before turns": (
        "1x2",
        [*queued_jobs("ana", 2, priority=75), *queued_jobs("bo", 2)],
        {"ana-0-0", "ana-1-0"},
    ),
    "older job of one user": (
        "1x1",
        [job("young", user="ana", submitted=9), job("old", user="ana", submitted=5)],
        {"old-0"},
    ),
    "job that does not fit delays no other user": (
        "1x2",
        [job("huge", 8, user="ana"), *queued_jobs("bo", 3)],
        {"bo-0-0", "bo-1-0"},
    ),
}


@pytest.mark.parametrize(("nodes", "workloads", "expected"), TURNS.values(), ids=TURNS)
def test_users_take_turns_by_their_allocated_gpus(
    nodes: str, workloads: list[Workload], expected: set[str]
) -> None:
    assert (
        started(decide(snapshot(nodes, ONE_PROJECT, workloads, users_take_turns=True))) == expected
    )


def test_jobs_start_by_age_if_users_do_not_take_turns() -> None:
    assert started(
        decide(snapshot("1x3", ONE_PROJECT, [*queued_jobs("ana", 5), *queued_jobs("bo", 5)]))
    ) == {
        "ana-0-0",
        "ana-1-0",
        "ana-2-0",
    }


def test_user_turns_continue_across_cycles() -> None:
    cluster_snapshot = snapshot(
        "1x4", ONE_PROJECT, [*queued_jobs("ana", 9), *queued_jobs("bo", 9)], users_take_turns=True
    )
    cluster_snapshot = settled(cluster_snapshot)
    runs = [w.user for w in cluster_snapshot.workloads if w.workers[0].node]
    assert Counter(runs) == {"ana": 2, "bo": 2}

    # A job of bo ends: bo, who holds fewer GPUs than ana now, has the next turn.
    cluster_snapshot = settled(without_workloads(cluster_snapshot, "bo-0"), cycles=1)

    runs = [w.user for w in cluster_snapshot.workloads if w.workers[0].node]
    assert Counter(runs) == {"ana": 2, "bo": 2}


def test_user_turns_stop_no_running_job() -> None:
    cluster_snapshot = settled(
        snapshot("1x2", ONE_PROJECT, queued_jobs("ana", 4), users_take_turns=True)
    )

    assert stopped(decide(with_workloads(cluster_snapshot, *queued_jobs("bo", 2)))) == set()


def test_queue_positions_follow_the_turns_of_users() -> None:
    existing = job("has", user="ana", on="n1:0")
    cluster_snapshot = snapshot(
        "1x1",
        ONE_PROJECT,
        [existing, *queued_jobs("ana", 2), *queued_jobs("bo", 3)],
        users_take_turns=True,
    )

    positions = {
        d.workload: d.position for d in decide(cluster_snapshot).decisions if isinstance(d, Wait)
    }

    assert sorted(positions, key=positions.__getitem__) == [
        "bo-0",
        "ana-0",
        "bo-1",
        "ana-1",
        "bo-2",
    ]


def test_user_turns_do_not_change_the_order_of_projects() -> None:
    projects: list[Project] = [project("a", 1), project("b", 1)]
    jobs = [job(f"{name}-{i}", 1, name, user="ana") for name in "ab" for i in range(2)]

    assert started(decide(snapshot("1x2", projects, jobs, users_take_turns=True))) == {
        "a-0-0",
        "b-0-0",
    }


@given(st.lists(st.integers(0, 6), min_size=2, max_size=4), st.integers(1, 10))
def test_users_with_equal_requests_differ_by_at_most_one_gpu(
    counts: list[int], devices: int
) -> None:
    jobs = [job(f"u{u}-{i}", user=f"u{u}") for u, count in enumerate(counts) for i in range(count)]
    plan = decide(snapshot(f"1x{devices}", ONE_PROJECT, jobs, users_take_turns=True))

    allocated = Counter(name.split("-")[0] for name in started(plan))
    for user, count in enumerate(counts):
        user_gpus = allocated[f"u{user}"]
        assert user_gpus == count or user_gpus >= max(allocated.values(), default=0) - 1

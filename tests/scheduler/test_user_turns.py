"""Users inside a project take turns by the GPUs that they hold (O3)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import job, project, session, settled, snapshot, started, stopped, with_, without
from runai.hub_service.scheduler import Project, Wait, Workload, decide

ONE = [project("a", 8)]


def of(user: str, count: int, **fields: object) -> list[Workload]:
    """Return `count` queued one-GPU jobs of a user."""
    return [job(f"{user}-{i}", 1, user=user, **fields) for i in range(count)]  # type: ignore[arg-type]


NEXT: dict[str, tuple[str, list[Workload], set[str]]] = {
    "one each, and the older user the odd one": (
        "1x3",
        [*of("ana", 5), *of("bo", 5)],
        {"ana-0-0", "ana-1-0", "bo-0-0"},
    ),
    "who holds nothing goes before who holds something": (
        "1x2",
        [job("has", user="ana", on="n1:0"), *of("ana", 2), *of("bo", 1)],
        {"bo-0-0"},
    ),
    "sessions are held too": (
        "1x2",
        [session("ana-s", user="ana", on="n1:0"), *of("ana", 2), *of("bo", 1)],
        {"bo-0-0"},
    ),
    "GPUs count, not jobs": (
        "1x5",
        [job("big", 2, user="ana"), *of("bo", 4)],
        {"big-0", "bo-0-0", "bo-1-0", "bo-2-0"},
    ),
    "priority goes before turns": (
        "1x2",
        [*of("ana", 2, priority=75), *of("bo", 2)],
        {"ana-0-0", "ana-1-0"},
    ),
    "of one user the older job": (
        "1x1",
        [job("young", user="ana", submitted=9), job("old", user="ana", submitted=5)],
        {"old-0"},
    ),
    "who asks for what does not fit does not hold up the others": (
        "1x2",
        [job("huge", 8, user="ana"), *of("bo", 3)],
        {"bo-0-0", "bo-1-0"},
    ),
}


@pytest.mark.parametrize(("nodes", "workloads", "expected"), NEXT.values(), ids=NEXT)
def test_turns(nodes: str, workloads: list[Workload], expected: set[str]) -> None:
    assert started(decide(snapshot(nodes, ONE, workloads, users_take_turns=True))) == expected


def test_without_the_policy_age_alone_decides() -> None:
    assert started(decide(snapshot("1x3", ONE, [*of("ana", 5), *of("bo", 5)]))) == {
        "ana-0-0",
        "ana-1-0",
        "ana-2-0",
    }


def test_turns_go_on_from_cycle_to_cycle() -> None:
    world = snapshot("1x4", ONE, [*of("ana", 9), *of("bo", 9)], users_take_turns=True)
    world = settled(world)
    runs = [w.user for w in world.workloads if w.workers[0].node]
    assert Counter(runs) == {"ana": 2, "bo": 2}

    # One of bo's ends: it is bo's turn again.
    world = settled(without(world, "bo-0"), cycles=1)

    runs = [w.user for w in world.workloads if w.workers[0].node]
    assert Counter(runs) == {"ana": 2, "bo": 2}


def test_user_turns_stop_no_running_job() -> None:
    world = settled(snapshot("1x2", ONE, of("ana", 4), users_take_turns=True))

    assert stopped(decide(with_(world, *of("bo", 2)))) == set()


def test_positions_are_in_the_order_of_turns() -> None:
    there = job("has", user="ana", on="n1:0")
    world = snapshot("1x1", ONE, [there, *of("ana", 2), *of("bo", 3)], users_take_turns=True)

    positions = {d.workload: d.position for d in decide(world).decisions if isinstance(d, Wait)}

    assert sorted(positions, key=positions.__getitem__) == [
        "bo-0",
        "ana-0",
        "bo-1",
        "ana-1",
        "bo-2",
    ]


def test_projects_take_no_part_in_it() -> None:
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
    plan = decide(snapshot(f"1x{devices}", ONE, jobs, users_take_turns=True))

    held = Counter(name.split("-")[0] for name in started(plan))
    for user, count in enumerate(counts):
        mine = held[f"u{user}"]
        assert mine == count or mine >= max(held.values(), default=0) - 1

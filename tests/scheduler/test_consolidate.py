"""Consolidation: moves make room, and every moved worker has a new place (R10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builders import (
    applied,
    cluster,
    job,
    moved,
    places,
    project,
    reserved,
    running,
    session,
    settled,
    snapshot,
    started,
    stopped,
    waits,
)
from runai.hub_service.scheduler import Move, Node, Policy, Project, Snapshot, Workload, decide
from runai.hub_service.scheduler.cycle import run
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of

EVERY_PHASE = (*Policy().phases, "consolidate")
ONE_PROJECT = [project("a", 2)]


def consolidating_snapshot(
    nodes: str | tuple[Node, ...],
    projects: list[Project],
    workloads: list[Workload],
    **policy: Any,
) -> Snapshot:
    return snapshot(nodes, projects, workloads, phases=EVERY_PHASE, **policy)


MOVES: dict[str, tuple[str, list[Workload], dict[str, str]]] = {
    "younger of two equal jobs": (
        "2x4",
        [job("old", 2, on="n1:0,1"), job("young", 2, on="n2:0,1"), job("new", 3)],
        {"young-0": "n1:2,3", "new-0": "n2:0,1,2"},
    ),
    "lower priority before younger job": (
        "2x4",
        [
            job("low", 2, on="n1:0,1", priority=25),
            job("young", 2, on="n2:0,1"),
            job("new", 3),
        ],
        {"low-0": "n2:2,3", "new-0": "n1:0,1,2"},
    ),
    "no move while a node has enough idle GPUs": (
        "2x4",
        [
            job("two", 2, on="n1:0,1"),
            job("one", 1, on="n2:0"),
            job("sessions", 2, kind="session", on="n2:1,2"),
            job("new", 2),
        ],
        {},  # n1 has two idle GPUs: no job needs to move
    ),
    "smaller job, because the larger fits nowhere else": (
        "2x4",
        [
            job("three", 3, on="n1:0,1,2"),
            job("one", 1, on="n2:0"),
            job("two", 2, on="n2:1,2"),
            job("new", 2),
        ],
        {"one-0": "n1:3", "new-0": "n2:0,3"},
    ),
    "half-GPU jobs share a device to empty the second": (
        "1x2",
        [job("h1", 0.5, on="n1:0"), job("h2", 0.5, on="n1:1"), job("new", 1)],
        {"h2-0": "n1:0", "new-0": "n1:1"},
    ),
    "jobs with memory requests share a device": (
        "1x2",
        [
            job("m1", gpu_memory_mib=30_000, on="n1:0"),
            job("m2", gpu_memory_mib=40_000, on="n1:1"),
            job("new", gpu_memory_mib=60_000),
        ],
        {"m2-0": "n1:0", "new-0": "n1:1"},
    ),
    "one worker of an elastic job": (
        "1x4+1x3",
        [job("e", 2, workers=2, min_workers=1, on="n1:0,1 n2:0,1"), job("new", 3)],
        {"e-1": "n1:2,3", "new-0": "n2:0,1,2"},
    ),
    "two nodes emptied for a gang": (
        "4x2",
        [*[job(f"j{n}", on=f"n{n}:0") for n in (1, 2, 3, 4)], job("gang", 2, workers=2)],
        {"j3-0": "n2:1", "j4-0": "n1:1", "gang-0": "n4:0,1", "gang-1": "n3:0,1"},
    ),
    "single job before a whole gang": (
        "3x2",
        [
            job("gang", 1, workers=2, on="n1:0 n2:0", started=900),
            job("alone", 1, on="n3:0", started=900),
            job("new", 2),
        ],
        {"alone-0": "n1:1", "new-0": "n3:0,1"},
    ),
}


@pytest.mark.parametrize(("nodes", "workloads", "expected"), MOVES.values(), ids=MOVES)
def test_consolidation_moves_jobs_to_make_room(
    nodes: str, workloads: list[Workload], expected: dict[str, str]
) -> None:
    plan = decide(consolidating_snapshot(nodes, ONE_PROJECT, workloads))

    placed = places(plan)
    assert stopped(plan) == set()
    assert {name: placed.get(name) for name in expected} == expected
    # "new" and "gang" are the claimants; the other workers with a new place are moved.
    assert moved(plan) == {name for name in expected if not name.startswith(("new", "gang-"))}


STAYS: dict[str, tuple[str, list[Project], list[Workload]]] = {
    "too few idle GPUs in total": (
        "2x4",
        ONE_PROJECT,
        [job("x", 3, on="n1:0,1,2"), job("y", 3, on="n2:0,1,2"), job("new", 3)],
    ),
    "enough idle GPUs, but a victim fits nowhere": (
        "1x4+1x3",
        ONE_PROJECT,
        [job("e", 2, workers=3, min_workers=1, on="n1:0,1 n1:2,3 n2:0,1"), job("new", 3)],
    ),
    "claimant is a session within its build quota": (
        "2x2",
        [project("a", 2, build=2), project("b", 0, build=0)],
        [job("x", on="n1:0"), job("y", on="n2:0"), session("ana-1", 2, preemptible=False)],
    ),
    "victims are preemptible sessions": (
        "2x2",
        [project("a", 0)],
        [
            session("ana-1", preemptible=True, on="n1:0", priority=50),
            session("bo-1", preemptible=True, on="n2:0", priority=50),
            job("new", 2),
        ],
    ),
    "victims are sessions": (
        "2x2",
        [project("a", 2)],
        [session("ana-1", on="n1:0"), session("bo-1", on="n2:0"), job("new", 2)],
    ),
    "claimant exceeds its project limit": (
        "2x2",
        [project("a", 2, limit=3)],
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2)],
    ),
    "victims within their minimum run time": (
        "2x2",
        [project("a", 2, min_runtime=100)],
        [job("x", on="n1:0", started=950), job("y", on="n2:0", started=950), job("new", 2)],
    ),
    "claimant is a surplus worker": (
        "2x2",
        ONE_PROJECT,
        [job("x", on="n1:0"), job("e", 2, workers=2, min_workers=1, on="n2:0,1")],
    ),
    "idle GPUs are never lent": (
        "2x2",
        [project("a", 2), project("b", 1, never_lent=2)],
        [job("x", on="n1:0"), job("y", on="n2:0"), job("new", 2)],
    ),
}


@pytest.mark.parametrize(("nodes", "projects", "workloads"), STAYS.values(), ids=STAYS)
def test_consolidation_without_a_useful_move_leaves_workers_in_place(
    nodes: str, projects: list[Project], workloads: list[Workload]
) -> None:
    plan = decide(snapshot(nodes, projects, workloads, phases=("allocate", "consolidate")))

    assert moved(plan) == reserved(plan) == set()


SCATTERED_JOBS = [job("old", 1, on="n1:0"), job("young", 1, on="n2:0"), job("new", 2)]


def test_consolidation_is_off_by_default() -> None:
    # "old" and "young" leave one GPU idle on each node; "new" needs two on one node.
    assert waits(decide(snapshot("2x2", ONE_PROJECT, SCATTERED_JOBS))) == {"new": "fragmented"}


def test_consolidation_move_reason_names_the_claimant_and_the_rule() -> None:
    plan = decide(consolidating_snapshot("2x2", ONE_PROJECT, SCATTERED_JOBS))

    (move,) = [d for d in plan.decisions if isinstance(d, Move)]
    assert (move.reason.code, move.reason.rule, move.reason.for_) == ("consolidated", "R10", "new")
    assert move.reason.text == "moved to n1 to make room for new"


def test_unstarted_job_starts_elsewhere_instead_of_moving_later() -> None:
    # "small" goes to the fullest node, where it blocks "big", which is next.
    plan = decide(
        consolidating_snapshot(
            "1x2+1x4",
            [project("a", 8)],
            [
                job("there", 2, on="n2:0,1"),
                job("small", 0.5),
                job("big", 2, node_selector={}, nodes=("n1",)),
            ],
        )
    )

    assert (moved(plan), stopped(plan)) == (set(), set())
    assert places(plan) == {"small-0": "n2:2", "big-0": "n1:0,1"}


def test_moved_job_and_claimant_run_after_the_next_cycle_without_more_decisions() -> None:
    # "old" runs on n1; "young" moves there from n2, where "new" then has two GPUs.
    snapshot = consolidating_snapshot("2x2", ONE_PROJECT, SCATTERED_JOBS)

    snapshot = applied(snapshot, decide(snapshot))
    assert started(decide(snapshot)) == {"young-0", "new-0"}

    snapshot = applied(snapshot, decide(snapshot))
    assert running(snapshot) == {"old", "young", "new"}
    assert decide(snapshot).decisions == ()


def test_gpu_left_over_by_a_move_is_reserved_for_the_next_job() -> None:
    # "three" moves from n2 to n1. "new" takes two of its GPUs, "one" the third in the same plan.
    nodes = "1x3+1x4"
    workloads = [
        job("stays", 1, kind="session", on="n2:0"),
        job("three", 3, on="n2:1,2,3"),
        job("new", 2, cpu_milli=4000, node_selector={"size": "big"}),
        job("one", 1, node_selector={"size": "big"}),
    ]
    small, big = cluster(nodes)
    labelled = (small, replace(big, labels={"size": "big"}))

    plan = decide(consolidating_snapshot(labelled, [project("a", 8)], workloads))

    assert moved(plan) == {"three-0"}
    assert reserved(plan) == {"new-0", "one-0"}


def test_earlier_move_in_a_plan_makes_room_for_a_later_move() -> None:
    """`cores` lacks CPU on n2, so `stacked` moves to n3; then `three` has room on n2.

    `early` and `late` each request all five GPUs of a node, which only n1 without `three` has.
    `early` is planned before `stacked` moves and waits; `late` is planned after it.
    """
    ranks = {"a": 4, "b": 3, "c": 2, "d": 1}
    workloads = [
        job("three", 3, "d", on="n1:0,1,2"),
        job("stacked", 2, "d", on="n2:0,1", cpu_milli=8, nodes=("n2", "n3")),
        session("dan-1", 1, "d", on="n2:2"),
        job("early", 5),
        job("cores", 1, "b", cpu_milli=8, nodes=("n2",)),
        job("late", 5, "c"),
    ]

    plan = decide(
        consolidating_snapshot(
            cluster("2x5+1x2", cpu_milli=8),
            [project(name, 8, priority=rank) for name, rank in ranks.items()],
            workloads,
        )
    )

    assert moved(plan) == {"stacked-0", "three-0"}
    assert reserved(plan) == {"cores-0", "late-0"}


def test_project_within_quota_gets_the_node_that_consolidation_emptied() -> None:
    # a is over its quota, and its "more" would get GPUs of n2 by a move of a2. b is owed four
    # GPUs: its "owed" gets all of n2 instead.
    projects = [project("a", 4, weight=0), project("b", 4, weight=0, created=1)]
    workloads = [
        job("a1", 2, on="n1:0,1"),
        job("a2", 2, on="n2:0,1"),
        job("a3", 1, on="n2:2"),
        job("more", 3),
        job("owed", 4, "b"),
    ]

    plan = decide(consolidating_snapshot("2x4", projects, workloads))

    assert stopped(plan) == {"a3-0"}
    assert moved(plan) == {"a2-0"}
    assert reserved(plan) == {"owed-0"}
    reasons = {d.worker: d.reason.for_ for d in plan.decisions if isinstance(d, Move)}
    assert reasons == {"a2-0": "owed"}


def test_move_reason_names_the_job_that_takes_the_freed_gpus() -> None:
    # a's "more" would get GPUs of n2 by a move of a2, but b's "owed" takes them within its quota.
    # "tiny", the oldest, also starts on an idle GPU of n2.
    projects = [project("a", 4, weight=0), project("b", 4, weight=0, created=1)]
    workloads = [
        job("tiny", 1, nodes=("n2",)),
        *(job("a1", 2, on="n1:0,1"), job("a2", 2, on="n2:0,1"), job("a3", 1, on="n2:2")),
        *(job("more", 3, nodes=("n2",)), job("owed", 4, "b", nodes=("n2",))),
    ]

    plan = decide(consolidating_snapshot("1x4+1x5", projects, workloads))

    assert started(plan) == {"tiny-0"}
    assert moved(plan) == {"a2-0"}
    assert reserved(plan) == {"owed-0"}
    assert [d.reason.for_ for d in plan.decisions if isinstance(d, Move)] == ["owed"]


@pytest.mark.parametrize(
    ("shrink_first", "stops", "moves"), [(True, {"e-1"}, set()), (False, set(), {"j-0"})]
)
def test_shrink_first_stops_surplus_workers_before_moving_jobs(
    stops: set[str], moves: set[str], *, shrink_first: bool
) -> None:
    # R6: stopping a surplus worker pauses no job; a move does.
    projects = [project("a", 0, weight=0), project("b", 2)]
    workloads = [
        job("e", 2, workers=2, min_workers=1, on="n1:0,1 n2:0,1"),
        job("i", 1, on="n3:0"),
        job("j", 1, on="n4:0"),
        job("new", 2, "b"),
    ]

    plan = decide(consolidating_snapshot("4x2", projects, workloads, shrink_first=shrink_first))

    assert stopped(plan) == stops
    assert moved(plan) == moves


def test_consolidation_respects_max_evictions() -> None:
    # A gang of two workers with two GPUs each needs two of the four half-used nodes: two moves.
    jobs = [job(f"j{n}", on=f"n{n}:0") for n in (1, 2, 3, 4)]
    snapshot = consolidating_snapshot(
        "4x2", ONE_PROJECT, [*jobs, job("gang", 2, workers=2)], max_evictions=1
    )

    assert moved(decide(snapshot)) == set()
    assert (
        moved(decide(replace(snapshot, policy=replace(snapshot.policy, max_evictions=2)))) != set()
    )


def test_job_at_its_hourly_pause_limit_is_not_moved_by_consolidation() -> None:
    # "young" was paused twice within the last hour; the pause of "old" at 100 is longer ago.
    snapshot = consolidating_snapshot(
        "2x2",
        ONE_PROJECT,
        [
            job("old", on="n1:0", pauses=(100, 900)),
            job("young", on="n2:0", pauses=(800, 900)),
            job("new", 2),
        ],
        max_pauses_per_hour=2,
        now=4000,
    )

    assert moved(decide(snapshot)) == {"old-0"}


def count_candidates_for_moves(nodes: str, workloads: list[Workload]) -> int:
    """Count the candidates that a cycle looks at only for consolidation."""
    examined = []
    for phases in (Policy().phases, EVERY_PHASE):
        cluster_snapshot = snapshot(nodes, [project("a", 100)], workloads, phases=phases)
        state = PlanningState(cluster_snapshot, tree_of(cluster_snapshot))
        assert moved(run(state)) == set()
        examined.append(state.candidates_examined)
    return examined[1] - examined[0]


def test_consolidation_that_cannot_free_enough_gpus_is_rejected_without_a_search() -> None:
    # Only the two first GPUs of n1 are idle, and every gang needs eight on one node.
    jobs = [job(f"j{n}-{d}", on=f"n{n}:{d}") for n in range(1, 11) for d in range(8)][2:]
    gangs = [job(f"gang{i}", 8, workers=1 + i % 4) for i in range(40)]

    assert count_candidates_for_moves("10x8", [*jobs, *gangs]) == 0


def test_consolidation_search_runs_once_for_equal_requests() -> None:
    # Each node has two idle GPUs, but its jobs fit nowhere else; counting cannot show that.
    jobs = [job(f"j{n}{m}", 3, on=f"n{n}:{m},{m + 1},{m + 2}") for n in range(1, 9) for m in (0, 3)]
    waiting = [job(f"new{i}", 4, workers=1 + i % 3) for i in range(30)]

    count_for_one = count_candidates_for_moves("8x8", [*jobs, waiting[0]])
    count_for_all = count_candidates_for_moves("8x8", [*jobs, *waiting])

    assert count_for_one > 0
    assert count_for_all == count_for_one


def test_consolidation_makes_no_more_decisions_after_two_cycles() -> None:
    jobs = [job(f"j{n}", 1, on=f"n{n}:0") for n in range(1, 7)]
    snapshot = consolidating_snapshot(
        "6x4", [project("a", 24)], [*jobs, job("g1", 4), job("g2", 4, workers=3)]
    )

    snapshot = settled(snapshot, cycles=2)

    assert running(snapshot) == {*(f"j{n}" for n in range(1, 7)), "g1", "g2"}
    assert decide(snapshot).decisions == ()


@pytest.mark.parametrize(("full_node_count", "expected"), [(23, "no_room"), (24, "not_proven")])
def test_consolidation_search_ends_with_not_proven_after_too_many_failed_attempts(
    full_node_count: int, expected: str
) -> None:
    """On each full node two jobs would have to leave, and only one fits on another node.

    Each full node is a failed attempt, and the search ends after 24.
    """
    existing = [
        job(f"r{node}-{first}", 2, on=f"n{node}:{first},{first + 1}")
        for node in range(1, full_node_count + 1)
        for first in (0, 2)
    ]
    snapshot = consolidating_snapshot(
        f"{full_node_count}x4+1x2+2x1", [project("a", 200)], [*existing, job("new", 4)]
    )

    assert waits(decide(snapshot)) == {"new": expected}

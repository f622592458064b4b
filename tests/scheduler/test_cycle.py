"""Whole stories, cycle by cycle, and what every plan promises (R7, R8, X)."""

from __future__ import annotations

import pytest

from builders import (
    applied,
    job,
    places,
    project,
    reserved,
    running,
    sentence,
    session,
    settled,
    snapshot,
    started,
    stopped,
    waits,
    with_,
    without,
)
from runai.hub_service.scheduler import Plan, Policy, Snapshot, Unreserve, Wait, decide

BOB_AND_PATTY = (
    [project("bob", 2.5), project("patty", 2.5)],
    [session("bob-s", 0.5, "bob"), session("patty-s", 0.5, "patty")],
)


def bob_runs_over_his_quota() -> Snapshot:
    projects, sessions = BOB_AND_PATTY
    world = settled(snapshot("1x5", projects, sessions), cycles=1)
    return settled(with_(world, *[job(f"bob-{i}", 1, "bob", submitted=10 + i) for i in range(6)]))


def test_two_sessions_of_half_a_gpu_share_a_device() -> None:
    projects, sessions = BOB_AND_PATTY

    plan = decide(snapshot("1x5", projects, sessions))

    assert places(plan) == {"bob-s-0": "n1:0", "patty-s-0": "n1:0"}


def test_bob_uses_every_idle_gpu() -> None:
    assert running(bob_runs_over_his_quota()) == {
        "bob-s",
        "patty-s",
        "bob-0",
        "bob-1",
        "bob-2",
        "bob-3",
    }


def test_patty_gets_her_two_gpus_back_from_bobs_two_newest() -> None:
    world = with_(bob_runs_over_his_quota(), job("p-0", 1, "patty"), job("p-1", 1, "patty"))

    plan = decide(world)

    assert stopped(plan) == {"bob-2-0", "bob-3-0"}
    assert reserved(plan) == {"p-0-0", "p-1-0"}


def test_bobs_jobs_resume_when_pattys_end() -> None:
    world = with_(bob_runs_over_his_quota(), job("p-0", 1, "patty"), job("p-1", 1, "patty"))
    world = settled(world)
    assert running(world) == {"bob-s", "patty-s", "bob-0", "bob-1", "p-0", "p-1"}

    plan = decide(without(world, "p-0", "p-1"))

    assert started(plan) == {"bob-2-0", "bob-3-0"}


def test_what_was_freed_is_kept_while_the_stopped_have_their_grace() -> None:
    world = with_(bob_runs_over_his_quota(), job("p-0", 1, "patty"), job("p-1", 1, "patty"))

    world = applied(world, decide(world), grace=True)
    plan = decide(world)

    assert (started(plan), stopped(plan), reserved(plan)) == (set(), set(), set())
    assert sentence(plan, "p-0").endswith("is reserved; waiting for bob-3 to stop")


def test_over_quota_quick_start() -> None:
    # 2 nodes of 2 GPUs, quotas 2 and 2: the original's first steps, exactly.
    world = snapshot("2x2", [project("a", 2), project("b", 2)])
    world = settled(with_(world, job("a-two", 2, submitted=1)), cycles=1)
    world = settled(with_(world, job("a-one", 1, submitted=2)), cycles=1)
    world = settled(with_(world, job("b-one", 1, "b", submitted=3)), cycles=1)
    assert running(world) == {"a-two", "a-one", "b-one"}

    world = with_(world, job("b-more", 1, "b", submitted=4))
    plan = decide(world)
    assert stopped(plan) == {"a-one-0"}
    world = settled(world)
    assert running(world) == {"a-two", "b-one", "b-more"}

    world = settled(without(world, "b-more"), cycles=1)
    assert running(world) == {"a-two", "a-one", "b-one"}


@pytest.mark.parametrize(
    ("quotas", "expected"),
    [((1, 1), (2, 2)), ((3, 1), (3, 1))],
    ids=["equal quotas share equally", "three to one"],
)
def test_queue_fairness(quotas: tuple[int, int], expected: tuple[int, int]) -> None:
    jobs = [job(f"{name}-{i}", 1, name) for name in "ab" for i in range(4)]
    world = snapshot("1x4", [project("a", quotas[0]), project("b", quotas[1])], jobs)

    names = started(decide(world))

    assert tuple(sum(name.startswith(p) for name in names) for p in "ab") == expected


def test_four_projects_of_eight_gpus_have_eight_each() -> None:
    names = "abcd"
    jobs = [job(f"{name}-{i}", 1, name) for name in names for i in range(10)]
    world = snapshot("4x8", [project(name, 8) for name in names], jobs)

    plan = decide(world)

    assert {n: p.allocated for n, p in plan.projects.items()} == dict.fromkeys(names, 8000)


def test_two_halves_share_a_gpu_and_a_second_whole_job_waits() -> None:
    halves = snapshot("1x1", [project("a", 1)], [job("h1", 0.5), job("h2", 0.5)])
    wholes = snapshot("1x1", [project("a", 1)], [job("w1", 1), job("w2", 1)])

    assert places(decide(halves)) == {"h1-0": "n1:0", "h2-0": "n1:0"}
    assert (started(decide(wholes)), waits(decide(wholes))) == ({"w1-0"}, {"w2": "behind"})


# ---- R7, R9


def test_a_reservation_stays_until_its_devices_are_free() -> None:
    world = snapshot(
        "1x1",
        [project("a", 1), project("b", 1)],
        [
            job("old", on="n1:0", state="stopping"),
            job("new", project="b", on="n1:0", state="reserved"),
        ],
    )

    plan = decide(world)

    assert [d for d in plan.decisions if not isinstance(d, Wait)] == []
    assert waits(plan) == {"new": "stopping"}


def test_a_reservation_starts_as_soon_as_its_devices_are_free() -> None:
    world = snapshot("1x1", [project("a", 1)], [job("new", on="n1:0", state="reserved")])

    assert places(decide(world)) == {"new-0": "n1:0"}


def test_who_waits_for_reserved_devices_starts_elsewhere_if_something_is_idle() -> None:
    world = snapshot(
        "1x2",
        [project("a", 2)],
        [job("old", on="n1:0", state="stopping"), job("new", on="n1:0", state="reserved")],
    )

    assert places(decide(world)) == {"new-0": "n1:1"}


def test_a_reservation_ends_when_the_limit_no_longer_allows_it() -> None:
    world = snapshot(
        "1x2",
        [project("a", 1, limit=1)],
        [job("runs", on="n1:0"), job("late", on="n1:1", state="reserved")],
    )

    plan = decide(world)

    assert Unreserve(workload="late", worker="late-0") in plan.decisions
    assert waits(plan) == {"late": "over_limit"}


def test_nobody_takes_what_is_reserved_for_another() -> None:
    world = snapshot(
        "1x2",
        [project("a", 0), project("b", 2)],
        [
            job("gang", project="b", workers=2, on="n1:0 n1:1", state="reserved"),
            job("old", on="n1:0", state="stopping"),
            job("small"),
        ],
    )

    plan = decide(world)

    assert started(plan) == set()
    assert waits(plan) == {"gang": "stopping", "small": "held_for"}


def test_without_reservations_the_victims_stop_and_nothing_is_reserved() -> None:
    world = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [job("old", on="n1:0"), job("new", project="b")],
        reservations=False,
    )

    plan = decide(world)

    assert (stopped(plan), reserved(plan)) == ({"old-0"}, set())
    assert running(settled(world)) == {"new"}


def test_a_paused_job_keeps_its_place_in_the_queue() -> None:
    world = snapshot(
        "1x1",
        [project("a", 1), project("b", 1)],
        [job("old", submitted=1), job("younger", submitted=2)],
    )

    assert started(decide(world)) == {"old-0"}


# ---- phases


@pytest.mark.parametrize(
    ("phases", "starts", "stops"),
    [
        ((), set(), set()),
        (("allocate",), {"fits-0"}, set()),
        (("reclaim",), set(), {"victim-0"}),
        (("preempt",), set(), set()),
    ],
    ids=["none", "allocate only", "reclaim only", "preempt only"],
)
def test_phases_are_what_a_cycle_does(
    phases: tuple[str, ...], starts: set[str], stops: set[str]
) -> None:
    world = snapshot(
        "1x2",
        [project("a", 0), project("b", 2)],
        [
            job("victim", 1, on="n1:0"),
            job("fits", 0.5, "b"),
            job("two", 2, "b"),
        ],
        phases=phases,
    )

    plan = decide(world)

    assert (started(plan), stopped(plan)) == (starts, stops)


# ---- R11


@pytest.mark.parametrize(
    ("since", "expected"),
    [(None, set()), (950, set()), (900, {"gang-0"})],
    ids=["not known to be broken", "within its grace", "broken for too long"],
)
def test_a_broken_gang_is_stopped_whole_after_its_grace(
    since: int | None, expected: set[str]
) -> None:
    gang = job("gang", workers=2, on="n1:0", below_min_since=since)

    assert stopped(decide(snapshot("1x1", [project("a", 2)], [gang]))) == expected


def test_a_broken_gang_is_completed_rather_than_stopped() -> None:
    gang = job("gang", workers=2, on="n1:0", below_min_since=900)

    plan = decide(snapshot("1x2", [project("a", 2)], [gang]))

    assert (started(plan), stopped(plan)) == ({"gang-1"}, set())


def test_an_empty_cluster_has_an_empty_plan() -> None:
    assert decide(Snapshot()) == Plan()


def test_a_policy_given_beside_the_snapshot_replaces_its_own() -> None:
    world = snapshot("2x2", [project("a", 1)], [job("x", 0.5, on="n1:0"), job("new", 0.5)])

    assert places(decide(world, Policy(packing="spread"))) == {"new-0": "n2:0"}

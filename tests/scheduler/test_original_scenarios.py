"""Scenarios of the original product, cycle by cycle, with every plan applied.

They come from the documentation and the talk of 2019 to 2021, the first source of the rules. Each
test asserts what a user saw then.
"""

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
from runai.hub_service.scheduler import Snapshot, Start, Stop, decide

# ---- Bob and Patty: two people, five GPUs, 2.5 for each

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


def test_reclaimed_gpus_stay_reserved_during_the_grace_of_the_stopped_jobs() -> None:
    world = with_(bob_runs_over_his_quota(), job("p-0", 1, "patty"), job("p-1", 1, "patty"))

    world = applied(world, decide(world), grace=True)
    plan = decide(world)

    assert (started(plan), stopped(plan), reserved(plan)) == (set(), set(), set())
    assert sentence(plan, "p-0").endswith("is reserved; waiting for bob-3 to stop")


def test_bob_logs_in_again_while_his_jobs_use_everything() -> None:
    # Training uses his build GPU while it is free; his own newest job stops for his session.
    world = with_(bob_runs_over_his_quota(), session("bob-s2", 1, "bob"))

    plan = decide(world)

    assert stopped(plan) == {"bob-3-0"}
    assert "bob-s2" in running(settled(world))


# ---- over-quota quick start: two nodes of two GPUs, a quota of two for each of two projects


def test_over_quota_quick_start() -> None:
    world = snapshot("2x2", [project("a", 2), project("b", 2)])
    world = settled(with_(world, job("a-two", 2, submitted=1)), cycles=1)
    world = settled(with_(world, job("a-one", 1, submitted=2)), cycles=1)
    assert decide(world).projects["a"].over_quota == 1000
    world = settled(with_(world, job("b-one", 1, "b", submitted=3)), cycles=1)
    assert running(world) == {"a-two", "a-one", "b-one"}

    # b is owed a second GPU: a's newest job pauses, not its job of two GPUs.
    world = with_(world, job("b-more", 1, "b", submitted=4))
    plan = decide(world)
    (stop,) = [d for d in plan.decisions if isinstance(d, Stop)]
    assert (stop.worker, stop.reason.code, stop.reason.for_) == ("a-one-0", "reclaimed", "b-more")
    world = settled(world)
    assert running(world) == {"a-two", "b-one", "b-more"}
    assert set(waits(decide(world))) == {"a-one"}

    # It resumes by itself when b's job ends.
    world = settled(without(world, "b-more"), cycles=1)
    assert running(world) == {"a-two", "a-one", "b-one"}
    assert waits(decide(world)) == {}


# ---- queue fairness: four GPUs


FAIRNESS = {
    "equal quotas share equally": ((1, 1), (2, 2)),
    "three to one": ((3, 1), (3, 1)),
}


@pytest.mark.parametrize(("quotas", "expected"), FAIRNESS.values(), ids=FAIRNESS)
def test_queue_fairness_at_once(quotas: tuple[int, int], expected: tuple[int, int]) -> None:
    jobs = [job(f"{name}-{i}", 1, name) for name in "ab" for i in range(4)]
    world = snapshot("1x4", [project("a", quotas[0]), project("b", quotas[1])], jobs)

    names = started(decide(world))

    assert tuple(sum(name.startswith(p) for name in names) for p in "ab") == expected


@pytest.mark.parametrize(("quotas", "expected"), FAIRNESS.values(), ids=FAIRNESS)
def test_queue_fairness_when_one_came_first(
    quotas: tuple[int, int], expected: tuple[int, int]
) -> None:
    # a has all four GPUs when b's jobs arrive: a shrinks to its fair share, and no further.
    world = snapshot("1x4", [project("a", quotas[0]), project("b", quotas[1])])
    world = settled(with_(world, *[job(f"a-{i}", 1) for i in range(4)]))
    assert len(running(world)) == 4

    world = with_(world, *[job(f"b-{i}", 1, "b") for i in range(4)])
    for _ in range(5):
        world = settled(world, cycles=1)

    names = running(world)
    assert tuple(sum(name.startswith(p) for name in names) for p in "ab") == expected
    assert not [d for d in decide(world).decisions if isinstance(d, Start | Stop)]


# ---- fractions


def test_a_second_whole_job_waits_for_the_gpu_of_the_first() -> None:
    wholes = snapshot("1x1", [project("a", 1)], [job("w1", 1), job("w2", 1)])

    assert (started(decide(wholes)), waits(decide(wholes))) == ({"w1-0"}, {"w2": "behind"})


def test_a_third_half_waits_until_one_of_two_ends() -> None:
    world = snapshot("1x1", [project("a", 1)], [job("h1", 0.5), job("h2", 0.5), job("h3", 0.5)])
    world = settled(world)
    assert (running(world), set(waits(decide(world)))) == ({"h1", "h2"}, {"h3"})

    world = settled(without(world, "h1"), cycles=1)

    assert running(world) == {"h2", "h3"}


# ---- from static allocations to guaranteed quotas: four projects of eight on 32 GPUs


def full_of(*names: str) -> Snapshot:
    owners = [project(name, 8) for name in "abcd"]
    jobs = [job(f"{name}-{i}", 1, name) for name in names for i in range(40)]
    return settled(snapshot("4x8", owners, jobs))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param("a", [32, 0, 0, 0], id="one alone has the whole cluster"),
        pytest.param("ab", [16, 16, 0, 0], id="two have half of it each"),
    ],
)
def test_projects_with_work_share_the_gpus_of_idle_projects(
    names: str, expected: list[int]
) -> None:
    shares = decide(full_of(*names)).projects

    assert [shares[name].allocated / 1000 for name in "abcd"] == expected


def test_every_project_reclaims_its_eight_gpus_from_an_earlier_project() -> None:
    world = full_of("a")
    for count, name in enumerate("bcd", start=2):
        world = settled(with_(world, *[job(f"{name}-{i}", 1, name) for i in range(40)]), cycles=3)

        held = {n: s.allocated for n, s in decide(world).projects.items()}
        assert sum(held.values()) == 32_000
        assert all(held[n] >= 8000 for n in "abcd"[:count])
        assert max(held.values()) - min(held[n] for n in "abcd"[:count]) <= 1000

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
    with_workloads,
    without_workloads,
)
from runai.hub_service.scheduler import Snapshot, Start, Stop, decide

# ---- Bob and Patty: two people, five GPUs, 2.5 for each

BOB_AND_PATTY = (
    [project("bob", 2.5), project("patty", 2.5)],
    [session("bob-s", 0.5, "bob"), session("patty-s", 0.5, "patty")],
)


def bob_runs_over_his_quota() -> Snapshot:
    projects, sessions = BOB_AND_PATTY
    cluster_snapshot = settled(snapshot("1x5", projects, sessions), cycles=1)
    return settled(
        with_workloads(
            cluster_snapshot, *[job(f"bob-{i}", 1, "bob", submitted=10 + i) for i in range(6)]
        )
    )


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
    snapshot = with_workloads(
        bob_runs_over_his_quota(), job("p-0", 1, "patty"), job("p-1", 1, "patty")
    )

    plan = decide(snapshot)

    assert stopped(plan) == {"bob-2-0", "bob-3-0"}
    assert reserved(plan) == {"p-0-0", "p-1-0"}


def test_bobs_jobs_resume_when_pattys_end() -> None:
    snapshot = with_workloads(
        bob_runs_over_his_quota(), job("p-0", 1, "patty"), job("p-1", 1, "patty")
    )
    snapshot = settled(snapshot)
    assert running(snapshot) == {"bob-s", "patty-s", "bob-0", "bob-1", "p-0", "p-1"}

    plan = decide(without_workloads(snapshot, "p-0", "p-1"))

    assert started(plan) == {"bob-2-0", "bob-3-0"}


def test_reclaimed_gpus_stay_reserved_during_the_grace_of_the_stopped_jobs() -> None:
    snapshot = with_workloads(
        bob_runs_over_his_quota(), job("p-0", 1, "patty"), job("p-1", 1, "patty")
    )

    snapshot = applied(snapshot, decide(snapshot), grace=True)
    plan = decide(snapshot)

    assert (started(plan), stopped(plan), reserved(plan)) == (set(), set(), set())
    assert sentence(plan, "p-0").endswith("is reserved; waiting for bob-3 to stop")


def test_second_session_of_bob_stops_his_newest_job() -> None:
    # Training uses his build GPU while it is free; his own newest job stops for his session.
    snapshot = with_workloads(bob_runs_over_his_quota(), session("bob-s2", 1, "bob"))

    plan = decide(snapshot)

    assert stopped(plan) == {"bob-3-0"}
    assert "bob-s2" in running(settled(snapshot))


# ---- over-quota quick start: two nodes of two GPUs, a quota of two for each of two projects


def test_over_quota_job_pauses_for_a_project_within_quota_and_resumes() -> None:
    cluster_snapshot = snapshot("2x2", [project("a", 2), project("b", 2)])
    cluster_snapshot = settled(
        with_workloads(cluster_snapshot, job("a-two", 2, submitted=1)), cycles=1
    )
    cluster_snapshot = settled(
        with_workloads(cluster_snapshot, job("a-one", 1, submitted=2)), cycles=1
    )
    assert decide(cluster_snapshot).projects["a"].over_quota == 1000
    cluster_snapshot = settled(
        with_workloads(cluster_snapshot, job("b-one", 1, "b", submitted=3)), cycles=1
    )
    assert running(cluster_snapshot) == {"a-two", "a-one", "b-one"}

    # b is owed a second GPU: a's newest job pauses, not its job of two GPUs.
    cluster_snapshot = with_workloads(cluster_snapshot, job("b-more", 1, "b", submitted=4))
    plan = decide(cluster_snapshot)
    (stop,) = [d for d in plan.decisions if isinstance(d, Stop)]
    assert (stop.worker, stop.reason.code, stop.reason.for_) == ("a-one-0", "reclaimed", "b-more")
    cluster_snapshot = settled(cluster_snapshot)
    assert running(cluster_snapshot) == {"a-two", "b-one", "b-more"}
    assert set(waits(decide(cluster_snapshot))) == {"a-one"}

    # It resumes by itself when b's job ends.
    cluster_snapshot = settled(without_workloads(cluster_snapshot, "b-more"), cycles=1)
    assert running(cluster_snapshot) == {"a-two", "a-one", "b-one"}
    assert waits(decide(cluster_snapshot)) == {}


# ---- queue fairness: four GPUs


FAIRNESS = {
    "equal quotas share equally": ((1, 1), (2, 2)),
    "three to one": ((3, 1), (3, 1)),
}


@pytest.mark.parametrize(("quotas", "expected"), FAIRNESS.values(), ids=FAIRNESS)
def test_queues_submitted_together_share_the_gpus_by_project_quota(
    quotas: tuple[int, int], expected: tuple[int, int]
) -> None:
    jobs = [job(f"{name}-{i}", 1, name) for name in "ab" for i in range(4)]
    cluster_snapshot = snapshot("1x4", [project("a", quotas[0]), project("b", quotas[1])], jobs)

    names = started(decide(cluster_snapshot))

    assert tuple(sum(name.startswith(p) for name in names) for p in "ab") == expected


@pytest.mark.parametrize(("quotas", "expected"), FAIRNESS.values(), ids=FAIRNESS)
def test_project_with_all_gpus_shrinks_to_its_share_for_a_later_queue(
    quotas: tuple[int, int], expected: tuple[int, int]
) -> None:
    # a has all four GPUs when b's jobs arrive: a shrinks to its fair share, and no further.
    cluster_snapshot = snapshot("1x4", [project("a", quotas[0]), project("b", quotas[1])])
    cluster_snapshot = settled(
        with_workloads(cluster_snapshot, *[job(f"a-{i}", 1) for i in range(4)])
    )
    assert len(running(cluster_snapshot)) == 4

    cluster_snapshot = with_workloads(cluster_snapshot, *[job(f"b-{i}", 1, "b") for i in range(4)])
    for _ in range(5):
        cluster_snapshot = settled(cluster_snapshot, cycles=1)

    names = running(cluster_snapshot)
    assert tuple(sum(name.startswith(p) for name in names) for p in "ab") == expected
    assert not [d for d in decide(cluster_snapshot).decisions if isinstance(d, Start | Stop)]


# ---- fractions


def test_second_whole_gpu_job_waits_for_the_gpu_of_the_first() -> None:
    cluster_snapshot = snapshot("1x1", [project("a", 1)], [job("w1", 1), job("w2", 1)])

    plan = decide(cluster_snapshot)
    assert (started(plan), waits(plan)) == ({"w1-0"}, {"w2": "behind"})


def test_third_half_gpu_job_waits_until_one_of_two_ends() -> None:
    cluster_snapshot = snapshot(
        "1x1", [project("a", 1)], [job("h1", 0.5), job("h2", 0.5), job("h3", 0.5)]
    )
    cluster_snapshot = settled(cluster_snapshot)
    assert running(cluster_snapshot) == {"h1", "h2"}
    assert set(waits(decide(cluster_snapshot))) == {"h3"}

    cluster_snapshot = settled(without_workloads(cluster_snapshot, "h1"), cycles=1)

    assert running(cluster_snapshot) == {"h2", "h3"}


# ---- from static allocations to guaranteed quotas: four projects of eight on 32 GPUs


def submit_forty_jobs_each(*names: str) -> Snapshot:
    """Return the cluster of 32 GPUs after these projects have each submitted 40 one-GPU jobs."""
    owners = [project(name, 8) for name in "abcd"]
    jobs = [job(f"{name}-{i}", 1, name) for name in names for i in range(40)]
    return settled(snapshot("4x8", owners, jobs))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param("a", [32, 0, 0, 0], id="one project has the whole cluster"),
        pytest.param("ab", [16, 16, 0, 0], id="two projects have half each"),
    ],
)
def test_projects_with_work_share_the_gpus_of_idle_projects(
    names: str, expected: list[int]
) -> None:
    shares = decide(submit_forty_jobs_each(*names)).projects

    assert [shares[name].allocated / 1000 for name in "abcd"] == expected


def test_every_project_reclaims_its_eight_gpus_from_an_earlier_project() -> None:
    snapshot = submit_forty_jobs_each("a")
    for owner_count, name in enumerate("bcd", start=2):
        snapshot = settled(
            with_workloads(snapshot, *[job(f"{name}-{i}", 1, name) for i in range(40)]), cycles=3
        )

        allocated = {n: s.allocated for n, s in decide(snapshot).projects.items()}
        assert sum(allocated.values()) == 32_000
        assert all(allocated[n] >= 8000 for n in "abcd"[:owner_count])
        assert max(allocated.values()) - min(allocated[n] for n in "abcd"[:owner_count]) <= 1000

"""Scenarios of several cycles, and the guarantees of every plan (R7, R8, X)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import (
    cluster,
    job,
    places,
    project,
    reserved,
    running,
    settled,
    snapshot,
    started,
    stopped,
    waits,
)
from runai.hub_service.scheduler import Plan, Policy, Reserve, Snapshot, Unreserve, Wait, decide

# ---- R7, R9


def test_gpu_reservation_stays_until_its_devices_are_free() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 1), project("b", 1)],
        [
            job("old", on="n1:0", state="stopping"),
            job("new", project="b", on="n1:0", state="reserved"),
        ],
    )

    plan = decide(cluster_snapshot)

    assert [d for d in plan.decisions if not isinstance(d, Wait)] == []
    assert waits(plan) == {"new": "stopping"}


def test_reserved_job_starts_as_soon_as_its_devices_are_free() -> None:
    cluster_snapshot = snapshot("1x1", [project("a", 1)], [job("new", on="n1:0", state="reserved")])

    assert places(decide(cluster_snapshot)) == {"new-0": "n1:0"}


def test_job_with_a_reserved_busy_device_starts_on_an_idle_one() -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("a", 2)],
        [job("old", on="n1:0", state="stopping"), job("new", on="n1:0", state="reserved")],
    )

    assert places(decide(cluster_snapshot)) == {"new-0": "n1:1"}


def test_gpu_reservation_ends_when_the_project_limit_no_longer_allows_it() -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("a", 1, limit=1)],
        [job("runs", on="n1:0"), job("late", on="n1:1", state="reserved")],
    )

    plan = decide(cluster_snapshot)

    assert Unreserve(workload="late", worker="late-0") in plan.decisions
    assert waits(plan) == {"late": "over_limit"}


def test_idle_gpus_beside_a_stopping_job_do_not_take_its_project_over_the_limit() -> None:
    old = job("old", on="n1:0", state="stopping")
    alone = snapshot("1x2", [project("a", 1, limit=1)], [old, job("next")])
    with_second_project = snapshot("1x2", [project("a", 1, limit=1), project("b", 1)], [
        old, job("next"), job("other", project="b"),
    ])  # fmt: skip

    # The GPU that `old` releases is promised to `next`; the other GPU is not kept idle for it.
    assert started(decide(alone)) == set()
    assert set(reserved(decide(alone))) == {"next-0"}
    assert started(decide(with_second_project)) == {"other-0"}


@pytest.mark.parametrize(("resource", "amount"), [("cpu_milli", 4000), ("memory_mib", 64)])
def test_gpu_reservation_blocked_by_the_project_limit_waits_only_for_its_own_worker(
    resource: str, amount: int
) -> None:
    """The node's whole CPU or memory suffices: only the project's limit blocks the job (Q3)."""
    n1, n2 = cluster("1x2+1x1")
    cluster_snapshot = snapshot(
        [replace(n1, **{resource: amount}), replace(n2, **{resource: 0})],  # type: ignore[arg-type]  # both whole numbers
        [project("a", 1, limit=1), project("b", 1)],
        [
            job("theirs", project="b", on="n1:1", state="stopping"),
            job("mine", on="n2:0", state="stopping"),
            job("next", **{resource: amount}),  # type: ignore[arg-type]  # a field of workers
        ],
    )

    (reserve,) = [d for d in decide(cluster_snapshot).decisions if isinstance(d, Reserve)]

    assert (reserve.node, reserve.waits_for) == ("n1", ("mine-0",))


def test_no_job_starts_on_devices_reserved_for_a_gang() -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("a", 0), project("b", 2)],
        [
            job("gang", project="b", workers=2, on="n1:0 n1:1", state="reserved"),
            job("old", on="n1:0", state="stopping"),
            job("small"),
        ],
    )

    plan = decide(cluster_snapshot)

    assert started(plan) == set()
    assert waits(plan) == {"gang": "stopping", "small": "held_for"}


def test_policy_without_reservations_stops_victims_but_reserves_no_gpus() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 0), project("b", 1)],
        [job("old", on="n1:0"), job("new", project="b")],
        reservations=False,
    )

    plan = decide(cluster_snapshot)

    assert (stopped(plan), reserved(plan)) == ({"old-0"}, set())
    assert running(settled(cluster_snapshot)) == {"new"}


def test_paused_job_starts_before_jobs_submitted_later() -> None:
    cluster_snapshot = snapshot(
        "1x1",
        [project("a", 1), project("b", 1)],
        [job("old", submitted=1), job("younger", submitted=2)],
    )

    assert started(decide(cluster_snapshot)) == {"old-0"}


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
def test_scheduler_cycle_runs_only_the_phases_of_the_policy(
    phases: tuple[str, ...], starts: set[str], stops: set[str]
) -> None:
    cluster_snapshot = snapshot(
        "1x2",
        [project("a", 0), project("b", 2)],
        [
            job("victim", 1, on="n1:0"),
            job("fits", 0.5, "b"),
            job("two", 2, "b"),
        ],
        phases=phases,
    )

    plan = decide(cluster_snapshot)

    assert (started(plan), stopped(plan)) == (starts, stops)


# ---- R11


@pytest.mark.parametrize(
    ("below_min_since", "expected"),
    [(None, set()), (950, set()), (900, {"gang-0"})],
    ids=["unknown since when", "within its grace period", "after its grace period"],
)
def test_broken_gang_is_stopped_whole_after_its_grace_period(
    below_min_since: int | None, expected: set[str]
) -> None:
    gang = job("gang", workers=2, on="n1:0", below_min_since=below_min_since)

    assert stopped(decide(snapshot("1x1", [project("a", 2)], [gang]))) == expected


def test_broken_gang_is_completed_rather_than_stopped() -> None:
    gang = job("gang", workers=2, on="n1:0", below_min_since=900)

    plan = decide(snapshot("1x2", [project("a", 2)], [gang]))

    assert (started(plan), stopped(plan)) == ({"gang-1"}, set())


def test_empty_snapshot_has_an_empty_plan() -> None:
    assert decide(Snapshot()) == Plan()


def test_policy_argument_replaces_the_policy_of_the_snapshot() -> None:
    cluster_snapshot = snapshot(
        "2x2", [project("a", 1)], [job("x", 0.5, on="n1:0"), job("new", 0.5)]
    )

    assert places(decide(cluster_snapshot, Policy(packing="spread"))) == {"new-0": "n2:0"}

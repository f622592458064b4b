"""Holders of the devices that a waiting workload needs, in order of preemption (X, R4)."""

from __future__ import annotations

from dataclasses import replace

from builders import job, project, snapshot
from runai.hub_service.scheduler import Plan, Snapshot, WorkerState, decide
from runai.hub_service.scheduler.explanations.counterfactuals import Trials
from runai.hub_service.scheduler.explanations.device_holders import HolderAllocations


def holdings(world: Snapshot, name: str) -> HolderAllocations:
    """Return the current holdings, under a plan without decisions."""
    workload = next(w for w in world.workloads if w.name == name)
    return HolderAllocations(world, Plan(decisions=(), projects={}), workload)


def held_by_b() -> Snapshot:
    """Build three devices, held by x and z of equal age, and by y, the oldest."""
    return snapshot(
        "1x3",
        [project("a", 3), project("b", 0)],
        [
            job("x", 1, "b", on="n1:0", submitted=20),
            job("z", 1, "b", on="n1:1", submitted=20),
            job("y", 1, "b", on="n1:2", submitted=10),
            job("new", 2, "a"),
        ],
    )


def test_the_newest_are_asked_first_and_of_one_age_the_last_by_name() -> None:
    seen = holdings(held_by_b(), "new")
    rival = seen.allocations[0].project

    assert [held.workload.name for held in next(seen.sets_of(rival))] == ["z", "x"]


def test_project_missing_in_the_plan_is_over_its_share_by_all_its_gpus() -> None:
    world = replace(held_by_b(), projects=(project("a", 0), project("b", 0)))
    seen = holdings(world, "new")

    assert [seen.overage_of(rival) for rival in seen.rivals()] == [3000]


def test_holders_are_sorted_by_expected_end_then_by_name() -> None:
    world = snapshot(
        "1x4",
        [project("a", 4)],
        [
            job("z", 1, on="n1:0", started=990, expected_runtime=50),
            job("x", 1, on="n1:1", started=990, expected_runtime=50),
            job("y", 1, on="n1:2", started=990, expected_runtime=20),
            job("never", 1, on="n1:3"),
            job("new", 1),
        ],
    )

    found = holdings(world, "new").by_end("no_room")

    assert [held.workload.name for held in found] == ["y", "x", "z", "never"]


def test_stopping_worker_does_not_extend_the_protection_of_its_gang() -> None:
    """R8: only the workers that still run decide how long a gang is protected."""
    gang = job("gang", workers=2, min_workers=1, project="b", on="n1:0 n1:1", started=400)
    young = replace(gang.workers[1], state=WorkerState.STOPPING, started=900)
    world = snapshot(
        "1x2",
        [project("a", 2), project("b", 0, min_runtime=600)],
        [replace(gang, workers=(gang.workers[0], young)), job("new", 2)],
    )

    assert [h.protected_until for h in holdings(world, "new").allocations] == [1000]


def test_no_more_is_tried_than_was_allowed() -> None:
    world, decided = held_by_b(), list[Snapshot]()
    waiting = next(w for w in world.workloads if w.name == "new")

    def counting(asked: object) -> Plan:
        decided.append(world)
        return decide(world)

    trials = Trials(world, waiting, counting, 2, at_once=True)
    answers = [trials.succeed(()) for _ in range(3)]

    assert (answers, len(decided), trials.remaining) == ([False, False, False], 2, 0)

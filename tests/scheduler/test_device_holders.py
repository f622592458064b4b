"""Holders of the devices that a waiting workload needs, in order of preemption (X, R4)."""

from __future__ import annotations

from dataclasses import replace

from builders import job, project, snapshot
from runai.hub_service.scheduler import Plan, Snapshot, WorkerState, decide
from runai.hub_service.scheduler.explanations.counterfactuals import Trials
from runai.hub_service.scheduler.explanations.device_holders import HolderAllocations


def holder_allocations(snapshot: Snapshot, name: str) -> HolderAllocations:
    """Return the current allocations, under a plan without decisions."""
    workload = next(w for w in snapshot.workloads if w.name == name)
    return HolderAllocations(snapshot, Plan(decisions=(), projects={}), workload)


def snapshot_with_three_holders() -> Snapshot:
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


def test_device_holder_sets_begin_with_the_newest_job_then_the_last_name() -> None:
    allocations = holder_allocations(snapshot_with_three_holders(), "new")
    rival = allocations.allocations[0].project
    first_set = next(allocations.sets_of(rival))

    # "new" needs two GPUs. z and x were submitted last, at the same time; y is older.
    assert [holder.workload.name for holder in first_set] == ["z", "x"]


def test_project_missing_in_the_plan_has_all_its_gpus_over_its_share() -> None:
    snapshot = replace(snapshot_with_three_holders(), projects=(project("a", 0), project("b", 0)))
    allocations = holder_allocations(snapshot, "new")

    # b has no quota and holds three GPUs.
    assert [allocations.overage_of(rival) for rival in allocations.rivals()] == [3000]


def test_device_holders_are_sorted_by_expected_end_then_by_name() -> None:
    cluster_snapshot = snapshot(
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

    holders = holder_allocations(cluster_snapshot, "new").by_end("no_room")

    assert [holder.workload.name for holder in holders] == ["y", "x", "z", "never"]


def test_stopping_worker_does_not_extend_the_protection_of_its_gang() -> None:
    """R8: only the workers that still run decide how long a gang is protected."""
    gang = job("gang", workers=2, min_workers=1, project="b", on="n1:0 n1:1", started=400)
    young = replace(gang.workers[1], state=WorkerState.STOPPING, started=900)
    cluster_snapshot = snapshot(
        "1x2",
        [project("a", 2), project("b", 0, min_runtime=600)],
        [replace(gang, workers=(gang.workers[0], young)), job("new", 2)],
    )

    allocations = holder_allocations(cluster_snapshot, "new").allocations
    # The running worker started at 400, and min_runtime is 600 s.
    assert [allocation.protected_until for allocation in allocations] == [400 + 600]


def test_counterfactual_trials_stop_at_the_allowed_number_of_cycles() -> None:
    snapshot, planned_snapshots = snapshot_with_three_holders(), list[Snapshot]()
    waiting = next(w for w in snapshot.workloads if w.name == "new")

    def counting_decide(trial_snapshot: object) -> Plan:
        planned_snapshots.append(snapshot)
        return decide(snapshot)

    trials = Trials(snapshot, waiting, counting_decide, max_trials=2, at_once=True)
    successes = [trials.try_changes(()) for _ in range(3)]

    assert successes == [False, False, False]
    assert len(planned_snapshots) == 2
    assert trials.remaining == 0

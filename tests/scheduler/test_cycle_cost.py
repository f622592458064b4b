"""The cost of a cycle in candidates looked at, since seconds depend on the machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from builders import cluster, job, project, session, snapshot
from runai.hub_service.scheduler import Snapshot, Workload
from runai.hub_service.scheduler.cycle import run
from runai.hub_service.scheduler.state.planned_workloads import Phase, PlannedWorkload
from runai.hub_service.scheduler.state.planning_state import PlanningState
from runai.hub_service.scheduler.state.project_tree import tree_of


def jobs_on_all_gpus(nodes: int) -> list[Workload]:
    return [job(f"r{i:05}", on=f"n{i // 8 + 1}:{i % 8}") for i in range(8 * nodes)]


def one_gpu_jobs_on_idle_nodes(nodes: int) -> Snapshot:
    jobs = [job(f"j{i:05}", 1, "ab"[i % 2]) for i in range(8 * nodes)]
    return snapshot(cluster(f"{nodes}x8"), [project("a", 4 * nodes), project("b", 4 * nodes)], jobs)


def quarter_gpu_jobs_on_idle_nodes(nodes: int) -> Snapshot:
    jobs = [job(f"j{i:05}", 0.25) for i in range(32 * nodes)]
    return snapshot(cluster(f"{nodes}x8"), [project("a", 8 * nodes)], jobs)


def reclaim_for_many_jobs(nodes: int) -> Snapshot:
    owners = [project("a", 0, weight=0), project("b", 8 * nodes)]
    claims = [job(f"q{i:05}", 1, "b") for i in range(8 * nodes)]
    return snapshot(cluster(f"{nodes}x8"), owners, [*jobs_on_all_gpus(nodes), *claims])


def reclaim_for_one_gang(nodes: int) -> Snapshot:
    owners = [project("a", 0, weight=0), project("b", 8 * nodes)]
    gang = job("gang", 8, "b", workers=nodes // 2)
    return snapshot(cluster(f"{nodes}x8"), owners, [*jobs_on_all_gpus(nodes), gang])


def gang_lacking_one_gpu(nodes: int) -> Snapshot:
    owners = [project("a", 8 * nodes - 15), project("b", 16)]
    gang = job("gang", 8, "b", workers=2)
    return snapshot(cluster(f"{nodes}x8"), owners, [*jobs_on_all_gpus(nodes), gang])


def reclaim_past_protected_jobs(nodes: int) -> Snapshot:
    """Make the younger half of the victims, first in order, too young to be stopped (R8)."""
    owners = [project("a", 0, weight=0, min_runtime=600), project("b", 8 * nodes)]
    holders = [
        job(f"r{i:05}", started=0 if i < 4 * nodes else 990, on=f"n{i // 8 + 1}:{i % 8}")
        for i in range(8 * nodes)
    ]
    claims = [job(f"q{i:05}", 1, "b") for i in range(8 * nodes)]
    return snapshot(cluster(f"{nodes}x8"), owners, [*holders, *claims])


def reclaim_past_protected_gangs(nodes: int) -> Snapshot:
    """Let two projects claim in turn, so that no search resumes where the previous one ended."""
    owners = [project("a", 0, weight=0, min_runtime=600)]
    owners += [project(name, 4 * nodes) for name in "bc"]
    gangs = [
        job(
            f"g{i:04}",
            workers=4,
            started=0 if i < nodes else 990,
            on=" ".join(f"n{i // 2 + 1}:{i % 2 * 4 + device}" for device in range(4)),
        )
        for i in range(2 * nodes)
    ]
    claims = [job(f"q{i:05}", 4, "bc"[i % 2]) for i in range(2 * nodes)]
    return snapshot(cluster(f"{nodes}x8"), owners, [*gangs, *claims])


def candidates_examined(snapshot: Snapshot) -> int:
    state = PlanningState(snapshot, tree_of(snapshot))
    run(state)
    return state.candidates_examined


def test_reclaim_examines_no_more_candidates_for_victims_with_cpu_than_without() -> None:
    """A claimant on all devices of its only victim leaves no more room, whatever CPU it had."""

    def snapshot_with(cpu_milli: int) -> Snapshot:
        owners = [project("a", 0, weight=0), project("b", 8)]
        existing = [session(f"s{i}", 0, "b", gpu_memory_mib=20_000, on=f"n1:{i}") for i in range(8)]
        existing += [
            job(f"r{i}", gpu_memory_mib=50_000, cpu_milli=cpu_milli, on=f"n1:{i}") for i in range(8)
        ]
        claims = [job(f"q{i}", gpu_memory_mib=50_000, project="b") for i in range(8)]
        return snapshot("1x8", owners, [*existing, *claims])

    assert candidates_examined(snapshot_with(4000)) == candidates_examined(snapshot_with(0))


def test_scheduler_cycle_iterates_over_waiting_elastic_workers_only_a_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cycle iterates over the workers a few times, not once for each worker."""
    iterated = 0
    count = PlannedWorkload.count

    def recording_count(planned: PlannedWorkload, *phases: Phase) -> int:
        nonlocal iterated
        iterated += len(planned.members)
        return count(planned, *phases)

    monkeypatch.setattr(PlannedWorkload, "count", recording_count)
    worker_count = 1000
    elastic_job = job("e", workers=worker_count, min_workers=1)
    candidates_examined(snapshot("1x2", [project("a", 2)], [elastic_job]))

    assert iterated <= 13 * worker_count


CLUSTERS = [
    one_gpu_jobs_on_idle_nodes,
    quarter_gpu_jobs_on_idle_nodes,
    reclaim_for_many_jobs,
    reclaim_past_protected_jobs,
    reclaim_past_protected_gangs,
    reclaim_for_one_gang,
    gang_lacking_one_gpu,
]


@pytest.mark.parametrize("make_snapshot", CLUSTERS, ids=lambda f: f.__name__.replace("_", " "))
def test_scheduler_cycle_cost_grows_at_most_thirteenfold_for_ten_times_the_nodes(
    make_snapshot: Callable[[int], Snapshot],
) -> None:
    # 60 nodes against 6: ten times the work, and some more for sorting.
    assert candidates_examined(make_snapshot(60)) <= 13 * candidates_examined(make_snapshot(6))

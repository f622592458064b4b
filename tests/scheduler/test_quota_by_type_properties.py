"""Properties of quotas by GPU type (Q4), over generated clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import applied, job, project, requesting, settled, snapshot, started, typed_project
from runai.hub_service.scheduler import (
    Node,
    Plan,
    Snapshot,
    Stop,
    Wait,
    WorkerState,
    decide,
)
from runai.hub_service.scheduler.state.cluster_index import ClusterIndex, SnapshotChanges


@st.composite
def gpu_type_snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster of several GPU types; its projects have tables, numbers or both."""
    nodes = [
        Node(name=f"n{i}", devices=draw(st.integers(1, 3)), gpu_type=draw(st.sampled_from("ab")))
        for i in range(draw(st.integers(1, 3)))
    ]
    numbers = st.sampled_from([0, 0.5, 1, 2, 3])
    projects = []
    for name in "pqr"[: draw(st.integers(1, 3))]:
        named = draw(st.sampled_from([None, ["a"], ["a", "*"], ["a", "b"], ["*"]]))
        projects.append(
            project(name, draw(numbers))
            if named is None
            else typed_project(name, {gpu_type: draw(numbers) for gpu_type in named})
        )
    free = [(node.name, device) for node in nodes for device in range(node.devices)]
    type_of = {node.name: node.gpu_type for node in nodes}
    workloads = []
    for i in range(draw(st.integers(1, 8))):
        owner = draw(st.sampled_from([p.name for p in projects]))
        size = draw(st.sampled_from([0.5, 1, 1, 1, 2]))
        place = None
        if size <= 1 and free and draw(st.booleans()):
            node, device = free.pop(draw(st.integers(0, len(free) - 1)))
            place = f"{node}:{device}"
        workload = job(f"w{i}", size, owner, on=place)
        requested_type = draw(st.sampled_from([None, None, "a", "b"]))
        if requested_type and (place is None or type_of[place.partition(":")[0]] == requested_type):
            workload = requesting(requested_type, workload)
        workloads.append(workload)
    return snapshot(nodes, projects, workloads)


def allocated_by_entry(cluster_snapshot: Snapshot) -> Counter[tuple[str, str]]:
    """Sum the milli-GPU that each project holds of each entry of its table."""
    type_of = {node.name: node.gpu_type for node in cluster_snapshot.nodes}
    tables = {p.name: p.quota_by_type for p in cluster_snapshot.projects}
    allocated: Counter[tuple[str, str]] = Counter()
    for workload in cluster_snapshot.workloads:
        for worker in workload.workers:
            if worker.state is WorkerState.RUNNING and worker.node is not None:
                allocated[
                    workload.project, _entry(tables[workload.project], type_of[worker.node])
                ] += worker.gpus
    return allocated


def _entry(quotas: Any, gpu_type: str) -> str:
    return gpu_type if quotas is not None and gpu_type in quotas else "*"


@given(gpu_type_snapshots())
def test_reclaim_stops_only_jobs_of_projects_over_their_quota_of_the_type(
    cluster_snapshot: Snapshot,
) -> None:
    plan = decide(cluster_snapshot)
    # The plan's starts count: a project that gains GPUs may lose one that helps another.
    allocated = allocated_by_entry(cluster_snapshot) + allocated_by_entry(
        snapshot_of_started(cluster_snapshot, plan)
    )
    type_of = {node.name: node.gpu_type for node in cluster_snapshot.nodes}
    by_name = {p.name: p for p in cluster_snapshot.projects}

    for stop in plan.decisions:
        if isinstance(stop, Stop) and stop.reason.rule == "R2":
            victim = next(w for w in cluster_snapshot.workloads if w.name == stop.workload)
            owner = by_name[victim.project]
            entry = _entry(owner.quota_by_type, type_of[victim.workers[0].node or ""])
            quotas = owner.quota_by_type
            quota = owner.quota if quotas is None else quotas.get(entry, 0)
            assert isinstance(quota, int)
            assert allocated[owner.name, entry] > quota


def snapshot_of_started(cluster_snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return the snapshot after a plan, with only the workloads that the plan starts."""
    new = started(plan)
    after = applied(cluster_snapshot, plan)
    return replace(after, workloads=tuple(w for w in after.workloads if w.workers[0].name in new))


@given(gpu_type_snapshots())
def test_no_gpu_stays_idle_that_a_waiting_workload_may_use(cluster_snapshot: Snapshot) -> None:
    plan = decide(cluster_snapshot)
    after = applied(cluster_snapshot, plan)
    waiting = {d.workload for d in plan.decisions if isinstance(d, Wait)}
    # A device counts as busy if it is allocated before or after the plan.
    busy = {
        (worker.node, device)
        for workload in after.workloads
        for worker in workload.workers
        if worker.state is not WorkerState.PENDING
        for device in worker.devices
    } | {
        (worker.node, device)
        for workload in cluster_snapshot.workloads
        for worker in workload.workers
        for device in worker.devices
    }

    for workload in after.workloads:
        worker = workload.workers[0]
        if workload.name in waiting and worker.state is WorkerState.PENDING:
            for node in cluster_snapshot.nodes:
                if not worker.gpu_types or node.gpu_type in worker.gpu_types:
                    idle = [d for d in range(node.devices) if (node.name, d) not in busy]
                    needed_devices = max(1, worker.gpus // 1000)
                    assert len(idle) < needed_devices


@given(gpu_type_snapshots(), st.randoms(use_true_random=False))
def test_input_order_and_index_do_not_change_a_plan_with_quota_tables(
    cluster_snapshot: Snapshot, shuffle: Any
) -> None:
    plan = decide(cluster_snapshot)
    reordered = replace(
        cluster_snapshot,
        nodes=tuple(shuffle.sample(cluster_snapshot.nodes, len(cluster_snapshot.nodes))),
        projects=tuple(shuffle.sample(cluster_snapshot.projects, len(cluster_snapshot.projects))),
        workloads=tuple(
            shuffle.sample(cluster_snapshot.workloads, len(cluster_snapshot.workloads))
        ),
    )
    index = ClusterIndex(replace(cluster_snapshot, workloads=()))

    assert decide(reordered) == plan
    index.apply(SnapshotChanges(workloads=cluster_snapshot.workloads))
    assert decide(index) == plan
    assert decide(index) == plan, "a cycle leaves nothing behind"
    removed = cluster_snapshot.workloads[0].name
    index.apply(SnapshotChanges(removed=(removed,)))
    assert decide(index) == decide(index.snapshot())


@given(gpu_type_snapshots())
def test_plans_with_quota_tables_converge(cluster_snapshot: Snapshot) -> None:
    cluster_snapshot = settled(cluster_snapshot)

    for _ in range(3):
        plan = decide(cluster_snapshot)
        assert {d.kind for d in plan.decisions} <= {"wait"}
        cluster_snapshot = applied(cluster_snapshot, plan)

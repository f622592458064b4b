"""Properties of quotas by GPU type (Q4), over generated clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from builders import applied, asking, job, project, settled, snapshot, started, table
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
def typed_worlds(draw: st.DrawFn) -> Snapshot:
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
            else table(name, {gpu_type: draw(numbers) for gpu_type in named})
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
        wanted = draw(st.sampled_from([None, None, "a", "b"]))
        if wanted and (place is None or type_of[place.partition(":")[0]] == wanted):
            workload = asking(wanted, workload)
        workloads.append(workload)
    return snapshot(nodes, projects, workloads)


def held_by_part(world: Snapshot) -> Counter[tuple[str, str]]:
    """Sum the milli-GPU that each project holds of each entry of its table."""
    type_of = {node.name: node.gpu_type for node in world.nodes}
    tables = {p.name: p.quota_by_type for p in world.projects}
    held: Counter[tuple[str, str]] = Counter()
    for workload in world.workloads:
        for worker in workload.workers:
            if worker.state is WorkerState.RUNNING and worker.node is not None:
                held[workload.project, _entry(tables[workload.project], type_of[worker.node])] += (
                    worker.gpus
                )
    return held


def _entry(quotas: Any, gpu_type: str) -> str:
    return gpu_type if quotas is not None and gpu_type in quotas else "*"


@given(typed_worlds())
def test_reclaim_stops_only_jobs_of_projects_over_their_quota_of_the_type(world: Snapshot) -> None:
    plan = decide(world)
    # The plan's starts count: a project that gains GPUs may lose one that helps another.
    held = held_by_part(world) + held_by_part(started_beside(world, plan))
    type_of = {node.name: node.gpu_type for node in world.nodes}
    by_name = {p.name: p for p in world.projects}

    for stop in plan.decisions:
        if isinstance(stop, Stop) and stop.reason.rule == "R2":
            victim = next(w for w in world.workloads if w.name == stop.workload)
            owner = by_name[victim.project]
            entry = _entry(owner.quota_by_type, type_of[victim.workers[0].node or ""])
            quotas = owner.quota_by_type
            quota = owner.quota if quotas is None else quotas.get(entry, 0)
            assert isinstance(quota, int)
            assert held[owner.name, entry] > quota


def started_beside(world: Snapshot, plan: Plan) -> Snapshot:
    """Return the world after a plan, with only the workloads that the plan starts."""
    new = started(plan)
    after = applied(world, plan)
    return replace(after, workloads=tuple(w for w in after.workloads if w.workers[0].name in new))


@given(typed_worlds())
def test_no_gpu_stays_idle_that_a_waiting_workload_may_use(world: Snapshot) -> None:
    plan = decide(world)
    after = applied(world, plan)
    waiting = {d.workload for d in plan.decisions if isinstance(d, Wait)}
    busy = {
        (worker.node, device)
        for workload in after.workloads
        for worker in workload.workers
        if worker.state is not WorkerState.PENDING
        for device in worker.devices
    } | {
        (worker.node, device)
        for workload in world.workloads
        for worker in workload.workers
        for device in worker.devices
    }

    for workload in after.workloads:
        worker = workload.workers[0]
        if workload.name in waiting and worker.state is WorkerState.PENDING:
            for node in world.nodes:
                if not worker.gpu_types or node.gpu_type in worker.gpu_types:
                    idle = [d for d in range(node.devices) if (node.name, d) not in busy]
                    assert len(idle) < max(1, worker.gpus // 1000)


@given(typed_worlds(), st.randoms(use_true_random=False))
def test_neither_order_nor_an_index_changes_a_plan_with_tables(world: Snapshot, dice: Any) -> None:
    plan = decide(world)
    other = replace(
        world,
        nodes=tuple(dice.sample(world.nodes, len(world.nodes))),
        projects=tuple(dice.sample(world.projects, len(world.projects))),
        workloads=tuple(dice.sample(world.workloads, len(world.workloads))),
    )
    index = ClusterIndex(replace(world, workloads=()))

    assert decide(other) == plan
    index.apply(SnapshotChanges(workloads=world.workloads))
    assert decide(index) == plan
    assert decide(index) == plan, "a cycle leaves nothing behind"
    gone = world.workloads[0].name
    index.apply(SnapshotChanges(removed=(gone,)))
    assert decide(index) == decide(index.snapshot())


@given(typed_worlds())
def test_plans_with_tables_come_to_rest(world: Snapshot) -> None:
    world = settled(world)

    for _ in range(3):
        plan = decide(world)
        assert {d.kind for d in plan.decisions} <= {"wait"}
        world = applied(world, plan)

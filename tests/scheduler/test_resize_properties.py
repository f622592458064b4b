"""Properties of one-worker elastic workloads (E2, E3), over generated clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import strategies
from builders import applied, settled
from runai.hub_service.scheduler import (
    Resize,
    Snapshot,
    Start,
    Worker,
    WorkerState,
    decide,
    milli_gpus,
)
from runai.hub_service.scheduler.state.cluster_index import ClusterIndex, SnapshotChanges


@st.composite
def elastic_worlds(draw: st.DrawFn) -> Snapshot:
    """Draw a world of elastic whole-GPU workers, some on fewer or more GPUs than requested."""
    world = draw(strategies.snapshots())
    taken = Counter(
        (w.node, device) for job in world.workloads for w in job.workers for device in w.devices
    )
    sizes = {node.name: node.devices for node in world.nodes}

    def stretched(worker: Worker, most: int) -> Worker:
        """Return a running worker with some free devices of its node added."""
        free = [d for d in range(sizes.get(worker.node or "", 0)) if not taken[worker.node, d]]
        more = free[: draw(st.integers(0, most - len(worker.devices)))]
        taken.update((worker.node, device) for device in more)
        return replace(worker, devices=(*worker.devices, *more))

    workloads = []
    for workload in world.workloads:
        worker, *others = workload.workers
        asked = worker.gpus // 1000
        if others or worker.gpus % 1000 or not asked or not workload.is_preemptible:
            workloads.append(workload)
            continue
        least, most = draw(st.integers(1, asked)), draw(st.integers(asked, asked + 2))
        if worker.state is WorkerState.RUNNING:
            worker = stretched(
                replace(worker, devices=worker.devices[: draw(st.integers(least, asked))]), most
            )
        workloads.append(
            replace(
                workload,
                gpus_min=milli_gpus(least),
                gpus_max=milli_gpus(most),
                workers=(worker,),
                resize_cost=draw(st.sampled_from([0, 0, 50])),
                throughput=draw(st.sampled_from([{}, {}, {"1": 10, "2": 15, "3": 17, "5": 18}])),
            )
        )
    return replace(world, workloads=tuple(workloads))


@given(elastic_worlds())
def test_an_elastic_worker_has_nothing_or_from_its_minimum_to_its_maximum(world: Snapshot) -> None:
    plan = decide(world)
    bounds = {
        w.workers[0].name: (w.gpus_min // 1000, max(w.gpus_max, w.workers[0].gpus) // 1000)
        for w in world.workloads
        if w.gpus_min is not None and w.gpus_max is not None
    }

    named = [d.worker for d in plan.decisions if d.kind != "wait"]
    assert len(named) == len(set(named)), "one decision for each worker"
    for decision in plan.decisions:
        if isinstance(decision, Start | Resize) and decision.worker in bounds:
            least, most = bounds[decision.worker]
            devices = [share.device for share in decision.devices]
            assert least <= len(devices) <= most
            assert len(set(devices)) == len(devices)


@given(elastic_worlds())
def test_a_device_is_never_given_to_two(world: Snapshot) -> None:
    after = applied(world, decide(world))

    whole = Counter(
        (worker.node, device)
        for workload in after.workloads
        for worker in workload.workers
        if worker.gpus >= 1000 and worker.state is not WorkerState.PENDING
        for device in worker.devices
    )
    assert [place for place, count in whole.items() if count > 1] == []


@given(elastic_worlds())
def test_a_resize_stays_on_its_node_and_changes_something(world: Snapshot) -> None:
    was = {w.name: (w.node, set(w.devices)) for job in world.workloads for w in job.workers}

    for decision in decide(world).decisions:
        if isinstance(decision, Resize):
            node, devices = was[decision.worker]
            now = {share.device for share in decision.devices}
            assert decision.node == node
            assert now < devices if decision.reason.code == "shrunk" else now > devices


@given(elastic_worlds())
def test_plans_with_elastic_workers_come_to_rest(world: Snapshot) -> None:
    """The clock is frozen: later a minimum run time would end, or a resize would repay."""
    world = settled(replace(world, policy=replace(world.policy, explain="none")), seconds=0)

    for _ in range(3):
        plan = decide(world)
        assert plan.decisions == ()
        world = applied(world, plan, seconds=0)


@given(elastic_worlds())
def test_an_index_decides_about_elastic_workers_as_the_snapshot_does(world: Snapshot) -> None:
    index = ClusterIndex(replace(world, workloads=()))
    index.apply(SnapshotChanges(workloads=world.workloads))

    assert decide(index) == decide(world)
    index.apply(SnapshotChanges(workloads=world.workloads[:2], removed=(world.workloads[-1].name,)))
    assert decide(index) == decide(index.snapshot())

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
def elastic_snapshots(draw: st.DrawFn) -> Snapshot:
    """Draw a snapshot of elastic whole-GPU workers, some on fewer or more GPUs than requested."""
    snapshot = draw(strategies.snapshots())
    in_use = Counter(
        (w.node, device) for job in snapshot.workloads for w in job.workers for device in w.devices
    )
    sizes = {node.name: node.devices for node in snapshot.nodes}

    def stretched(worker: Worker, max_devices: int) -> Worker:
        """Return a running worker with some free devices of its node added."""
        free = [d for d in range(sizes.get(worker.node or "", 0)) if not in_use[worker.node, d]]
        more = free[: draw(st.integers(0, max_devices - len(worker.devices)))]
        in_use.update((worker.node, device) for device in more)
        return replace(worker, devices=(*worker.devices, *more))

    workloads = []
    for workload in snapshot.workloads:
        worker, *other_workers = workload.workers
        requested = worker.gpus // 1000
        if other_workers or worker.gpus % 1000 or not requested or not workload.is_preemptible:
            workloads.append(workload)
            continue
        min_gpus, max_gpus = (
            draw(st.integers(1, requested)),
            draw(st.integers(requested, requested + 2)),
        )
        if worker.state is WorkerState.RUNNING:
            worker = stretched(
                replace(worker, devices=worker.devices[: draw(st.integers(min_gpus, requested))]),
                max_gpus,
            )
        workloads.append(
            replace(
                workload,
                gpus_min=milli_gpus(min_gpus),
                gpus_max=milli_gpus(max_gpus),
                workers=(worker,),
                resize_cost=draw(st.sampled_from([0, 0, 50])),
                throughput=draw(st.sampled_from([{}, {}, {"1": 10, "2": 15, "3": 17, "5": 18}])),
            )
        )
    return replace(snapshot, workloads=tuple(workloads))


@given(elastic_snapshots())
def test_elastic_worker_gets_a_number_of_gpus_between_minimum_and_maximum(
    snapshot: Snapshot,
) -> None:
    plan = decide(snapshot)
    bounds = {
        w.workers[0].name: (w.gpus_min // 1000, max(w.gpus_max, w.workers[0].gpus) // 1000)
        for w in snapshot.workloads
        if w.gpus_min is not None and w.gpus_max is not None
    }

    workers = [d.worker for d in plan.decisions if d.kind != "wait"]
    assert len(workers) == len(set(workers)), "one decision for each worker"
    for decision in plan.decisions:
        if isinstance(decision, Start | Resize) and decision.worker in bounds:
            min_gpus, max_gpus = bounds[decision.worker]
            devices = [share.device for share in decision.devices]
            assert min_gpus <= len(devices) <= max_gpus
            assert len(set(devices)) == len(devices)


@given(elastic_snapshots())
def test_whole_device_is_never_allocated_to_two_workers(snapshot: Snapshot) -> None:
    after = applied(snapshot, decide(snapshot))

    users_of_device = Counter(
        (worker.node, device)
        for workload in after.workloads
        for worker in workload.workers
        if worker.gpus >= 1000 and worker.state is not WorkerState.PENDING
        for device in worker.devices
    )
    assert [place for place, count in users_of_device.items() if count > 1] == []


@given(elastic_snapshots())
def test_worker_resize_stays_on_its_node_and_changes_the_devices(snapshot: Snapshot) -> None:
    places_before = {
        w.name: (w.node, set(w.devices)) for job in snapshot.workloads for w in job.workers
    }

    for decision in decide(snapshot).decisions:
        if isinstance(decision, Resize):
            node, devices = places_before[decision.worker]
            new_devices = {share.device for share in decision.devices}
            assert decision.node == node
            if decision.reason.code == "shrunk":
                assert new_devices < devices
            else:
                assert new_devices > devices


@given(elastic_snapshots())
def test_plans_with_elastic_workers_converge_within_a_few_cycles(snapshot: Snapshot) -> None:
    """The clock is frozen: later a minimum run time would end, or a resize would repay."""
    snapshot = settled(
        replace(snapshot, policy=replace(snapshot.policy, explain="none")), seconds=0
    )

    for _ in range(3):
        plan = decide(snapshot)
        assert plan.decisions == ()
        snapshot = applied(snapshot, plan, seconds=0)


@given(elastic_snapshots())
def test_index_plans_elastic_workers_like_its_snapshot(snapshot: Snapshot) -> None:
    index = ClusterIndex(replace(snapshot, workloads=()))
    index.apply(SnapshotChanges(workloads=snapshot.workloads))

    assert decide(index) == decide(snapshot)
    index.apply(
        SnapshotChanges(workloads=snapshot.workloads[:2], removed=(snapshot.workloads[-1].name,))
    )
    assert decide(index) == decide(index.snapshot())

"""Hypothesis strategy: small clusters with incomplete gangs.

In the snapshots of `incomplete_gangs()` gangs have lost workers, or have stopping workers or
reservations; nodes are cordoned or gone; jobs run on the freed devices, or pend.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from runai.hub_service.scheduler import (
    MilliGpu,
    Node,
    Snapshot,
    Worker,
    WorkerState,
    Workload,
)
from strategies import MEMORY, CarelessPlacer, pending


@st.composite
def running_gangs(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster with running gangs, placed before the remaining workloads."""
    snapshot = draw(pending(max_workloads=4))
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    nodes = tuple(
        Node(name=f"n{i}", devices=size, device_memory_mib=MEMORY) for i, size in enumerate(sizes)
    )
    snapshot = replace(snapshot, nodes=nodes)
    room = CarelessPlacer(snapshot)
    gangs = []
    for index in range(draw(st.integers(1, 3))):
        count = draw(st.integers(2, 4))
        worker = Worker(name="", gpus=MilliGpu(draw(st.sampled_from([1000, 1000, 1000, 500]))))
        gang = Workload(
            name=f"g{index}",
            project=draw(st.sampled_from(snapshot.projects)).name,
            priority=draw(st.sampled_from([None, None, 25])),
            submitted=draw(st.integers(0, 20)),
            min_workers=draw(st.sampled_from([None, None, 2])),
            workers=tuple(replace(worker, name=f"g{index}-{i}") for i in range(count)),
        )
        gangs.append(room.run(gang, since=900))
    other_workloads = [
        room.run(workload, since=980) if draw(st.booleans()) else workload
        for workload in snapshot.workloads
    ]
    return replace(snapshot, workloads=(*gangs, *other_workloads))


@st.composite
def incomplete_gangs(draw: st.DrawFn) -> Snapshot:
    """Draw a cluster with incomplete gangs, shorter or longer than their grace period."""
    snapshot = draw(running_gangs())
    nodes = tuple(
        replace(node, schedulable=draw(st.integers(0, 5)) < 5)
        for node in snapshot.nodes
        if draw(st.integers(0, 7)) < 7
    )
    known = {node.name for node in nodes}
    terminating: list[Worker] = []
    newcomers: list[Workload] = []

    def newcomer(worker: Worker) -> None:
        """Let a job of any project run on a worker's devices, or pend for them."""
        name = f"x{len(newcomers)}"
        newcomers.append(
            Workload(
                name=name,
                project=draw(st.sampled_from(snapshot.projects)).name,
                priority=draw(st.sampled_from([None, 90])),
                submitted=draw(st.integers(0, 20)),
                workers=(replace(worker, name=f"{name}-0"),),
            )
        )

    def disturbed(worker: Worker) -> Worker:
        """Let a running worker be lost, be stopping, or not have started yet."""
        if worker.state is not WorkerState.RUNNING:
            return worker
        new_state = draw(st.sampled_from(WORKER_STATES))
        if worker.node not in known and new_state is not WorkerState.RESERVED:
            return lost(worker)
        if new_state is WorkerState.PENDING:
            newcomer(worker)
            if draw(st.booleans()):
                newcomer(lost(worker))
            return lost(worker)
        worker = replace(worker, state=new_state)
        if new_state is WorkerState.STOPPING:
            terminating.append(worker)
        return replace(worker, started=None) if new_state is WorkerState.RESERVED else worker

    def reserved(worker: Worker) -> Worker:
        """Reserve the devices of a terminating worker for a worker with the same request."""
        for freed in terminating if worker.state is WorkerState.PENDING else ():
            if replace(worker, name="") == replace(lost(freed), name="") and draw(st.booleans()):
                terminating.remove(freed)
                return replace(
                    worker, state=WorkerState.RESERVED, node=freed.node, devices=freed.devices
                )
        return worker

    workloads = [
        replace(w, workers=tuple(map(disturbed, w.workers)))
        if draw(st.integers(0, 2)) or any(k.node and k.node not in known for k in w.workers)
        else w
        for w in snapshot.workloads
    ]
    workloads = [
        replace(
            w,
            workers=tuple(map(reserved, w.workers)),
            below_min_since=draw(st.sampled_from([None, 990, 900])) if is_short(w) else None,
        )
        for w in workloads
    ]
    return replace(snapshot, nodes=nodes, workloads=(*workloads, *newcomers))


WORKER_STATES = [
    *[WorkerState.RUNNING] * 4,
    *[WorkerState.PENDING] * 2,
    WorkerState.STOPPING,
    WorkerState.RESERVED,
]
"""The possible states of a worker of an incomplete gang."""


def lost(worker: Worker) -> Worker:
    """Return a worker without its process."""
    return replace(worker, state=WorkerState.PENDING, node=None, devices=(), started=None)


def is_short(workload: Workload) -> bool:
    """Return True if a gang runs, but with fewer workers than its minimum (R11)."""
    runs = sum(worker.state is WorkerState.RUNNING for worker in workload.workers)
    return 0 < runs < workload.minimum

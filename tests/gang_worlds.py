"""Hypothesis strategy: small clusters with incomplete gangs.

In the worlds of `troubled()` gangs have lost workers, or have stopping workers or reservations;
nodes are cordoned or gone; jobs run on the freed devices, or pend.
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
from strategies import MEMORY, CarelessRoom, pending


@st.composite
def full_of_gangs(draw: st.DrawFn) -> Snapshot:
    """Draw a world with running gangs, placed before the remaining workloads."""
    world = draw(pending(most=4))
    sizes = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
    nodes = tuple(
        Node(name=f"n{i}", devices=size, device_memory_mib=MEMORY) for i, size in enumerate(sizes)
    )
    world = replace(world, nodes=nodes)
    room = CarelessRoom(world)
    gangs = []
    for index in range(draw(st.integers(1, 3))):
        count = draw(st.integers(2, 4))
        worker = Worker(name="", gpus=MilliGpu(draw(st.sampled_from([1000, 1000, 1000, 500]))))
        gang = Workload(
            name=f"g{index}",
            project=draw(st.sampled_from(world.projects)).name,
            priority=draw(st.sampled_from([None, None, 25])),
            submitted=draw(st.integers(0, 20)),
            min_workers=draw(st.sampled_from([None, None, 2])),
            workers=tuple(replace(worker, name=f"g{index}-{i}") for i in range(count)),
        )
        gangs.append(room.run(gang, since=900))
    others = [
        room.run(workload, since=980) if draw(st.booleans()) else workload
        for workload in world.workloads
    ]
    return replace(world, workloads=(*gangs, *others))


@st.composite
def troubled(draw: st.DrawFn) -> Snapshot:
    """Draw a world with incomplete gangs, shorter or longer than their grace period."""
    world = draw(full_of_gangs())
    nodes = tuple(
        replace(node, schedulable=draw(st.integers(0, 5)) < 5)
        for node in world.nodes
        if draw(st.integers(0, 7)) < 7
    )
    known = {node.name for node in nodes}
    leaving: list[Worker] = []
    newcomers: list[Workload] = []

    def newcomer(worker: Worker) -> None:
        """Let a job of any project run on a worker's devices, or pend for them."""
        name = f"x{len(newcomers)}"
        newcomers.append(
            Workload(
                name=name,
                project=draw(st.sampled_from(world.projects)).name,
                priority=draw(st.sampled_from([None, 90])),
                submitted=draw(st.integers(0, 20)),
                workers=(replace(worker, name=f"{name}-0"),),
            )
        )

    def hit(worker: Worker) -> Worker:
        """Let a running worker be lost, be stopping, or not have started yet."""
        if worker.state is not WorkerState.RUNNING:
            return worker
        state = draw(st.sampled_from(HIT))
        if worker.node not in known and state is not WorkerState.RESERVED:
            return lost(worker)
        if state is WorkerState.PENDING:
            newcomer(worker)
            if draw(st.booleans()):
                newcomer(lost(worker))
            return lost(worker)
        worker = replace(worker, state=state)
        if state is WorkerState.STOPPING:
            leaving.append(worker)
        return replace(worker, started=None) if state is WorkerState.RESERVED else worker

    def promised(worker: Worker) -> Worker:
        """Reserve the devices of a leaving worker for a worker with the same request."""
        for there in leaving if worker.state is WorkerState.PENDING else ():
            if replace(worker, name="") == replace(lost(there), name="") and draw(st.booleans()):
                leaving.remove(there)
                return replace(
                    worker, state=WorkerState.RESERVED, node=there.node, devices=there.devices
                )
        return worker

    workloads = [
        replace(w, workers=tuple(map(hit, w.workers)))
        if draw(st.integers(0, 2)) or any(k.node and k.node not in known for k in w.workers)
        else w
        for w in world.workloads
    ]
    workloads = [
        replace(
            w,
            workers=tuple(map(promised, w.workers)),
            below_min_since=draw(st.sampled_from([None, 990, 900])) if is_short(w) else None,
        )
        for w in workloads
    ]
    return replace(world, nodes=nodes, workloads=(*workloads, *newcomers))


HIT = [
    *[WorkerState.RUNNING] * 4,
    *[WorkerState.PENDING] * 2,
    WorkerState.STOPPING,
    WorkerState.RESERVED,
]
"""The possible states of a worker of a troubled gang."""


def lost(worker: Worker) -> Worker:
    """Return a worker without its process."""
    return replace(worker, state=WorkerState.PENDING, node=None, devices=(), started=None)


def is_short(workload: Workload) -> bool:
    """Return True if a gang runs, but with fewer workers than its minimum (R11)."""
    runs = sum(worker.state is WorkerState.RUNNING for worker in workload.workers)
    return 0 < runs < workload.minimum

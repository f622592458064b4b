"""Placement by least growth of fragmentation (P6): its weights, and that sums stay exact."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given

import strategies
from builders import cluster, job, places, project, snapshot
from runai.hub_service.scheduler import Node, Snapshot, Worker, WorkerState, Workload, decide
from runai.hub_service.scheduler.model.quantity import Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Packing
from runai.hub_service.scheduler.state.frag_aware_capacity import (
    FragAwareCapacity,
    NodeRanking,
    Rank,
    capacity_for,
)
from runai.hub_service.scheduler.state.fragmentation import NodeFreeCapacity, RequestMix
from runai.hub_service.scheduler.state.request_shape import Booking, RequestShape, RequestShapes

PROJECTS = [project("a", 64)]


def place_of(nodes: str | list[Node], *workloads: Workload, packing: Packing = "frag") -> str:
    return places(decide(snapshot(nodes, PROJECTS, workloads, packing=packing)))["new-0"]


# ---- one node


def shapes_of(nodes: list[Node] | tuple[Node, ...], *workers: Worker) -> list[RequestShape]:
    shapes = RequestShapes(nodes)
    return [shapes.shape_of(worker, ()) for worker in workers]


def worker_requesting(
    gpus: int, *, cpu: int = 0, memory: int = 0, types: tuple[str, ...] = ()
) -> Worker:
    return Worker(
        name=f"{gpus}-{cpu}",
        gpus=MilliGpu(gpus),
        cpu_milli=cpu,
        memory_mib=Mib(memory),
        gpu_types=types,
    )


FRAGMENTATION_CASES = {
    "device too full for the only request": ([worker_requesting(1000)], (0, 400), 9, 9, 400),
    "device with room for the request": ([worker_requesting(400)], (0, 400), 9, 9, 0),
    "one of three devices too full": (
        [worker_requesting(500)],
        (400, 500, 1000),
        9,
        9,
        400,
    ),
    "two idle devices for a request of three": (
        [worker_requesting(3000)],
        (0, 1000, 1000),
        9,
        9,
        2000,
    ),
    "two requests, one of which fits": (
        [worker_requesting(400), worker_requesting(1000)],
        (0, 600),
        9,
        9,
        600,
    ),
    "too little CPU for one request": (
        [worker_requesting(1000, cpu=4)],
        (1000,),
        3,
        9,
        1000,
    ),
    "too little memory for one request": (
        [worker_requesting(1000, memory=4)],
        (1000,),
        9,
        3,
        1000,
    ),
    "CPU for one request on three devices": (
        [worker_requesting(1000, cpu=4)],
        (1000, 1000, 1000),
        4,
        9,
        1000,
    ),
    "memory for one request on three devices": (
        [worker_requesting(1000, memory=4)],
        (1000, 1000, 1000),
        9,
        4,
        1000,
    ),
    "request of a different type": (
        [worker_requesting(500, types=("h100",))],
        (1000,),
        9,
        9,
        1000,
    ),
    "request without a GPU beside one that fits": (
        [worker_requesting(0, cpu=2), worker_requesting(500)],
        (1000,),
        9,
        9,
        0,
    ),
}


@pytest.mark.parametrize(
    ("workers", "free_milli", "cpu", "memory", "lost"),
    FRAGMENTATION_CASES.values(),
    ids=FRAGMENTATION_CASES,
)
def test_fragmentation_counts_gpus_that_the_request_mix_cannot_use(
    workers: list[Worker], free_milli: tuple[int, ...], cpu: int, memory: int, lost: int
) -> None:
    nodes = cluster("1x3", cpu_milli=9, gpu_type="a100") + cluster("1x1", gpu_type="h100")
    mix = RequestMix(Counter(shapes_of(nodes, *workers)), [81920, 81920])

    assert mix.profiles[0].fragmentation(NodeFreeCapacity(free_milli, cpu, memory)) == lost


# ---- the whole cluster


HALF_GPU_JOBS = [job(f"h{i}", 0.5, on=f"n3:{i % 2}") for i in range(4)]
WHOLE_GPU_JOBS = [job(f"h{i}", 1, on=f"n3:{i}") for i in range(2)]
FEW_CPUS = [
    Node(name="n1", devices=2, cpu_milli=4),
    Node(name="n2", devices=3, cpu_milli=12),
]

CHOICES: dict[str, tuple[str | list[Node], list[Workload], dict[Packing, str]]] = {
    "half-GPU jobs make a tenth of a GPU useless": (
        "2x1+1x2",
        [job("x", 0.4, on="n1:0"), *HALF_GPU_JOBS, job("new", 0.5)],
        {"binpack": "n1:0", "frag": "n2:0"},
    ),
    "whole-GPU jobs need idle devices": (
        "2x1+1x2",
        [job("x", 0.4, on="n1:0"), *WHOLE_GPU_JOBS, job("new", 0.5)],
        {"binpack": "n1:0", "frag": "n1:0"},
    ),
    "job leaves no device without CPU": (
        FEW_CPUS,
        [job("new", 1, cpu_milli=4)],
        {"binpack": "n1:0", "frag": "n2:0"},
    ),
    "gang leaves no device without CPU": (
        [
            replace(FEW_CPUS[0], devices=3, cpu_milli=8),
            replace(FEW_CPUS[1], devices=4, cpu_milli=16),
        ],
        [job("new", 1, workers=2, cpu_milli=4)],
        {"binpack": "n1:0", "frag": "n2:0"},
    ),
    "device of one node that leaves most": (
        "1x2+1x0+1x2",
        [job("x", 0.4, on="n1:0"), *HALF_GPU_JOBS, job("new", 0.5)],
        {"binpack": "n1:0", "frag": "n1:1"},
    ),
    "equal growth: binpack order": (
        "2x2",
        [job("x", 0.25, on="n1:0"), job("y", 0.5, on="n2:1"), job("new", 0.5)],
        {"binpack": "n2:1", "frag": "n2:1"},
    ),
    "node with fewer idle devices": (
        "1x2+1x4",
        [*(job(f"h{i}", 0.5, on=f"n2:{i}") for i in range(3)), job("new", 1)],
        {"binpack": "n2:3", "frag": "n2:3"},
    ),
    "equal nodes: first by name": (
        "3x2",
        [job("new", 2)],
        {"binpack": "n1:0,1", "frag": "n1:0,1"},
    ),
}


@pytest.mark.parametrize("packing", ["binpack", "frag"])
@pytest.mark.parametrize(("nodes", "workloads", "expected"), CHOICES.values(), ids=CHOICES)
def test_packing_policy_chooses_devices_by_fullness_or_fragmentation(
    nodes: str | list[Node],
    workloads: list[Workload],
    expected: dict[Packing, str],
    packing: Packing,
) -> None:
    assert place_of(nodes, *workloads, packing=packing) == expected[packing]


def arrivals(snapshot: Snapshot) -> list[Workload]:
    """Return single-worker jobs of one project, to be submitted one after another."""
    return [
        replace(
            w,
            project="a",
            workers=(replace(w.workers[0], gpu_types=()),),
            min_workers=None,
            kind="job",
            priority=None,
        )
        for w in snapshot.workloads
    ]


@given(cluster_snapshot=strategies.pending(max_workloads=12))
@pytest.mark.parametrize("packing", ["binpack", "frag"])
def test_free_capacity_places_single_workers_like_the_scheduler(
    packing: Packing, cluster_snapshot: Snapshot
) -> None:
    """So `benchmarks/openb.py`, which uses a capacity, measures the platform's own placement."""
    nodes = sorted(cluster_snapshot.nodes, key=lambda node: node.name)
    shapes, capacity = RequestShapes(nodes), capacity_for(packing, nodes)
    placed_workloads: list[Workload] = []
    for new in arrivals(cluster_snapshot):
        cluster_snapshot = snapshot(
            nodes,
            [project("a", None)],
            [*placed_workloads, new],
            packing=packing,
            phases=("allocate",),
        )
        plan = decide(cluster_snapshot)
        shape = shapes.shape_of(new.workers[0], ())
        if isinstance(capacity, FragAwareCapacity):
            capacity.expect(
                Counter(shapes.shape_of(w.workers[0], ()) for w in [*placed_workloads, new])
            )
        placement = capacity.find(shape)

        expected = None
        if placement is not None:
            node, devices = placement
            expected = f"{nodes[node].name}:{','.join(str(device) for device in devices)}"
            capacity.book(shapes.book(shape, *placement))
            placed_worker = replace(
                new.workers[0],
                state=WorkerState.RUNNING,
                node=nodes[node].name,
                devices=devices,
            )
            placed_workloads.append(replace(new, workers=(placed_worker,)))
        assert places(plan).get(new.workers[0].name) == expected


@given(snapshot=strategies.pending(max_workloads=12))
def test_reused_free_capacity_places_requests_like_fresh_free_capacity(
    snapshot: Snapshot,
) -> None:
    nodes = sorted(snapshot.nodes, key=lambda node: node.name)
    shapes = RequestShapes(nodes)
    requested = [shapes.shape_of(w.workers[0], ()) for w in snapshot.workloads]
    reused = FragAwareCapacity(nodes)
    reused.expect(Counter(requested))
    booked: list[Booking] = []
    for turn, shape in enumerate([*requested, *requested]):
        fresh = FragAwareCapacity(nodes)
        fresh.expect(Counter(requested))
        for booking in booked:
            fresh.book(booking)
        placement = reused.find(shape)

        assert placement == fresh.find(shape)
        if placement is not None:
            booked.append(shapes.book(shape, *placement))
            reused.book(booked[-1])
        if turn % 3 == 2 and booked:
            reused.book(booked.pop(0), -1)


def test_node_ranking_returns_the_lowest_rank_after_many_changes() -> None:
    ranking, ranks = NodeRanking(), dict[int, Rank]()
    for turn in range(2000):
        node, rank = turn * 7 % 40, (turn * 31 % 97,)
        ranks[node] = rank
        ranking.store(node, rank)

        assert ranking.first() == min(ranks, key=lambda n: (ranks[n], n))
        if turn % 11 == 0:
            del ranks[node]
            ranking.store(node, None)

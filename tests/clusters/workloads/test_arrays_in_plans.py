"""A plan from the next elements of arrays is the plan from all of their elements."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from runai.hub_service.clusters.simulated import SimulatedCluster, simulated_cluster
from runai.hub_service.clusters.states.user_actions import rows_of
from runai.hub_service.clusters.workloads.snapshot_builder import workload_for_core
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import Snapshot, decide
from runai.hub_service.scheduler.model.quantity import MilliGpu

PROJECTS = ("a", "b")


@st.composite
def jobs(draw: st.DrawFn, number: int) -> WorkloadSpec:
    workers = draw(st.sampled_from([1, 1, 2]))
    return WorkloadSpec(
        *(draw(st.sampled_from(PROJECTS)), f"job{number}", draw(st.sampled_from("xy"))),
        *("job", ("train",)),
        gpus=MilliGpu(draw(st.sampled_from([250, 300, 500, 1000, 2000]))),
        priority=draw(st.sampled_from([50, 50, 75])),
        workers=workers,
        min_workers=workers,
        array=draw(st.sampled_from([None, 2, 40])),
    )


def array_of_forty(**request: Any) -> WorkloadSpec:
    return WorkloadSpec("b", "job0", "x", "job", ("train",), array=40, **request)


async def cluster_with(
    specs: Sequence[WorkloadSpec], devices: int, quotas: Sequence[int]
) -> SimulatedCluster:
    all_devices = [Device(n, f"SIM-{n}", "GPU", 16_000, simulated=True) for n in range(devices)]
    nodes = {"box": all_devices[: devices // 2], "bay": all_devices[devices // 2 :]}
    cluster = simulated_cluster(nodes, clock=lambda: 0.0)
    for name, quota in zip(PROJECTS, quotas, strict=True):
        await cluster.put_project(ProjectSpec(name, quota=MilliGpu(quota)))
    for spec in specs:
        await cluster.submit([spec])
    return cluster


def with_all_elements(snapshot: Snapshot, specs: Sequence[WorkloadSpec]) -> Snapshot:
    """Return a snapshot with each element of each array."""
    rows = [row for spec in specs for row in rows_of(spec, now=0.0, max_elements=spec.array or 1)]
    every = (workload_for_core(row) for row in rows)
    return replace(
        snapshot, workloads=tuple(workload for workload in every if workload is not None)
    )


@given(
    specs=st.integers(1, 4).flatmap(lambda n: st.tuples(*(jobs(number) for number in range(n)))),
    devices=st.integers(2, 6),
    quotas=st.tuples(st.sampled_from([0, 500, 2000]), st.sampled_from([0, 1000, 4000])),
)
@example(specs=(array_of_forty(gpus=MilliGpu(300)),), devices=4, quotas=(0, 4000))
@example(specs=(array_of_forty(gpu_memory_mib=5000),), devices=6, quotas=(0, 4000))
def test_plan_from_next_array_elements_equals_the_plan_from_all_elements(specs, devices, quotas):
    cluster = asyncio.run(cluster_with(specs, devices, quotas))
    snapshot = asyncio.run(cluster.observe())

    plan, full_plan = decide(snapshot), decide(with_all_elements(snapshot, specs))

    def starts(found):
        return [d for d in found.decisions if d.kind != "wait"]

    def shares(found):
        """Return what of a fair share can be had: quotas may add up to more than there is."""
        capacity = 1000 * devices
        return {
            name: replace(share, fair_share=min(share.fair_share, capacity))
            for name, share in found.projects.items()
        }

    assert starts(plan) == starts(full_plan)
    assert shares(plan) == shares(full_plan)

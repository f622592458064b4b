"""A replay and the live controller call the same `decide` and reach the same decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import Policy
from runai.hub_service.scheduler.model.quantity import Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Node
from runai.hub_service.simulation.engine import EVERY_S, Setting, simulate
from runai.hub_service.simulation.settings import projects_for_core
from runai.hub_service.simulation.traces import TraceRow
from virtual_platform import MEMORY_MIB, Log, VirtualPlatform, lines

NODES = {"n1": 2, "n2": 2}
PROJECTS = [ProjectSpec("a", quota=MilliGpu(1000)), ProjectSpec("b", quota=MilliGpu(3000))]
POLICY = Policy(explain="none")


def replay_decisions(rows: Sequence[TraceRow]) -> Log:
    log: Log = []
    nodes = [Node(name=n, devices=d, device_memory_mib=Mib(MEMORY_MIB)) for n, d in NODES.items()]
    setting = Setting(nodes=nodes, projects=projects_for_core(PROJECTS), policy=POLICY)
    simulate(rows, "quota", setting, alone={}, on_plan=lambda at, p: log.append((at, lines(p))))
    return log


def live_decisions(rows: Sequence[TraceRow]) -> Log:
    submissions = [(row.submit_s, workload_of(row), row.duration_s) for row in rows]
    nodes = {name: (devices, "simulated") for name, devices in NODES.items()}
    return asyncio.run(VirtualPlatform(submissions, nodes, PROJECTS, POLICY, EVERY_S).log())


def workload_of(row: TraceRow) -> WorkloadSpec:
    project, _, name = row.job.partition("/")
    gang = 2 if row.gpus > 2000 else 1
    return WorkloadSpec(
        project,
        name,
        "",
        "job",
        ("true",),
        gpus=MilliGpu(row.gpus // gang),
        workers=gang,
        min_workers=gang,
    )


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),  # project
        st.integers(0, 90),  # submission in seconds
        st.sampled_from([250, 500, 1000, 2000, 4000]),  # milli-GPU
        st.integers(1, 60),  # duration in seconds
    ),
    min_size=1,
    max_size=12,
)


def trace(row_values: Sequence[tuple[str, int, int, int]]) -> list[TraceRow]:
    number = count()
    rows = [
        TraceRow(
            job=f"{project}/j{next(number):02}",
            project=project,
            submit_s=submit,
            gpus=gpus,
            duration_s=duration,
        )
        for project, submit, gpus, duration in row_values
    ]
    return sorted(rows, key=lambda row: (row.submit_s, row.job))


TRACE_WITH_A_RECLAIM = trace(
    [
        # Project, submission in s, milli-GPU, duration in s.
        ("a", 0, 4000, 100),  # a gang on all GPUs, far over a's quota
        ("a", 5, 500, 40),
        ("b", 20, 1000, 50),  # reclaims from the gang
        ("b", 20, 500, 80),
        ("a", 30, 1000, 30),
        ("b", 41, 2000, 10),
    ]
)


def test_replay_and_live_controller_make_the_same_decisions():
    decisions = replay_decisions(TRACE_WITH_A_RECLAIM)

    kinds = {kind for _cycle_time, plan in decisions for kind, *_ in plan}
    assert kinds >= {"start", "stop", "reserve"}
    assert decisions == live_decisions(TRACE_WITH_A_RECLAIM)


@given(row_values=ROWS)
@settings(max_examples=40, deadline=None)
def test_replay_and_live_controller_agree_on_generated_traces(row_values):
    rows = trace(row_values)

    assert replay_decisions(rows) == live_decisions(rows)

"""A replay and the live controller call the same `decide` and reach the same decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from live import MEMORY, Live, Log, lines
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec
from runai.hub_service.scheduler import Policy
from runai.hub_service.scheduler.model.quantity import Mib, MilliGpu
from runai.hub_service.scheduler.model.snapshot import Node
from runai.hub_service.simulation.engine import EVERY_S, Setting, simulate
from runai.hub_service.simulation.settings import projects_for_core
from runai.hub_service.simulation.traces import TraceRow

NODES = {"n1": 2, "n2": 2}
PROJECTS = [ProjectSpec("a", quota=MilliGpu(1000)), ProjectSpec("b", quota=MilliGpu(3000))]
POLICY = Policy(explain="none")


def replayed(rows: Sequence[TraceRow]) -> Log:
    log: Log = []
    nodes = [Node(name=n, devices=d, device_memory_mib=Mib(MEMORY)) for n, d in NODES.items()]
    setting = Setting(nodes=nodes, projects=projects_for_core(PROJECTS), policy=POLICY)
    simulate(rows, "quota", setting, alone={}, on_plan=lambda at, p: log.append((at, lines(p))))
    return log


def live(rows: Sequence[TraceRow]) -> Log:
    submissions = [(row.submit_s, spec(row), row.duration_s) for row in rows]
    nodes = {name: (devices, "simulated") for name, devices in NODES.items()}
    return asyncio.run(Live(submissions, nodes, PROJECTS, POLICY, EVERY_S).log())


def spec(row: TraceRow) -> WorkloadSpec:
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
        st.sampled_from("ab"),
        st.integers(0, 90),
        st.sampled_from([250, 500, 1000, 2000, 4000]),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=12,
)


def trace(given_rows: Sequence[tuple[str, int, int, int]]) -> list[TraceRow]:
    number = count()
    rows = [
        TraceRow(
            job=f"{project}/j{next(number):02}",
            project=project,
            submit_s=submit,
            gpus=gpus,
            duration_s=duration,
        )
        for project, submit, gpus, duration in given_rows
    ]
    return sorted(rows, key=lambda row: (row.submit_s, row.job))


STORY = trace(
    [
        ("a", 0, 4000, 100),  # a gang on all GPUs, far over a's quota
        ("a", 5, 500, 40),
        ("b", 20, 1000, 50),  # reclaims from the gang
        ("b", 20, 500, 80),
        ("a", 30, 1000, 30),
        ("b", 41, 2000, 10),
    ]
)


def test_replay_and_live_controller_make_the_same_decisions():
    log = replayed(STORY)

    kinds = {line[0] for _, plan in log for line in plan}
    assert kinds >= {"start", "stop", "reserve"}
    assert log == live(STORY)


@given(given_rows=ROWS)
@settings(max_examples=40, deadline=None)
def test_replay_and_live_controller_agree_on_generated_traces(given_rows):
    rows = trace(given_rows)

    assert replayed(rows) == live(rows)

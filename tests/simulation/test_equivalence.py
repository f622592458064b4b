"""One `decide`, two drivers: a replay and the live controller come to the same decisions.

The live side is the real controller on the cluster of rows, in virtual time: processes end when
their time is up, stopped ones at once, and a cycle runs at most every ten seconds, as in a replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runai.hub_service.agent.devices import Device
from runai.hub_service.clusters.records import ProjectSpec, WorkloadSpec, WorkloadState
from runai.hub_service.clusters.simulated import SimulatedCluster
from runai.hub_service.controller import Controller
from runai.hub_service.scheduler import Policy, decide
from runai.hub_service.scheduler.model import Node, Plan
from runai.hub_service.scheduler.quantity import Mib, MilliGpu
from runai.hub_service.simulation.engine import EVERY_S, Setting, simulate
from runai.hub_service.simulation.settings import projects_for_core
from runai.hub_service.simulation.traces import TraceRow

MEMORY = 16_384
NODES = {"n1": 2, "n2": 2}
PROJECTS = [ProjectSpec("a", quota=MilliGpu(1000)), ProjectSpec("b", quota=MilliGpu(3000))]
POLICY = Policy(explain="none")

Log = list[tuple[int, list[tuple[Any, ...]]]]


def lines(plan: Plan) -> list[tuple[Any, ...]]:
    return [
        (
            d.kind,
            d.workload,
            getattr(d, "worker", ""),
            getattr(d, "node", ""),
            getattr(d, "devices", ()),
        )
        for d in plan.decisions
    ]


def replayed(rows: Sequence[TraceRow]) -> Log:
    log: Log = []
    nodes = [Node(name=n, devices=d, device_memory_mib=Mib(MEMORY)) for n, d in NODES.items()]
    setting = Setting(nodes=nodes, projects=projects_for_core(PROJECTS), policy=POLICY)
    simulate(rows, "quota", setting, alone={}, on_plan=lambda at, p: log.append((at, lines(p))))
    return log


class Live:
    """The controller and its cluster, and when each job would end."""

    def __init__(self, rows: Sequence[TraceRow]) -> None:
        self.now = 0
        self.rows = list(rows)
        self.cluster = SimulatedCluster(
            {n: [self.device(n, d) for d in range(devices)] for n, devices in NODES.items()},
            clock=lambda: float(self.now),
        )
        self.controller = Controller(self.cluster, partial(decide, policy=POLICY))
        self.durations = {row.job: row.duration_s for row in rows}
        self.ends: dict[str, tuple[float, int]] = {}
        """When each running job ends, by when it was started."""

    @staticmethod
    def device(node: str, index: int) -> Device:
        return Device(index, f"{node}-{index}", "simulated", MEMORY, simulated=True)

    async def log(self) -> Log:
        log: Log = []
        due: int | None = None
        last = -EVERY_S
        for project in PROJECTS:
            await self.cluster.put_project(project)
        while (
            times := [row.submit_s for row in self.rows[:1]]
            + self.next_ends()
            + [t for t in (due,) if t is not None]
        ):
            self.now = min(times)
            if await self.happened() and due is None:
                due = max(self.now, last + EVERY_S)
            while due == self.now:
                plan = (await self.controller.cycle()).plan
                log.append((self.now, lines(plan)))
                due, last = None, self.now
                if await self.left(plan):
                    due = self.now
            await self.note()
        return log

    def next_ends(self) -> list[int]:
        return [end for _, end in self.ends.values()]

    async def happened(self) -> bool:
        """Let end and be submitted what is due; tell whether there was anything."""
        ended = [job for job, (_, end) in self.ends.items() if end <= self.now]
        for job in ended:
            del self.ends[job]
            self.cluster.complete(job)
        due = [row for row in self.rows if row.submit_s <= self.now]
        self.rows = self.rows[len(due) :]
        for row in due:
            await self.cluster.submit([spec(row)])
        return bool(ended or due)

    async def left(self, plan: Plan) -> bool:
        """Let stopped workers go at once; tell whether something has to be decided again."""
        for decision in plan.decisions:
            if decision.kind in {"stop", "move"}:
                index = int(decision.worker.rpartition("-")[2])
                self.cluster.complete(decision.workload, 143, worker=index)
        return any(d.kind in {"stop", "move", "reserve"} for d in plan.decisions)

    async def note(self) -> None:
        running: dict[str, tuple[float, int]] = {}
        for record in await self.cluster.workloads():
            if record.state is WorkloadState.RUNNING:
                since = max(w.started or 0.0 for w in record.workers)
                running[record.id] = since, int(since) + self.durations[record.id]
        self.ends = running


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
        ("a", 0, 4000, 100),  # a gang on everything, far over a's quota
        ("a", 5, 500, 40),
        ("b", 20, 1000, 50),  # takes the gang back
        ("b", 20, 500, 80),
        ("a", 30, 1000, 30),
        ("b", 41, 2000, 10),
    ]
)


def test_a_replay_and_the_live_controller_decide_alike():
    log = replayed(STORY)

    kinds = {line[0] for _, plan in log for line in plan}
    assert kinds >= {"start", "stop", "reserve"}
    assert log == asyncio.run(Live(STORY).log())


@given(given_rows=ROWS)
@settings(max_examples=40, deadline=None)
def test_they_do_for_any_trace(given_rows):
    rows = trace(given_rows)

    assert replayed(rows) == asyncio.run(Live(rows).log())

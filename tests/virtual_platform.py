"""The real controller on the simulated cluster, in virtual time: the reference for a replay.

Processes end after their duration, stopped ones at once, and begin anew if started again; a cycle
runs at most every `every` seconds, as in a replay.

VirtualPlatform   one such platform; `log()` runs it to the end and returns its timed decisions
lines             the decisions of a plan, as far as both sides can be compared
Log               the result of `log()`
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from inline_decisions import inline_scheduler
from runai.hub_service.clusters.simulated import simulated_cluster
from runai.hub_service.controller.controller import Controller
from runai.hub_service.model.device import Device
from runai.hub_service.model.records import ProjectSpec, WorkloadSpec, WorkloadState
from runai.hub_service.scheduler import Policy
from runai.hub_service.scheduler.model.snapshot import Plan

MEMORY_MIB = 16_384
OBSERVE_EVERY_S = 5
"""The ledger counts longer stretches without observation as unknown."""

Log = list[tuple[int, list[tuple[Any, ...]]]]
Submission = tuple[int, WorkloadSpec, int]
"""Submission time and run time in seconds, around the workload."""


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


async def _do_nothing() -> None:
    """Do nothing."""


class VirtualPlatform:
    """The controller and its cluster, and the end of each running job."""

    def __init__(
        self,
        submissions: Sequence[Submission],
        nodes: Mapping[str, tuple[int, str]],
        projects: Sequence[ProjectSpec],
        policy: Policy,
        every: int,
    ) -> None:
        """Create nodes: each name maps to a number of devices and their type."""
        self.now = 0
        self.every = every
        self.submissions = sorted(submissions, key=lambda each: (each[0], each[1].id))
        self.projects = projects
        self.cluster = simulated_cluster(
            {n: [device(n, d, type_) for d in range(count)] for n, (count, type_) in nodes.items()},
            clock=lambda: float(self.now),
        )
        self.controller = Controller(self.cluster, inline_scheduler(), policy=policy)
        self.durations = {spec.id: duration for _, spec, duration in submissions}
        self.ends: dict[str, tuple[float, int]] = {}
        """The start and the end of each running job."""
        self.protection = max(project.min_runtime for project in projects)
        self.protection_ends: set[int] = set()
        """The times at which the protection of a started workload ends."""
        self.on_change: Callable[[], Awaitable[object]] = _do_nothing
        """Called after every possible change, and every few seconds."""

    async def log(self) -> Log:
        log: Log = []
        due: int | None = None
        last = -self.every
        for project in self.projects:
            await self.cluster.put_project(project)
        while (
            times := [at for at, _, _ in self.submissions[:1]]
            + [end for _, end in self.ends.values()]
            + [t for t in (due,) if t is not None]
            + list(self.protection_ends)
        ):
            while self.now + OBSERVE_EVERY_S < min(times):
                self.now += OBSERVE_EVERY_S
                await self.on_change()
            self.now = min(times)
            if await self.apply_due_events() and due is None:
                due = max(self.now, last + self.every)
            while due == self.now:
                plan = (await self.controller.cycle()).plan
                log.append((self.now, lines(plan)))
                due, last = None, self.now
                if self.protection and any(d.kind == "start" for d in plan.decisions):
                    self.protection_ends.add(self.now + self.protection)
                await self.on_change()
                if await self.end_stopped(plan):
                    due = self.now
            await self.update_ends()
            await self.on_change()
        return log

    async def apply_due_events(self) -> bool:
        """End and submit the jobs that are due; return True if anything changed."""
        ended = [job for job, (_, end) in self.ends.items() if end <= self.now]
        for job in ended:
            del self.ends[job]
            self.cluster.executor.complete(job)
        due = [spec for at, spec, _ in self.submissions if at <= self.now]
        self.submissions = self.submissions[len(due) :]
        for spec in due:
            await self.cluster.submit([spec])
        protection_ended = self.now in self.protection_ends
        self.protection_ends.discard(self.now)
        return bool(ended or due or protection_ended)

    async def end_stopped(self, plan: Plan) -> bool:
        """End stopped workers at once; return True if the scheduler must decide again."""
        for decision in plan.decisions:
            if decision.kind in {"stop", "move"}:
                index = int(decision.worker.rpartition("-")[2])
                self.cluster.executor.complete(decision.workload, 143, worker=index)
        return any(d.kind in {"stop", "move", "reserve"} for d in plan.decisions)

    async def update_ends(self) -> None:
        running: dict[str, tuple[float, int]] = {}
        for record in await self.cluster.workloads():
            if record.state is WorkloadState.RUNNING:
                since = max(w.started or 0.0 for w in record.workers)
                running[record.id] = since, int(since) + self.durations[record.id]
        self.ends = running


def device(node: str, index: int, type_: str) -> Device:
    return Device(index, f"{node}-{index}", type_, MEMORY_MIB, simulated=True)

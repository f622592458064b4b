"""Cluster without processes: workers start at once, and end on a driver's command.

For the contract suite, other tests and simulations. All decisions are made by `stored_cluster`, as
on a real machine; there are no files and no real time.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NoReturn, TypeAlias

from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.clusters.workloads.agent_allocations import AgentAllocations
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.clusters.workloads.worker_environment import worker_environment
from runai.hub_service.limits.sharing import TimeSliced
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    ACTIVE,
    Allocation,
    HistoryEvent,
    Process,
    ProjectRecord,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.wire.errors import Conflict


class MemoryStore:
    """Store in memory, on which a cluster can be created again."""

    def __init__(self) -> None:
        """Start without rows."""
        self._rows: dict[WorkloadId, WorkloadRecord] = {}
        self._projects: dict[str, ProjectRecord] = {}
        self._history: dict[WorkloadId, list[HistoryEvent]] = {}

    def rows(self) -> Iterable[WorkloadRecord]:
        """Return all workloads, oldest first."""
        return list(self._rows.values())

    def projects(self) -> Iterable[ProjectRecord]:
        """Return all projects, oldest first."""
        return list(self._projects.values())

    def save(
        self,
        rows: Sequence[WorkloadRecord] = (),
        *,
        deleted: Sequence[WorkloadId] = (),
        events: Sequence[tuple[WorkloadId, HistoryEvent]] = (),
        projects: Sequence[ProjectRecord] = (),
        deleted_projects: Sequence[str] = (),
        soon: bool = False,
        urgent: bool = False,
    ) -> None:
        """Save and delete rows and projects, and append to the history."""
        del soon, urgent
        self._rows.update({row.id: row for row in rows})
        self._projects.update({project.spec.name: project for project in projects})
        for workload in deleted:
            del self._rows[workload]
            self._history.pop(workload, None)
        for name in deleted_projects:
            del self._projects[name]
        for workload, line in events:
            self._history.setdefault(workload, []).append(line)

    async def stored(self, workloads: Collection[WorkloadId]) -> None:
        """Return at once: `save` has stored it."""

    def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's history, oldest first."""
        return list(self._history.get(workload, ()))


class SimulatedExecutor:
    """Workers without processes: they run at once, and end when `complete` says so."""

    def __init__(
        self, cluster: "StoredCluster[SimulatedExecutor]", clock: Callable[[], float]
    ) -> None:
        """Start without workers."""
        self._cluster = cluster
        self._clock = clock
        self._allocations = AgentAllocations()
        self._pids = 100_000

    async def run(self) -> NoReturn:
        """Do nothing until cancelled: only `complete` and the clock change workloads."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    def complete(
        self,
        workload: WorkloadId,
        exit_code: int = 0,
        *,
        worker: int | None = None,
        killed: bool = False,
    ) -> None:
        """Let a workload's workers (or one of them) end, `killed` at the end of their grace.

        Raises:
            Conflict: none of them runs.
        """
        row = self._cluster.index[workload]
        indexes = [w.index for w in row.active if worker is None or w.index == worker]
        if not indexes:
            raise Conflict(f"{workload} has nothing to complete ({row.state}).")
        for index in indexes:
            known = self._cluster.row(workload)
            if known is not None and known.workers[index].state in ACTIVE:
                self._cluster.report_exit(workload, index, ExitStatus(exit_code, killed=killed))

    def act(self, row: WorkloadRecord) -> None:
        """Run each starting worker."""
        if row.spec.command is None:
            return
        for worker in row.active:
            if worker.state == "starting":
                self._pids += 1
                process = Process(self._pids, self._clock())
                self._cluster.report_running(row.id, worker.index, process)
                return  # the report calls `act` again for the next worker

    def forgetting(
        self, row: WorkloadRecord, *, aged: bool = False
    ) -> AbstractContextManager[None]:
        """Remove nothing: there are no files."""
        del row, aged
        return nullcontext()

    async def check(self, spec: WorkloadSpec) -> None:
        """Accept any workload."""

    def account_uid(self, user: str) -> int | None:
        """Return None: there are no accounts."""
        del user
        return None

    def directories(self, spec: WorkloadSpec, now: float) -> tuple[str, str]:
        """Return none."""
        del spec, now
        return "", ""

    def free_port(self) -> int:
        """Return the usual port of `torchrun`."""
        return 29500

    def variables(
        self, row: WorkloadRecord, worker: WorkerRecord, devices: Sequence[Device]
    ) -> dict[str, str]:
        """Return a worker's environment."""
        return worker_environment(
            row, worker, devices, api_url="", sharing=TimeSliced(), enforced=False
        )

    def recognised(self, row: WorkloadRecord, process: Process) -> Process:
        """Return the process itself."""
        del row
        return process

    def adopt(self, row: WorkloadRecord, process: Process) -> None:
        """Hold it to nothing."""

    def faults(self, reported: Mapping[str, str]) -> Mapping[str, str]:
        """Return the reported ones."""
        return reported

    def allocations(
        self, node: str, devices: Sequence[Device], rows: Iterable[WorkloadRecord]
    ) -> Sequence[Allocation]:
        """Return the workers that run or stop on a node."""
        return self._allocations.on_node(node, devices, rows)

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return nothing, since nothing runs that could report."""
        del only
        return {}

    async def logs(
        self,
        record: WorkloadRecord,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
    ) -> AsyncGenerator[LogChunk]:
        """Yield nothing, since no process writes; `follow` waits until it is finished."""
        del worker, tail, parts
        first = record
        while follow and not record.state.finished and record.uid == first.uid:
            record = await self._cluster.wait(first.id, record)
        nothing: tuple[LogChunk, ...] = ()
        for chunk in nothing:
            yield chunk


SimulatedCluster: TypeAlias = StoredCluster[SimulatedExecutor]


def simulated_cluster(
    nodes: Mapping[str, Sequence[Device]],
    *,
    clock: Callable[[], float],
    store: MemoryStore | None = None,
    retention: RetentionPolicy | None = None,
    capacities: Mapping[str, NodeCapacity] | None = None,
    executor: type[SimulatedExecutor] = SimulatedExecutor,
) -> SimulatedCluster:
    """Return a cluster of the rows of `store`, if any, in the time of a clock."""
    return StoredCluster(
        store if store is not None else MemoryStore(),
        nodes,
        lambda cluster: executor(cluster, clock),
        capacities=capacities,
        retention=retention,
        clock=clock,
    )

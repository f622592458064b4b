"""Cluster without processes: workers start at once, and end on a driver's command.

For the contract suite, other tests and simulations. All decisions are made by `stored_cluster`, as
on a real machine; there are no files and no real time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import NoReturn

from runai.hub_service.clusters.states.retention import RetentionPolicy
from runai.hub_service.clusters.states.transition import ExitStatus
from runai.hub_service.clusters.workloads.stored_cluster import StoredCluster
from runai.hub_service.model.cluster import LogChunk
from runai.hub_service.model.device import Device, NodeCapacity
from runai.hub_service.model.progress import Progress
from runai.hub_service.model.records import (
    ACTIVE,
    HistoryEvent,
    Process,
    ProjectRecord,
    WorkloadId,
    WorkloadRecord,
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

    def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's history, oldest first."""
        return list(self._history.get(workload, ()))


class SimulatedCluster(StoredCluster):
    """Workloads without processes, in the time of an injected clock."""

    def __init__(
        self,
        nodes: Mapping[str, Sequence[Device]],
        *,
        clock: Callable[[], float],
        store: MemoryStore | None = None,
        retention: RetentionPolicy | None = None,
        capacities: Mapping[str, NodeCapacity] | None = None,
    ) -> None:
        """Load the rows of `store`, if any."""
        store = store if store is not None else MemoryStore()
        super().__init__(store, nodes, capacities=capacities, retention=retention, clock=clock)
        self._pids = 100_000

    async def run(self) -> NoReturn:
        """Do nothing until cancelled: only `complete` and `pass_time` change workloads."""
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
        row = self._row(workload)
        indexes = [w.index for w in row.active if worker is None or w.index == worker]
        if not indexes:
            raise Conflict(f"{workload} has nothing to complete ({row.state}).")
        for index in indexes:
            known = self._index.get(workload)
            if known is not None and known.workers[index].state in ACTIVE:
                self.report_exit(workload, index, ExitStatus(exit_code, killed=killed))

    def pass_time(self) -> float | None:
        """Make all transitions due by the clock; return when the next one is due."""
        return self.apply_due_transitions()

    def act(self, row: WorkloadRecord) -> None:
        """Run each starting worker."""
        if row.spec.command is None:
            return
        for worker in row.active:
            if worker.state == "starting":
                self._pids += 1
                process = Process(self._pids, self._clock())
                self.report_running(row.id, worker.index, process)
                return  # the report calls `act` again for the next worker

    async def progress(
        self, only: Collection[WorkloadId] | None = None
    ) -> Mapping[WorkloadId, Progress]:
        """Return nothing, since nothing runs that could report."""
        del only
        return {}

    async def logs(
        self,
        workload: WorkloadId,
        *,
        worker: int | None,
        tail: int | None,
        follow: bool,
        parts: bool = False,
        uid: str = "",
    ) -> AsyncIterator[LogChunk]:
        """Yield nothing, since no process writes; `follow` waits until it is finished."""
        del worker, tail, parts
        first = record = self._single_row(self._checked_id(workload, uid))
        while follow and not record.state.finished and record.uid == first.uid:
            record = await self.wait(workload, record)
        nothing: tuple[LogChunk, ...] = ()
        for chunk in nothing:
            yield chunk

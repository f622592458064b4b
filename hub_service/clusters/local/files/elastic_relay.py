"""Relay between the cluster and the workers of elastic jobs: targets out, statuses in.

Level-triggered: a target is written whenever the row's is newer than the last written one, so a
restart of the service writes it once more.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from runai.hub_service.clusters.local.files.elastic_dir import ElasticDir
from runai.hub_service.model.records import Process, WorkloadId, WorkloadRecord
from runai.hub_service.wire.elastic_messages import WorkerPhase, WorkerStatus
from runai.hub_service.wire.errors import Unavailable

POLL_EVERY_S = 0.2
"""Seconds between reads of statuses while an elastic job runs."""

_SIGNAL_HANDLING = (WorkerPhase.READY, WorkerPhase.RUNNING)
"""Workers in these phases handle SIGUSR1, which would kill any other process."""


class RelayCluster(Protocol):
    """Cluster methods that the relay calls."""

    def row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a workload's desired state."""

    def report_statuses(self, workload: WorkloadId, statuses: Mapping[str, WorkerStatus]) -> None:
        """Store the statuses of an elastic job's workers, by name."""


class ElasticRelay:
    """Messages of all elastic jobs with active workers."""

    def __init__(
        self, cluster: RelayCluster, elastic_dir: Callable[[WorkloadRecord], ElasticDir]
    ) -> None:
        """Start without written targets; jobs share an `elastic_dir` with their workers."""
        self._cluster = cluster
        self._elastic_dir = elastic_dir
        self._written_generations: dict[WorkloadId, int] = {}
        """Generation of the last written target."""
        self._last_statuses: dict[WorkloadId, dict[str, WorkerStatus]] = {}
        self._running: set[WorkloadId] = set()
        self._wakeup = asyncio.Event()

    def publish_target(self, row: WorkloadRecord) -> None:
        """Write the target, if it is new and its directory exists, and wake the workers."""
        if not row.active:
            self.drop(row.id)
            return
        self._running.add(row.id)
        self._wakeup.set()
        target = row.elastic.target if row.elastic is not None else None
        if target is None or self._written_generations.get(row.id) == target.gen:
            return
        with contextlib.suppress(OSError):  # a full disk: tried again later
            if self._elastic_dir(row).write_target(target):
                self._written_generations[row.id] = target.gen
                self._wake_workers(row)

    def drop(self, workload: WorkloadId) -> None:
        """Forget a job without active workers."""
        self._running.discard(workload)
        self._written_generations.pop(workload, None)
        self._last_statuses.pop(workload, None)

    async def run(self) -> NoReturn:
        """Read statuses while there are active workers, until cancelled."""
        while True:
            self._wakeup.clear()
            for workload in sorted(self._running):
                await self._relay_statuses(workload)
            if not self._running:
                await self._wakeup.wait()
            await asyncio.sleep(POLL_EVERY_S)

    async def _relay_statuses(self, workload: WorkloadId) -> None:
        """Report a job's statuses if they have changed; write a target that is still to come."""
        row = self._cluster.row(workload)
        if row is None or not row.active:
            self.drop(workload)
            return
        shared = self._elastic_dir(row)
        # Only of running processes: before, a file may be of an earlier start.
        names = [worker.name for worker in row.active if worker.process is not None]
        statuses = await asyncio.to_thread(shared.statuses, names)
        row = self._cluster.row(workload)
        if row is None or not row.active:
            return
        self.publish_target(row)
        if statuses != self._last_statuses.get(workload):
            before = self._last_statuses.get(workload, {})
            self._last_statuses[workload] = statuses
            try:
                self._cluster.report_statuses(workload, statuses)
            except Unavailable:  # not stored: reported again with the next read
                self._last_statuses[workload] = before

    def _wake_workers(self, row: WorkloadRecord) -> None:
        """Signal the workers that handle it to read the target."""
        statuses = self._last_statuses.get(row.id, {})
        for worker in row.active:
            status = statuses.get(worker.name)
            if (
                status is not None
                and status.state in _SIGNAL_HANDLING
                and worker.process is not None
            ):
                wake(status.pid, worker.process)


def wake(pid: int, worker: Process) -> None:
    """Send SIGUSR1 to a process, if it belongs to the worker's session."""
    with contextlib.suppress(OSError):
        fd = os.pidfd_open(pid)
        try:
            if os.getsid(pid) == worker.pid:
                signal.pidfd_send_signal(fd, signal.SIGUSR1)
        finally:
            os.close(fd)

"""Reader of the supervisors' answers after pauses: did the workers leave new checkpoints?

Level-triggered: a row names the stops that are not examined yet, so a restarted service goes on. It
stops waiting after some seconds, since a check may end without an answer.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import NoReturn, Protocol

from runai.hub_service.clusters.local.processes.attempt import Attempt
from runai.hub_service.clusters.local.supervisor.checkpoint_check import CHECK_WITHIN_S
from runai.hub_service.clusters.states.state import StoredWorkload
from runai.hub_service.model.records import WorkloadId
from runai.hub_service.wire.errors import Unavailable

POLL_EVERY_S = 0.2
GIVE_UP_S = CHECK_WITHIN_S + 5.0
"""Seconds to wait for an answer; a busy machine needs some of them to start the check."""

Stops = tuple[tuple[int, int], ...]
"""Index and attempt of each worker that a pause stopped."""


class PausedCluster(Protocol):
    """Cluster methods that the reader calls."""

    def row(self, workload: WorkloadId) -> StoredWorkload | None:
        """Return a workload's desired state."""

    def report_checkpoint(self, workload: WorkloadId, stops: Stops, *, is_new: bool | None) -> None:
        """Record whether a pause, known by its stops, left a new checkpoint; None: unknown."""


class CheckpointAnswers:
    """Pauses whose answers are awaited."""

    def __init__(
        self, rows: PausedCluster, attempt: Callable[[WorkloadId, int, int], Attempt]
    ) -> None:
        """Start without pauses; `attempt` returns the start of a worker by index and attempt."""
        self._rows = rows
        self._attempt = attempt
        self._awaited: dict[WorkloadId, tuple[Stops, float]] = {}
        """The stops of each workload, and when to stop waiting for them."""
        self._is_awaited = asyncio.Event()

    def enqueue(self, row: StoredWorkload) -> None:
        """Wait for the answers about a row's last pause, if they are missing."""
        stops = row.unexamined
        if stops and self._awaited.get(row.id, ((), 0.0))[0] != stops:
            self._awaited[row.id] = stops, asyncio.get_running_loop().time() + GIVE_UP_S
            self._is_awaited.set()

    async def run(self) -> NoReturn:
        """Read answers while any is awaited, until cancelled."""
        while True:
            self._is_awaited.clear()
            for workload, (stops, until) in list(self._awaited.items()):
                with contextlib.suppress(Unavailable, OSError):  # not now: tried again
                    self._read(workload, stops, until)
            if not self._awaited:
                await self._is_awaited.wait()
            await asyncio.sleep(POLL_EVERY_S)

    def _read(self, workload: WorkloadId, stops: Stops, until: float) -> None:
        row = self._rows.row(workload)
        if row is not None and row.unexamined == stops:
            found = [self._attempt(workload, index, attempt).saved() for index, attempt in stops]
            is_missing = None in found and True not in found
            if is_missing and asyncio.get_running_loop().time() < until:
                return
            is_new = None if is_missing else any(found)
            self._rows.report_checkpoint(workload, stops, is_new=is_new)
        self._awaited.pop(workload, None)

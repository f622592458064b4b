"""Readers of the supervisors' answers: new checkpoints after pauses, and the code of starts.

Level-triggered: a row names the answers that are missing, so a restarted service goes on. A reader
stops waiting after some seconds, since a check may end without an answer.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, NoReturn, Protocol, TypeVar

from runai.hub_service.clusters.local.processes.attempt import Attempt
from runai.hub_service.clusters.local.supervisor.checkpoint_check import CHECK_WITHIN_S
from runai.hub_service.clusters.local.supervisor.code_note import READ_WITHIN_S
from runai.hub_service.clusters.states.code_changes import awaited_start
from runai.hub_service.model.records import Code, WorkloadId, WorkloadRecord
from runai.hub_service.wire.errors import Unavailable

POLL_EVERY_S = 0.2
LATE_S = 5.0
"""Seconds to wait longer than a check may take; a busy machine needs some of them to start it."""

Stops = tuple[tuple[int, int], ...]
"""Index and attempt of each worker that a pause stopped."""
Missing = TypeVar("Missing", bound=Hashable)


class AnsweredCluster(Protocol):
    """Cluster methods that the readers call."""

    def row(self, workload: WorkloadId) -> WorkloadRecord | None:
        """Return a workload's desired state."""

    def report_checkpoint(self, workload: WorkloadId, stops: Stops, *, is_new: bool | None) -> None:
        """Record whether a pause, known by its stops, left a new checkpoint; None: unknown."""

    def report_code(self, workload: WorkloadId, attempt: int, code: Code | None) -> None:
        """Record the code with which an attempt started; None: unknown."""


class AttemptAnswers(ABC, Generic[Missing]):
    """Workloads whose answers of one kind are awaited."""

    within_s: float
    """Seconds that the check takes at most."""

    def __init__(
        self, cluster: AnsweredCluster, attempt: Callable[[WorkloadId, int, int], Attempt]
    ) -> None:
        """Start with none; `attempt` returns the start of a worker by index and attempt."""
        self._cluster = cluster
        self._attempt = attempt
        self._awaited: dict[WorkloadId, tuple[Missing, float]] = {}
        """The missing answer of each workload, and when to stop waiting for it."""
        self._is_awaited = asyncio.Event()

    @abstractmethod
    def missing(self, row: WorkloadRecord) -> Missing | None:
        """Return a key of the answer that a row lacks; None: it lacks none."""

    @abstractmethod
    def report(self, workload: WorkloadId, missing: Missing, *, is_late: bool) -> bool:
        """Report the answer, or that there is none if it is late; return False to go on."""

    def enqueue(self, row: WorkloadRecord) -> None:
        """Wait for the answer about a row, if it is missing."""
        missing, known = self.missing(row), self._awaited.get(row.id)
        if missing is not None and (known is None or known[0] != missing):
            until = asyncio.get_running_loop().time() + self.within_s + LATE_S
            self._awaited[row.id] = missing, until
            self._is_awaited.set()

    async def run(self) -> NoReturn:
        """Read answers while any is awaited, until cancelled."""
        while True:
            self._is_awaited.clear()
            for workload, (missing, until) in list(self._awaited.items()):
                with contextlib.suppress(Unavailable, OSError):  # not now: tried again
                    self._read(workload, missing, until)
            if not self._awaited:
                await self._is_awaited.wait()
            await asyncio.sleep(POLL_EVERY_S)

    def _read(self, workload: WorkloadId, missing: Missing, until: float) -> None:
        row = self._cluster.row(workload)
        if row is not None and self.missing(row) == missing:
            is_late = asyncio.get_running_loop().time() >= until
            if not self.report(workload, missing, is_late=is_late):
                return
        self._awaited.pop(workload, None)


class CheckpointAnswers(AttemptAnswers[Stops]):
    """Pauses: did the workers leave new checkpoints?"""

    within_s = CHECK_WITHIN_S

    def missing(self, row: WorkloadRecord) -> Stops | None:
        """Return the stops that are not examined yet."""
        return row.unexamined or None

    def report(self, workload: WorkloadId, missing: Stops, *, is_late: bool) -> bool:
        """Report whether any worker has left a checkpoint."""
        answers = [
            self._attempt(workload, index, attempt).has_new_checkpoint()
            for index, attempt in missing
        ]
        is_missing = None in answers and True not in answers
        if is_missing and not is_late:
            return False
        self._cluster.report_checkpoint(
            workload, missing, is_new=None if is_missing else any(answers)
        )
        return True


class CodeAnswers(AttemptAnswers[tuple[int, int]]):
    """Starts: with which code?"""

    within_s = READ_WITHIN_S

    def missing(self, row: WorkloadRecord) -> tuple[int, int] | None:
        """Return index and attempt of a worker that has started."""
        return None if row.spec.command is None else awaited_start(row)

    def report(self, workload: WorkloadId, missing: tuple[int, int], *, is_late: bool) -> bool:
        """Report the code."""
        code = self._attempt(workload, *missing).code()
        if code is None and not is_late:
            return False
        self._cluster.report_code(workload, missing[1], code)
        return True

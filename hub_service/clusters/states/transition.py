"""Transitions of a workload: results, exits of workers, and the store that keeps them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from runai.hub_service.model.records import (
    HistoryEvent,
    ProjectRecord,
    WorkloadId,
    WorkloadRecord,
)


@dataclass(frozen=True, slots=True)
class Transition:
    """Result of a transition: the new row (None: delete it) and its history events."""

    row: WorkloadRecord | None
    events: tuple[tuple[str, str], ...] = ()
    """Kind and sentence of each event."""
    only_queue_status: bool = False
    """True if only the queue position and the reason changed.

    The next cycle sets them again, so they need not outlive the service.
    """
    aged: bool = False
    """True if deleted long after its end, or with its project: its files stay."""


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """Exit of a worker's processes."""

    exit_code: int | None
    """Negative for a signal; None if unknown (a session's process, a lost worker)."""
    stop_requested: bool = False
    """True if its supervisor had been told to stop it."""
    killed: bool = False
    """True if processes of it were killed at the end of the grace of that stop."""
    left: str = ""
    """Sentence on processes that still worked when its program ended by itself, and were ended."""
    lost: bool = False
    """True if its supervisor vanished: it was killed, or the machine went down."""
    text: str = ""
    """Why it could not start, or was ended by its supervisor; "" for neither."""
    is_home_away: bool = False
    """True if it could not start because the home of its Unix account cannot be reached now."""

    @property
    def began(self) -> bool:
        """Return True if its program ran, or may have."""
        was_ended = self.exit_code is not None and self.exit_code < 0
        return self.lost or was_ended or (self.exit_code is not None and not self.text)


class Store(Protocol):
    """Storage of rows and projects; `save` is one transaction, durable when `stored` returns."""

    def rows(self) -> Iterable[WorkloadRecord]:
        """Return all workloads, oldest first."""

    def projects(self) -> Iterable[ProjectRecord]:
        """Return all projects, oldest first."""

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
        """Write rows and projects, delete `deleted` and `deleted_projects`, append events.

        `soon`: durable with the next write without it. `urgent`: also on a full disk, if possible.

        Raises:
            Unavailable: nothing can be written.
        """

    async def stored(self, workloads: Collection[WorkloadId]) -> None:
        """Return when everything saved of these workloads so far is durable.

        Raises:
            InvalidRequest: a new workload is refused.
            Unavailable: it takes too long; what is saved of a stored workload is tried again.
        """

    def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's events, oldest first."""

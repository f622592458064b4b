"""Stored state of a workload and its transitions. Plain frozen data.

A row is the public record and everything else that must outlive a restart of the service.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from runai.hub_service.model.records import (
    HistoryEvent,
    ProjectRecord,
    WorkerRecord,
    WorkloadId,
    WorkloadRecord,
    WorkloadSpec,
)
from runai.hub_service.scheduler.model.snapshot import DeviceShare

ACTIVE = ("starting", "running", "stopping")
"""States of a worker that has processes, or may have."""


@dataclass(frozen=True, slots=True)
class Grant:
    """Devices of a node for one worker."""

    index: int
    node: str
    devices: tuple[DeviceShare, ...]


@dataclass(frozen=True, slots=True)
class StoredWorkload:
    """A workload's record, and the rest of its state that must outlive a restart."""

    record: WorkloadRecord
    intent: Literal["run", "suspend", "delete"] = "run"
    halt: Literal["", "paused", "failed", "lost", "done", "timed_out", "aside"] = ""
    """Why the whole workload is stopping; "": it is not."""
    resumed: bool = False
    """True if a program of it ran, or may have run: its next start may find a checkpoint."""
    losses: int = 0
    granted: float | None = None
    stopping_since: float | None = None
    below_min_since: float | None = None
    master_port: int = 0
    resize: Grant | None = None
    """Devices on which a stopping elastic worker restarts (E2)."""
    unexamined: tuple[tuple[int, int], ...] | None = None
    """Index and attempt of each worker that the last pause stopped, until it is known whether they
    left checkpoints; None: no pause was ever examined."""
    code_due: int = 0
    """Attempt whose code at the start is not noted yet; 0: none."""
    scale: tuple[int, int] | None = None
    """Maximum and minimum of workers, if changed since the submission.

    The spec has them too, but is stored only once.
    """

    @property
    def id(self) -> WorkloadId:
        """Return `project/name`."""
        return self.record.id

    @property
    def spec(self) -> WorkloadSpec:
        """Return the specification."""
        return self.record.spec

    @property
    def active(self) -> tuple[WorkerRecord, ...]:
        """Return the workers with processes, or possibly with some."""
        return tuple(w for w in self.record.workers if w.state in ACTIVE)


@dataclass(frozen=True, slots=True)
class Transition:
    """Result of a transition: the new row (None: delete it) and its history events."""

    row: StoredWorkload | None
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
    """Durable storage of rows and projects; `save` is one transaction, then durable."""

    def rows(self) -> Iterable[StoredWorkload]:
        """Return all workloads, oldest first."""

    def projects(self) -> Iterable[ProjectRecord]:
        """Return all projects, oldest first."""

    def save(
        self,
        rows: Sequence[StoredWorkload] = (),
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

    def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return a workload's events, oldest first."""

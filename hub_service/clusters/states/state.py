"""What a cluster keeps of a workload, and what may happen to it: the words of `lifecycle`.

Plain frozen data. A row is the public record and what else must outlive a restart of the service.
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
class Row:
    """A workload's record and what else must be remembered to carry on after a restart."""

    record: WorkloadRecord
    intent: Literal["run", "suspend", "delete"] = "run"
    halt: Literal["", "paused", "failed", "lost", "done"] = ""
    """Why the workload as a whole is coming to rest, if it is."""
    resumed: bool = False
    """Whether it was stopped before, so that its next start finds a checkpoint."""
    losses: int = 0
    granted: float | None = None
    stopping_since: float | None = None
    below_min_since: float | None = None
    master_port: int = 0
    resize: Grant | None = None
    """What an elastic worker that is stopping is to start again on (E2)."""
    scale: tuple[int, int] | None = None
    """Workers at most and at least, where that was changed since the submission; the spec has them
    too, but is stored only once."""

    @property
    def id(self) -> WorkloadId:
        """Return `project/name`."""
        return self.record.id

    @property
    def spec(self) -> WorkloadSpec:
        """Return what was asked for."""
        return self.record.spec

    @property
    def active(self) -> tuple[WorkerRecord, ...]:
        """Return the workers that have processes, or may have."""
        return tuple(w for w in self.record.workers if w.state in ACTIVE)


@dataclass(frozen=True, slots=True)
class Step:
    """A row after something happened, None if it is to be forgotten, and what to write down."""

    row: Row | None
    events: tuple[tuple[str, str], ...] = ()
    """Kind and sentence of each line of history."""
    passing: bool = False
    """Whether only its place in the queue and why it waits are others: the next cycle says those
    anew, so they need not outlive the service."""
    aged: bool = False
    """Whether it is forgotten because it ended long ago, or with its project: what it has made
    stays."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker's processes ended."""

    exit_code: int | None
    """Negative for a signal; None where nobody saw it (a session's process, a lost worker)."""
    told: bool = False
    """Whether its supervisor had been told to stop it."""
    lost: bool = False
    """Whether its supervisor vanished: killed, or the machine went down."""
    text: str = ""
    """Why it could not be started, if it was not."""


class Store(Protocol):
    """Where rows and projects outlive the process; `save` is one transaction, then durable."""

    def rows(self) -> Iterable[Row]:
        """Return all workloads, oldest first."""

    def projects(self) -> Iterable[ProjectRecord]:
        """Return all projects, oldest first."""

    def save(
        self,
        rows: Sequence[Row] = (),
        *,
        gone: Sequence[WorkloadId] = (),
        events: Sequence[tuple[WorkloadId, HistoryEvent]] = (),
        projects: Sequence[ProjectRecord] = (),
        gone_projects: Sequence[str] = (),
        soon: bool = False,
    ) -> None:
        """Write these rows, forget those, add to the history; Unavailable where nothing can be.

        `soon`: durable with the next write that is not so.
        """

    def arrive(
        self, rows: Sequence[Row], *, events: Sequence[tuple[WorkloadId, HistoryEvent]] = ()
    ) -> None:
        """Write a part of what is to come; no row of it counts before `arrived`."""

    def arrived(self) -> None:
        """Let all parts count, as one."""

    def turned_away(self) -> None:
        """Forget all parts; never fails."""

    def history(self, workload: WorkloadId) -> Sequence[HistoryEvent]:
        """Return what happened to a workload, oldest first."""

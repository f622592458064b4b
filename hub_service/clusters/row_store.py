"""Where the rows of a cluster outlive its process: what `recorded` asks of a store."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from runai.hub_service.clusters.records import HistoryEvent, ProjectRecord, WorkloadId
from runai.hub_service.clusters.row import Row


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

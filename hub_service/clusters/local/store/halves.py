"""Job arrays that are stored in chunks and become visible atomically.

The rows are in their table already; lines in the history of the reserved id "" list the invisible
ones, one line per chunk. Deleting these lines makes the rows visible. After a crash the lines show
the incomplete rows, which are skipped when rows are read, and deleted with the next write.
"""

import json
from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from runai.hub_service.clusters.local.store import one_step
from runai.hub_service.model.records import WorkloadId

NOBODY = ""
"""Reserved workload id of these lines."""


class Halves:
    """Invisible rows; every method runs within its caller's transaction."""

    def __init__(self, connection: Connection) -> None:
        """Find incomplete rows of an earlier service."""
        self._connection = connection
        found = connection.exec_driver_sql(
            "SELECT text FROM history WHERE workload = ?", (NOBODY,)
        ).scalars()
        self._incoming: list[WorkloadId] = []
        self._incomplete: list[WorkloadId] = [
            workload for text in found for workload in json.loads(text)
        ]

    @property
    def left(self) -> Collection[WorkloadId]:
        """Return the workloads with rows to delete."""
        return frozenset(self._incomplete)

    def come(self, workloads: Sequence[WorkloadId], at: float) -> None:
        """Mark the rows of these workloads as invisible."""
        self._incoming += workloads
        self._connection.exec_driver_sql(
            "INSERT INTO history (workload, at, kind, text) VALUES (?, ?, 'coming', ?)",
            (NOBODY, at, json.dumps(list(workloads))),
        )

    def count(self) -> None:
        """Make the rows visible that `come` marked as invisible."""
        self._connection.exec_driver_sql("DELETE FROM history WHERE workload = ?", (NOBODY,))

    def counted(self) -> None:
        """Confirm that this is durable."""
        self._incoming = []

    def give_up(self) -> None:
        """Delete the marked rows with the next write."""
        self._incomplete += self._incoming
        self._incoming = []

    def remove(self) -> None:
        """Delete incomplete rows."""
        if not self._incomplete:
            return
        one_step.delete_named(self._connection, "workloads.id", self._incomplete)
        one_step.delete_named(self._connection, "history.workload", [*self._incomplete, NOBODY])

    def removed(self) -> None:
        """Confirm that this is durable."""
        self._incomplete = []

"""What has come in parts into `cluster.sqlite` and does not count before it is whole.

Its rows are in their table already, and the history of nobody says which: a line for each part.
To make it count is to remove those lines. What had not come whole when the service ended is found
by them, left out when rows are read, and removed with the next write. Kept by `store`.
"""

import json
from collections.abc import Collection, Sequence

from sqlalchemy import Connection

from runai.hub_service.clusters.local.store import one_step
from runai.hub_service.model.records import WorkloadId

NOBODY = ""
"""In whose history the lines are: no workload is called so."""


class Halves:
    """Which rows do not count; every method is called within its caller's transaction."""

    def __init__(self, connection: Connection) -> None:
        """Find what was left by a service that ended in between."""
        self._connection = connection
        found = connection.exec_driver_sql(
            "SELECT text FROM history WHERE workload = ?", (NOBODY,)
        ).scalars()
        self._coming: list[WorkloadId] = []
        self._left: list[WorkloadId] = [workload for text in found for workload in json.loads(text)]

    @property
    def left(self) -> Collection[WorkloadId]:
        """Return whose rows are to be removed."""
        return frozenset(self._left)

    def come(self, workloads: Sequence[WorkloadId], at: float) -> None:
        """Write down that the rows of these do not count yet."""
        self._coming += workloads
        self._connection.exec_driver_sql(
            "INSERT INTO history (workload, at, kind, text) VALUES (?, ?, 'coming', ?)",
            (NOBODY, at, json.dumps(list(workloads))),
        )

    def count(self) -> None:
        """Let all that has come count."""
        self._connection.exec_driver_sql("DELETE FROM history WHERE workload = ?", (NOBODY,))

    def counted(self) -> None:
        """Note that this is durable."""
        self._coming = []

    def give_up(self) -> None:
        """Have what has come removed with the next write."""
        self._left += self._coming
        self._coming = []

    def remove(self) -> None:
        """Remove what is left of what never came whole."""
        if not self._left:
            return
        one_step.delete_named(self._connection, "workloads.id", self._left)
        one_step.delete_named(self._connection, "history.workload", [*self._left, NOBODY])

    def removed(self) -> None:
        """Note that this is durable."""
        self._left = []

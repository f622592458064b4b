"""Insertion of a large submission in chunks, visible all at once or never.

The event loop serves other requests between chunks. Chunks stored so far are invisible; the names
are taken and the key is known once the last one is stored. A submission with one of these names, or
with that key, waits until then.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from itertools import islice

from runai.hub_service.clusters.states.state import Store, StoredWorkload, Transition
from runai.hub_service.clusters.workloads.workload_index import WorkloadIndexer
from runai.hub_service.model.records import HistoryEvent, WorkloadId, WorkloadSpec
from runai.hub_service.processes.giving_way import Way
from runai.hub_service.scheduler.model.snapshot import Workload
from runai.hub_service.wire.errors import Conflict

AT_A_TIME = 50
"""Workloads made in one turn of the event loop, in two milliseconds."""
WRITTEN = 100
"""Workloads per chunk, written in five milliseconds; only the last chunk is synced to disk."""


class Arrivals:
    """Insertions into one store; one large submission at a time."""

    def __init__(self, store: Store) -> None:
        """Begin without one."""
        self._store = store
        self._one_at_a_time = asyncio.Lock()
        self._asked: list[Sequence[WorkloadSpec]] = []
        """Submissions that are being inserted, or wait for their turn."""
        self._coming: set[WorkloadId] = set()
        self._key = "", ""
        """User and idempotency key of the submission that is being inserted."""

    def of(self, project: str) -> list[WorkloadId]:
        """Return the workloads of a project that are not inserted yet."""
        return [spec.id for specs in self._asked for spec in specs if spec.project == project]

    @asynccontextmanager
    async def turn(self, specs: Sequence[WorkloadSpec]) -> AsyncGenerator[None]:
        """Exclude other insertions with these names or this key while the block runs.

        A small submission without such a conflict begins at once, without an `await`.
        """
        if len(specs) <= AT_A_TIME and not self._concerns(specs):
            yield
            return
        self._asked.append(specs)
        try:
            async with self._one_at_a_time:
                self._coming = {spec.id for spec in specs}
                self._key = specs[0].user, specs[0].key
                try:
                    yield
                finally:
                    self._coming, self._key = set(), ("", "")
        finally:
            self._asked.remove(specs)

    def _concerns(self, specs: Sequence[WorkloadSpec]) -> bool:
        if not self._coming:
            return False
        return any(
            spec.id in self._coming or (spec.key and (spec.user, spec.key) == self._key)
            for spec in specs
        )

    async def bring(
        self,
        specs: Collection[WorkloadSpec],
        make: Callable[[WorkloadSpec], Transition],
        draw: Callable[[StoredWorkload, float], Workload | None],
    ) -> tuple[list[StoredWorkload], list[Workload | None]]:
        """Store the state that `make` returns for each; on return all of them are committed.

        `draw` builds each for the scheduler, too: the next cycle would take that much longer.

        Raises:
            Unavailable: a write failed; none of them is stored.
        """
        rows: list[StoredWorkload] = []
        drawn: list[Workload | None] = []
        waiting, part, way = iter(specs), dict[WorkloadId, Transition](), Way()
        try:
            while some := list(islice(waiting, AT_A_TIME)):
                steps = {spec.id: make(spec) for spec in some}
                new = [step.row for step in steps.values() if step.row is not None]
                drawn += [draw(row, row.record.submitted) for row in new]
                rows += new
                part |= steps
                if len(part) >= WRITTEN:
                    self._write(part)
                    part = {}
                await way.give()
            self._write(part)
            self._store.arrived()
        except BaseException:
            self._store.turned_away()
            raise
        return rows, drawn

    def _write(self, part: dict[WorkloadId, Transition]) -> None:
        rows = [step.row for step in part.values() if step.row is not None]
        lines = [
            (workload, HistoryEvent(step.row.record.submitted, kind, text))
            for workload, step in part.items()
            if step.row is not None
            for kind, text in step.events
        ]
        self._store.arrive(rows, events=lines)


def refuse_taken(specs: Sequence[WorkloadSpec], rows: WorkloadIndexer) -> None:
    """Raise Conflict if a name is taken by a stored workload, or twice in `specs`."""
    names: set[WorkloadId] = set()
    for spec in specs:
        taken = rows.row(spec.id)
        if taken is not None or spec.id in names:
            state = f" ({taken.record.state})" if taken is not None else ""
            raise Conflict(
                f"{spec.project} already has a workload named {spec.name}{state}.",
                hint=f"Choose another name, or delete it: runai delete {spec.name}"
                f" -p {spec.project}",
                code="name_taken",
            )
        names.add(spec.id)

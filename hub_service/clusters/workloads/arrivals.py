"""New workloads of one submission: of thousands a part at a time, and there all at once or never.

Others have their turn between parts. What has come of an array so far is in the store, where it
does not count yet, and nobody sees it; its names are taken and its key is known as soon as it has
come whole. Who wants one of either waits until then. Kept by `recorded`, which shows what came.
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
"""Made in one turn of the loop: two milliseconds' work."""
WRITTEN = 100
"""At once: five milliseconds more. Nobody waits for the disk before the last."""


class Arrivals:
    """What comes into a store; of arrays one at a time."""

    def __init__(self, store: Store) -> None:
        """Nothing is on its way."""
        self._store = store
        self._one_at_a_time = asyncio.Lock()
        self._asked: list[Sequence[WorkloadSpec]] = []
        """What is on its way, or waits for that."""
        self._coming: set[WorkloadId] = set()
        self._key = "", ""
        """Whose and which that of those on their way is."""

    def of(self, project: str) -> list[WorkloadId]:
        """Return which workloads of a project are on their way."""
        return [spec.id for specs in self._asked for spec in specs if spec.project == project]

    @asynccontextmanager
    async def turn(self, specs: Sequence[WorkloadSpec]) -> AsyncGenerator[None]:
        """Store these within this block, beside nothing that has their names or their key.

        Few that nobody else has to do with begin at once: nothing is awaited.
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
        """Store what is made of each; on return it is there, whatever happens to us.

        Each is drawn for the core, too: in the next cycle everybody would wait for that.

        Raises:
            Unavailable: it cannot be stored; nothing of it is there.
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
    """Raise Conflict where one of the names is taken, by a workload or by another of these."""
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

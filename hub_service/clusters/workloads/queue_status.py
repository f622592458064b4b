"""Positions and reasons of waiting workloads, queue by queue.

One start changes the positions of thousands of workloads. A workload's first wait is saved; later
ones are not, because the next plan has them again. A queue is shown at once, so that no reader ever
sees two of its workloads in one position.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from runai.hub_service.clusters.states import user_actions
from runai.hub_service.clusters.states.state import Store, StoredWorkload
from runai.hub_service.clusters.workloads.snapshot_builder import wants_devices
from runai.hub_service.clusters.workloads.workload_index import WorkloadIndexer
from runai.hub_service.model.records import HistoryEvent, WorkloadId
from runai.hub_service.scheduler.model.snapshot import Wait

LONG = 300
"""Waits that take a few milliseconds."""


async def store_waits(
    waits: Sequence[Wait],
    rows: WorkloadIndexer,
    store: Store,
    *,
    clock: Callable[[], float],
    announce: Callable[[], None],
) -> None:
    """Store these waits, which are in the order of the queues, in the rows.

    Short queues come first, and other tasks run between long ones. `announce` wakes the watchers. A
    workload that was deleted or suspended during the cycle is skipped.
    """
    if rows.has_arrays:
        waits = [wait for queue in _queues(waits) for wait in _as_lines(queue, rows)]
    for queue in sorted(_queues(rows.unsaid(waits)), key=len):
        if _store_queue(queue, rows, store, clock()):
            announce()
        if len(queue) > LONG:
            await asyncio.sleep(0)


def _store_queue(queue: Sequence[Wait], rows: WorkloadIndexer, store: Store, now: float) -> bool:
    """Store one queue's waits; return True if any row has changed."""
    told: list[tuple[Wait, StoredWorkload]] = []
    first: list[StoredWorkload] = []
    events: list[tuple[str, HistoryEvent]] = []
    for wait in queue:
        row = rows.row(wait.workload)
        if row is None or not wants_devices(row):
            continue
        if user_actions.is_reported(row.record, wait):
            rows.reported_waits[wait.workload] = wait
            continue
        step = user_actions.waiting(row, wait)
        assert step.row is not None
        told.append((wait, step.row))
        if not step.passing:
            first.append(step.row)
            events += [(row.id, HistoryEvent(now, *line)) for line in step.events]
    if first:
        store.save(first, events=events, soon=True)
    for wait, row in told:
        rows.update_queue_status(row)
        rows.reported_waits[wait.workload] = wait
    return bool(told)


def _as_lines(queue: Sequence[Wait], rows: WorkloadIndexer) -> Iterator[Wait]:
    """Yield a queue with one wait for each array: that of its next element.

    So a position counts the lines ahead as a list shows them, and an array is one line.
    """
    arrays: set[WorkloadId] = set()
    position = 0
    for wait in queue:
        workload = wait.workload
        if (rest := rows.rest_with(workload)) is not None:
            workload = rest[0].id
            if workload in arrays:
                continue
            arrays.add(workload)
        position += 1
        if (workload, position) == (wait.workload, wait.position):
            yield wait
        else:
            yield replace(wait, workload=workload, position=position)


def _queues(waits: Iterable[Wait]) -> Iterator[list[Wait]]:
    for _project, queue in groupby(waits, lambda wait: wait.workload.partition("/")[0]):
        yield list(queue)

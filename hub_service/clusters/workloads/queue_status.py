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
from runai.hub_service.clusters.states.transition import Store
from runai.hub_service.clusters.workloads.snapshot_builder import wants_devices
from runai.hub_service.clusters.workloads.workload_index import WorkloadIndex
from runai.hub_service.model.records import HistoryEvent, WorkloadId, WorkloadRecord
from runai.hub_service.scheduler.model.snapshot import Wait

LONG_QUEUE = 300
"""Length from which storing a queue takes some milliseconds."""


async def store_waits(
    waits: Sequence[Wait],
    index: WorkloadIndex,
    store: Store,
    *,
    clock: Callable[[], float],
    announce: Callable[[], None],
) -> None:
    """Store these waits, which are in the order of the queues, in the rows.

    Short queues come first, and other tasks run between long ones. `announce` wakes the watchers. A
    workload that was deleted or suspended during the cycle is skipped.
    """
    if index.has_arrays:
        waits = [
            wait for queue in _queues_of(waits) for wait in _with_array_positions(queue, index)
        ]
    for queue in sorted(_queues_of(index.unreported_waits(waits)), key=len):
        if _store_queue(queue, index, store, clock()):
            announce()
        if len(queue) > LONG_QUEUE:
            await asyncio.sleep(0)


def _store_queue(queue: Sequence[Wait], index: WorkloadIndex, store: Store, now: float) -> bool:
    """Store one queue's waits; return True if any row has changed."""
    updates: list[tuple[Wait, WorkloadRecord]] = []
    first_waits: list[WorkloadRecord] = []
    events: list[tuple[str, HistoryEvent]] = []
    for wait in queue:
        row = index.row(wait.workload)
        if row is None or not wants_devices(row):
            continue
        if user_actions.is_reported(row, wait):
            index.reported_waits[wait.workload] = wait
            continue
        transition = user_actions.waiting(row, wait)
        assert transition.row is not None
        updates.append((wait, transition.row))
        if not transition.only_queue_status:
            first_waits.append(transition.row)
            events += [(row.id, HistoryEvent(now, *line)) for line in transition.events]
    if first_waits:
        store.save(first_waits, events=events, soon=True)
    for wait, row in updates:
        index.update_queue_status(row)
        index.reported_waits[wait.workload] = wait
    return bool(updates)


def _with_array_positions(queue: Sequence[Wait], index: WorkloadIndex) -> Iterator[Wait]:
    """Yield a queue with one wait for each array: that of its next element.

    So a position counts the lines ahead as a list shows them, and an array is one line.
    """
    arrays: set[WorkloadId] = set()
    position = 0
    for wait in queue:
        workload = wait.workload
        if (array_element := index.array_of_element(workload)) is not None:
            workload = array_element[0].id
            if workload in arrays:
                continue
            arrays.add(workload)
        position += 1
        if (workload, position) == (wait.workload, wait.position):
            yield wait
        else:
            yield replace(wait, workload=workload, position=position)


def _queues_of(waits: Iterable[Wait]) -> Iterator[list[Wait]]:
    """Yield runs of consecutive waits of one project."""
    for _project, queue in groupby(waits, lambda wait: wait.workload.partition("/")[0]):
        yield list(queue)

"""Tell those who wait their places and why, a little at a time: others are served meanwhile.

One start moves a queue of thousands up. Who waits for the first time has that written down, of one
person's array a part with each plan, or whoever submits something else would wait for the last of
it; the others' rows are drawn aside and shown queue by queue, so that nobody ever sees two in the
same place. Who is changed meanwhile is told by the next plan. Called by `recorded` for `apply`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from runai.hub_service.clusters import wishes
from runai.hub_service.clusters.picture import wants_devices
from runai.hub_service.clusters.records import HistoryEvent
from runai.hub_service.clusters.row import Step
from runai.hub_service.clusters.row_store import Store
from runai.hub_service.clusters.shelf import Said, Shelf
from runai.hub_service.scheduler.model import Wait

__all__ = ["AT_A_TIME", "FIRST_OF_ONE", "tell"]

LOOKED_AT, AT_A_TIME = 4000, 200
"""Waits between which others have their turn, while looking and while drawing: a millisecond."""
WRITTEN_DOWN = 100
"""At once: five milliseconds. Nobody waits for the disk: what is lost is told by the next cycle."""
FIRST_OF_ONE = 500
"""Of one person's who wait for the first time, with each plan."""


async def tell(
    waits: Sequence[Wait],
    rows: Shelf,
    store: Store,
    *,
    clock: Callable[[], float],
    announce: Callable[[], None],
    later: Callable[[], None],
) -> None:
    """Bring the rows to what these waits say, which came in the order of the queues.

    `announce` wakes those who look; `later` asks for another plan, if some are still to be told for
    the first time. Who was deleted while it was decided is told nothing.
    """
    first: list[tuple[Said, Step]] = []
    firsts = Counter[str]()
    drawn, news = 0, False
    for queue in _queues(await _unsaid(waits, rows)):
        shown: list[Said] = []
        for wait in queue:
            if drawn == AT_A_TIME:
                drawn = 0
                await asyncio.sleep(0)
            drawn += 1
            told = _told(wait, rows, firsts)
            if told is None:
                continue
            said, step = told
            if step.passing:
                shown.append(said)
            else:
                first.append((said, step))
            if len(first) == WRITTEN_DOWN:
                _write_down(first, rows, store, clock())
                first, drawn, news = [], 0, True
                await asyncio.sleep(0)
        rows.say_all(shown)
        news |= bool(shown)
    _write_down(first, rows, store, clock())
    if news or first:
        announce()
    if any(many > FIRST_OF_ONE for many in firsts.values()):
        later()


def _told(wait: Wait, rows: Shelf, firsts: Counter[str]) -> tuple[Said, Step] | None:
    """Draw what somebody is told, if it is anything new; count who is told first, by person."""
    row = rows.row(wait.workload)
    if row is None:
        return None
    if wishes.says(row.record, wait):
        rows.said[wait.workload] = wait
        return None
    if not wants_devices(row):  # who was suspended while it was decided waits for nothing
        return None
    if row.record.position is None:
        firsts[row.spec.user] += 1
        if firsts[row.spec.user] > FIRST_OF_ONE:
            return None
    step = wishes.waiting(row, wait)
    assert step.row is not None
    return Said(wait, row, step.row), step


async def _unsaid(waits: Sequence[Wait], rows: Shelf) -> list[Wait]:
    found: list[Wait] = []
    for begin in range(0, len(waits), LOOKED_AT):
        if begin:
            await asyncio.sleep(0)
        found += rows.unsaid(waits[begin : begin + LOOKED_AT])
    return found


def _write_down(first: Iterable[tuple[Said, Step]], rows: Shelf, store: Store, now: float) -> None:
    """Keep, then show, what those are told for the first time who have not changed meanwhile."""
    told = [(said, step) for said, step in first if rows.row(said.wait.workload) is said.before]
    lines = [(s.row.id, HistoryEvent(now, *line)) for s, step in told for line in step.events]
    if told:
        store.save([said.row for said, _ in told], events=lines, soon=True)
        rows.say_all(said for said, _ in told)


def _queues(waits: Iterable[Wait]) -> Iterator[list[Wait]]:
    for _project, queue in groupby(waits, lambda wait: wait.workload.partition("/")[0]):
        yield list(queue)

"""Tell those who wait their places and why, a little at a time: others are served meanwhile.

One start moves a queue of thousands up. Who waits for the first time has that written down; the
others' rows are drawn aside and shown queue by queue, so that nobody ever sees two in the same
place. Who is changed meanwhile is told by the next plan. Called by `recorded` for `apply`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from runai.hub_service.clusters import wishes
from runai.hub_service.clusters.base import Refused
from runai.hub_service.clusters.picture import wants_devices
from runai.hub_service.clusters.records import WorkloadId
from runai.hub_service.clusters.row import Step
from runai.hub_service.clusters.shelf import Said, Shelf
from runai.hub_service.scheduler.model import Wait

__all__ = ["AT_A_TIME", "tell"]

Keep = Callable[[Mapping[WorkloadId, Step]], None]

LOOKED_AT, AT_A_TIME = 2000, 200
"""Waits between which others have their turn, while looking and while drawing: a millisecond."""
WRITTEN_DOWN = 100
"""At once: five milliseconds. Nobody waits for the disk: what is lost is told by the next cycle."""


async def tell(
    waits: Sequence[Wait], rows: Shelf, *, keep: Keep, announce: Callable[[], None]
) -> Sequence[Refused]:
    """Bring the rows to what these waits say, which came in the order of the queues.

    `keep` makes durable what has to be; `announce` wakes those who look. Refuses who is not there.
    """
    refused: list[Refused] = []
    first: list[tuple[Said, Step]] = []
    drawn, news = 0, False
    for queue in _queues(await _unsaid(waits, rows)):
        shown: list[Said] = []
        for wait in queue:
            if drawn == AT_A_TIME:
                drawn = 0
                await asyncio.sleep(0)
            drawn += 1
            row = rows.row(wait.workload)
            if row is None:
                text = f"there is no workload {wait.workload}"
                refused.append(Refused(wait.workload, "", text))
            elif wishes.says(row.record, wait):
                rows.said[wait.workload] = wait
            elif wants_devices(row):  # who was suspended while it was decided waits for nothing
                step = wishes.waiting(row, wait)
                assert step.row is not None
                said = Said(wait, row, step.row)
                if step.passing:
                    shown.append(said)
                else:
                    first.append((said, step))
            if len(first) == WRITTEN_DOWN:
                _write_down(first, rows, keep)
                first, drawn = [], 0
                await asyncio.sleep(0)
        rows.say_all(shown)
        news |= bool(shown)
    if news:
        announce()
    _write_down(first, rows, keep)
    return refused


async def _unsaid(waits: Sequence[Wait], rows: Shelf) -> list[Wait]:
    found: list[Wait] = []
    for begin in range(0, len(waits), LOOKED_AT):
        if begin:
            await asyncio.sleep(0)
        found += rows.unsaid(waits[begin : begin + LOOKED_AT])
    return found


def _write_down(first: Iterable[tuple[Said, Step]], rows: Shelf, keep: Keep) -> None:
    keep({s.wait.workload: step for s, step in first if rows.row(s.wait.workload) is s.before})


def _queues(waits: Iterable[Wait]) -> Iterator[list[Wait]]:
    for _project, queue in groupby(waits, lambda wait: wait.workload.partition("/")[0]):
        yield list(queue)

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

from runai.hub_service.clusters.states import user_actions
from runai.hub_service.clusters.states.state import Store, Transition
from runai.hub_service.clusters.workloads.snapshot_builder import wants_devices
from runai.hub_service.clusters.workloads.workload_index import PendingStatus, WorkloadIndexer
from runai.hub_service.model.cluster import Told
from runai.hub_service.model.records import HistoryEvent
from runai.hub_service.scheduler.model.snapshot import Wait

LOOKED_AT, AT_A_TIME = 4000, 200
"""Waits between which others have their turn, while looking and while drawing: a millisecond."""
WRITTEN_DOWN = 50
"""At once: five milliseconds. Nobody waits for the disk: what is lost is told by the next cycle."""
FIRST_OF_ONE = 500
"""Of one person's who wait for the first time, with each plan."""


async def tell(
    waits: Sequence[Wait],
    rows: WorkloadIndexer,
    store: Store,
    *,
    clock: Callable[[], float],
    told: Told,
    announce: Callable[[], None],
    later: Callable[[], None],
    overtaken: Callable[[], bool],
) -> None:
    """Bring the rows to what these waits say, which came in the order of the queues.

    Short queues come first, and `told` hears of those who are new as soon as they know what is
    said of them: they wait for it. `announce` wakes those who look; `later` asks for another plan,
    if some are still to be told for the first time. Who was deleted while it was decided is told
    nothing.
    Once it is `overtaken` the rest is left to the next plan: somebody waits for that.
    """
    telling = _Telling(rows, store, clock, told)
    for _ in telling.parts(waits):
        await asyncio.sleep(0)
        if overtaken():
            break
    if telling.news:
        announce()
    if telling.leaves_some:
        later()


class _Telling:
    """What one plan tells."""

    def __init__(
        self,
        rows: WorkloadIndexer,
        store: Store,
        clock: Callable[[], float],
        hear: Told,
    ) -> None:
        self._rows, self._store, self._clock = rows, store, clock
        self._hear = hear
        self._firsts = Counter[str]()
        """Who is told for the first time, by person."""
        self.news = False

    @property
    def leaves_some(self) -> bool:
        """Tell whether somebody has more than are told at once."""
        return any(many > FIRST_OF_ONE for many in self._firsts.values())

    def parts(self, waits: Sequence[Wait]) -> Iterator[None]:
        """Tell, and yield between parts."""
        unsaid: list[Wait] = []
        for begin in range(0, len(waits), LOOKED_AT):
            if begin:
                yield
            unsaid += self._rows.unsaid(waits[begin : begin + LOOKED_AT])
        first: list[tuple[PendingStatus, Transition]] = []
        drawn = 0
        for queue in sorted(_queues(unsaid), key=len):
            moved: list[PendingStatus] = []
            new: list[tuple[PendingStatus, Transition]] = []
            for wait in queue:
                if drawn == AT_A_TIME:
                    self._write_down(first)
                    first, drawn = [], 0
                    yield
                drawn += 1
                told = self._told(wait)
                if told is None:
                    continue
                said, step = told
                if step.passing:
                    moved.append(said)
                else:
                    new.append(told)
            # Who is there makes room before anybody new stands behind them.
            self._rows.say_all(moved)
            self.news |= bool(moved)
            first += new
            while len(first) >= WRITTEN_DOWN:
                self._write_down(first[:WRITTEN_DOWN])
                del first[:WRITTEN_DOWN]
                drawn = 0
                yield
        self._write_down(first)

    def _told(self, wait: Wait) -> tuple[PendingStatus, Transition] | None:
        """Draw what somebody is told, if it is anything new."""
        row = self._rows.row(wait.workload)
        if row is None:
            return None
        if user_actions.says(row.record, wait):
            self._rows.said[wait.workload] = wait
            return None
        if not wants_devices(row):  # who was suspended while it was decided waits for nothing
            return None
        if row.record.position is None:
            self._firsts[row.spec.user] += 1
            if self._firsts[row.spec.user] > FIRST_OF_ONE:
                return None
        step = user_actions.waiting(row, wait)
        assert step.row is not None
        return PendingStatus(wait, row, step.row), step

    def _write_down(self, first: Sequence[tuple[PendingStatus, Transition]]) -> None:
        """Keep, then show, what those are told who have not changed meanwhile."""
        rows, now = self._rows, self._clock()
        told = [(said, step) for said, step in first if rows.row(said.wait.workload) is said.before]
        lines = [(s.row.id, HistoryEvent(now, *line)) for s, step in told for line in step.events]
        if told:
            self._store.save([said.row for said, _ in told], events=lines, soon=True)
            rows.say_all(said for said, _ in told)
            self.news = True
            self._hear({said.row.id for said, _ in told})


def _queues(waits: Iterable[Wait]) -> Iterator[list[Wait]]:
    for _project, queue in groupby(waits, lambda wait: wait.workload.partition("/")[0]):
        yield list(queue)

"""Positions and reasons of waiting workloads, stored in parts between other tasks.

One start changes the positions of thousands of workloads. A workload's first wait is saved; of one
user's array only a part with each plan, or other submissions would wait for the last of it. Later
waits are not saved: their rows are built aside and shown queue by queue, so that no reader ever
sees two workloads in the same position. A row that changes meanwhile gets its wait from the next
plan.
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
"""Waits compared, and rows built, between yields to the event loop: 1 ms each."""
WRITTEN_DOWN = 50
"""Rows per write (5 ms). No write is awaited: the next cycle repeats lost ones."""
FIRST_OF_ONE = 500
"""First waits of one user's workloads per plan."""


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
    """Store these waits, which are in the order of the queues, in the rows.

    Short queues come first. `told` gets the names of workloads with a first wait as soon as their
    record shows it, since their submitters wait for that. `announce` wakes the watchers; `later`
    requests another plan if first waits are left. A workload that was deleted during the cycle is
    skipped. Once `overtaken` returns True the rest is left to the next plan, which is urgent.
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
    """The waits of one plan."""

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
        """First waits, by user."""
        self.news = False

    @property
    def leaves_some(self) -> bool:
        """Return True if a user has more first waits than one plan stores."""
        return any(many > FIRST_OF_ONE for many in self._firsts.values())

    def parts(self, waits: Sequence[Wait]) -> Iterator[None]:
        """Store the waits, and yield between parts."""
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
            # Known workloads move up before new ones are shown behind them.
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
        """Build a workload's row with its wait; None if unchanged or left for later."""
        row = self._rows.row(wait.workload)
        if row is None:
            return None
        if user_actions.says(row.record, wait):
            self._rows.said[wait.workload] = wait
            return None
        if not wants_devices(row):  # suspended during the cycle: no longer queued
            return None
        if row.record.position is None:
            self._firsts[row.spec.user] += 1
            if self._firsts[row.spec.user] > FIRST_OF_ONE:
                return None
        step = user_actions.waiting(row, wait)
        assert step.row is not None
        return PendingStatus(wait, row, step.row), step

    def _write_down(self, first: Sequence[tuple[PendingStatus, Transition]]) -> None:
        """Save first waits, then show them; skip the rows that have changed meanwhile."""
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

"""How the scheduler's forecast is shown: when each waiting workload starts, kept for who looks.

A forecast plays many cycles: it is made in a thread while somebody looks, one at a time, which
leaves the interpreter to others most of the time, and the next one rests 25 times as long as it
took. It is told as of the last cycle, and forgotten where nobody has looked for long. Nothing in
it names a workload. Owned by `platform`.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from threading import Event

from runai.hub_service.controller.loop import Cycle
from runai.hub_service.processes.giving_way import RESTS
from runai.hub_service.scheduler.cycle import forecast
from runai.hub_service.scheduler.explanations.forecast import retold
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.wire.schemas import ExpectedStartView

_REST = 25
"""Times as long as it took: else the slowest hundredth of everybody's calls would be those beside a
forecast about tens of thousands."""
PIECE_S = 0.004
"""Sleeping has its price, too."""
_OLD_S = 60
"""Of what was foreseen before that, and need not be any more, nobody knows what is still so."""


class Forecasts:
    """When waiting workloads start, as of the last cycle that was played forward."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet; `clock` is asked how long a forecast took."""
        self._clock = clock
        self._cycle: Cycle | None = None
        self._starts = _AsOf({}, 0)
        self._again_at = 0.0
        self._work: asyncio.Task[None] | None = None

    def of(self, cycle: Cycle) -> Mapping[str, ExpectedStart]:
        """Return what is known; where that is of another cycle, begin to find out anew."""
        working, now = self._work is not None and not self._work.done(), cycle.snapshot.now
        if cycle is not self._cycle and not working and self._clock() >= self._again_at:
            if self._cycle is not None and now - self._cycle.snapshot.now > _OLD_S:
                self._starts = _AsOf({}, now)
            self._work = asyncio.ensure_future(self._find(cycle))
        if self._starts.now != now:
            self._starts = _AsOf(self._starts.starts, now)
        return self._starts

    async def _find(self, cycle: Cycle) -> None:
        # Beside somebody's question about the scheduler, which need not wait for it: most of the
        # time it sleeps.
        began, over = self._clock(), Event()
        try:
            starts = await asyncio.to_thread(_foreseen, cycle, over)
        finally:
            over.set()  # a service that ends waits for its threads
        self._starts = _AsOf(starts, cycle.snapshot.now)
        self._cycle, ended = cycle, self._clock()
        self._again_at = ended + _REST * (ended - began)


class _OverError(Exception):
    """Nobody waits for it any more."""


def _foreseen(cycle: Cycle, over: Event) -> dict[str, ExpectedStart]:
    """Look ahead in a thread, leaving the interpreter to others for longer than each piece took.

    A thread that computes has half of it, and where everybody else needs more than the other half
    they waited for seconds.

    Raises:
        _OverError: it is `over` before that.
    """
    began = time.thread_time()

    def rest() -> None:
        nonlocal began
        took = time.thread_time() - began
        if took >= PIECE_S:
            if over.wait(RESTS * took):
                raise _OverError
            began = time.thread_time()

    return forecast(cycle.snapshot, cycle.plan, rest=rest)


class _AsOf(Mapping[str, ExpectedStart]):
    """What was foreseen, said as of a later time; of thousands only those that are looked at."""

    def __init__(self, starts: Mapping[str, ExpectedStart], now: int) -> None:
        self.starts, self.now = starts, now
        self._told: dict[str, ExpectedStart] = {}

    def __getitem__(self, workload: str) -> ExpectedStart:
        told = self._told.get(workload)
        if told is None:
            told = self._told[workload] = retold(self.starts[workload], self.now)
        return told

    def __iter__(self) -> Iterator[str]:
        return iter(self.starts)

    def __len__(self) -> int:
        return len(self.starts)


def start_view(start: ExpectedStart) -> ExpectedStartView:
    """Show one."""
    return ExpectedStartView(
        at=_maybe_time(start.at),
        earliest=_maybe_time(start.earliest),
        latest=_maybe_time(start.latest),
        is_estimated=start.is_estimated,
        text=start.text,
    )


def _maybe_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

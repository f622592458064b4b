"""Expected starts of waiting workloads, forecast in a thread while callers read them.

A forecast simulates many cycles. One runs at a time; it sleeps most of the time to release the
interpreter's lock, and the next one starts after 25 times its duration. Expected starts are
adjusted to the last cycle, and dropped after a minute without readers. They name no workload.
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
"""Pause after a forecast, as a multiple of its duration.

Calls beside a forecast of tens of thousands of workloads are slower: with shorter pauses they were
the slowest hundredth of all calls.
"""
PIECE_S = 0.004
"""CPU seconds between pauses: sleeping has its overhead, too."""
_OLD_S = 60
"""Age in seconds at which an unread forecast is dropped as possibly wrong."""


class Forecasts:
    """Cache of expected starts, as of the last forecast cycle."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without a forecast; `clock` measures the duration of each."""
        self._clock = clock
        self._cycle: Cycle | None = None
        self._starts = _AdjustedStarts({}, 0)
        self._again_at = 0.0
        self._work: asyncio.Task[None] | None = None

    def of(self, cycle: Cycle) -> Mapping[str, ExpectedStart]:
        """Return the known expected starts; start a new forecast if they are of another cycle."""
        working, now = self._work is not None and not self._work.done(), cycle.snapshot.now
        if cycle is not self._cycle and not working and self._clock() >= self._again_at:
            if self._cycle is not None and now - self._cycle.snapshot.now > _OLD_S:
                self._starts = _AdjustedStarts({}, now)
            self._work = asyncio.ensure_future(self._forecast(cycle))
        if self._starts.now != now:
            self._starts = _AdjustedStarts(self._starts.starts, now)
        return self._starts

    async def _forecast(self, cycle: Cycle) -> None:
        # Runs beside questions to the scheduler, which need not wait: it sleeps most of the time.
        began, over = self._clock(), Event()
        try:
            starts = await asyncio.to_thread(_foreseen, cycle, over)
        finally:
            over.set()  # at shutdown the event loop waits for its threads
        self._starts = _AdjustedStarts(starts, cycle.snapshot.now)
        self._cycle, ended = cycle, self._clock()
        self._again_at = ended + _REST * (ended - began)


class _OverError(Exception):
    """The service no longer waits for this forecast."""


def _foreseen(cycle: Cycle, over: Event) -> dict[str, ExpectedStart]:
    """Forecast in a thread, sleeping longer after each piece than it took.

    A busy thread holds the interpreter's lock half of the time; calls that needed more than the
    other half waited for seconds.

    Raises:
        _OverError: `over` was set first.
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


class _AdjustedStarts(Mapping[str, ExpectedStart]):
    """Expected starts adjusted to a later time, lazily: of thousands few are read."""

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
    """Convert an expected start to the wire schema."""
    return ExpectedStartView(
        at=_maybe_time(start.at),
        earliest=_maybe_time(start.earliest),
        latest=_maybe_time(start.latest),
        is_estimated=start.is_estimated,
        text=start.text,
    )


def _maybe_time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)

"""Expected starts of waiting workloads, forecast in the background while callers read them.

A forecast simulates many cycles. One runs at a time, and the next one starts after a multiple of
its duration. Expected starts are adjusted to the last cycle, and dropped after a minute without
readers. They name no workload.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from runai.hub_service.controller.controller import Cycle
from runai.hub_service.controller.decision_messages import Foreseen
from runai.hub_service.scheduler.explanations.forecast import refreshed
from runai.hub_service.scheduler.model.explanation import ExpectedStart
from runai.hub_service.wire.errors import Unavailable
from runai.hub_service.wire.schemas import ExpectedStartView

PAUSE_FACTOR = 5
"""Pause after a forecast, as a multiple of its duration: it takes a core of the machine."""
_OLD_S = 60
"""Age in seconds at which an unread forecast is dropped as possibly wrong."""

ForecastCall = Callable[[], Awaitable[Foreseen]]


class StartForecasts:
    """Cache of expected starts, as of the last forecast."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without a forecast; `clock` measures the duration of each."""
        self._clock = clock
        self._cycle: Cycle | None = None
        """Cycle at the start of the last forecast."""
        self._starts = _AdjustedStarts({}, 0)
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def of(self, cycle: Cycle, forecast: ForecastCall) -> Mapping[str, ExpectedStart]:
        """Return the known starts; begin a `forecast` if they are of another cycle than this."""
        is_running, now = self._task is not None and not self._task.done(), cycle.snapshot.now
        if cycle is not self._cycle and not is_running and self._clock() >= self._next_at:
            if self._cycle is not None and now - self._cycle.snapshot.now > _OLD_S:
                self._starts = _AdjustedStarts({}, now)
            self._task = asyncio.ensure_future(self._forecast(cycle, forecast))
        if self._starts.now != now:
            self._starts = _AdjustedStarts(self._starts.starts, now)
        return self._starts

    async def _forecast(self, cycle: Cycle, forecast: ForecastCall) -> None:
        """Forecast the starts after a cycle, and set the earliest time of the next forecast."""
        began = self._clock()
        with suppress(Unavailable):  # a person's forecast came first, or the worker is new
            foreseen = await forecast()
            self._starts, self._cycle = _AdjustedStarts(foreseen.starts, foreseen.now), cycle
        ended = self._clock()
        self._next_at = ended + PAUSE_FACTOR * (ended - began)


class _AdjustedStarts(Mapping[str, ExpectedStart]):
    """Expected starts adjusted to a later time, lazily: of thousands few are read."""

    def __init__(self, starts: Mapping[str, ExpectedStart], now: int) -> None:
        self.starts, self.now = starts, now
        self._adjusted: dict[str, ExpectedStart] = {}

    def __getitem__(self, workload: str) -> ExpectedStart:
        adjusted = self._adjusted.get(workload)
        if adjusted is None:
            adjusted = self._adjusted[workload] = refreshed(self.starts[workload], self.now)
        return adjusted

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

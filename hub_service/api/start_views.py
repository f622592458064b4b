"""How the scheduler's forecast is shown: when each waiting workload starts, kept for who looks.

A forecast plays many cycles: it is made in a thread while somebody looks, one at a time, and
rests thirty times as long as it took. Nothing in it names a workload. Owned by `platform`.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from runai.hub_service.api.start_schemas import ExpectedStartView
from runai.hub_service.controller import Cycle
from runai.hub_service.scheduler.cycle import forecast
from runai.hub_service.scheduler.explanation import ExpectedStart

__all__ = ["Forecasts", "start_view"]

_REST = 30


class Forecasts:
    """When waiting workloads start, as of the last cycle that was played forward."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet; `clock` is asked how long a forecast took."""
        self._clock = clock
        self._cycle: Cycle | None = None
        self._starts: Mapping[str, ExpectedStart] = {}
        self._again_at = 0.0
        self._work: asyncio.Task[None] | None = None

    def of(self, cycle: Cycle, turn: asyncio.Semaphore) -> Mapping[str, ExpectedStart]:
        """Return what is known; where that is of another cycle, begin to find out anew.

        `turn` is taken while the scheduler is asked.
        """
        working = self._work is not None and not self._work.done()
        if cycle is not self._cycle and not working and self._clock() >= self._again_at:
            self._work = asyncio.ensure_future(self._find(cycle, turn))
        return self._starts

    async def _find(self, cycle: Cycle, turn: asyncio.Semaphore) -> None:
        async with turn:
            began = self._clock()
            self._starts = await asyncio.to_thread(forecast, cycle.snapshot, cycle.plan)
            ended = self._clock()
        self._cycle = cycle
        self._again_at = ended + _REST * (ended - began)


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

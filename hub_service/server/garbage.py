"""Schedule of Python's garbage collector, without long pauses while requests wait.

A full collection over the objects of tens of thousands of workloads stops the process for one to
two seconds and frees almost nothing: reference counts free the objects of cycles and calls. So
the service collects new objects once, soon, and freezes the survivors. It collects everything only
if memory doubled and the process is quiet, or if memory grew eightfold and by thousands of
workloads. It freezes the objects of the start at once.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

YOUNG_S = 0.1
"""Interval between collections of new objects.

A collection takes 1 ms per thousand objects and blocks all requests: a longer interval makes the
slowest replies slower. Each one frees almost all garbage, since reference cycles are rare here.
"""
UNSEEN = 5_000
"""Net allocations after which Python itself collects new objects, as in a burst of submissions.

Each deallocation counts as one less, also of an old object, so that the new objects can be many
more: up to 60,000 without the collections of `Aside`.
"""
NEVER = 1_000_000
"""Collections of new objects between two of Python's own of older generations."""
YOUNG_LOOKS = 100
"""Collections of new objects between two checks for a full collection."""
GROWN = 2.0
"""Growth since the last full collection that justifies one. Half of it may be dead cycles."""
LATEST = 8.0
"""Growth that forces a full collection under load too, if it also exceeds `MUCH`."""
QUIET = 0.2
"""CPU use (cores) since the last check below which few or no requests wait."""
LITTLE = 500_000
"""Memory blocks, about 50 MiB: less growth justifies no full collection."""
MUCH = 6_000_000
"""Memory blocks of 30,000 workloads: less growth justifies no pause of requests."""


def collect_seldom() -> None:
    """Turn off Python's own collections of old objects; `Aside` schedules them."""
    gc.set_threshold(UNSEEN, NEVER, NEVER)


class Aside:
    """Scheduler of collections and freezes (`gc.freeze`)."""

    def __init__(
        self,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        times: Callable[[], tuple[float, float]] = lambda: (time.monotonic(), time.process_time()),
    ) -> None:
        """Measure memory by `blocks`, which is cheap; `times` are wall-clock and CPU time."""
        self._blocks, self._times = blocks, times
        self._quiet_threshold = self._hard_threshold = 0
        self._last_times = times()

    async def run(self, begun: Awaitable[object]) -> NoReturn:
        """Collect and freeze periodically, once `begun` has completed; never return.

        By then the stored state is in memory; measured earlier, it would count as growth.
        """
        await begun
        while True:
            self.look()
            for _ in range(YOUNG_LOOKS):
                await asyncio.sleep(YOUNG_S)
                self.look_at_what_is_new()

    def look_at_what_is_new(self) -> None:
        """Collect new objects and freeze the survivors."""
        gc.collect(0)
        gc.freeze()

    def look(self) -> bool:
        """Collect garbage: new objects, or all if memory grew; return True if all.

        The first call collects nothing: the objects from start-up stay in use and are frozen.
        """
        quiet, there = self._is_quiet(), self._blocks()
        if not self._quiet_threshold:
            self._set_thresholds(there)
            gc.freeze()
            return False
        everything = there > self._hard_threshold or (quiet and there > self._quiet_threshold)
        if everything:
            gc.unfreeze()
            gc.collect()
            self._set_thresholds(self._blocks())
        self.look_at_what_is_new()
        return everything

    def _set_thresholds(self, there: int) -> None:
        self._quiet_threshold = int(GROWN * there) + LITTLE
        self._hard_threshold = max(int(LATEST * there), there + MUCH)

    def _is_quiet(self) -> bool:
        (began, spent), self._last_times = self._last_times, self._times()
        now, spent_now = self._last_times
        return spent_now - spent < QUIET * (now - began)

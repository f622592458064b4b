"""Python's collector of circles, kept from looking at everything while somebody waits.

A look at all that tens of thousands of workloads are made of stops everything for a second or two,
and finds next to nothing: what a cycle or a call makes goes by itself. So what has lived for a
while is put aside, where no look goes, until there is twice as much and little to do, or eight
times as much, and thousands of workloads more; what was read at the start at once. Used by the
roots.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

__all__ = ["Aside", "collect_seldom"]

YOUNG = 5_000, 3
"""Objects, then looks at the new ones, between two looks at what is a little older.

A look takes 1 to 2 ms for each thousand, for which everybody waits: seldomer looks at more make the
slowest answers slower. They find nearly all, since next to nothing that dies here is a circle.
"""
NEVER = 1_000_000
"""Looks at all between which Python itself would make one."""
EVERY_S = 10.0
GROWN = 2.0
"""Times what there was after the last look at all: half of what is kept may be dead circles."""
LATEST = 8.0
"""So much more is looked at whatever there is to do, if it is `MUCH`."""
QUIET = 0.2
"""Of a processor, since the last look: nobody, or hardly anybody, waits then."""
LITTLE = 500_000
"""Blocks of memory, some 50 MiB: less growth is not worth a look at all."""
MUCH = 6_000_000
"""Blocks of 30,000 workloads: less growth is not worth that anybody waits."""


def collect_seldom() -> None:
    """Leave looks at everything to `Aside`."""
    gc.set_threshold(*YOUNG, NEVER)


class Aside:
    """What no look goes to, and when to take it back."""

    def __init__(
        self,
        blocks: Callable[[], int] = sys.getallocatedblocks,
        times: Callable[[], tuple[float, float]] = lambda: (time.monotonic(), time.process_time()),
    ) -> None:
        """Measure what there is by `blocks`, which is cheap; `times` are the world's and ours."""
        self._blocks, self._times = blocks, times
        self._enough = self._latest = 0
        self._looked = times()

    async def run(self, begun: Awaitable[object]) -> NoReturn:
        """Put aside what has lived for a while, now and then, from when it has `begun`; for ever.

        By then everything that is stored is read: measured before, it would pass for growth.
        """
        await begun
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> bool:
        """Look at what is new, or at all if there is much more than there was; tell which.

        The first look is at what is new: what was read lives.
        """
        quiet, there = self._is_quiet(), self._blocks()
        if not self._enough:
            self._measure(there)
        everything = there > self._latest or (quiet and there > self._enough)
        if everything:
            gc.unfreeze()
            gc.collect()
            self._measure(self._blocks())
        else:
            gc.collect(1)
        gc.freeze()
        return everything

    def _measure(self, there: int) -> None:
        self._enough = int(GROWN * there) + LITTLE
        self._latest = max(int(LATEST * there), there + MUCH)

    def _is_quiet(self) -> bool:
        (began, spent), self._looked = self._looked, self._times()
        now, spent_now = self._looked
        return spent_now - spent < QUIET * (now - began)

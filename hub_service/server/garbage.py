"""Python's collector of circles, kept from looking at everything while somebody waits.

A look at all that tens of thousands of workloads are made of stops everything for a second or two,
and finds next to nothing: what a cycle or a call makes goes by itself. So what is new is looked at
once, soon, and then put aside, where no look goes, until there is twice as much and little to do,
or eight times as much, and thousands of workloads more; what was read at the start at once. Used
by the roots.
"""

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NoReturn

YOUNG_S = 0.1
"""Between two looks at what is new.

A look takes 1 ms for each thousand objects, for which everybody waits: seldomer looks at more make
the slowest answers slower. They find nearly all, since next to nothing that dies here is a circle.
"""
UNSEEN = 5_000
"""Objects more than there were at the last look, after which Python itself looks at what is new:
while thousands of jobs are made in one go. One that goes counts as one less, however old it is, so
the new may be many more by then: while nobody else looked, they were up to 60,000.
"""
NEVER = 1_000_000
"""Looks at what is new between which Python itself would make one at more."""
YOUNG_LOOKS = 100
"""Between two times when it is asked whether to look at everything."""
GROWN = 2.0
"""Times what there was after the last look at all: half of what is kept may be dead circles."""
LATEST = 8.0
"""So much more is looked at whatever there is to do, if it is `MUCH`."""
QUIET = 0.2
"""Of a processor, since it was asked last: nobody, or hardly anybody, waits then."""
LITTLE = 500_000
"""Blocks of memory, some 50 MiB: less growth is not worth a look at all."""
MUCH = 6_000_000
"""Blocks of 30,000 workloads: less growth is not worth that anybody waits."""


def collect_seldom() -> None:
    """Leave looks at what is old to `Aside`."""
    gc.set_threshold(UNSEEN, NEVER, NEVER)


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
        """Put aside what lives, again and again, from when it has `begun`; for ever.

        By then everything that is stored is read: measured before, it would pass for growth.
        """
        await begun
        while True:
            self.look()
            for _ in range(YOUNG_LOOKS):
                await asyncio.sleep(YOUNG_S)
                self.look_at_what_is_new()

    def look_at_what_is_new(self) -> None:
        """Put aside what is new and lives."""
        gc.collect(0)
        gc.freeze()

    def look(self) -> bool:
        """Look at what is new, or at all if there is much more than there was; tell which.

        The first time nothing is looked at: what was read lives.
        """
        quiet, there = self._is_quiet(), self._blocks()
        if not self._enough:
            self._measure(there)
            gc.freeze()
            return False
        everything = there > self._latest or (quiet and there > self._enough)
        if everything:
            gc.unfreeze()
            gc.collect()
            self._measure(self._blocks())
        self.look_at_what_is_new()
        return everything

    def _measure(self, there: int) -> None:
        self._enough = int(GROWN * there) + LITTLE
        self._latest = max(int(LATEST * there), there + MUCH)

    def _is_quiet(self) -> bool:
        (began, spent), self._looked = self._looked, self._times()
        now, spent_now = self._looked
        return spent_now - spent < QUIET * (now - began)

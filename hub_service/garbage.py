"""Python's collector of circles, kept from looking at everything while somebody waits.

A look at all that tens of thousands of workloads are made of stops everything for a second or two,
and finds next to nothing: what a cycle or a call makes goes by itself. So what has lived for a
while is put aside, where no look goes, until there is twice as much. Used by the roots.
"""

import asyncio
import gc
import sys
from collections.abc import Callable
from typing import NoReturn

__all__ = ["Aside", "collect_seldom"]

YOUNG = 20_000, 2
"""Objects, then looks at the new ones, between two looks at what is a little older.

A look takes 1 to 2 ms for each thousand, for which everybody waits.
"""
NEVER = 1_000_000
"""Looks at all between which Python itself would make one."""
EVERY_S = 10.0
GROWN = 2.0
"""Times what there was after the last look at all: half of what is kept may be dead circles."""
LITTLE = 500_000
"""Blocks of memory, some 50 MiB: less growth is not worth a look at all."""


def collect_seldom() -> None:
    """Leave looks at everything to `Aside`."""
    gc.set_threshold(*YOUNG, NEVER)


class Aside:
    """What no look goes to, and when to take it back."""

    def __init__(self, blocks: Callable[[], int] = sys.getallocatedblocks) -> None:
        """Measure what there is by `blocks`, which is cheap."""
        self._blocks = blocks
        self._enough = 0

    async def run(self) -> NoReturn:
        """Put aside what has lived for a while, now and then; for ever."""
        while True:
            self.look()
            await asyncio.sleep(EVERY_S)

    def look(self) -> bool:
        """Look at what is new, or at all if there is much more than there was; tell which."""
        everything = self._blocks() > self._enough
        if everything:
            gc.unfreeze()
            gc.collect()
            self._enough = int(GROWN * self._blocks()) + LITTLE
        else:
            gc.collect(1)
        gc.freeze()
        return everything

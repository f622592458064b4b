"""Take turns at drawing pages and panels, so that calls are answered meanwhile.

Drawing three hundred open pages takes longer than the second between two drawings of one page. With
turns each page is drawn less often, and drawing has a third of the event loop's time. Kept by
`platform`, used by `feeds` and `page_stream`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

RESTS = 2.0
"""After each drawing the event loop is left to calls for this many times its duration."""


class Drawing:
    """A queue of drawings: first come, first served."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start with an empty queue."""
        self._turn = asyncio.Lock()
        self._clock, self._sleep = clock, sleep

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn, let the caller draw in the block, then leave time to calls."""
        async with self._turn:
            began = self._clock()
            yield
            await self._sleep(RESTS * (self._clock() - began))

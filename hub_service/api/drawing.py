"""Draw what many look at one after the other, so that calls are answered meanwhile.

Three hundred open pages take longer to draw than the second after which each may be drawn anew.
Then they are drawn less often: drawing has a third of the time. Kept by `platform`, used by `feeds`
and `page_stream`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

RESTS = 2.0
"""Times as long as something took to draw nothing else is drawn after it."""


class Drawing:
    """Whose turn it is to draw: whoever came first."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin with nobody's."""
        self._turn = asyncio.Lock()
        self._clock, self._sleep = clock, sleep

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn, draw in the block, then leave time to others."""
        async with self._turn:
            began = self._clock()
            yield
            await self._sleep(RESTS * (self._clock() - began))

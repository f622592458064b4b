"""Drawing in turns, so that many who look on leave time for those who ask for something.

Who draws for a stream takes a turn; after each, nobody draws for four times as long as that took.
Knows nothing of what is drawn. Kept by `platform`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

__all__ = ["Turns"]

RESTS = 4.0
"""Drawing has a fifth of the service's time at most; sending what was drawn takes half as much."""


class Turns:
    """One draws at a time, and rests after it."""

    def __init__(self) -> None:
        """Nobody draws yet."""
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Draw within this block; it does not wait for anything but its own work."""
        clock = asyncio.get_running_loop().time
        async with self._one_at_a_time:
            began = clock()
            try:
                yield
            finally:
                await asyncio.sleep(RESTS * (clock() - began))

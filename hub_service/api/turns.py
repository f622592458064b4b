"""Drawing in turns, so that many who look on leave time for those who ask for something.

Who draws for a stream takes a turn; after each step of it, nobody draws until the service has had
nothing to do for four times as long as that took: a call that came meanwhile is through by then.
Knows nothing of what is drawn. Kept by `platform`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

RESTS = 4.0
"""Drawing has a fifth at most of the time that nobody else needs; sending what was drawn takes
half as much."""
LONGEST = 20.0
"""But a twentieth of all time, however much there is to do."""

Times = Callable[[], tuple[float, float]]


class Turns:
    """One draws at a time, and rests after it."""

    def __init__(
        self,
        times: Times = lambda: (time.monotonic(), time.process_time()),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Nobody draws yet; `times` are the world's and what of it this process has worked."""
        self._one_at_a_time = asyncio.Lock()
        self._times = times
        self._sleep = sleep

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[Callable[[float], Awaitable[None]]]:
        """Draw within this block, which is given the rest after a step of so many seconds.

        It does not wait for anything but that and its own work; after what is left it rests, too.
        """
        async with self._one_at_a_time:
            began, rested = self._times()[0], 0.0

            async def rest(took: float) -> None:
                nonlocal rested
                ended = self._times()[0]
                await self._rest(took)
                rested += took + self._times()[0] - ended

            try:
                yield rest
            finally:
                await self._rest(self._times()[0] - began - rested)

    async def _rest(self, took: float) -> None:
        """Return when there was little to do for some time, or at last."""
        ended, worked = self._times()
        idle = passed = 0.0
        while (lacks := RESTS * took - idle) > 0 and passed < LONGEST * took:
            await self._sleep(min(max(lacks, took), LONGEST * took - passed))
            now, works = self._times()
            passed = now - ended
            idle = passed - (works - worked)

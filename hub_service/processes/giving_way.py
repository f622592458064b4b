"""Pauses between the parts of long work on the event loop.

The loop runs other tasks after each part anyway. But a request takes about ten turns of the loop,
and each of them would wait for a part. So the work sleeps longer than a part takes if other tasks
are busy, and most of a request passes meanwhile. Short work does not sleep.
"""

import asyncio
from collections.abc import Awaitable, Callable

SHORT_S = 0.05
"""Total duration up to which work counts as short, like a request."""
RESTS = 3.0
"""Pause as a multiple of the part: beside busy tasks the work gets a quarter of the time."""
LONGEST_S = 0.05
"""Longest pause: a part may have been delayed itself."""
SOMETHING_S = 0.0005
"""Duration of a turn of the loop from which on other tasks count as busy."""


class Way:
    """One piece of long work, done in parts."""

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Start the first part, by a clock in seconds; None: the loop's own."""
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        self._began = self._clock()
        self._worked = self._passed = 0.0

    @property
    def passed(self) -> float:
        """Return the seconds of its parts and of other tasks' turns, without pauses.

        A multiple of it is a good interval to the next run: longer where other tasks do much.
        """
        return self._passed + self._clock() - self._began

    async def give(self) -> None:
        """Let other tasks run; the next part begins on return."""
        ended = self._clock()
        took = ended - self._began
        self._worked += took
        await self._sleep(0)
        others = self._clock() - ended
        self._passed += took + others
        if self._worked > SHORT_S and others > SOMETHING_S:
            await self._sleep(min(LONGEST_S, RESTS * took))
        self._began = self._clock()

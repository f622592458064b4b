"""Give way between the parts of something long: of one person's, or that nobody waits for.

Others have their turn after each part anyway. But a call is ten of those, and beside work that is
ready again at once each of them waits for a part: where others have anything to do, it rests for
longer than a part takes, and most of a call goes by meanwhile. What is short after all does not.
"""

import asyncio
from collections.abc import Awaitable, Callable

SHORT_S = 0.05
"""What takes no longer altogether is no longer than many a call."""
RESTS = 3.0
"""Times as long as the part took: beside others it has a quarter of the time."""
LONGEST_S = 0.05
"""A part that was held up itself is no reason to rest for long."""
SOMETHING_S = 0.0005
"""A turn of the loop in which nobody else has done anything is far shorter."""


class Way:
    """What is done in parts, from now on."""

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin the first part, by a clock in seconds; None: the loop's own."""
        self._clock = clock or asyncio.get_running_loop().time
        self._sleep = sleep
        self._began = self._clock()
        self._worked = self._passed = 0.0

    @property
    def passed(self) -> float:
        """Return how many seconds it has been at it: its parts and others' turns, no rests.

        Whoever is to begin again after a multiple of that begins seldomer where others do much.
        """
        return self._passed + self._clock() - self._began

    async def give(self) -> None:
        """Let others go first; the next part begins on return."""
        ended = self._clock()
        took = ended - self._began
        self._worked += took
        await self._sleep(0)
        others = self._clock() - ended
        self._passed += took + others
        if self._worked > SHORT_S and others > SOMETHING_S:
            await self._sleep(min(LONGEST_S, RESTS * took))
        self._began = self._clock()

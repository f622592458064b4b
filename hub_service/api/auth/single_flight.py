"""Single flight with a cache: one call per key for all concurrent callers.

A thousand streams of two hundred users check their callers within the same second; the hub gets one
request for each user. Beyond `at_once` calls, callers queue on a semaphore here, which costs
nothing: a connection pool iterates over all waiters at each response.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from runai.hub_service.wire.errors import Unavailable

T = TypeVar("T")

MOST_KEPT = 10_000


class SingleFlight(Generic[T]):
    """Cache of recent answers and table of open calls, by key."""

    def __init__(
        self,
        *,
        at_once: int,
        keep_s: float,
        clock: Callable[[], float],
        within_s: float | None = None,
    ) -> None:
        """Run at most `at_once` calls, and cache each answer for `keep_s` since its call began.

        A call that has not finished `within_s`, its wait included, raises Unavailable.
        """
        self._turn = asyncio.Semaphore(at_once)
        self._keep_s = keep_s
        self._clock = clock
        self._within_s = within_s
        self._kept: dict[str, tuple[float, T]] = {}
        self._open: dict[str, asyncio.Task[T]] = {}

    async def get(self, about: str, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, or raise the call's error, which is not cached.

        A cancelled caller does not cancel the call for the other callers.
        """
        known = self.cached(about)
        if known is not None:
            return known
        task = self._open.get(about)
        if task is None:
            task = self._open[about] = asyncio.create_task(self._call(about, question))
            task.add_done_callback(lambda done: self._close(about, done))
        return await asyncio.shield(task)

    def cached(self, about: str) -> T | None:
        """Return the cached answer, or None if there is none."""
        kept = self._kept.get(about)
        return None if kept is None or self._clock() - kept[0] >= self._keep_s else kept[1]

    async def close(self) -> None:
        """Cancel all open calls."""
        for task in (tasks := list(self._open.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, about: str, question: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(self._within_s), self._turn:
                began = self._clock()
                answer = await question()
        except TimeoutError:
            raise Unavailable(
                "The service waits too long for an answer.",
                hint="Try again in a few seconds; if that lasts, an admin looks at its log.",
                retry_after=2.0,
            ) from None
        if len(self._kept) >= MOST_KEPT:
            self._kept = {k: v for k, v in self._kept.items() if began - v[0] < self._keep_s}
        if len(self._kept) < MOST_KEPT:
            self._kept[about] = began, answer
        return answer

    def _close(self, about: str, task: asyncio.Task[T]) -> None:
        del self._open[about]
        if not task.cancelled():
            task.exception()  # mark it retrieved: all callers may be cancelled

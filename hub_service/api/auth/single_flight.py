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

MAX_CACHED = 10_000


class SingleFlight(Generic[T]):
    """Cache of recent answers and table of open calls, by key."""

    def __init__(
        self,
        *,
        at_once: int,
        ttl_s: float,
        clock: Callable[[], float],
        within_s: float | None = None,
    ) -> None:
        """Run at most `at_once` calls, and cache each answer for `ttl_s` since its call began.

        A call that has not finished `within_s`, its wait included, raises Unavailable.
        """
        self._semaphore = asyncio.Semaphore(at_once)
        self._ttl_s = ttl_s
        self._clock = clock
        self._within_s = within_s
        self._cache: dict[str, tuple[float, T]] = {}
        self._open: dict[str, asyncio.Task[T]] = {}

    async def get(self, key: str, fetch: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, or raise the call's error, which is not cached.

        A cancelled caller does not cancel the call for the other callers.
        """
        answer = self.cached(key)
        if answer is not None:
            return answer
        task = self._open.get(key)
        if task is None:
            task = self._open[key] = asyncio.create_task(self._call(key, fetch))
            task.add_done_callback(lambda done: self._remove_task(key, done))
        return await asyncio.shield(task)

    def cached(self, key: str) -> T | None:
        """Return the cached answer, or None if there is none."""
        entry = self._cache.get(key)
        return None if entry is None or self._clock() - entry[0] >= self._ttl_s else entry[1]

    async def close(self) -> None:
        """Cancel all open calls."""
        for task in (tasks := list(self._open.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _call(self, key: str, fetch: Callable[[], Awaitable[T]]) -> T:
        """Fetch an answer, and cache it while there is room."""
        try:
            async with asyncio.timeout(self._within_s), self._semaphore:
                began = self._clock()
                answer = await fetch()
        except TimeoutError:
            raise Unavailable(
                "The service waits too long for an answer.",
                hint="Try again in a few seconds; if that lasts, an admin looks at its log.",
                retry_after=2.0,
            ) from None
        if len(self._cache) >= MAX_CACHED:
            self._cache = {k: v for k, v in self._cache.items() if began - v[0] < self._ttl_s}
        if len(self._cache) < MAX_CACHED:
            self._cache[key] = began, answer
        return answer

    def _remove_task(self, key: str, task: asyncio.Task[T]) -> None:
        del self._open[key]
        if not task.cancelled():
            task.exception()  # mark it retrieved: all callers may be cancelled

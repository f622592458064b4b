"""Answers that are believed for a while, and one question for all who ask the same meanwhile.

A thousand streams of two hundred people look again who reads them within the same second: the hub
is asked once for each. Beyond a few questions the others wait here, where waiting costs nothing: a
connection pool looks at everybody who waits whenever one is answered. Used by `hub_auth`, and by
`platform` for what jobs report of themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from runai.hub_service.wire.errors import Unavailable

T = TypeVar("T")

MOST_KEPT = 10_000


class AskedOnce(Generic[T]):
    """What was answered lately, and the questions under way, by what they are about."""

    def __init__(
        self,
        *,
        at_once: int,
        keep_s: float,
        clock: Callable[[], float],
        within_s: float | None = None,
    ) -> None:
        """Ask so many at once, and believe each answer for so long since it was asked for.

        A question whose turn and answer have not come `within_s` is Unavailable.
        """
        self._turn = asyncio.Semaphore(at_once)
        self._keep_s = keep_s
        self._clock = clock
        self._within_s = within_s
        self._kept: dict[str, tuple[float, T]] = {}
        self._open: dict[str, asyncio.Task[T]] = {}

    async def ask(self, about: str, question: Callable[[], Awaitable[T]]) -> T:
        """Return the answer, or raise what the question raised, which is not kept.

        Who is cancelled meanwhile takes the answer from nobody else.
        """
        known = self.known(about)
        if known is not None:
            return known
        task = self._open.get(about)
        if task is None:
            task = self._open[about] = asyncio.create_task(self._asked(about, question))
            task.add_done_callback(lambda done: self._close(about, done))
        return await asyncio.shield(task)

    def known(self, about: str) -> T | None:
        """Return what was answered lately; None: nothing was."""
        kept = self._kept.get(about)
        return None if kept is None or self._clock() - kept[0] >= self._keep_s else kept[1]

    async def close(self) -> None:
        """Give up what is being asked."""
        for task in (tasks := list(self._open.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _asked(self, about: str, question: Callable[[], Awaitable[T]]) -> T:
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
            task.exception()  # perhaps nobody is left who waits for it

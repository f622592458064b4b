"""A few places for what is costly to do, of which nobody has all.

Knows nothing of what is done at them. Kept by `fair_use`, left by `submitting` while it waits.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary


class Places:
    """How many calls of a kind are worked on at once; the others have not begun, or wait.

    Nobody has all of them: who floods would else be before everybody who comes later.
    """

    def __init__(self, many: int, each: int) -> None:
        """Offer so many places, to each person only `each`."""
        self._free = asyncio.Semaphore(many)
        self._each = each
        self._of = WeakKeyDictionary[object, asyncio.Semaphore]()

    @asynccontextmanager
    async def taken(self, by: object) -> AsyncGenerator[None]:
        """Hold a place within this block, but while `away`."""
        own = self._of.setdefault(by, asyncio.Semaphore(self._each))
        place = _Place(own, self._free)
        token = _place.set(place)
        try:
            await place.take()
            yield
        finally:
            _place.reset(token)
            place.give()


class _Place:
    """A call's own."""

    def __init__(self, *free: asyncio.Semaphore) -> None:
        self._free = free
        self._held: list[asyncio.Semaphore] = []

    async def take(self) -> None:
        for free in self._free:
            await free.acquire()
            self._held.append(free)

    def give(self) -> None:
        while self._held:
            self._held.pop().release()


_place: ContextVar[_Place | None] = ContextVar("place", default=None)


@asynccontextmanager
async def away() -> AsyncGenerator[None]:
    """Give one's place to others within this block, in which one only waits."""
    place = _place.get()
    if place is None:
        yield
        return
    place.give()
    try:
        yield
    finally:
        await place.take()

"""Overviews for streams, drawn once for all streams of the same person.

Somebody's notebooks, pages and terminals show the same: one drawing and one text serve them all,
as long as anybody reads. Knows actors and text; what is in it is `views`'. Kept by `platform`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.views.cluster_view import World
from runai.hub_service.api.views.overview_views import overview_view
from runai.hub_service.api.views.workload_views import Viewer
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.wire.schemas import Overview

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


AT_MOST_EVERY_S = 1.0
LOOK_EVERY_S = 2.0
"""Utilization changes without any event; so does what no cycle is needed for."""


class _Feed:
    """What one person is shown, and how many look."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.readers = 0
        self.text = b""
        """The last event; "" before the first."""
        self.news = b""
        self.told = Broadcast()
        self.drawing: asyncio.Task[None] | None = None

    def ended(self, _drawing: object) -> None:
        """Let those who read learn of what ended the drawing as they do of news."""
        self.told.announce()


class Feeds:
    """The overviews of everybody who looks on."""

    def __init__(
        self, world: Callable[[], Awaitable[World]], changes: Broadcast, drawing: Drawing
    ) -> None:
        """Draw what `world` gives after `changes`."""
        self._drawing = drawing
        self._world = world
        self._changes = changes
        self._feeds: dict[Actor, _Feed] = {}
        self.drawn = 0
        """How many overviews were drawn, ever."""

    async def follow(self, actor: Callable[[], Actor]) -> AsyncIterator[bytes]:
        """Yield an overview at once and whenever it differs, as events.

        `actor` says who reads now: what they may see can change while they read.
        """
        seen = b""
        while True:
            who = replace(actor(), xsrf="")
            feed = self._feeds.setdefault(who, _Feed(who))
            feed.readers += 1
            try:
                if feed.drawing is None or feed.drawing.done():
                    feed.drawing = asyncio.ensure_future(self._keep_drawing(feed))
                    feed.drawing.add_done_callback(feed.ended)
                while replace(actor(), xsrf="") == who:
                    version = feed.told.version
                    if feed.text not in {b"", seen}:
                        seen = feed.text
                        yield seen
                        continue  # it may have been drawn anew while this was sent
                    with suppress(TimeoutError):
                        async with asyncio.timeout(LOOK_EVERY_S):
                            await feed.told.after(version)
                    if feed.drawing.done():
                        feed.drawing.result()
            finally:
                feed.readers -= 1
                if not feed.readers:
                    self._end(feed)

    def _end(self, feed: _Feed) -> None:
        if feed.drawing is not None:
            feed.drawing.cancel()
        if self._feeds.get(feed.actor) is feed:
            del self._feeds[feed.actor]

    async def _keep_drawing(self, feed: _Feed) -> None:
        while True:
            version = self._changes.version
            async with self._drawing.turn():
                self._tell(feed, overview_view(Viewer(await self._world(), feed.actor)))
            await asyncio.sleep(AT_MOST_EVERY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S - AT_MOST_EVERY_S):
                    await self._changes.after(version)

    def _tell(self, feed: _Feed, shown: Overview) -> None:
        self.drawn += 1
        # The time alone is no news.
        news = shown.model_dump_json(exclude={"at"}).encode()
        if news != feed.news:
            feed.news = news
            at = shown.model_dump_json(include={"at"}).encode()
            feed.text = b"event: overview\ndata: " + at[:-1] + b"," + news[1:] + b"\n\n"
            feed.told.announce()

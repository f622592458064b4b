"""Overview events, rendered once for all streams of the same user.

A user's notebooks, pages and terminals show the same, so one rendered text serves all of them as
long as at least one stream is open.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from runai.hub_service.api.auth.permissions import Actor
from runai.hub_service.api.views.cluster_view import ReadModel
from runai.hub_service.api.views.overview_views import overview_view
from runai.hub_service.api.views.workload_views import Viewer
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.wire.schemas import Overview

RESTS = 2.0
"""Pause after each rendering, as a multiple of its duration: time for other requests."""


class RenderTurns:
    """FIFO queue of renderings."""

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
        """Wait in the queue, run the block, then pause to leave time to other requests."""
        async with self._turn:
            began = self._clock()
            yield
            await self._sleep(RESTS * (self._clock() - began))


AT_MOST_EVERY_S = 1.0
LOOK_EVERY_S = 2.0
"""Seconds between refreshes without an event: utilization, and changes that need no cycle."""


class _Feed:
    """Overview of one user, and the number of its readers."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.readers = 0
        self.text = b""
        """The last event; "" before the first."""
        self.news = b""
        self.told = Broadcast()
        self.drawing: asyncio.Task[None] | None = None

    def ended(self, _drawing: object) -> None:
        """Wake the readers when the rendering task ends: its error reaches them like an update."""
        self.told.announce()


class Feeds:
    """Overviews of all users with an open stream."""

    def __init__(
        self, world: Callable[[], Awaitable[ReadModel]], changes: Broadcast, drawing: RenderTurns
    ) -> None:
        """Render the read model of `world` after `changes`."""
        self._drawing = drawing
        self._world = world
        self._changes = changes
        self._feeds: dict[Actor, _Feed] = {}
        self.drawn = 0
        """Number of overviews rendered since the start."""

    async def follow(self, actor: Callable[[], Actor]) -> AsyncIterator[bytes]:
        """Yield an overview at once and after every change, as server-sent events.

        `actor` returns the current reader: its permissions can change while it reads.
        """
        seen = b""
        while True:
            who = replace(actor(), xsrf="")
            feed = self._feeds.setdefault(who, _Feed(who))
            feed.readers += 1
            try:
                if feed.drawing is None or feed.drawing.done():
                    feed.drawing = asyncio.ensure_future(self._render_loop(feed))
                    feed.drawing.add_done_callback(feed.ended)
                while replace(actor(), xsrf="") == who:
                    version = feed.told.version
                    if feed.text not in {b"", seen}:
                        seen = feed.text
                        yield seen
                        continue  # a newer one may exist since this was sent
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

    async def _render_loop(self, feed: _Feed) -> None:
        while True:
            version = self._changes.version
            async with self._drawing.turn():
                self._publish(feed, overview_view(Viewer(await self._world(), feed.actor)))
            await asyncio.sleep(AT_MOST_EVERY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S - AT_MOST_EVERY_S):
                    await self._changes.after(version)

    def _publish(self, feed: _Feed, shown: Overview) -> None:
        self.drawn += 1
        # A new timestamp alone is no update.
        news = shown.model_dump_json(exclude={"at"}).encode()
        if news != feed.news:
            feed.news = news
            at = shown.model_dump_json(include={"at"}).encode()
            feed.text = b"event: overview\ndata: " + at[:-1] + b"," + news[1:] + b"\n\n"
            feed.told.announce()

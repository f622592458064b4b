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
from runai.hub_service.api.views.overview_views import overview_view
from runai.hub_service.api.views.read_model import ReadModel
from runai.hub_service.api.views.viewer import Viewer
from runai.hub_service.model.changes import Broadcast
from runai.hub_service.wire.schemas import Overview

PAUSE_FACTOR = 2.0
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
            await self._sleep(PAUSE_FACTOR * (self._clock() - began))


AT_MOST_EVERY_S = 1.0
REFRESH_EVERY_S = 2.0
"""Seconds between refreshes without an event: utilization, and changes that need no cycle."""


class _Feed:
    """Overview of one user, and the number of its readers."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.readers = 0
        self.text = b""
        """The last event; "" before the first."""
        self.content = b""
        """The last overview without its time."""
        self.updates = Broadcast()
        self.render_task: asyncio.Task[None] | None = None

    def wake_readers(self, _task: object) -> None:
        """Wake the readers when the rendering task ends: its error reaches them like an update."""
        self.updates.announce()


class OverviewFeeds:
    """Overviews of all users with an open stream."""

    def __init__(
        self,
        read_model: Callable[[], Awaitable[ReadModel]],
        changes: Broadcast,
        render_turns: RenderTurns,
    ) -> None:
        """Render the result of `read_model` after `changes`."""
        self._render_turns = render_turns
        self._read_model = read_model
        self._changes = changes
        self._feeds: dict[Actor, _Feed] = {}
        self.render_count = 0
        """Number of overviews rendered since the start."""

    async def follow(self, actor: Callable[[], Actor]) -> AsyncIterator[bytes]:
        """Yield an overview at once and after every change, as server-sent events.

        `actor` returns the current reader: its permissions can change while it reads.
        """
        last_text = b""
        while True:
            current_actor = replace(actor(), xsrf="")
            feed = self._feeds.setdefault(current_actor, _Feed(current_actor))
            feed.readers += 1
            try:
                if feed.render_task is None or feed.render_task.done():
                    feed.render_task = asyncio.ensure_future(self._render_loop(feed))
                    feed.render_task.add_done_callback(feed.wake_readers)
                while replace(actor(), xsrf="") == current_actor:
                    version = feed.updates.version
                    if feed.text not in {b"", last_text}:
                        last_text = feed.text
                        yield last_text
                        continue  # a newer one may exist since this was sent
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REFRESH_EVERY_S):
                            await feed.updates.newer_than(version)
                    if feed.render_task.done():
                        feed.render_task.result()
            finally:
                feed.readers -= 1
                if not feed.readers:
                    self._remove(feed)

    def _remove(self, feed: _Feed) -> None:
        if feed.render_task is not None:
            feed.render_task.cancel()
        if self._feeds.get(feed.actor) is feed:
            del self._feeds[feed.actor]

    async def _render_loop(self, feed: _Feed) -> None:
        """Render after each change, at most once a second, and without one every two seconds."""
        while True:
            version = self._changes.version
            async with self._render_turns.turn():
                self._publish_if_changed(
                    feed, overview_view(Viewer(await self._read_model(), feed.actor))
                )
            await asyncio.sleep(AT_MOST_EVERY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(REFRESH_EVERY_S - AT_MOST_EVERY_S):
                    await self._changes.newer_than(version)

    def _publish_if_changed(self, feed: _Feed, overview: Overview) -> None:
        """Make an overview the feed's text, and wake its readers, unless only its time is new."""
        self.render_count += 1
        content = overview.model_dump_json(exclude={"at"}).encode()
        if content != feed.content:
            feed.content = content
            at = overview.model_dump_json(include={"at"}).encode()
            feed.text = b"event: overview\ndata: " + at[:-1] + b"," + content[1:] + b"\n\n"
            feed.updates.announce()

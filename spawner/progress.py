"""What a start says while it goes on, to as many browsers as look.

Each listener hears everything from the beginning; a sentence that did not change is said once.
Knows nothing of what is started. Filled by the spawner, read by JupyterHub's progress page.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

# JupyterHub's bar wants a number, a queue has none: it creeps, and arrives only with the server.
FIRST, STEP, LAST = 10, 5, 80


class Progress:
    """The sentences of one start, in order."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._news = asyncio.Event()
        self.is_over = False

    def say(self, sentence: str) -> None:
        """Add a sentence, unless it is what was said last."""
        if not self._said or self._said[-1] != sentence:
            self._said.append(sentence)
            self._wake()

    def close(self) -> None:
        """Say nothing any more; listeners leave."""
        self.is_over = True
        self._wake()

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield progress events, those of the past first, until it is over."""
        heard = 0
        while True:
            news = self._news
            while heard < len(self._said):
                yield {
                    "progress": min(FIRST + STEP * heard, LAST),
                    "message": self._said[heard],
                }
                heard += 1
            if self.is_over:
                return
            await news.wait()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()


async def merged(*sources: AsyncIterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of all as they come, until all have ended; the bar never goes back."""
    events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    async def pass_on(source: AsyncIterator[dict[str, Any]]) -> None:
        try:
            async for event in source:
                events.put_nowait(event)
        finally:
            events.put_nowait(None)

    tasks = [asyncio.ensure_future(pass_on(source)) for source in sources]
    left, reached = len(tasks), 0
    try:
        while left:
            event = await events.get()
            if event is None:
                left -= 1
                continue
            if "progress" in event:
                reached = max(reached, event["progress"])
                event = {**event, "progress": reached}
            yield event
        await asyncio.gather(*tasks)  # what failed in a source fails here
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
